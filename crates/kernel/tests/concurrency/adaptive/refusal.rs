//! The `gradient` algorithm with a backend that refuses requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sluicegate_kernel::concurrency::RequestOutcome;
use sluicegate_kernel::concurrency::adaptive::{AdaptiveAlgorithm, AdaptiveLimit, LatencySample};
use sluicegate_kernel::units::Nanos;

use super::{NO_FLEET, adaptive_limit, ms, queueing};
use crate::dice::{Dice, seed};

fn dropped(ended_at: Nanos, in_flight: u32) -> LatencySample {
    LatencySample { ended_at, rtt: ms(5), in_flight, outcome: RequestOutcome::Dropped }
}

fn limit_after(start: u32, samples: &[LatencySample], share: u32) -> u32 {
    let mut policy = adaptive_limit(AdaptiveAlgorithm::Gradient, start);
    for sample in samples {
        policy.record(sample, share);
    }
    policy.limit()
}

#[test]
fn a_refusal_lowers_the_limit_below_the_served_requests() {
    let refused_at = |in_flight| [dropped(ms(100), in_flight)];
    // The usual change is unknown: 10 %, of which 45 % are 4.5 % of the served requests.
    assert_eq!(limit_after(60, &refused_at(41), NO_FLEET), 38, "40 served, less 1.8");
    assert_eq!(limit_after(20, &refused_at(11), NO_FLEET), 10, "10 served, less 0.45");
    assert_eq!(limit_after(60, &refused_at(90), NO_FLEET), 57, "60 allowed, less 2.7");
    assert_eq!(limit_after(60, &refused_at(21), 30), 39, "21 of 30 are 42 of 60: 41, less 1.8");
}

#[test]
fn a_refusal_at_low_load_keeps_the_limit() {
    for (in_flight, limit) in [(1, 60), (29, 60), (30, 28)] {
        assert_eq!(limit_after(60, &[dropped(ms(100), in_flight)], NO_FLEET), limit);
    }
    assert_eq!(limit_after(60, &[dropped(ms(100), 14)], 30), 60, "14 of 30 are 28 of 60");
}

#[test]
fn requests_admitted_before_the_fall_do_not_lower_it_again() {
    let [first, before, after] = [100, 103, 106].map(|at| dropped(ms(at), 41));
    assert_eq!(limit_after(60, &[first, before], NO_FLEET), 38);
    // The level is now 38, a change of 5 % after the assumed 10 %: usually (7 · 10 + 5) / 8 = 9.4 %.
    // The fall of 4.2 % doubles to 8.4 %, from 38.
    assert_eq!(limit_after(60, &[first, before, after], NO_FLEET), 34);
}

/// A provider that serves up to `capacity` requests, of about a second, and refuses others after
/// `refusal`. It is used to the limit, one arrival a millisecond.
struct Provider {
    policy: AdaptiveLimit,
    dice: Dice,
    capacity: u32,
    refusal: Nanos,
    now: Nanos,
    sent: BinaryHeap<Reverse<(Nanos, Nanos, u32, bool)>>,
    served: u32,
    answered: u32,
    refused: u32,
}

impl Provider {
    fn new(capacity: u32, refusal: Nanos, dice: Dice) -> Self {
        let policy = adaptive_limit(AdaptiveAlgorithm::Gradient, 10);
        let (now, sent) = (Nanos::from_secs(1_000), BinaryHeap::new());
        Self { policy, dice, capacity, refusal, now, sent, served: 0, answered: 0, refused: 0 }
    }

    fn run_for(&mut self, seconds: u64) {
        (self.answered, self.refused) = (0, 0);
        self.run_until(seconds, |_| false);
    }

    /// Runs until `is_reached`, or for `seconds`. Returns the time that it took.
    fn run_until(&mut self, seconds: u64, is_reached: impl Fn(u32) -> bool) -> Nanos {
        let start = self.now;
        while self.now < start.plus(Nanos::from_secs(seconds)) && !is_reached(self.policy.limit()) {
            self.now = self.now.plus(Nanos::MILLI);
            while self.sent.peek().is_some_and(|Reverse((end, ..))| *end <= self.now) {
                self.end_next();
            }
            self.arrive();
        }
        self.now.since(start)
    }

