//! Classes and fair shares of one concurrency limit.
//!
//! [`model`] explores all orders of events of a few requests. The simulations here have many
//! customers with lasting demand.

mod model;

use std::collections::{BTreeMap, BinaryHeap, HashMap};

use sluicegate_kernel::concurrency::limiter::{
    Limiter, LimiterConfig, LimiterEffect, LimiterEvent, QueueConfig,
};
use sluicegate_kernel::concurrency::{ClassParts, Permit, QueueTicket, RequestOutcome, Requester};
use sluicegate_kernel::units::Nanos;

use crate::dice::{Dice, seed};

fn fair(limit: u32, size: u32, timeout: Nanos) -> LimiterConfig {
    let queue = Some(QueueConfig { size, timeout });
    LimiterConfig { queue, fair_keys: Some(10_000), ..LimiterConfig::fixed(limit) }
}

const fn millis(number: u64) -> Nanos {
    Nanos(number * Nanos::MILLI.0)
}

/// What happened to the requests of one customer.
#[derive(Clone, Debug, Default)]
struct Tally {
    asked: u64,
    denied: u64,
    waits: Vec<Nanos>,
    in_flight: u32,
}

/// Requests with durations, in front of a limiter.
struct Upstream {
    limiter: Limiter,
    now: Nanos,
    dice: Dice,
    /// The instants at which permits end, the latest first.
    ends: BinaryHeap<std::cmp::Reverse<(Nanos, Permit)>>,
    customers: HashMap<Permit, u64>,
    waiting: HashMap<QueueTicket, (u64, Nanos)>,
    tallies: BTreeMap<u64, Tally>,
    /// The sum of slots in use, over time, in permit·ns.
    used: u128,
    duration: fn(&mut Dice) -> Nanos,
}

impl Upstream {
    fn new(config: &LimiterConfig, dice: Dice, duration: fn(&mut Dice) -> Nanos) -> Self {
        Self {
            limiter: Limiter::new(config, 0),
            now: Nanos::from_secs(1_000),
            dice,
            ends: BinaryHeap::new(),
            customers: HashMap::new(),
            waiting: HashMap::new(),
            tallies: BTreeMap::new(),
            used: 0,
            duration,
        }
    }

    fn arrive(&mut self, customer: u64, weight: u32) {
        let by = Requester { class: 0, customer, weight };
        self.tallies.entry(customer).or_default().asked += 1;
        let event = LimiterEvent::Acquire { lifetime: None, timeout: Nanos::from_secs(9), by };
        for effect in self.limiter.step(self.now, event) {
            match effect {
                LimiterEffect::Queue(ticket) => {
                    self.waiting.insert(ticket, (customer, self.now));
                }
                LimiterEffect::Admit(permit) => self.begin(permit, customer, Nanos(0)),
                LimiterEffect::Deny(_) => self.tally(customer).denied += 1,
                other => self.apply(other),
            }
        }
    }

    fn apply(&mut self, effect: LimiterEffect) {
        match effect {
            LimiterEffect::Wake(ticket, permit) => {
                let (customer, since) = self.waiting.remove(&ticket).unwrap();
                self.begin(permit, customer, self.now.since(since));
            }
            LimiterEffect::Displaced(ticket) | LimiterEffect::TimedOut(ticket) => {
                let (customer, _) = self.waiting.remove(&ticket).unwrap();
                self.tally(customer).denied += 1;
            }
            other => panic!("{other:?}"),
        }
    }

    fn begin(&mut self, permit: Permit, customer: u64, wait: Nanos) {
        let end = self.now.plus((self.duration)(&mut self.dice));
        self.ends.push(std::cmp::Reverse((end, permit)));
        self.customers.insert(permit, customer);
        let tally = self.tally(customer);
        tally.waits.push(wait);
        tally.in_flight += 1;
    }

    fn waiting_of(&self, customer: u64) -> u64 {
        self.waiting.values().filter(|(its, _)| *its == customer).count() as u64
    }

    fn tally(&mut self, customer: u64) -> &mut Tally {
        self.tallies.get_mut(&customer).unwrap()
    }

