//! The limiter under random events.

mod examples;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sluicegate_kernel::concurrency::adaptive::{AdaptiveAlgorithm, AdaptiveConfig};
use sluicegate_kernel::concurrency::limiter::{
    AcquireDenial, Limiter, LimiterConfig, LimiterEffect, LimiterEvent, QueueConfig,
};
use sluicegate_kernel::concurrency::{Permit, QueueTicket, RequestOutcome, Requester};
use sluicegate_kernel::units::Nanos;

const START: Nanos = Nanos::from_secs(1_000);

const fn ms(count: u64) -> Nanos {
    Nanos(count * Nanos::MILLI.0)
}

fn rules(limit: u32, queue: Option<QueueConfig>) -> LimiterConfig {
    LimiterConfig { queue, ..LimiterConfig::fixed(limit) }
}

fn adaptive_rules(law: AdaptiveAlgorithm, max: u32, waiting: Option<QueueConfig>) -> LimiterConfig {
    LimiterConfig {
        adaptive: Some(AdaptiveConfig::new(law, 1, max)),
        queue: waiting,
        ..LimiterConfig::fixed(1)
    }
}

const fn queue(size: u32, timeout: Nanos) -> QueueConfig {
    QueueConfig { size, timeout }
}

const fn release(permit: Permit) -> LimiterEvent {
    LimiterEvent::Release { permit, outcome: RequestOutcome::Success, rtt: None }
}

/// One event of a trace. An index selects one of the current permits or tickets.
#[derive(Clone, Debug)]
enum Action {
    Arrive { keep: Option<u64>, patience: u64 },
    Leave(usize, RequestOutcome),
    LeaveAgain(usize),
    Renew(usize, u64),
    Cancel(usize),
    Advance(u64),
    Limit(u32),
    Share(u32),
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (proptest::option::of(1..200_u64), 0..100_u64)
            .prop_map(|(keep, patience)| Action::Arrive { keep, patience }),
        4 => (any::<usize>(), outcomes())
            .prop_map(|(which, outcome)| Action::Leave(which, outcome)),
        1 => any::<usize>().prop_map(Action::LeaveAgain),
        1 => (any::<usize>(), 1..200_u64).prop_map(|(which, keep)| Action::Renew(which, keep)),
        1 => any::<usize>().prop_map(Action::Cancel),
        2 => (0..60_u64).prop_map(Action::Advance),
        1 => (0..6_u32).prop_map(Action::Limit),
        1 => (0..6_u32).prop_map(Action::Share),
    ]
}

fn outcomes() -> impl Strategy<Value = RequestOutcome> {
    prop_oneof![6 => Just(RequestOutcome::Success), 1 => Just(RequestOutcome::Ignored), 1 => Just(RequestOutcome::Dropped)]
}

fn algorithms() -> impl Strategy<Value = AdaptiveAlgorithm> {
    prop_oneof![
        Just(AdaptiveAlgorithm::Gradient),
        Just(AdaptiveAlgorithm::Gradient2),
        Just(AdaptiveAlgorithm::Aimd)
    ]
}

/// Drives a limiter and compares it with a simple model.
struct Driver {
    limiter: Limiter,
    now: Nanos,
    /// The adaptive algorithm. If set, `limit` is only the upper bound.
    law: Option<AdaptiveAlgorithm>,
    limit: u32,
    share: u32,
    waiting: QueueConfig,
    /// The permits in flight, with their deadlines.
    out: BTreeMap<Permit, Option<Nanos>>,
    over: Vec<Permit>,
    /// The queued tickets, with their deadlines and the lifetimes of their permits.
    queue: BTreeMap<QueueTicket, (Nanos, Option<Nanos>)>,
    ended: BTreeSet<QueueTicket>,
}

impl Driver {
    fn new(limit: u32, size: u32) -> Self {
        Self::with_algorithm(None, limit, size)
    }

    fn with_algorithm(algorithm: Option<AdaptiveAlgorithm>, limit: u32, size: u32) -> Self {
        let waiting = QueueConfig { size, timeout: ms(50) };
        Self {
            limiter: Limiter::new(&rules_for(algorithm, limit, waiting), 0),
            now: START,
            law: algorithm,
            limit,
            share: u32::MAX,
            waiting,
            out: BTreeMap::new(),
            over: Vec::new(),
            queue: BTreeMap::new(),
            ended: BTreeSet::new(),
        }
    }

