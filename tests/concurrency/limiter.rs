//! One ceiling under events in any order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sluicegate::kernel::concurrency::limiter::{Effect, Event, Limiter, Refusal, Rules, Waiting};
use sluicegate::kernel::concurrency::policy::{Adaptive, Law};
use sluicegate::kernel::concurrency::{Outcome, Permit, Ticket};
use sluicegate::kernel::units::Nanos;

const START: Nanos = Nanos::from_secs(1_000);

const fn ms(count: u64) -> Nanos {
    Nanos(count * Nanos::MILLI.0)
}

fn rules(limit: u32, waiting: Option<Waiting>) -> Rules {
    Rules { limit, adaptive: None, waiting }
}

/// Never more than `max`, whatever is inferred.
const fn inferred(law: Law, max: u32, waiting: Option<Waiting>) -> Rules {
    Rules { limit: 1, adaptive: Some(Adaptive { law, min: 1, max }), waiting }
}

const fn queue(size: u32, timeout: Nanos) -> Waiting {
    Waiting { size, timeout }
}

const fn leave(permit: Permit) -> Event {
    Event::Leave { permit, outcome: Outcome::Success, rtt: None }
}

const STREAM: Event = Event::Arrive { keep: None, patience: Nanos(u64::MAX) };

/// What a trace may do next; numbers choose among what there is.
#[derive(Clone, Debug)]
enum Act {
    Arrive { keep: Option<u64>, patience: u64 },
    Leave(usize, Outcome),
    LeaveAgain(usize),
    Renew(usize, u64),
    Cancel(usize),
    Pass(u64),
    Limit(u32),
    Share(u32),
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (proptest::option::of(1..200_u64), 0..100_u64)
            .prop_map(|(keep, patience)| Act::Arrive { keep, patience }),
        4 => (any::<usize>(), outcomes()).prop_map(|(which, outcome)| Act::Leave(which, outcome)),
        1 => any::<usize>().prop_map(Act::LeaveAgain),
        1 => (any::<usize>(), 1..200_u64).prop_map(|(which, keep)| Act::Renew(which, keep)),
        1 => any::<usize>().prop_map(Act::Cancel),
        2 => (0..60_u64).prop_map(Act::Pass),
        1 => (0..6_u32).prop_map(Act::Limit),
        1 => (0..6_u32).prop_map(Act::Share),
    ]
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    prop_oneof![6 => Just(Outcome::Success), 1 => Just(Outcome::Ignored), 1 => Just(Outcome::Dropped)]
}

fn laws() -> impl Strategy<Value = Law> {
    prop_oneof![Just(Law::Gradient), Just(Law::Gradient2), Just(Law::Aimd)]
}

/// What whoever drives a ceiling knows of it, and holds it to.
struct Driver {
    limiter: Limiter,
    now: Nanos,
    /// How the ceiling is inferred; `limit` is the most it may be then.
    law: Option<Law>,
    limit: u32,
    share: u32,
    waiting: Waiting,
    /// Those out, with their deadlines.
    out: BTreeMap<Permit, Option<Nanos>>,
    over: Vec<Permit>,
    /// Those that wait, with their deadlines and for how long they would be out.
    queue: BTreeMap<Ticket, (Nanos, Option<Nanos>)>,
    ended: BTreeSet<Ticket>,
}

impl Driver {
    fn new(limit: u32, size: u32) -> Self {
        Self::by(None, limit, size)
    }

