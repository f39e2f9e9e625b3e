//! The four strategies that count hits against a limit.
//!
//! Guarantees:
//! - Every strategy is deterministic and exact in integers.
//! - `peek` and `charge` give the same result; only `charge` changes the state.
//! - A denied client is allowed at `retry_after`, without other traffic, and not one
//!   [`limit::Tick`] sooner.

mod counter_decision;
pub mod fixed_window;
pub mod gcra;
pub mod limit;
pub mod on_excess;
pub mod sliding_log;
pub mod sliding_window;

use crate::units::{Hits, Nanos};
pub use counter_decision::{CounterDecision, Headroom};
use on_excess::OnExcess;

/// A strategy with the numbers of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// The generic cell rate algorithm.
    Gcra(gcra::Gcra),
    /// One count per window; windows are aligned to the Unix epoch or to a calendar.
    FixedWindow(fixed_window::FixedWindow),
    /// Two windows; the hits of the previous window count in part.
    SlidingWindow(sliding_window::SlidingWindow),
    /// A log of every arrival in the last period.
    SlidingLog(sliding_log::SlidingLog),
}

impl Strategy {
    /// The time unit of this limit; instants are rounded down to it.
    #[must_use]
    pub const fn tick(&self) -> limit::Tick {
        match self {
            Self::Gcra(limit) => limit.tick(),
            Self::SlidingWindow(limit) => limit.tick(),
            Self::FixedWindow(_) | Self::SlidingLog(_) => limit::Tick::Micro,
        }
    }

    /// The hits freed per tick, for strategies that free hits continuously.
    #[must_use]
    pub const fn refill_rate(&self) -> Option<limit::RefillRate> {
        match self {
            Self::Gcra(limit) => Some(limit.refill_rate()),
            Self::SlidingWindow(limit) => Some(limit.refill_rate()),
            Self::FixedWindow(_) | Self::SlidingLog(_) => None,
        }
    }

    /// The hits that an empty counter allows at one
    /// instant: the burst of GCRA, otherwise the limit.
    #[must_use]
    pub const fn max_at_once(&self) -> u32 {
        match self {
            Self::Gcra(limit) => limit.burst(),
            Self::FixedWindow(limit) => limit.limit(),
            Self::SlidingWindow(limit) => limit.limit(),
            Self::SlidingLog(limit) => limit.limit(),
        }
    }

    /// The effect of a check for more hits than remain.
    #[must_use]
    pub const fn on_excess(&self) -> OnExcess {
        match self {
            Self::Gcra(limit) => limit.on_excess(),
            Self::FixedWindow(limit) => limit.on_excess(),
            Self::SlidingWindow(limit) => limit.on_excess(),
            Self::SlidingLog(limit) => limit.on_excess(),
        }
    }

    /// Returns `true` if denied hits are charged, too.
    #[must_use]
    pub const fn charges_denied_hits(&self) -> bool {
        matches!(self, Self::FixedWindow(_)) || self.on_excess().is_charge()
    }

    /// Returns how much longer a denied check waits with `additional_hits` more; `None` if only the
    /// counter can compute that. The result is at most one tick longer than the counter's own.
    #[must_use]
    pub fn extra_wait(&self, additional_hits: Hits) -> Option<Nanos> {
        match self {
            _ if additional_hits == Hits(0) => Some(Nanos(0)),
            // The window frees all hits at once.
            Self::FixedWindow(_) => Some(Nanos(0)),
            Self::Gcra(gcra) => {
                let earned = additional_hits.0.saturating_mul(gcra.refill_rate().ticks.get());
                Some(gcra.tick().nanos(earned.div_ceil(gcra.refill_rate().hits.into())))
            }
            Self::SlidingWindow(_) | Self::SlidingLog(_) => None,
        }
    }

    /// Projects the headroom `room`, measured at `measured_at`, to `now`, without other traffic.
    /// The result is at most the counter's own headroom, and equal once the counter is empty,
    /// unless the counter's clock steps back. Cost: no allocation.
    ///
    /// | 100 per second, 0 remaining at 0 s | 0.5 s | 1 s | 1.5 s | 2 s |
    /// |---|---|---|---|---|
    /// | GCRA, empty at 1 s: one hit per 10 ms | 50 | 100 | 100 | 100 |
    /// | fixed window that ends at 1 s | 0 | 100 | 100 | 100 |
    /// | sliding window, empty at 2 s: the old hits fade from 1 s | 0 | 0 | 50 | 100 |
    /// | sliding log, empty at 1 s | 0 | 100 | 100 | 100 |
    #[must_use]
    pub fn project(&self, room: Headroom, measured_at: Nanos, now: Nanos) -> Headroom {
        // The counter's clock ticks in microseconds. Finer instants
        // would give the headroom of a window that is over.
        let [measured_at, now] = [measured_at, now]
            .map(|instant| limit::Tick::Micro.nanos(limit::Tick::Micro.floor(instant)));
        let elapsed = now.since(measured_at);
        if room.reset_after <= elapsed {
            let reset_after = match self {
                Self::FixedWindow(limit) => {
                    limit.windows().time_left(measured_at.plus(room.reset_after), now)
                }
                Self::Gcra(_) | Self::SlidingWindow(_) | Self::SlidingLog(_) => Nanos(0),
            };
            return Headroom { remaining: Hits(u64::from(self.max_at_once())), reset_after };
        }
        let reset_after = room.reset_after.since(elapsed);
        let earned = match self {
            Self::Gcra(limit) => limit.allowed_before_empty(reset_after),
            Self::SlidingWindow(limit) => limit.allowed_before_empty(room, reset_after),
            Self::FixedWindow(_) | Self::SlidingLog(_) => Hits(0),
        };
        Headroom { remaining: room.remaining.max(earned), reset_after }
    }

    /// Returns the time after which `hits` (at least 1) are allowed, without other traffic.
    ///
    /// The time counts from the reply that contained `room`. `None` if the hits are never allowed.
    /// The time is never too short, unless a sliding window's limit was lowered since. It is exact
    /// for a fixed window, and within one tick for GCRA. For the sliding strategies it may be
    /// longer, at most until the counter is empty.
    ///
    /// | 10 per minute, 4 remaining | 5 hits are allowed in |
    /// |---|---|
    /// | GCRA, empty in 36 s: one hit per 6 s | 6 s |
    /// | fixed window that ends in 20 s | 20 s |
    /// | sliding window, empty in 80 s: from 20 s on, 6 hits fade to 5 in 10 s | 30 s |
    /// | sliding log, empty in 50 s | 50 s |
    #[must_use]
    pub fn time_until_allowed(&self, room: Headroom, hits: Hits) -> Option<Nanos> {
        if u64::from(self.max_at_once()) < hits.0 {
            return None;
        }
        if hits <= room.remaining {
            return Some(Nanos(0));
        }
        let before_empty = match self {
            Self::Gcra(limit) => limit.allowed_before_empty_by(hits),
            Self::SlidingWindow(limit) => limit.allowed_before_empty_by(room, hits),
            Self::FixedWindow(_) | Self::SlidingLog(_) => Nanos(0),
        };
        Some(room.reset_after.since(before_empty))
    }

    /// Returns `true` if one tick frees more than 1 % of the burst or limit.
    #[must_use]
    pub fn is_coarse(&self) -> bool {
        self.refill_rate().is_some_and(|rate| rate.is_coarse(self.max_at_once()))
    }
}
