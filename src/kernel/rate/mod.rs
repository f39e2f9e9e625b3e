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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// What a counter has left at `now` that had `room` at `at`, if nobody came meanwhile: at most what it would say
    /// itself, and the same as soon as it is at rest, as long as its clock does not step back. Cost: no allocation.
    ///
    /// | 100 a second, of which 0 were left at 0 s | 0.5 s | 1 s | 1.5 s | 2 s |
    /// |---|---|---|---|---|
    /// | GCRA, at rest at 1 s: a hit in 10 ms | 50 | 100 | 100 | 100 |
    /// | fixed window that ends at 1 s | 0 | 100 | 100 | 100 |
    /// | sliding window, at rest at 2 s: from 1 s on the hits of before fade | 0 | 0 | 50 | 100 |
    /// | sliding log, at rest at 1 s | 0 | 100 | 100 | 100 |
    #[must_use]
    pub fn later(&self, room: Room, at: Nanos, now: Nanos) -> Room {
        // A counter's clock ticks in microseconds: what is left in between would be that of a window that is over.
        let [at, now] =
            [at, now].map(|instant| limit::Tick::Micro.nanos(limit::Tick::Micro.floor(instant)));
        let elapsed = now.since(at);
        if room.reset_after <= elapsed {
            let reset_after = match self {
                Self::FixedWindow(limit) => limit.windows().left(at.plus(room.reset_after), now),
                Self::Gcra(_) | Self::SlidingWindow(_) | Self::SlidingLog(_) => Nanos(0),
            };
            return Room { remaining: Hits(u64::from(self.most())), reset_after };
        }
        let reset_after = room.reset_after.since(elapsed);
        let earned = match self {
            Self::Gcra(limit) => limit.left_before(reset_after),
            Self::SlidingWindow(limit) => limit.left_before(room, reset_after),
            Self::FixedWindow(_) | Self::SlidingLog(_) => Hits(0),
        };
        Room { remaining: room.remaining.max(earned), reset_after }
    }

    /// How long after an answer that left `room` as many as `hits`, at least one, pass, if nobody came meanwhile; nothing where
    /// they never do. Never too short, but for a sliding window whose limit was lowered meanwhile. Exact for a fixed window, for GCRA
    /// but for a tick; the sliding two may be asked to wait longer than they have to, until they are at rest.
    ///
    /// | 10 a minute, of which 4 are left | 5 hits pass in |
    /// |---|---|
    /// | GCRA, at rest in 36 s: a hit in 6 s | 6 s |
    /// | fixed window that ends in 20 s | 20 s |
    /// | sliding window, at rest in 80 s: from 20 s on 6 hits fade to 5 in 10 s | 30 s |
    /// | sliding log, at rest in 50 s | 50 s |
    #[must_use]
    pub fn passes_in(&self, room: Room, hits: Hits) -> Option<Nanos> {
        if u64::from(self.most()) < hits.0 {
            return None;
        }
        if hits <= room.remaining {
            return Some(Nanos(0));
        }
        let before_rest = match self {
            Self::Gcra(limit) => limit.before_rest(hits),
            Self::SlidingWindow(limit) => limit.before_rest(room, hits),
            Self::FixedWindow(_) | Self::SlidingLog(_) => Nanos(0),
        };
        Some(room.reset_after.since(before_rest))
    }

    /// Is one tick worth more than 1 % of what passes at one instant?
    #[must_use]
    pub fn is_coarse(&self) -> bool {
        self.worth().is_some_and(|worth| worth.is_coarse(self.most()))
    }
}