    fn by(law: Option<Law>, limit: u32, size: u32) -> Self {
        let waiting = Waiting { size, timeout: ms(50) };
        Self {
            limiter: Limiter::new(&rules_by(law, limit, waiting), 0),
            now: START,
            law,
            limit,
            share: u32::MAX,
            waiting,
            out: BTreeMap::new(),
            over: Vec::new(),
            queue: BTreeMap::new(),
            ended: BTreeSet::new(),
        }
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Arrive { keep, patience } => self.arrive(keep.map(ms), ms(patience)),
            Act::Leave(which, outcome) => {
                if let Some(permit) = nth(self.out.keys(), which) {
                    self.out.remove(&permit);
                    self.over.push(permit);
                    self.settle(Event::Leave { permit, outcome, rtt: None });
                }
            }
            Act::LeaveAgain(which) => {
                if let Some(permit) = nth(self.over.iter(), which) {
                    assert_eq!(self.settle(leave(permit)), [Effect::Unknown]);
                }
            }
            Act::Renew(which, keep) => self.renew(which, ms(keep)),
            Act::Cancel(which) => {
                if let Some(ticket) = nth(self.queue.keys(), which) {
                    self.end(ticket);
                    assert_eq!(self.settle(Event::Cancel(ticket)), []);
                    assert_eq!(self.settle(Event::Cancel(ticket)), [Effect::Unknown]);
                }
            }
            Act::Pass(by) => {
                self.now = self.now.plus(ms(by));
                self.settle(Event::Expire);
            }
            Act::Limit(limit) => {
                self.limit = if self.law.is_some() { limit.max(1) } else { limit };
                self.settle(Event::Reload(rules_by(self.law, self.limit, self.waiting)));
            }
            Act::Share(share) => {
                self.share = share;
                self.settle(Event::Share(share));
            }
        }
    }

    fn arrive(&mut self, keep: Option<Nanos>, patience: Nanos) {
        // What is inferred may change with time alone.
        self.settle(Event::Expire);
        let room = self.out.len() < self.allowed();
        let full = usize::try_from(self.waiting.size).unwrap() <= self.queue.len();
        let effects = self.settle(Event::Arrive { keep, patience });
        match effects[..] {
            [Effect::Admit(permit)] => {
                assert!(room);
                assert!(self.out.insert(permit, keep.map(|keep| self.now.plus(keep))).is_none());
            }
            [Effect::Queue(ticket)] => {
                assert!(!room && !full && Nanos(0) < patience);
                let until = self.now.plus(patience.min(self.waiting.timeout));
                assert!(self.queue.last_key_value().is_none_or(|(last, _)| *last < ticket));
                self.queue.insert(ticket, (until, keep));
            }
            [Effect::Deny(Refusal::Full)] => assert!(!room && patience == Nanos(0)),
            [Effect::Deny(Refusal::QueueFull)] => assert!(!room && full),
            _ => panic!("an arrival was answered by {effects:?}"),
        }
        self.holds();
    }

    fn renew(&mut self, which: usize, keep: Nanos) {
        let Some(permit) = nth(self.out.keys(), which) else { return };
        if let Some(Some(until)) = self.out.get_mut(&permit) {
            *until = self.now.plus(keep);
        }
        assert_eq!(self.settle(Event::Renew { permit, keep }), []);
    }

    /// Steps, takes away what is over, and gives the rest of the effects.
    fn settle(&mut self, event: Event) -> Vec<Effect> {
        let mut rest = Vec::new();
        for effect in self.limiter.step(self.now, event) {
            match effect {
                Effect::Wake(ticket, permit) => self.wake(ticket, permit),
                Effect::Late(ticket) => {
                    assert!(self.queue[&ticket].0 <= self.now, "given up too soon");
                    self.end(ticket);
                }
                Effect::Expired(permit) => {
                    let until = self.out.remove(&permit).expect("expired, but not out");
                    assert!(until.expect("a stream has no deadline") <= self.now);
                    self.over.push(permit);
                }
                other => rest.push(other),
            }
        }
        if !matches!(event, Event::Arrive { .. }) {
            self.holds();
        }
        rest
    }

    fn wake(&mut self, ticket: Ticket, permit: Permit) {
        assert!(self.out.len() < self.allowed(), "admitted above the limit");
        let first = self.queue.keys().next();
        assert_eq!(first, Some(&ticket), "not the first in the queue");
        let (until, keep) = self.queue[&ticket];
        assert!(self.now < until, "woken after its deadline");
        self.end(ticket);
        assert!(self.out.insert(permit, keep.map(|keep| self.now.plus(keep))).is_none());
    }

    fn end(&mut self, ticket: Ticket) {
        assert!(self.queue.remove(&ticket).is_some());
        assert!(self.ended.insert(ticket), "ended twice");
    }

    /// How many may be in flight; of what is inferred, what it came to in the last step, which is what the step
    /// admitted by: time passes and samples are taken before anybody is admitted.
    fn allowed(&self) -> usize {
        let most = self.limit.min(self.share);
        if self.law.is_none() {
            return usize::try_from(most).unwrap();
        }
        let inferred = self.limiter.limit();
        assert!(self.share.min(1) <= inferred && inferred <= most, "{inferred} of {most}");
        usize::try_from(inferred).unwrap()
    }

    fn holds(&self) {
        assert_eq!(self.limiter.in_flight() as usize, self.out.len());
        assert_eq!(self.limiter.waiting(), self.queue.len());
        let known: BTreeSet<_> = self.limiter.permits().map(|(permit, _)| permit).collect();
        assert!(known.iter().eq(self.out.keys()));
        assert!(self.queue.is_empty() || self.allowed() <= self.out.len(), "waits beside room");
        assert!(self.out.values().flatten().all(|until| self.now < *until), "out too long");
        let deadlines = self.out.values().flatten().chain(self.queue.values().map(|(u, _)| u));
        assert_eq!(self.limiter.next_deadline(), deadlines.min().copied());
        let idle = self.out.is_empty() && self.queue.is_empty();
        assert_eq!(self.limiter.idle_since().is_some(), idle);
    }
}