    /// Ends all permits that end before `until`, and moves the clock.
    fn advance(&mut self, until: Nanos) {
        while let Some(std::cmp::Reverse((end, permit))) = self.ends.peek().copied()
            && end <= until
        {
            self.ends.pop();
            self.pass(end);
            let customer = self.customers.remove(&permit).unwrap();
            self.tally(customer).in_flight -= 1;
            let outcome = RequestOutcome::Success;
            let event = LimiterEvent::Release { permit, outcome, rtt: None };
            for effect in self.limiter.step(self.now, event) {
                self.apply(effect);
            }
        }
        self.pass(until);
    }

    fn pass(&mut self, until: Nanos) {
        let in_flight = u128::from(self.limiter.in_flight());
        self.used += in_flight * u128::from(until.since(self.now).0);
        self.now = until;
    }
}

fn between(dice: &mut Dice, least: u64, most: u64) -> Nanos {
    Nanos(Nanos::MILLI.0 * least + dice.up_to(Nanos::MILLI.0 * (most - least)))
}

/// Returns the p99 of waits.
fn p99(waits: &mut [Nanos]) -> Nanos {
    waits.sort_unstable();
    waits[(waits.len() - 1) * 99 / 100]
}

/// Fifty customers use half of the limit together. With a hog, one more asks for a hundred times its
/// part. Returns the denied share of the fifty in 1/100,000, the p99 of wait plus duration, and the
/// share of slots in use in per mille.
fn fifty_customers(has_hog: bool, config: &LimiterConfig, seed: u64) -> (u64, Nanos, u64) {
    const LIMIT: u64 = 100;
    let mut upstream = Upstream::new(config, Dice::new(seed), |dice| between(dice, 80, 120));
    let mut dice = Dice::new(seed ^ 1);
    let began = upstream.now;
    // One request of 100 ms per millisecond fills the limit. The hog's part is half of it.
    for tick in 0..20_000 {
        if tick % 2 == 0 {
            upstream.arrive(1 + dice.up_to(49), 1);
        }
        if has_hog {
            (0..50).for_each(|_| upstream.arrive(99, 1));
        }
        upstream.advance(began.plus(millis(tick + 1)));
    }
    let hog = upstream.tallies.remove(&99);
    assert_eq!(hog.is_some_and(|hog| hog.denied != 0), has_hog);
    let others = upstream.tallies.values();
    let (asked, denied) =
        others.fold((0, 0), |(asked, denied), tally| (asked + tally.asked, denied + tally.denied));
    let mut waits: Vec<Nanos> =
        upstream.tallies.values().flat_map(|tally| tally.waits.iter().copied()).collect();
    let whole = u128::from(LIMIT * upstream.now.since(began).0);
    let used = u64::try_from(upstream.used * 1_000 / whole).unwrap();
    (denied * 100_000 / asked, p99(&mut waits).plus(millis(100)), used)
}

#[test]
fn a_hog_takes_no_part_of_others() {
    let seed = seed();
    let config = fair(100, 200, millis(500));
    let (_, alone, _) = fifty_customers(false, &config, seed);
    let (denied, beside, used) = fifty_customers(true, &config, seed);
    println!("fair: denied {denied}/100,000, p99 {beside} against {alone} alone, {used} ‰ in use");
    assert!(denied <= 100, "SLUICEGATE_SEED={seed}: {denied} of 100,000 were denied");
    assert!(beside.0 * 10 <= alone.0 * 12, "SLUICEGATE_SEED={seed}: {beside} against {alone}");
    assert!(990 <= used, "SLUICEGATE_SEED={seed}: {used} of 1,000 slots were in use");
    let fifo = LimiterConfig { fair_keys: None, ..config };
    let (denied, beside, used) = fifty_customers(true, &fifo, seed);
    println!("first in, first out: denied {denied}/100,000, p99 {beside}, {used} ‰ in use");
    assert!(20_000 < denied, "the test needs a hog that matters: {denied}");
}

