//! How hits are counted against a limit: the four strategies and their one step.
//!
//! Guarantees: every strategy is exact in integers and deterministic; `ask` and `step` answer the
//! same, and only `step` changes state; a denied client that returns after `retry_after` is
//! admitted if nobody else came, and not one tick sooner.
//! Leaves out: where the state lives and what time it is.

pub mod fixed_window;
pub mod gcra;
pub mod limit;
pub mod sliding_log;
pub mod sliding_window;

use crate::kernel::units::{Hits, Nanos};

/// The verdict of one strategy on one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The hits pass.
    Admit(Room),
    /// The hits do not pass now, and would after `retry_after` if nobody else came.
    Deny {
        /// Wait until these hits pass.
        retry_after: Nanos,
        /// What is left regardless.
        room: Room,
    },
    /// More hits than the limit could ever admit: waiting does not help.
    Never(Room),
    /// `now` lies outside the calendar windows that the plan brought; plan again and ask again.
    Stale,
}

/// What a counter has left after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Room {
    /// Hits that would be admitted at this instant.
    pub remaining: Hits,
    /// Wait until the counter is fully rested; for a window, until it ends.
    pub reset_after: Nanos,
}

/// How a limit counts, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The generic cell rate algorithm.
    Gcra(gcra::Gcra),
    /// One count per window; windows are aligned to the epoch or to a calendar.
    FixedWindow(fixed_window::FixedWindow),
    /// Two windows, interpolated.
    SlidingWindow(sliding_window::SlidingWindow),
    /// Every arrival of the last period.
    SlidingLog(sliding_log::SlidingLog),
}

impl Strategy {
    /// The unit of time this limit counts in; instants are rounded down to it.
    #[must_use]
    pub const fn tick(&self) -> limit::Tick {
        match self {
            Self::Gcra(limit) => limit.tick(),
            Self::SlidingWindow(limit) => limit.tick(),
            Self::FixedWindow(_) | Self::SlidingLog(_) => limit::Tick::Micro,
        }
    }

    /// The hits that one tick is worth, where hits come back tick by tick.
    #[must_use]
    pub const fn worth(&self) -> Option<limit::Worth> {
        match self {
            Self::Gcra(limit) => Some(limit.worth()),
            Self::SlidingWindow(limit) => Some(limit.worth()),
            Self::FixedWindow(_) | Self::SlidingLog(_) => None,
        }
    }

    /// Hits admitted at one instant by a counter at rest: the burst of GCRA, the limit elsewhere.
    #[must_use]
    pub const fn most(&self) -> u32 {
        match self {
            Self::Gcra(limit) => limit.burst(),
            Self::FixedWindow(limit) => limit.limit(),
            Self::SlidingWindow(limit) => limit.limit(),
            Self::SlidingLog(limit) => limit.limit(),
        }
    }

    /// How much longer than others `more` hits than theirs wait; nothing where only the counter can say. At most a tick longer
    /// than the counter would.
    #[must_use]
    pub fn longer(&self, more: Hits) -> Option<Nanos> {
        match self {
            _ if more == Hits(0) => Some(Nanos(0)),
            // The whole window is over at once.
            Self::FixedWindow(_) => Some(Nanos(0)),
            Self::Gcra(gcra) => {
                let earned = more.0.saturating_mul(gcra.worth().ticks.get());
                Some(gcra.tick().nanos(earned.div_ceil(gcra.worth().hits.into())))
            }
            Self::SlidingWindow(_) | Self::SlidingLog(_) => None,
        }
    }

    /// Is one tick worth more than 1 % of what passes at one instant?
    #[must_use]
    pub fn is_coarse(&self) -> bool {
        self.worth().is_some_and(|worth| worth.is_coarse(self.most()))
    }
}
