//! One counter as the kernel has it.

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

/// The state of every strategy; a trace uses one of them.
#[derive(Debug, Default)]
pub(super) struct Model {
    tat: Tat,
    /// What the TAT was written under.
    shape: Option<Gcra>,
    count: Count,
    pair: Pair,
    log: Log,
    rested: bool,
}

impl Model {
    pub(super) fn put(&mut self, limit: &Strategy, now: Nanos, cost: Cost) -> Step {
        let step = match limit {
            Strategy::Gcra(limit) => {
                self.carry(limit, now);
                turn(cost, |hits| limit.step(&mut self.tat, now, hits))
                    .unwrap_or_else(|hits| limit.refund(&mut self.tat, now, hits))
            }
            Strategy::FixedWindow(limit) => {
                turn(cost, |hits| limit.step(&mut self.count, now, hits))
                    .unwrap_or_else(|hits| limit.refund(&mut self.count, now, hits))
            }
            Strategy::SlidingWindow(limit) => {
                turn(cost, |hits| limit.step(&mut self.pair, now, hits))
                    .unwrap_or_else(|hits| limit.refund(&mut self.pair, now, hits))
            }
            Strategy::SlidingLog(limit) => turn(cost, |hits| limit.step(&mut self.log, now, hits))
                .unwrap_or_else(|hits| limit.refund(&mut self.log, now, hits)),
        };
        if step != Step::Stale {
            self.forget_rested(limit, now);
        }
        step
    }

    /// Hands the counter to what lends of it.
    pub(super) fn lend<T>(
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
        // A log that was only asked keeps what a longer period may count again; a step empties it.
        if self.room(limit, now).is_some() && !matches!(limit, Strategy::SlidingLog(_)) {
            self.forget_rested(limit, now);
        }
        answer
    }

    /// Whether there is nothing to remember.
    pub(super) const fn is_rested(&self) -> bool {
        self.rested
    }

    /// What `limit` has left, if it can say.
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

    /// A state that is rested is one never seen.
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

/// What a charge answers, or the hits to be given back.
fn turn(cost: Cost, charge: impl FnOnce(Hits) -> Step) -> Result<Step, Hits> {
    match cost {
        Cost::Charge(hits) => Ok(charge(hits)),
        Cost::Refund(hits) => Err(hits),
    }
}

/// What the script has to say when the kernel says `step`.
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