fn rules_by(law: Option<Law>, limit: u32, waiting: Waiting) -> Rules {
    law.map_or_else(|| rules(limit, Some(waiting)), |law| inferred(law, limit, Some(waiting)))
}

fn nth<'a, T: Copy + 'a>(all: impl ExactSizeIterator<Item = &'a T>, which: usize) -> Option<T> {
    let count = all.len();
    all.copied().nth(which.checked_rem(count)?)
}

proptest! {
    #[test]
    fn in_any_order_of_events_nobody_is_above_the_limit_lost_overtaken_or_woken_twice(
        limit in 0..5_u32, size in 0..4_u32, trace in proptest::collection::vec(acts(), 1..200),
    ) {
        let mut driver = Driver::new(limit, size);
        for act in &trace {
            driver.act(act);
        }
    }

    #[test]
    fn nor_where_the_limit_is_inferred_and_moves_with_every_sample(
        law in laws(), limit in 1..9_u32, size in 0..4_u32,
        trace in proptest::collection::vec(acts(), 1..400),
    ) {
        let mut driver = Driver::by(Some(law), limit, size);
        for act in &trace {
            driver.act(act);
        }
    }

    #[test]
    fn all_that_is_left_alone_is_over_at_its_deadline(
        trace in proptest::collection::vec(acts(), 1..100),
    ) {
        let mut driver = Driver::new(3, 3);
        for act in &trace {
            driver.act(act);
        }
        driver.act(&Act::Share(u32::MAX));
        driver.act(&Act::Limit(3));
        // A waiter may be admitted as late as its own deadline, and be out for its time from then.
        driver.act(&Act::Pass(250));
        driver.act(&Act::Pass(250));
        prop_assert!(driver.out.values().all(Option::is_none), "only streams have no deadline");
        for _ in 0..driver.out.len() {
            driver.act(&Act::Leave(0, Outcome::Success));
        }
        prop_assert_eq!(driver.limiter.in_flight(), 0);
        prop_assert!(driver.limiter.idle_since().is_some());
    }
}

