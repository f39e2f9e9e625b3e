//! The expected state of one counter, computed by the kernel.

use sluicegate::backend::redis::codec::Answer;
use sluicegate::backend::{Charge, Home, Outcome};
use sluicegate::kernel::decision::{Cost, Standing};
use sluicegate::kernel::key::{CounterKey, Counting};
use sluicegate::kernel::lease::counter::Counter;
use sluicegate::kernel::rate::fixed_window::{Count, Windows};
use sluicegate::kernel::rate::gcra::{Gcra, Tat};
use sluicegate::kernel::rate::limit::Tick;
use sluicegate::kernel::rate::sliding_log::Log;
use sluicegate::kernel::rate::sliding_window::Pair;
use sluicegate::kernel::rate::{Room, Step, Strategy};
use sluicegate::kernel::units::{Hits, Nanos, Unit};

/// The state of every strategy. A trace uses one of them.
#[derive(Debug, Default)]
pub(super) struct Model {
    tat: Tat,
    /// The limit under which the TAT was stored.
    shape: Option<Gcra>,
    count: Count,
    pair: Pair,
    log: Log,
    rested: bool,
}

impl Model {
    pub(super) fn apply(&mut self, limit: &Strategy, now: Nanos, cost: Cost) -> Step {
        let step = match limit {
            Strategy::Gcra(limit) => {
                self.carry(limit, now);
                charge_or_hits(cost, |hits| limit.step(&mut self.tat, now, hits))
                    .unwrap_or_else(|hits| limit.refund(&mut self.tat, now, hits))
            }
            Strategy::FixedWindow(limit) => {
                charge_or_hits(cost, |hits| limit.step(&mut self.count, now, hits))
                    .unwrap_or_else(|hits| limit.refund(&mut self.count, now, hits))
            }
            Strategy::SlidingWindow(limit) => {
                charge_or_hits(cost, |hits| limit.step(&mut self.pair, now, hits))
                    .unwrap_or_else(|hits| limit.refund(&mut self.pair, now, hits))
            }
            Strategy::SlidingLog(limit) => {
                charge_or_hits(cost, |hits| limit.step(&mut self.log, now, hits))
                    .unwrap_or_else(|hits| limit.refund(&mut self.log, now, hits))
            }
        };
        if step != Step::Stale {
            self.forget_rested(limit, now);
        }
        step
    }

    /// Applies `act`, such as a lease message, to the counter.
    pub(super) fn with_counter<T>(
        &mut self,
        limit: &Strategy,
        now: Nanos,
        act: impl FnOnce(&mut Counter) -> T,
    ) -> T {
        let answer = match limit {
            Strategy::Gcra(limit) => {
                self.carry(limit, now);
                act(&mut Counter::Gcra(limit, &mut self.tat))
            }
            Strategy::FixedWindow(limit) => act(&mut Counter::FixedWindow(limit, &mut self.count)),
            Strategy::SlidingWindow(limit) => {
                act(&mut Counter::SlidingWindow(limit, &mut self.pair))
            }
            Strategy::SlidingLog(limit) => act(&mut Counter::SlidingLog(limit, &mut self.log)),
        };
        // A log that was only read keeps its entries, because a longer period may count them again.
        // A step drops them.
        if self.room(limit, now).is_some() && !matches!(limit, Strategy::SlidingLog(_)) {
            self.forget_rested(limit, now);
        }
        answer
    }

    pub(super) const fn is_rested(&self) -> bool {
        self.rested
    }

    /// The hits left, or `None` if the calendar of `limit` does not cover `now`.
    pub(super) fn room(&self, limit: &Strategy, now: Nanos) -> Option<Room> {
        let step = match limit {
            Strategy::Gcra(limit) => limit.ask(&self.tat, now, Hits(0)),
            Strategy::FixedWindow(limit) => limit.ask(&self.count, now, Hits(0)),
            Strategy::SlidingWindow(limit) => limit.ask(&self.pair, now, Hits(0)),
            Strategy::SlidingLog(limit) => limit.ask(&self.log, now, Hits(0)),
        };
        match step {
            Step::Admit(room) | Step::Never(room) | Step::Deny { room, .. } => Some(room),
            Step::Stale => None,
        }
    }

    fn carry(&mut self, limit: &Gcra, now: Nanos) {
        if let Some(from) = self.shape.replace(*limit).filter(|from| from != limit) {
            self.tat = limit.carry(&self.tat, &from, now);
        }
    }

    /// Resets an empty counter, which equals an unused one.
    fn forget_rested(&mut self, limit: &Strategy, now: Nanos) {
        self.rested = match limit {
            Strategy::Gcra(limit) => limit.rested(&self.tat, now),
            Strategy::FixedWindow(limit) => limit.rested(&self.count, now),
            Strategy::SlidingWindow(limit) => limit.rested(&self.pair, now),
            Strategy::SlidingLog(limit) => limit.rested(&self.log, now),
        };
        if self.rested {
            *self = Self { rested: true, ..Self::default() };
        }
    }
}

/// The result of a charge, or the hits of a refund as `Err`.
fn charge_or_hits(cost: Cost, charge: impl FnOnce(Hits) -> Step) -> Result<Step, Hits> {
    match cost {
        Cost::Charge(hits) => Ok(charge(hits)),
        Cost::Refund(hits) => Err(hits),
    }
}

/// The script's expected reply for the kernel's `step`.
pub(super) fn expected(step: Step, cost: Cost, now: Nanos) -> Answer {
    match (step, cost) {
        (Step::Stale, _) => Answer::Stale(Tick::Micro.nanos(Tick::Micro.floor(now))),
        (_, Cost::Charge(_)) => Answer::Outcome(Outcome::Stepped(step)),
        (_, Cost::Refund(_)) => Answer::Outcome(Outcome::Refunded(step)),
    }
}

pub(super) fn charge(name: &str, strategy: Strategy, cost: Cost) -> Charge {
    let counting = match strategy {
        Strategy::Gcra(_) => Counting::Gcra,
        Strategy::FixedWindow(window) => match *window.windows() {
            Windows::Every(length) => Counting::FixedWindow(length),
            Windows::Calendar { .. } => Counting::Calendar(Unit::Month),
        },
        Strategy::SlidingWindow(_) => Counting::SlidingWindow(Nanos(0)),
        Strategy::SlidingLog(_) => Counting::SlidingLog,
    };
    let key = CounterKey::injective("shop", [("k", name)].into_iter(), counting);
    let (home, standing) = (Home::default(), Standing::default());
    Charge { key, home, strategy, cost, standing, per_second: false }
}
