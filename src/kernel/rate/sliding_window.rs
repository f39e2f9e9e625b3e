//! Two aligned windows, interpolated.
//!
//! Windows of P ticks are aligned to the epoch. What the previous window admitted is taken to be
//! spread evenly, so that e ticks into the current window P − e ticks' part of it still counts.
//!
//! | formula, for 10 a minute; 8 in the previous minute, 3 in this one, 15 s old | worked row |
//! |---|---|
//! | used = cur + ⌈prev·(P − e) / P⌉ | 3 + ⌈8·45/60⌉ = 9 |
//! | admit iff prev·(P − e) + (cur + hits)·P ≤ L·P, that is hits ≤ L − used | 1 passes, 2 do not |
//! | `retry_after`: e at which prev·(P − e) ≤ (L − cur − hits)·P | 2: 60 − ⌊5·60/8⌋ = 22.5 s, 7.5 s to go |
//! | `reset_after`: when prev and cur are both past | 45 + 60 s |
//!
//! ```
//! use sluicegate::kernel::rate::sliding_window::{Pair, SlidingWindow};
//! use sluicegate::kernel::rate::{Room, Step};
//! use sluicegate::kernel::units::{Hits, Nanos};
//!
//! let limit = SlidingWindow::new(10, Nanos::from_secs(60)).unwrap();
//! let mut state = Pair { start: Nanos::from_secs(6_000), prev: 8, cur: 3 };
//! let now = Nanos::from_secs(6_015);
//! let room = Room { remaining: Hits(1), reset_after: Nanos::from_secs(105) };
//! let denied = Step::Deny { retry_after: Nanos(7_500_000_000), room };
//! assert_eq!(limit.step(&mut state, now, Hits(2)), denied);
//! assert!(matches!(limit.step(&mut state, now, Hits(1)), Step::Admit(_)));
//! ```
//!
//! Guarantees: never more than L hits in an aligned window, and over any t ≤ P ticks, first and
//! last included, at most L + ⌊L·t/P⌋. That is the error of the strategy: up to twice the limit in
//! a period, where the previous window's hits all came late. A denied question costs nothing.
//! Windows only move forward. A changed limit keeps both counts; a changed period keeps those
//! whose window the new windows still hold.
//! Leaves out: exactness over every interval; that is [`super::sliding_log`].

use std::num::{NonZeroU32, NonZeroU64};

use super::limit::{self, LimitError, Tick, Worth};
use super::{Room, Step};
use crate::kernel::units::{Hits, Nanos};

/// A limit over two interpolated windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    limit: u32,
    period: NonZeroU64,
    tick: Tick,
}

/// The state: two windows and their counts. The default is rested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pair {
    /// When the current window began. Never moves back.
    pub start: Nanos,
    /// Hits admitted in the window before.
    pub prev: u32,
    /// Hits admitted in the current window.
    pub cur: u32,
}

/// A state brought to `now`, in ticks.
struct Seen {
    now: u64,
    /// When the counts began: the current window's start, or later under a changed period.
    since: u64,
    /// When the current window ends.
    end: u64,
    /// Ticks until then, at least 1; a window in the future has all of them left.
    left: u64,
    prev: u32,
    cur: u32,
}

impl SlidingWindow {
    /// `limit` hits per `period`; a limit of 0 denies every hit.
    ///
    /// # Errors
    /// A period of 0 or not whole microseconds, or a limit that does not fit.
    pub fn new(limit: u32, period: Nanos) -> Result<Self, LimitError> {
        // Not reduced: the previous window's count may be any number.
        let fit = limit::fit(NonZeroU32::MIN, period, limit)?;
        Ok(Self { limit, period: fit.period, tick: fit.tick })
    }

    /// Hits per period.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// The unit of time this limit counts in.
    #[must_use]
    pub const fn tick(&self) -> Tick {
        self.tick
    }

    /// L hits in P ticks: what the window slides by, at most.
    #[must_use]
    pub const fn worth(&self) -> Worth {
        Worth { hits: self.limit, ticks: self.period }
    }

    /// The verdict that [`SlidingWindow::step`] would give; changes nothing.
    #[must_use]
    pub fn ask(&self, state: &Pair, now: Nanos, hits: Hits) -> Step {
        self.decide(&mut self.seen(*state, now), hits)
    }

    /// Counts `hits` if they pass. Cost: no allocation. `hits` 0 always passes.
    pub fn step(&self, state: &mut Pair, now: Nanos, hits: Hits) -> Step {
        let mut seen = self.seen(*state, now);
        let step = self.decide(&mut seen, hits);
        *state = self.pair(&seen);
        step
    }

    /// Gives `hits` back to the current window.
    pub fn refund(&self, state: &mut Pair, now: Nanos, hits: Hits) -> Step {
        let mut seen = self.seen(*state, now);
        seen.cur = seen.cur.saturating_sub(narrow(hits));
        *state = self.pair(&seen);
        Step::Admit(self.room(&seen))
    }