    fn arrive(&mut self) {
        let in_flight = u32::try_from(self.sent.len()).unwrap() + 1;
        if self.policy.limit() < in_flight {
            return;
        }
        let is_served = self.served < self.capacity;
        let service = ms(900 + self.dice.up_to(200));
        let lasts = if is_served { service } else { self.refusal };
        self.served += u32::from(is_served);
        self.sent.push(Reverse((self.now.plus(lasts), self.now, in_flight, is_served)));
    }

    fn end_next(&mut self) {
        let Some(Reverse((end, start, in_flight, is_served))) = self.sent.pop() else { return };
        self.served -= u32::from(is_served);
        self.answered += u32::from(is_served);
        self.refused += u32::from(!is_served);
        let outcome = if is_served { RequestOutcome::Success } else { RequestOutcome::Dropped };
        let sample = LatencySample { ended_at: end, rtt: end.since(start), in_flight, outcome };
        self.policy.record(&sample, NO_FLEET);
        let limit = self.policy.limit();
        assert!((1..=1_000).contains(&limit), "{limit}");
    }
}

#[test]
fn a_steady_capacity_is_used_with_few_refusals() {
    let seed = seed();
    for capacity in [10, 20, 50, 200] {
        let mut provider = Provider::new(capacity, ms(5), Dice::new(seed));
        provider.run_for(60);
        provider.run_for(600);
        let (answered, refused) = (f64::from(provider.answered), f64::from(provider.refused));
        let part = refused / (answered + refused);
        assert!(part <= 0.032, "seed {seed}, capacity {capacity}: {part} refused");
        // Requests take a second on average.
        let used = answered / 600.0 / f64::from(capacity);
        assert!(0.95 <= used, "seed {seed}, capacity {capacity}: {used} used");
    }
}

#[test]
fn total_outage_lowers_the_limit_within_a_few_refusals() {
    for refusal in [ms(5), ms(1_000)] {
        let mut policy = adaptive_limit(AdaptiveAlgorithm::Gradient, 1_000);
        let (mut now, mut falls) = (Nanos::from_secs(1_000), 0);
        while 1 < policy.limit() {
            let in_flight = policy.limit();
            now = now.plus(refusal);
            for _ in 0..in_flight {
                let sample = LatencySample { rtt: refusal, ..dropped(now, in_flight) };
                policy.record(&sample, NO_FLEET);
            }
            falls += 1;
            // Four falls to one half, and then one for each halving: log2(1,000) is 10.
            assert!(falls <= 14, "{} after {falls} round trips", policy.limit());
        }
    }
}

#[test]
fn the_limit_returns_within_thirty_round_trips_after_an_outage() {
    let seed = seed();
    for (refusal, seconds) in [(ms(5), 3), (ms(1_000), 15)] {
        let mut provider = Provider::new(400, refusal, Dice::new(seed));
        provider.run_for(60);
        provider.capacity = 0;
        let fell = provider.run_until(60, |limit| limit <= 1);
        assert!(fell <= Nanos::from_secs(seconds), "seed {seed}: fell after {fell:?}");
        provider.run_for(60);
        assert!(provider.policy.limit() <= 1, "seed {seed}: {}", provider.policy.limit());
        provider.capacity = 400;
        let returned = provider.run_until(60, |limit| 300 <= limit);
        assert!(returned <= Nanos::from_secs(30), "seed {seed}: {returned:?}");
    }
}

/// A limit that was refused at 41 in flight after requests of 40 ms, and records one request after
/// the other.
struct Refused {
    policy: AdaptiveLimit,
    now: Nanos,
}

impl Refused {
    fn new() -> Self {
        let policy = adaptive_limit(AdaptiveAlgorithm::Gradient, 40);
        let mut new = Self { policy, now: Nanos::from_secs(1_000) };
        for _ in 0..400 {
            new.succeed(40, ms(40));
        }
        new.policy.record(&dropped(new.now, 41), NO_FLEET);
        new
    }

    fn succeed(&mut self, in_flight: u32, rtt: Nanos) -> u32 {
        self.now = self.now.plus(ms(10));
        let outcome = RequestOutcome::Success;
        let sample = LatencySample { ended_at: self.now, rtt, in_flight, outcome };
        self.policy.record(&sample, NO_FLEET);
        self.policy.limit()
    }
}

