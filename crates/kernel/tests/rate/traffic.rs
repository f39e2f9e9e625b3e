//! Generates random limits and check traces for every strategy.

use std::fmt::Debug;

use proptest::prelude::*;
use sluicegate_kernel::rate::fixed_window::{FixedWindow, WindowCount, Windows};
use sluicegate_kernel::rate::gcra::{Gcra, Tat};
use sluicegate_kernel::rate::limit::Tick;
use sluicegate_kernel::rate::on_excess::OnExcess;
use sluicegate_kernel::rate::sliding_log::{ArrivalLog, SlidingLog};
use sluicegate_kernel::rate::sliding_window::{SlidingWindow, WindowPair};
use sluicegate_kernel::rate::{self, CounterDecision, Headroom};
use sluicegate_kernel::units::{Hits, Nanos};

/// Start of all traces; not a boundary of any window.
pub(super) const START: Nanos = Nanos(1_763_632_345_678_912_345);

/// No seed file: proptest prints a failing case in full.
pub(super) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

/// Common interface of the four strategies.
pub(super) trait Limit: Copy + Debug {
    type State: Clone + Debug + Default + PartialEq;

    fn ask(&self, state: &Self::State, now: Nanos, hits: Hits) -> CounterDecision;
    fn step(&self, state: &mut Self::State, now: Nanos, hits: Hits) -> CounterDecision;
    fn refund(&self, state: &mut Self::State, now: Nanos, hits: Hits) -> CounterDecision;
    fn rested(&self, state: &Self::State, now: Nanos) -> bool;
    fn tick(&self) -> Tick;
    /// Maximum hits at one instant for an idle counter.
    fn most(&self) -> u64;
    /// Time scale of this limit: its period, window or drain time.
    fn span(&self) -> Nanos;
    fn strategy(&self) -> rate::Strategy;
}

macro_rules! limit {
    ($limit:ident, $state:ident, $tick:expr, $most:expr, $span:expr) => {
        impl Limit for $limit {
            type State = $state;

            fn ask(&self, state: &$state, now: Nanos, hits: Hits) -> CounterDecision {
                $limit::peek(self, state, now, hits)
            }
            fn step(&self, state: &mut $state, now: Nanos, hits: Hits) -> CounterDecision {
                $limit::charge(self, state, now, hits)
            }
            fn refund(&self, state: &mut $state, now: Nanos, hits: Hits) -> CounterDecision {
                $limit::refund(self, state, now, hits)
            }
            fn rested(&self, state: &$state, now: Nanos) -> bool {
                $limit::is_empty(self, state, now)
            }
            fn tick(&self) -> Tick {
                $tick(self)
            }
            fn most(&self) -> u64 {
                u64::from($most(self))
            }
            fn span(&self) -> Nanos {
                $span(self)
            }
            fn strategy(&self) -> rate::Strategy {
                rate::Strategy::$limit(*self)
            }
        }
    };
}

limit!(Gcra, Tat, Gcra::tick, Gcra::burst, |limit: &Gcra| {
    let drain = limit.refill_rate().ticks.get() * u64::from(limit.burst());
    limit.tick().nanos(drain / u64::from(limit.refill_rate().hits) + 1)
});
limit!(FixedWindow, WindowCount, |_| Tick::Micro, FixedWindow::limit, |limit: &FixedWindow| {
    match *limit.windows() {
        Windows::Every(length) => length,
        Windows::Calendar { starts } => starts[1].since(starts[0]),
    }
});
limit!(
    SlidingWindow,
    WindowPair,
    SlidingWindow::tick,
    SlidingWindow::limit,
    |limit: &SlidingWindow| { limit.tick().nanos(limit.refill_rate().ticks.get()) }
);
limit!(SlidingLog, ArrivalLog, |_| Tick::Micro, SlidingLog::limit, SlidingLog::period);

/// Pause of a client before its next check.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gap {
    None,
    Ticks(u8),
    /// Thousandths of the time per hit.
    Hit(u16),
    Span(u16),
    /// Until exactly `retry_after` of the last denial.
    Retry,
}

/// Hits of a check.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    Exactly(u8),
    /// Thousandths of the maximum at one instant.
    Share(u16),
    /// The remaining hits.
    Rest,
}

/// Pause and hits of each check.
pub(super) type Trace = Vec<(Gap, Want)>;