    fn act(&mut self, act: &Action) {
        match *act {
            Action::Arrive { keep, patience } => self.arrive(keep.map(ms), ms(patience)),
            Action::Leave(which, outcome) => {
                if let Some(permit) = nth(self.out.keys(), which) {
                    self.out.remove(&permit);
                    self.over.push(permit);
                    self.settle(LimiterEvent::Release { permit, outcome, rtt: None });
                }
            }
            Action::LeaveAgain(which) => {
                if let Some(permit) = nth(self.over.iter(), which) {
                    assert_eq!(self.settle(release(permit)), [LimiterEffect::Unknown]);
                }
            }
            Action::Renew(which, keep) => self.renew(which, ms(keep)),
            Action::Cancel(which) => {
                if let Some(ticket) = nth(self.queue.keys(), which) {
                    self.end(ticket);
                    assert_eq!(self.settle(LimiterEvent::Cancel(ticket)), []);
                    assert_eq!(self.settle(LimiterEvent::Cancel(ticket)), [LimiterEffect::Unknown]);
                }
            }
            Action::Advance(by) => {
                self.now = self.now.plus(ms(by));
                self.settle(LimiterEvent::Expire);
            }
            Action::Limit(limit) => {
                self.limit = if self.law.is_some() { limit.max(1) } else { limit };
                self.settle(LimiterEvent::Reload(rules_for(self.law, self.limit, self.waiting)));
            }
            Action::Share(share) => {
                self.share = share;
                self.settle(LimiterEvent::Share(share));
            }
        }
    }

    fn arrive(&mut self, max_duration: Option<Nanos>, queue_timeout: Nanos) {
        // An adaptive limit can change with time alone.
        self.settle(LimiterEvent::Expire);
        let room = self.out.len() < self.allowed();
        let full = usize::try_from(self.waiting.size).unwrap() <= self.queue.len();
        let effects = self.settle(LimiterEvent::Acquire {
            lifetime: max_duration,
            timeout: queue_timeout,
            by: Requester::ANY,
        });
        match effects[..] {
            [LimiterEffect::Admit(permit)] => {
                assert!(room);
                assert!(
                    self.out.insert(permit, max_duration.map(|keep| self.now.plus(keep))).is_none()
                );
            }
            [LimiterEffect::Queue(ticket)] => {
                assert!(!room && !full && Nanos(0) < queue_timeout);
                let until = self.now.plus(queue_timeout.min(self.waiting.timeout));
                assert!(self.queue.last_key_value().is_none_or(|(last, _)| *last < ticket));
                self.queue.insert(ticket, (until, max_duration));
            }
            [LimiterEffect::Deny(AcquireDenial::LimitReached)] => {
                assert!(!room && queue_timeout == Nanos(0));
            }
            [LimiterEffect::Deny(AcquireDenial::QueueFull)] => assert!(!room && full),
            _ => panic!("an arrival was answered by {effects:?}"),
        }
        self.assert_invariants();
    }

    fn renew(&mut self, which: usize, max_duration: Nanos) {
        let Some(permit) = nth(self.out.keys(), which) else { return };
        if let Some(Some(until)) = self.out.get_mut(&permit) {
            *until = self.now.plus(max_duration);
        }
        assert_eq!(self.settle(LimiterEvent::Renew { permit, lifetime: max_duration }), []);
    }

    /// Applies an event to the limiter, verifies its wakeups and expiries, and returns its other
    /// effects.
    fn settle(&mut self, event: LimiterEvent) -> Vec<LimiterEffect> {
        let mut rest = Vec::new();
        for effect in self.limiter.step(self.now, event) {
            match effect {
                LimiterEffect::Wake(ticket, permit) => self.wake(ticket, permit),
                LimiterEffect::TimedOut(ticket) => {
                    assert!(self.queue[&ticket].0 <= self.now, "given up too soon");
                    self.end(ticket);
                }
                LimiterEffect::Expired(permit) => {
                    let until = self.out.remove(&permit).expect("expired, but not out");
                    assert!(until.expect("a stream has no deadline") <= self.now);
                    self.over.push(permit);
                }
                other => rest.push(other),
            }
        }
        if !matches!(event, LimiterEvent::Acquire { .. }) {
            self.assert_invariants();
        }
        rest
    }