#[test]
fn refusals_at_the_same_level_keep_all_served_requests() {
    let mut refused = Refused::new();
    for _ in 0..20 {
        while refused.policy.limit() < 41 {
            refused.succeed(refused.policy.limit(), ms(40));
        }
        refused.policy.record(&dropped(refused.now.plus(ms(5)), 41), NO_FLEET);
    }
    // After 20 equal levels, the usual change is 0.7 % at most: less than half of a request.
    assert_eq!(refused.policy.limit(), 40);
}

#[test]
fn the_limit_stays_for_forty_successes_after_a_refusal() {
    let mut refused = Refused::new();
    let limit = refused.policy.limit();
    for success in 0..40 {
        assert_eq!(refused.succeed(limit, ms(40)), limit, "after {success} successes");
    }
    let mut last = limit;
    for _ in 0..200 {
        let next = refused.succeed(last, ms(40));
        assert!(next <= last + 1, "from {last} to {next}");
        last = next;
    }
    assert!(limit + 3 < last, "{limit} grows to {last} only");
}

#[test]
fn an_unused_limit_does_not_grow_after_a_refusal() {
    let mut refused = Refused::new();
    let limit = (0..60).fold(0, |_, _| refused.succeed(38, ms(40)));
    for _ in 0..400 {
        let next = refused.succeed(limit / 2, ms(40));
        assert!(next <= limit, "from {limit} to {next}");
    }
}

#[test]
fn a_queue_prevents_growth_after_a_refusal() {
    let mut refused = Refused::new();
    let limit = refused.policy.limit();
    for _ in 0..400 {
        // The backend serves 27 at once, so the latency at 38 in flight is 1.4 times the min RTT.
        let in_flight = refused.policy.limit();
        let next = refused.succeed(in_flight, ms(40 * u64::from(in_flight.max(27)) / 27));
        assert!(next <= limit, "from {limit} to {next}");
    }
}

/// Rounds of a backend with 100 workers that drops `percent` of its requests at any load. Returns
/// the mean limit of the last half.
fn mean_limit_with_failures(percent: u64, dice: &mut Dice) -> u32 {
    let mut policy: AdaptiveLimit = adaptive_limit(AdaptiveAlgorithm::Gradient, 50);
    let (mut now, mut sum) = (Nanos::from_secs(1_000), 0);
    for round in 0..2_000 {
        let in_flight = policy.limit();
        let rtt = queueing(100)(in_flight);
        now = now.plus(rtt);
        for _ in 0..in_flight {
            let is_dropped = dice.up_to(99) < percent;
            let outcome =
                if is_dropped { RequestOutcome::Dropped } else { RequestOutcome::Success };
            policy.record(&LatencySample { ended_at: now, rtt, in_flight, outcome }, NO_FLEET);
        }
        sum += if round < 1_000 { 0 } else { policy.limit() };
    }
    sum / 1_000
}

#[test]
fn one_percent_of_failures_at_any_load_keep_the_limit() {
    let seed = seed();
    let mean = mean_limit_with_failures(1, &mut Dice::new(seed));
    assert!(90 <= mean, "seed {seed}: {mean} for 100 workers");
    let many = mean_limit_with_failures(30, &mut Dice::new(seed));
    assert!(many < 20, "seed {seed}: {many} with 30 % of failures");
}

#[test]
fn a_pause_of_growth_does_not_keep_the_limit_of_a_drain() {
    let mut policy = adaptive_limit(AdaptiveAlgorithm::Gradient, 50);
    let (mut now, mut drained) = (Nanos::from_secs(1_000), None);
    for _ in 0..200 {
        let in_flight = policy.limit();
        let rtt = queueing(100)(in_flight);
        now = now.plus(rtt);
        for _ in 0..in_flight {
            let outcome = RequestOutcome::Success;
            policy.record(&LatencySample { ended_at: now, rtt, in_flight, outcome }, NO_FLEET);
        }
        if drained.is_none() && policy.limit() < 50 {
            drained = Some(policy.limit());
            policy.pause_growth(now.plus(Nanos::from_secs(3_600)));
        }
    }
    let drained = drained.expect("the first window is followed by a drain");
    assert!(drained <= 25 && 45 <= policy.limit(), "{drained}, then {}", policy.limit());
    assert!(policy.limit() <= 65, "the limit returns to 1.3 x 50: {}", policy.limit());
}