/// Customers that always have waiting requests. The law of weighted max-min: none has so much for its
/// weight that another one would be nearer to it with one permit of it.
#[test]
fn lasting_demand_is_divided_by_weighted_max_min() {
    let seed = seed();
    let mut dice = Dice::new(seed);
    for _ in 0..30 {
        let limit = u32::try_from(5 + dice.up_to(60)).unwrap();
        let weights: Vec<u32> =
            (0..2 + dice.up_to(8)).map(|_| 1 + u32::try_from(dice.up_to(4)).unwrap()).collect();
        let config = fair(limit, 10_000, Nanos::from_secs(1_000));
        let mut upstream =
            Upstream::new(&config, Dice::new(dice.roll()), |dice| between(dice, 50, 150));
        let began = upstream.now;
        for tick in 0..1_000 {
            for (customer, weight) in (1..).zip(&weights) {
                while upstream.waiting_of(customer) < u64::from(limit) {
                    upstream.arrive(customer, *weight);
                }
            }
            // The permits of the first customer that asked have ended after one permit lifetime.
            if 150 < tick {
                assert_max_min(&upstream, &weights, limit, seed);
            }
            upstream.advance(began.plus(millis(tick + 1)));
        }
    }
}

fn assert_max_min(upstream: &Upstream, weights: &[u32], limit: u32, seed: u64) {
    let in_flight = |customer: u64| upstream.tallies[&customer].in_flight;
    for (customer, weight) in (1..).zip(weights) {
        for (other, its_weight) in (1..).zip(weights) {
            let (own, its) = (in_flight(customer), in_flight(other));
            assert!(
                its.saturating_sub(1) * weight <= (own + 1) * its_weight,
                "SLUICEGATE_SEED={seed}: {customer} ({weight}) waits with {own} of {limit}, {other} \
                 ({its_weight}) has {its}"
            );
        }
    }
}

#[test]
fn a_limit_of_one_gives_turns() {
    let mut upstream =
        Upstream::new(&fair(1, 100, Nanos::from_secs(9)), Dice::new(0), |_| millis(10));
    (0..20).for_each(|_| upstream.arrive(1, 1));
    (2..5).for_each(|customer| upstream.arrive(customer, 1));
    upstream.advance(upstream.now.plus(millis(45)));
    let admitted = |customer| upstream.tallies[&customer].waits.len();
    assert_eq!([1, 2, 3, 4].map(admitted), [2, 1, 1, 1]);
}

/// The law of few customers: if there are no more of them than permits, each gets one.
#[test]
fn a_light_customer_is_not_starved_by_a_heavy_one() {
    let config = fair(10, 1_000, Nanos::from_secs(9));
    let mut upstream = Upstream::new(&config, Dice::new(0), |_| millis(10));
    (0..200).for_each(|_| upstream.arrive(1, 1_000));
    upstream.arrive(2, 1);
    upstream.advance(upstream.now.plus(millis(15)));
    assert_eq!(upstream.tallies[&2].in_flight, 1);
    assert_eq!(upstream.tallies[&1].in_flight, 9);
}

#[test]
fn customers_above_the_most_count_as_one() {
    // Customer 1 has both permits when the others arrive. Alone, each other one would be served first.
    for (fair_keys, in_flight) in [(9, [0, 1, 1, 0]), (1, [1, 1, 0, 0])] {
        let config =
            LimiterConfig { fair_keys: Some(fair_keys), ..fair(2, 10, Nanos::from_secs(9)) };
        let mut upstream = Upstream::new(&config, Dice::new(0), |_| millis(10));
        (0..5).for_each(|_| upstream.arrive(1, 1));
        (2..5).for_each(|customer| upstream.arrive(customer, 1));
        upstream.advance(upstream.now.plus(millis(15)));
        let now = [1, 2, 3, 4].map(|customer| upstream.tallies[&customer].in_flight);
        assert_eq!(now, in_flight, "{fair_keys}");
    }
}

#[test]
fn parts_round_down_and_keep_one() {
    let parts = ClassParts::new(&[100, 80, 50]).unwrap();
    assert_eq!([0, 1, 2, 9].map(|class| parts.part(10, class)), [10, 8, 5, 5]);
    assert_eq!([0, 1, 2].map(|class| parts.part(1, class)), [1, 1, 1]);
    assert_eq!(parts.part(0, 0), 0);
    assert_eq!([0, 2, 3, 200].map(|class| parts.clamp(class)), [0, 2, 2, 2]);
    for wrong in [&[][..], &[0], &[101], &[50, 80], &[100; 9]] {
        assert_eq!(ClassParts::new(wrong), None, "{wrong:?}");
    }
}
