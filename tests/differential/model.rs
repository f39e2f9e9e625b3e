//! The expected state of one counter, computed by the kernel.

use sluicegate::kernel::decision::{Cost, Enforcement};
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::lease::counter::AnyCounter;
use sluicegate::kernel::rate::fixed_window::{WindowCount, Windows};
use sluicegate::kernel::rate::gcra::{Gcra, Tat};
use sluicegate::kernel::rate::limit::Tick;
use sluicegate::kernel::rate::sliding_log::ArrivalLog;
use sluicegate::kernel::rate::sliding_window::WindowPair;
use sluicegate::kernel::rate::{CounterDecision, Headroom, Strategy};
use sluicegate::kernel::units::{Hits, Nanos, Unit};
use sluicegate::store::redis::codec::ChargeResult;
use sluicegate::store::{Charge, ChargeOutcome, Placement};

/// The kernel's state of a counter for each strategy. A trace uses only one of them.
#[derive(Debug, Default)]
pub(super) struct Model {
    tat: Tat,
    /// The GCRA limit under which the debt was stored.
    shape: Option<Gcra>,
    count: WindowCount,
    pair: WindowPair,
    log: ArrivalLog,
    rested: bool,
}

impl Model {
    pub(super) fn apply(&mut self, limit: &Strategy, now: Nanos, cost: Cost) -> CounterDecision {
        let step = match limit {
            Strategy::Gcra(limit) => {
                self.carry(limit, now);
                charge_or_hits(cost, |hits| limit.charge(&mut self.tat, now, hits))
                    .unwrap_or_else(|hits| limit.refund(&mut self.tat, now, hits))
            }
            Strategy::FixedWindow(limit) => {
                charge_or_hits(cost, |hits| limit.charge(&mut self.count, now, hits))
                    .unwrap_or_else(|hits| limit.refund(&mut self.count, now, hits))
            }
            Strategy::SlidingWindow(limit) => {
                charge_or_hits(cost, |hits| limit.charge(&mut self.pair, now, hits))
                    .unwrap_or_else(|hits| limit.refund(&mut self.pair, now, hits))
            }
            Strategy::SlidingLog(limit) => {
                charge_or_hits(cost, |hits| limit.charge(&mut self.log, now, hits))
                    .unwrap_or_else(|hits| limit.refund(&mut self.log, now, hits))
            }
        };
        if step != CounterDecision::OutsideWindows {
            self.reset_if_empty(limit, now);
        }
        step
    }

    /// Applies `act`, such as a lease message, to the kernel's state of the counter.
    pub(super) fn with_counter<T>(
        &mut self,
        limit: &Strategy,
        now: Nanos,
        act: impl FnOnce(&mut AnyCounter) -> T,
    ) -> T {
        let answer = match limit {
            Strategy::Gcra(limit) => {
                self.carry(limit, now);
                act(&mut AnyCounter::Gcra(limit, &mut self.tat))
            }
            Strategy::FixedWindow(limit) => {
                act(&mut AnyCounter::FixedWindow(limit, &mut self.count))
            }
            Strategy::SlidingWindow(limit) => {
                act(&mut AnyCounter::SlidingWindow(limit, &mut self.pair))
            }
            Strategy::SlidingLog(limit) => act(&mut AnyCounter::SlidingLog(limit, &mut self.log)),
        };
        // A peek keeps old entries of a sliding log, because a limit with a longer period counts
        // them again. A charge drops them.
        if self.headroom(limit, now).is_some() && !matches!(limit, Strategy::SlidingLog(_)) {
            self.reset_if_empty(limit, now);
        }
        answer
    }

    pub(super) const fn is_rested(&self) -> bool {
        self.rested
    }

    /// Remaining hits and reset-after, or `None` if the calendar windows of `limit` do not include
    /// `now`.
    pub(super) fn headroom(&self, limit: &Strategy, now: Nanos) -> Option<Headroom> {
        let step = match limit {
            Strategy::Gcra(limit) => limit.peek(&self.tat, now, Hits(0)),
            Strategy::FixedWindow(limit) => limit.peek(&self.count, now, Hits(0)),
            Strategy::SlidingWindow(limit) => limit.peek(&self.pair, now, Hits(0)),
            Strategy::SlidingLog(limit) => limit.peek(&self.log, now, Hits(0)),
        };
        match step {
            CounterDecision::Allow(room)
            | CounterDecision::ExceedsLimit(room)
            | CounterDecision::Deny { headroom: room, .. } => Some(room),
            CounterDecision::OutsideWindows => None,
        }
    }

    fn carry(&mut self, limit: &Gcra, now: Nanos) {
        if let Some(from) = self.shape.replace(*limit).filter(|from| from != limit) {
            self.tat = limit.convert(&self.tat, &from, now);
        }
    }

    /// Resets the state of an empty counter, because it equals that of an unused one.
    fn reset_if_empty(&mut self, limit: &Strategy, now: Nanos) {
        self.rested = match limit {
            Strategy::Gcra(limit) => limit.is_empty(&self.tat, now),
            Strategy::FixedWindow(limit) => limit.is_empty(&self.count, now),
            Strategy::SlidingWindow(limit) => limit.is_empty(&self.pair, now),
            Strategy::SlidingLog(limit) => limit.is_empty(&self.log, now),
        };
        if self.rested {
            *self = Self { rested: true, ..Self::default() };
        }
    }
}

/// The result of a charge as `Ok`, or the hits to refund as `Err`.
fn charge_or_hits(
    cost: Cost,
    charge: impl FnOnce(Hits) -> CounterDecision,
) -> Result<CounterDecision, Hits> {
    match cost {
        Cost::Charge(hits) => Ok(charge(hits)),
        Cost::Refund(hits) => Err(hits),
    }
}

/// The script's expected reply, from the kernel's decision `step`.
pub(super) fn expected(step: CounterDecision, cost: Cost, now: Nanos) -> ChargeResult {
    match (step, cost) {
        (CounterDecision::OutsideWindows, _) => {
            ChargeResult::Stale(Tick::Micro.nanos(Tick::Micro.floor(now)))
        }
        (_, Cost::Charge(_)) => ChargeResult::Outcome(ChargeOutcome::Decided(step)),
        (_, Cost::Refund(_)) => ChargeResult::Outcome(ChargeOutcome::Refunded(step)),
    }
}

pub(super) fn charge(name: &str, strategy: Strategy, cost: Cost) -> Charge {
    let counting = match strategy {
        Strategy::Gcra(_) => KeyStrategy::Gcra,
        Strategy::FixedWindow(window) => match *window.windows() {
            Windows::Every(length) => KeyStrategy::FixedWindow(length),
            Windows::Calendar { .. } => KeyStrategy::Calendar(Unit::Month),
        },
        Strategy::SlidingWindow(_) => KeyStrategy::SlidingWindow(Nanos(0)),
        Strategy::SlidingLog(_) => KeyStrategy::SlidingLog,
    };
    let key = CounterKey::unique("shop", [("k", name)].into_iter(), counting);
    let (home, standing) = (Placement::default(), Enforcement::default());
    Charge { key, placement: home, strategy, cost, standing, per_second: false }
}