pub(super) fn traces() -> impl Strategy<Value = Trace> {
    let gap = prop_oneof![
        4 => Just(Gap::None),
        2 => (0..4_u8).prop_map(Gap::Ticks),
        4 => (0..3_000_u16).prop_map(Gap::Hit),
        4 => (0..2_500_u16).prop_map(Gap::Span),
        4 => Just(Gap::Retry),
    ];
    let want = prop_oneof![
        6 => (0..4_u8).prop_map(Want::Exactly),
        4 => (0..1_200_u16).prop_map(Want::Share),
        3 => Just(Want::Rest),
    ];
    prop::collection::vec((gap, want), 1..60)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Decision {
    pub(super) at: Nanos,
    pub(super) hits: Hits,
    pub(super) step: CounterDecision,
}

impl Decision {
    /// Allowed hits.
    pub(super) fn passed(&self) -> u64 {
        if matches!(self.step, CounterDecision::Allow(_)) { self.hits.0 } else { 0 }
    }
}

/// A client that follows a trace and remembers its last retry-after.
pub(super) struct Client {
    pub(super) now: Nanos,
    retry_at: Nanos,
}

impl Client {
    pub(super) fn new() -> Self {
        Self { now: START, retry_at: START }
    }

    /// Pauses as the trace requires and returns the hits of the next check.
    pub(super) fn next<L: Limit>(
        &mut self,
        limit: &L,
        state: &L::State,
        (gap, want): (Gap, Want),
    ) -> Hits {
        let span = u128::from(limit.span().0);
        let part = |of: u128, share: u16| u64::try_from(of * u128::from(share) / 1_000).unwrap();
        let pause = match gap {
            Gap::None => 0,
            Gap::Ticks(ticks) => limit.tick().nanos(u64::from(ticks)).0,
            Gap::Hit(share) => part(span / u128::from(limit.most().max(1)), share),
            Gap::Span(share) => part(span, share),
            Gap::Retry => self.retry_at.since(self.now).0,
        };
        self.now = self.now.plus(Nanos(pause));
        match want {
            Want::Exactly(hits) => Hits(u64::from(hits)),
            Want::Share(share) => Hits(part(u128::from(limit.most()), share)),
            Want::Rest => {
                headroom(limit.ask(state, self.now, Hits(0))).map_or(Hits(1), |room| room.remaining)
            }
        }
    }

    pub(super) fn observe(&mut self, step: CounterDecision) {
        if let CounterDecision::Deny { retry_after, .. } = step {
            self.retry_at = self.now.plus(retry_after);
        }
    }
}

/// Replays a trace on a new counter.
pub(super) fn play<L: Limit>(limit: &L, trace: &Trace) -> Vec<Decision> {
    let (mut state, mut client) = (L::State::default(), Client::new());
    let mut decisions = Vec::new();
    for check in trace {
        let hits = client.next(limit, &state, *check);
        let step = limit.step(&mut state, client.now, hits);
        client.observe(step);
        decisions.push(Decision { at: client.now, hits, step });
    }
    decisions
}

/// A client that always sends `want` hits and retries exactly at `retry_after`.
/// Returns the allowed hits, as (tick, hits).
pub(super) fn greedy_client<L: Limit>(
    limit: &L,
    start: Nanos,
    want: Hits,
    mut denials: usize,
) -> Vec<(u64, u64)> {
    let (mut state, mut now, mut passed) = (L::State::default(), start, Vec::new());
    while denials != 0 {
        match limit.step(&mut state, now, want) {
            CounterDecision::Allow(_) => passed.push((limit.tick().floor(now), want.0)),
            CounterDecision::Deny { retry_after, .. } => {
                now = now.plus(retry_after);
                denials -= 1;
            }
            step => panic!("{step:?}"),
        }
        assert!(passed.len() < 100_000, "never denied");
    }
    passed
}

/// The headroom after any verdict.
pub(super) fn headroom(step: CounterDecision) -> Option<Headroom> {
    match step {
        CounterDecision::Allow(room)
        | CounterDecision::ExceedsLimit(room)
        | CounterDecision::Deny { headroom: room, .. } => Some(room),
        CounterDecision::OutsideWindows => None,
    }
}

pub(super) fn is_allowed(step: CounterDecision) -> bool {
    matches!(step, CounterDecision::Allow(_))
}

pub(super) fn periods() -> impl Strategy<Value = Nanos> {
    prop_oneof![
        (1..50_u64).prop_map(|micros| Nanos(micros * 1_000)),
        (1..10_000_000_u64).prop_map(|micros| Nanos(micros * 1_000)),
        (1..100_000_u64).prop_map(|millis| Nanos(millis * 1_000_000)),
        prop::sample::select(vec![1, 60, 3_600, 86_400, 604_800, 31_536_000])
            .prop_map(Nanos::from_secs),
    ]
}

/// Mostly small numbers, for frequent edge cases; some large ones, for coarse ticks.
pub(super) fn counts() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 1..8_u32, 3 => 1..2_000_u32, 1 => 1..=u32::MAX]
}

pub(super) fn gcras() -> impl Strategy<Value = Gcra> {
    (counts(), periods(), counts())
        .prop_filter_map("fits", |(n, period, burst)| Gcra::new(n, period, burst).ok())
        // A trace of 60 spans must fit into instants in nanoseconds.
        .prop_filter("drains in our time", |limit| limit.span() < Nanos::from_secs(63_072_000))
}

/// GCRA limits that charge excess hits. A debt of 1,000 bursts and 60 spans fit into instants.
pub(super) fn charging_gcras() -> impl Strategy<Value = Gcra> {
    (counts(), periods(), counts())
        .prop_filter_map("fits", |(n, period, burst)| {
            Gcra::with_on_excess(n, period, burst, OnExcess::Charge).ok()
        })
        .prop_filter("drains in our time", |limit| limit.span() < Nanos::from_secs(5_000_000))
}

pub(super) fn fixed_windows() -> impl Strategy<Value = FixedWindow> {
    (counts(), periods())
        .prop_filter_map("fits", |(n, period)| FixedWindow::new(n, Windows::Every(period)).ok())
}

pub(super) fn sliding_windows() -> impl Strategy<Value = SlidingWindow> {
    (counts(), periods()).prop_filter_map("fits", |(n, period)| SlidingWindow::new(n, period).ok())
}

pub(super) fn sliding_logs() -> impl Strategy<Value = SlidingLog> {
    (counts(), periods()).prop_filter_map("fits", |(n, period)| SlidingLog::new(n, period).ok())
}

pub(super) fn charging_fixed_windows() -> impl Strategy<Value = FixedWindow> {
    fixed_windows().prop_map(|limit| limit.with_on_excess(OnExcess::Charge))
}

pub(super) fn charging_sliding_windows() -> impl Strategy<Value = SlidingWindow> {
    sliding_windows().prop_map(|limit| limit.with_on_excess(OnExcess::Charge))
}

pub(super) fn charging_sliding_logs() -> impl Strategy<Value = SlidingLog> {
    sliding_logs().prop_map(|limit| limit.with_on_excess(OnExcess::Charge))
}
