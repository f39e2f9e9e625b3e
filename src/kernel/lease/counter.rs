//! A counter of any strategy, to which leases and reservations are charged.
//!
//! Guarantees:
//! - A refund undoes at most the part of a charge that the counter still contains.
//!
//! Not covered:
//! - Permission to refund (see [`super::book`]).

use crate::kernel::rate::fixed_window::{Count, FixedWindow};
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::rate::sliding_log::{Log, SlidingLog};
use crate::kernel::rate::sliding_window::{Pair, SlidingWindow};
use crate::kernel::rate::{Room, Step};
use crate::kernel::units::{Hits, Nanos};

/// A limit and its counter state, by strategy.
#[derive(Debug)]
pub enum Counter<'a> {
    /// A debt.
    Gcra(&'a Gcra, &'a mut Tat),
    /// One count per window.
    FixedWindow(&'a FixedWindow, &'a mut Count),
    /// Two counts.
    SlidingWindow(&'a SlidingWindow, &'a mut Pair),
    /// A log of arrivals.
    SlidingLog(&'a SlidingLog, &'a mut Log),
}

/// The location of a charge inside a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mark {
    /// The GCRA debt, which has no parts. Also the default, for no charge.
    #[default]
    Debt,
    /// The fixed window that starts at this instant.
    Window(Nanos),
    /// The sliding strategy's aligned window that starts at this instant.
    Pair(Nanos),
    /// The log entry of this instant.
    Entry(Nanos),
}

impl Counter<'_> {
    /// Returns the result that [`Counter::step`] would give; changes nothing.
    #[must_use]
    pub fn ask(&self, now: Nanos, hits: Hits) -> Step {
        match self {
            Self::Gcra(limit, state) => limit.ask(state, now, hits),
            Self::FixedWindow(limit, state) => limit.ask(state, now, hits),
            Self::SlidingWindow(limit, state) => limit.ask(state, now, hits),
            Self::SlidingLog(limit, state) => limit.ask(state, now, hits),
        }
    }

    /// Charges `hits` by the rules of the strategy.
    pub fn step(&mut self, now: Nanos, hits: Hits) -> Step {
        match self {
            Self::Gcra(limit, state) => limit.step(state, now, hits),
            Self::FixedWindow(limit, state) => limit.step(state, now, hits),
            Self::SlidingWindow(limit, state) => limit.step(state, now, hits),
            Self::SlidingLog(limit, state) => limit.step(state, now, hits),
        }
    }

    /// Returns the location of the charge just made at `now`.
    #[must_use]
    pub fn mark(&self, now: Nanos) -> Mark {
        match self {
            Self::Gcra(..) => Mark::Debt,
            Self::FixedWindow(_, state) => Mark::Window(state.start),
            Self::SlidingWindow(_, state) => Mark::Pair(state.start),
            Self::SlidingLog(..) => Mark::Entry(now),
        }
    }

    /// Refunds `hits` of the charge at `mark`; does nothing if its window is over.
    pub fn refund(&mut self, now: Nanos, mark: Mark, hits: Hits) {
        // Moves the counter to its current window, so that the window starts compare.
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

    /// Returns `true` if a lease can end with its window.
    #[must_use]
    pub const fn has_windows(&self) -> bool {
        matches!(self, Self::FixedWindow(..))
    }
}

/// Returns the headroom in a result; zero if it has none.
#[must_use]
pub fn room(step: Step) -> Room {
    match step {
        Step::Admit(room) | Step::Deny { room, .. } | Step::Never(room) => room,
        Step::Stale => Room::default(),
    }
}