#[test]
fn a_lowered_limit_admits_nobody_until_enough_have_left() {
    let mut limiter = Limiter::new(&rules(4, Some(queue(9, ms(900)))), 0);
    let out: Vec<_> = (0..4)
        .map(|_| match limiter.step(START, STREAM)[..] {
            [Effect::Admit(permit)] => permit,
            ref other => panic!("{other:?}"),
        })
        .collect();
    limiter.step(START, Event::Reload(rules(2, Some(queue(9, ms(900))))));
    let waits = limiter.step(START, STREAM);
    let [Effect::Queue(ticket)] = waits[..] else { panic!("{waits:?}") };
    for &permit in &out[..2] {
        assert!(limiter.step(START, leave(permit)).is_empty(), "two are still in flight");
    }
    let effects = limiter.step(START, leave(out[2]));
    assert!(matches!(effects[..], [Effect::Wake(woken, _)] if woken == ticket), "{effects:?}");
}

#[test]
fn a_permit_of_an_earlier_life_of_its_slot_is_unknown() {
    let mut limiter = Limiter::new(&Rules::fixed(1), 0);
    let [Effect::Admit(first)] = limiter.step(START, STREAM)[..] else { panic!() };
    limiter.step(START, leave(first));
    let [Effect::Admit(_)] = limiter.step(START, STREAM)[..] else { panic!() };
    assert_eq!(limiter.step(START, leave(first))[..], [Effect::Unknown]);
    assert_eq!(limiter.in_flight(), 1, "the second one's permit was not given back");
}

#[test]
fn a_fence_lets_nobody_in_for_whom_a_deadline_made_room() {
    let mut limiter = Limiter::new(&rules(1, Some(queue(1, ms(500)))), 0);
    limiter.step(START, Event::Arrive { keep: Some(ms(100)), patience: ms(500) });
    let waits = limiter.step(START, STREAM);
    let [Effect::Queue(ticket)] = waits[..] else { panic!("{waits:?}") };
    let effects = limiter.step(START.plus(ms(200)), Event::Fence);
    assert!(effects.contains(&Effect::Late(ticket)), "{effects:?}");
    assert_eq!((limiter.in_flight(), limiter.waiting()), (0, 0));
}

/// What one step of a request that need not wait may allocate, by the law of `limiter.rs`: nothing, once as many were out
/// before.
#[test]
fn a_pair_allocates_nothing_whatever_infers_the_limit_and_with_deadlines_too() {
    let laws = [None, Some(Law::Gradient), Some(Law::Gradient2), Some(Law::Aimd)];
    for (law, keep) in laws.into_iter().flat_map(|law| [(law, None), (law, Some(ms(300)))]) {
        // Begins where it may be at most: as many were out before.
        let rules = Rules { limit: 8, ..rules_by(law, 8, queue(4, ms(50))) };
        let mut limiter = Limiter::new(&rules, 0);
        let mut now = START;
        fill_and_drain(&mut limiter, now, keep);
        let allocated = allocation_counter::measure(|| {
            // Long enough for recalibrations, and each of ours with a latency and a depth of its own.
            for turn in 0..20_000 {
                now = now.plus(ms(1 + turn % 3));
                fill_and_drain(&mut limiter, now, keep);
            }
        });
        assert_eq!(allocated.count_total, 0, "{law:?} {keep:?}: {allocated:?}");
    }
}

/// As many as may be in, and out again in another order.
fn fill_and_drain(limiter: &mut Limiter, now: Nanos, keep: Option<Nanos>) {
    let mut out = [None; 8];
    for place in &mut out {
        let arrive = Event::Arrive { keep, patience: Nanos(0) };
        if let [Effect::Admit(permit)] = limiter.step(now, arrive)[..] {
            *place = Some(permit);
        }
    }
    let order = [5, 0, 7, 2, 6, 1, 4, 3];
    for (nth, permit) in (0..).zip(order).filter_map(|(nth, place)| Some((nth, out[place]?))) {
        if let Some(keep) = keep {
            limiter.step(now, Event::Renew { permit, keep });
        }
        let later = now.plus(Nanos(nth * 20_000));
        limiter.step(later, Event::Leave { permit, outcome: Outcome::Success, rtt: None });
    }
}