    fn wake(&mut self, ticket: QueueTicket, permit: Permit) {
        assert!(self.out.len() < self.allowed(), "admitted above the limit");
        let first = self.queue.keys().next();
        assert_eq!(first, Some(&ticket), "not the first in the queue");
        let (until, keep) = self.queue[&ticket];
        assert!(self.now < until, "woken after its deadline");
        self.end(ticket);
        assert!(self.out.insert(permit, keep.map(|keep| self.now.plus(keep))).is_none());
    }

    fn end(&mut self, ticket: QueueTicket) {
        assert!(self.queue.remove(&ticket).is_some());
        assert!(self.ended.insert(ticket), "ended twice");
    }

    /// The current limit. A step updates an adaptive limit before it admits requests.
    fn allowed(&self) -> usize {
        let most = self.limit.min(self.share);
        if self.law.is_none() {
            return usize::try_from(most).unwrap();
        }
        let inferred = self.limiter.limit();
        assert!(self.share.min(1) <= inferred && inferred <= most, "{inferred} of {most}");
        usize::try_from(inferred).unwrap()
    }

    fn assert_invariants(&self) {
        assert_eq!(self.limiter.in_flight() as usize, self.out.len());
        assert_eq!(self.limiter.queue_len(), self.queue.len());
        let known: BTreeSet<_> = self.limiter.permits().map(|(permit, _)| permit).collect();
        assert!(known.iter().eq(self.out.keys()));
        assert!(self.queue.is_empty() || self.allowed() <= self.out.len(), "waits beside room");
        assert!(self.out.values().flatten().all(|until| self.now < *until), "out too long");
        let idle = self.out.is_empty() && self.queue.is_empty();
        assert_eq!(self.limiter.idle_since().is_some(), idle);
    }
}

fn rules_for(
    algorithm: Option<AdaptiveAlgorithm>,
    limit: u32,
    queue: QueueConfig,
) -> LimiterConfig {
    algorithm
        .map_or_else(|| rules(limit, Some(queue)), |law| adaptive_rules(law, limit, Some(queue)))
}

fn nth<'a, T: Copy + 'a>(all: impl ExactSizeIterator<Item = &'a T>, which: usize) -> Option<T> {
    let count = all.len();
    all.copied().nth(which.checked_rem(count)?)
}

proptest! {
    #[test]
    fn invariants_survive_random_events_with_a_fixed_limit(
        limit in 0..5_u32, size in 0..4_u32, trace in proptest::collection::vec(actions(), 1..200),
    ) {
        let mut driver = Driver::new(limit, size);
        for act in &trace {
            driver.act(act);
        }
    }

    #[test]
    fn invariants_survive_random_events_with_an_adaptive_limit(
        law in algorithms(), limit in 1..9_u32, size in 0..4_u32,
        trace in proptest::collection::vec(actions(), 1..400),
    ) {
        let mut driver = Driver::with_algorithm(Some(law), limit, size);
        for act in &trace {
            driver.act(act);
        }
    }

    #[test]
    fn every_permit_with_a_deadline_expires(
        trace in proptest::collection::vec(actions(), 1..100),
    ) {
        let mut driver = Driver::new(3, 3);
        for act in &trace {
            driver.act(act);
        }
        driver.act(&Action::Share(u32::MAX));
        driver.act(&Action::Limit(3));
        // A request can wait until its deadline, and its permit's lifetime starts after the wait.
        driver.act(&Action::Advance(250));
        driver.act(&Action::Advance(250));
        prop_assert!(driver.out.values().all(Option::is_none), "only streams have no deadline");
        for _ in 0..driver.out.len() {
            driver.act(&Action::Leave(0, RequestOutcome::Success));
        }
        prop_assert_eq!(driver.limiter.in_flight(), 0);
        prop_assert!(driver.limiter.idle_since().is_some());
    }
}