    /// Hits that surely pass where the counter, which had `room`, is at rest after `wait`: what was used of it fades
    /// in the last period before that, or what is left of one.
    #[must_use]
    pub fn left_before(&self, room: Room, wait: Nanos) -> Hits {
        let limit = Hits(u64::from(self.limit));
        let fades_for = self.fades_for(room);
        let left = wait.0.div_ceil(self.tick.size().0).min(fades_for);
        // Below 2^53: what is used is at most the limit.
        let used = limit.less(room.remaining).0.saturating_mul(left);
        limit.less(Hits(used.div_ceil(fades_for)))
    }

    /// How long before the counter, which had `room`, is at rest `hits`, at most the limit, surely pass already.
    #[must_use]
    pub fn before_rest(&self, room: Room, hits: Hits) -> Nanos {
        let limit = Hits(u64::from(self.limit));
        let fades_for = self.fades_for(room);
        // Below 2^53: at most the limit, for at most a period.
        let product = limit.less(hits).0.saturating_mul(fades_for);
        let left = product.checked_div(limit.less(room.remaining).0).unwrap_or(fades_for);
        self.tick.nanos(left.min(fades_for))
    }

    /// For how many ticks before its rest what was used of a counter fades: a period, or what is left of one.
    fn fades_for(&self, room: Room) -> u64 {
        self.tick.floor(room.reset_after).min(self.period.get()).max(1)
    }

    /// Is this state as good as never seen?
    #[must_use]
    pub fn rested(&self, state: &Pair, now: Nanos) -> bool {
        let seen = self.seen(*state, now);
        seen.prev == 0 && seen.cur == 0
    }

    fn decide(&self, seen: &mut Seen, hits: Hits) -> Step {
        let room = self.room(seen);
        if hits.0 == 0 || hits <= room.remaining {
            // At most the limit, because `hits` are at most what remains of it.
            seen.cur = seen.cur.saturating_add(narrow(hits));
            return Step::Admit(self.room(seen));
        }
        if u64::from(self.limit) < hits.0 {
            return Step::Never(room);
        }
        let wait = self.passes_at(seen, hits).saturating_sub(seen.now);
        Step::Deny { retry_after: self.tick.nanos(wait), room }
    }

    /// The first tick at which `hits`, at most the limit and denied now, pass.
    fn passes_at(&self, seen: &Seen, hits: Hits) -> u64 {
        let after_hits = u64::from(self.limit).saturating_sub(hits.0);
        match after_hits.checked_sub(u64::from(seen.cur)) {
            // In this window, as the previous one fades.
            Some(room) => self.fades_to(seen.end, seen.prev, room),
            // In the next, as this one fades.
            None => self.fades_to(self.next(seen.end), seen.cur, after_hits),
        }
    }

    /// When `count` hits weigh no more than `room`, fading out until `end`.
    fn fades_to(&self, end: u64, count: u32, room: u64) -> u64 {
        // Below 2^53: `room` is at most the limit. Rounded down, so that the instant is rounded up.
        let product = room.saturating_mul(self.period.get());
        end.saturating_sub(product.checked_div(u64::from(count)).unwrap_or(self.period.get()))
    }

    fn room(&self, seen: &Seen) -> Room {
        // Saturates only for counts above a limit that was lowered; then nothing remains either.
        let faded = u64::from(seen.prev).saturating_mul(seen.left).div_ceil(self.period.get());
        let used = faded.saturating_add(u64::from(seen.cur));
        let rested = match (seen.prev, seen.cur) {
            (0, 0) => seen.now,
            (_, 0) => seen.end,
            _ => self.next(seen.end),
        };
        Room {
            remaining: Hits(u64::from(self.limit)).less(Hits(used)),
            reset_after: self.tick.nanos(rested.saturating_sub(seen.now)),
        }
    }

    /// Moves the windows forward to `now`.
    fn seen(&self, state: Pair, now: Nanos) -> Seen {
        let now = self.tick.floor(now);
        let since = self.tick.floor(state.start);
        let at = now.max(since);
        let elapsed = at % self.period;
        let start = at.saturating_sub(elapsed);
        let end = self.next(start);
        let (prev, cur) = match start.saturating_sub(since) {
            0 => (state.prev, state.cur),
            apart if apart <= self.period.get() => (state.cur, 0),
            _ => (0, 0),
        };
        let left = end.saturating_sub(at);
        Seen { now, since: since.max(start), end, left, prev, cur }
    }

    /// One window later.
    fn next(&self, boundary: u64) -> u64 {
        boundary.saturating_add(self.period.get())
    }

    fn pair(&self, seen: &Seen) -> Pair {
        Pair { start: self.tick.nanos(seen.since), prev: seen.prev, cur: seen.cur }
    }
}

/// Saturates; where it does, nothing so large passes or is held.
fn narrow(hits: Hits) -> u32 {
    u32::try_from(hits.0).unwrap_or(u32::MAX)
}
