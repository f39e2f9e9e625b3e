//! The counter that leases of one key are charged to, whatever its strategy.
//!
//! Guarantees: what is given back undoes a charge only while the counter still holds it, and no
//! more than it holds.
//! Leaves out: who may give back; that is [`super::book`].

use crate::kernel::rate::fixed_window::{Count, FixedWindow};
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::rate::sliding_log::{Log, SlidingLog};
use crate::kernel::rate::sliding_window::{Pair, SlidingWindow};
use crate::kernel::rate::{Room, Step};
use crate::kernel::units::{Hits, Nanos};

/// A limit and the state it counts in.
#[derive(Debug)]
pub enum Counter<'a> {
    /// A debt.
    Gcra(&'a Gcra, &'a mut Tat),
    /// A count.
    FixedWindow(&'a FixedWindow, &'a mut Count),
    /// Two counts.
    SlidingWindow(&'a SlidingWindow, &'a mut Pair),
    /// Arrivals.
    SlidingLog(&'a SlidingLog, &'a mut Log),
}

/// Where a charge is found again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mark {
    /// In the debt, which has no parts. Also the mark of no charge at all.
    #[default]
    Debt,
    /// In the fixed window that began then.
    Window(Nanos),
    /// In the aligned window that began then.
    Pair(Nanos),
    /// In the log's entry of that instant.
    Entry(Nanos),
}

impl Counter<'_> {
    /// The verdict that [`Counter::step`] would give; changes nothing.
    #[must_use]
    pub fn ask(&self, now: Nanos, hits: Hits) -> Step {
        match self {
            Self::Gcra(limit, state) => limit.ask(state, now, hits),
            Self::FixedWindow(limit, state) => limit.ask(state, now, hits),
            Self::SlidingWindow(limit, state) => limit.ask(state, now, hits),
            Self::SlidingLog(limit, state) => limit.ask(state, now, hits),
        }
    }

    /// Charges `hits` as the strategy does.
    pub fn step(&mut self, now: Nanos, hits: Hits) -> Step {
        match self {
            Self::Gcra(limit, state) => limit.step(state, now, hits),
            Self::FixedWindow(limit, state) => limit.step(state, now, hits),
            Self::SlidingWindow(limit, state) => limit.step(state, now, hits),
            Self::SlidingLog(limit, state) => limit.step(state, now, hits),
        }
    }

    /// Where a charge that was just made will be found.
    #[must_use]
    pub fn mark(&self, now: Nanos) -> Mark {
        match self {
            Self::Gcra(..) => Mark::Debt,
            Self::FixedWindow(_, state) => Mark::Window(state.start),
            Self::SlidingWindow(_, state) => Mark::Pair(state.start),
            Self::SlidingLog(..) => Mark::Entry(now),
        }
    }

    /// Gives back `hits` of the charge at `mark`; nothing once its window is over.
    pub fn refund(&mut self, now: Nanos, mark: Mark, hits: Hits) {
        // Brings the counter to its current window, so that marks compare.
        self.step(now, Hits(0));
        match (self, mark) {
            (Self::Gcra(limit, state), Mark::Debt) => {
                limit.refund(state, now, hits);
            }
            (Self::FixedWindow(limit, state), Mark::Window(at)) if state.start == at => {
                limit.refund(state, now, hits);
            }
            (Self::SlidingWindow(limit, state), Mark::Pair(at)) if state.start == at => {
                limit.refund(state, now, hits);
            }
            (Self::SlidingLog(_, state), Mark::Entry(at)) => state.refund_at(at, hits),
            _ => {}
        }
    }

    /// Whether windows end, so that a lease can end with its window.
    #[must_use]
    pub const fn has_windows(&self) -> bool {
        matches!(self, Self::FixedWindow(..))
    }
}

/// What a step says is left.
#[must_use]
pub fn room(step: Step) -> Room {
    match step {
        Step::Admit(room) | Step::Deny { room, .. } | Step::Never(room) => room,
        Step::Stale => Room::default(),
    }
}
