//! A sliding window, approximated by the counts of two aligned windows.
//!
//! Windows of P ticks are aligned to the Unix epoch. The hits of the previous window are assumed
//! to be spread evenly. After e ticks of the current window, (P − e) / P of them still count.
//!
//! | formula, for 10 per minute; 8 in the previous minute, 3 in this one, 15 s old | worked row |
//! |---|---|
//! | used = cur + ⌈prev·(P − e) / P⌉ | 3 + ⌈8·45/60⌉ = 9 |
//! | allow iff prev·(P − e) + (cur + hits)·P ≤ L·P, or hits ≤ L − used | 1 allowed, 2 denied |
//! | `retry_after`: prev·(P − e) ≤ (L − cur − hits)·P | 2 hits: 60 − 5·60/8 = 22.5 s, in 7.5 s |
//! | `reset_after`: until both windows are past | 45 + 60 s |
//!
//! ```
//! use sluicegate_kernel::rate::sliding_window::{SlidingWindow, WindowPair};
//! use sluicegate_kernel::rate::{CounterDecision, Headroom};
//! use sluicegate_kernel::units::{Hits, Nanos};
//!
//! let limit = SlidingWindow::new(10, Nanos::from_secs(60)).unwrap();
//! let mut state = WindowPair { start: Nanos::from_secs(6_000), prev: 8, cur: 3 };
//! let now = Nanos::from_secs(6_015);
//! let headroom = Headroom { remaining: Hits(1), reset_after: Nanos::from_secs(105) };
//! let denied = CounterDecision::Deny { retry_after: Nanos(7_500_000_000), headroom };
//! assert_eq!(limit.charge(&mut state, now, Hits(2)), denied);
//! assert!(matches!(limit.charge(&mut state, now, Hits(1)), CounterDecision::Allow(_)));
//! ```
//!
//! **Error.** A period can contain up to twice the
//! limit, if all hits of the previous window came late.
//!
//! Guarantees:
//! - At most L hits in an aligned window.
//! - At most L + ⌊L·t/P⌋ hits in any t ≤ P ticks, first and last included.
//! - A denied check costs nothing, unless the limit charges excess hits.
//! - The current window never moves back.
//! - A changed limit keeps both counts.
//! - A changed period keeps the counts whose window overlaps the new windows.
//!
//! Not covered: exactness in every interval (see [`super::sliding_log`]).

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

use super::counter_decision::{CounterDecision, Headroom};
use super::limit::{self, LimitError, RefillRate, Tick};
use super::on_excess::OnExcess;
use crate::units::{Hits, Nanos};

/// A limit over two windows; the hits of the previous window count in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    limit: u32,
    period: NonZeroU64,
    tick: Tick,
    on_excess: OnExcess,
}

/// The state: two windows and their counts. The default is an empty counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WindowPair {
    /// The start of the current window; it never moves back.
    pub start: Nanos,
    /// The hits charged in the previous window.
    pub prev: u32,
    /// The hits charged in the current window.
    pub cur: u32,
}

/// A counter state, moved to the window at `now`. All instants are in ticks.
struct CurrentWindows {
    now: u64,
    /// The start of the counts: the current window's start, or later after a changed period.
    since: u64,
    end: u64,
    /// The ticks until `end`, at least 1; a window in the future has all its ticks.
    ticks_left: u64,
    prev: u32,
    cur: u32,
}

impl SlidingWindow {
    /// Creates a limit of `limit` hits per `period`; 0 denies every hit.
    ///
    /// # Errors
    /// Fails for a period of 0 or with a fraction of a microsecond, or a limit that does not fit.
    pub fn new(limit: u32, period: Nanos) -> Result<Self, LimitError> {
        // The rate is not reduced to lowest terms, because the previous window's count can be any
        // number.
        let fit = limit::fit_rate(NonZeroU32::MIN, period, limit, limit)?;
        let on_excess = OnExcess::ByStrategy;
        Ok(Self { limit, period: fit.period, tick: fit.tick, on_excess })
    }

    /// Returns the limit with this effect of excess hits.
    #[must_use]
    pub const fn with_on_excess(self, on_excess: OnExcess) -> Self {
        Self { on_excess, ..self }
    }

    /// The effect of a check for more hits than remain.
    #[must_use]
    pub const fn on_excess(&self) -> OnExcess {
        self.on_excess
    }

    /// The hits allowed per period.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// The time unit of this limit.
    #[must_use]
    pub const fn tick(&self) -> Tick {
        self.tick
    }

    /// L hits per P ticks, the highest rate at which the window frees hits.
    #[must_use]
    pub const fn refill_rate(&self) -> RefillRate {
        RefillRate { hits: self.limit, ticks: self.period }
    }

    /// Returns the result that [`SlidingWindow::charge`] would give; changes nothing.
    #[must_use]
    pub fn peek(&self, state: &WindowPair, now: Nanos, hits: Hits) -> CounterDecision {
        self.decide(&mut self.advance(*state, now), hits)
    }

    /// Counts `hits` if they are allowed, or if the limit charges excess hits. Then the retry-after
    /// includes these hits. 0 hits are always allowed unless the limit charges excess hits. Cost: no
    /// allocation.
    pub fn charge(&self, state: &mut WindowPair, now: Nanos, hits: Hits) -> CounterDecision {
        let mut windows = self.advance(*state, now);
        let result = self.decide(&mut windows, hits);
        *state = self.state_of(&windows);
        result
    }

    /// Refunds `hits` to the current window.
    pub fn refund(&self, state: &mut WindowPair, now: Nanos, hits: Hits) -> CounterDecision {
        let mut windows = self.advance(*state, now);
        windows.cur = windows.cur.saturating_sub(saturating_u32(hits));
        *state = self.state_of(&windows);
        CounterDecision::Allow(self.headroom(&windows))
    }

    /// Returns the hits that are certainly allowed at a time `wait` before the counter is empty.
    ///
    /// `room` is the counter's last headroom. The used hits fade linearly during the last period
    /// before the counter is empty. If less than a period remains, they fade in that time. A limit
    /// that charges excess hits returns 0: the used hits may be above the limit.
    #[must_use]
    pub fn allowed_before_empty(&self, room: Headroom, wait: Nanos) -> Hits {
        if self.on_excess.is_charge() {
            return Hits(0);
        }
        let limit = Hits(u64::from(self.limit));
        let fades_for = self.fade_ticks(room);
        let remaining_ticks = wait.0.div_ceil(self.tick.size().0).min(fades_for);
        // The product is below 2^53, because the used hits are at most the limit.
        let used = limit.less(room.remaining).0.saturating_mul(remaining_ticks);
        limit.less(Hits(used.div_ceil(fades_for)))
    }

    /// Returns the time before the counter is empty at which `hits` (at most the limit) are
    /// certainly allowed. `room` is the counter's last headroom. A limit that charges excess hits
    /// returns 0: the used hits may be above the limit.
    #[must_use]
    pub fn allowed_before_empty_by(&self, room: Headroom, hits: Hits) -> Nanos {
        if self.on_excess.is_charge() {
            return Nanos(0);
        }
        let limit = Hits(u64::from(self.limit));
        let fades_for = self.fade_ticks(room);
        // The product is below 2^53: at most the limit times a period.
        let product = limit.less(hits).0.saturating_mul(fades_for);
        let ticks = product.checked_div(limit.less(room.remaining).0).unwrap_or(fades_for);
        self.tick.nanos(ticks.min(fades_for))
    }

    /// Returns the number of ticks during which the used hits fade: a period, or the time until the
    /// counter is empty if that is shorter.
    fn fade_ticks(&self, room: Headroom) -> u64 {
        self.tick.floor(room.reset_after).min(self.period.get()).max(1)
    }

    /// Returns `true` if the counter is empty, so that its state can be deleted.
    #[must_use]
    pub fn is_empty(&self, state: &WindowPair, now: Nanos) -> bool {
        let windows = self.advance(*state, now);
        windows.prev == 0 && windows.cur == 0
    }

    fn decide(&self, windows: &mut CurrentWindows, hits: Hits) -> CounterDecision {
        let needed = self.on_excess.needed(hits);
        let fits = needed <= self.headroom(windows).remaining;
        if fits || self.on_excess.is_charge() {
            // Without excess, the sum is at most the limit.
            windows.cur = windows.cur.saturating_add(saturating_u32(hits));
        }
        let room = self.headroom(windows);
        if fits {
            return CounterDecision::Allow(room);
        }
        if u64::from(self.limit) < needed.0 {
            return CounterDecision::ExceedsLimit(room);
        }
        let wait = self.allowed_at(windows, needed).saturating_sub(windows.now);
        CounterDecision::Deny { retry_after: self.tick.nanos(wait), headroom: room }
    }

    /// Returns the first tick at which `hits` are allowed;
    /// they are denied now and at most the limit.
    fn allowed_at(&self, windows: &CurrentWindows, hits: Hits) -> u64 {
        let after_hits = u64::from(self.limit).saturating_sub(hits.0);
        match after_hits.checked_sub(u64::from(windows.cur)) {
            // In this window, while the previous one fades.
            Some(room) => self.faded_at(windows.end, windows.prev, room),
            // In the next window, while this one fades.
            None => self.faded_at(self.next_boundary(windows.end), windows.cur, after_hits),
        }
    }

    /// Returns the tick from which `count` hits, which fade until `end`, count as at most `room`
    /// hits.
    fn faded_at(&self, end: u64, count: u32, room: u64) -> u64 {
        // The product is below 2^53, because `room` is at most the limit. The quotient is rounded
        // down, which rounds the returned tick up.
        let product = room.saturating_mul(self.period.get());
        end.saturating_sub(product.checked_div(u64::from(count)).unwrap_or(self.period.get()))
    }

    fn headroom(&self, windows: &CurrentWindows) -> Headroom {
        // Saturates only for counts above the limit, and then no hits remain anyway.
        let faded =
            u64::from(windows.prev).saturating_mul(windows.ticks_left).div_ceil(self.period.get());
        let used = faded.saturating_add(u64::from(windows.cur));
        let empty_at = match (windows.prev, windows.cur) {
            (0, 0) => windows.now,
            (_, 0) => windows.end,
            _ => self.next_boundary(windows.end),
        };
        Headroom {
            remaining: Hits(u64::from(self.limit)).less(Hits(used)),
            reset_after: self.tick.nanos(empty_at.saturating_sub(windows.now)),
        }
    }

    fn advance(&self, state: WindowPair, now: Nanos) -> CurrentWindows {
        let now = self.tick.floor(now);
        let since = self.tick.floor(state.start);
        let instant = now.max(since);
        let elapsed = instant % self.period;
        let start = instant.saturating_sub(elapsed);
        let end = self.next_boundary(start);
        let (prev, cur) = match start.saturating_sub(since) {
            0 => (state.prev, state.cur),
            distance if distance <= self.period.get() => (state.cur, 0),
            _ => (0, 0),
        };
        let ticks_left = end.saturating_sub(instant);
        CurrentWindows { now, since: since.max(start), end, ticks_left, prev, cur }
    }

    fn next_boundary(&self, boundary: u64) -> u64 {
        boundary.saturating_add(self.period.get())
    }

    fn state_of(&self, windows: &CurrentWindows) -> WindowPair {
        WindowPair { start: self.tick.nanos(windows.since), prev: windows.prev, cur: windows.cur }
    }
}

/// Converts to u32. Saturates, but hits above the largest u32 are never allowed.
fn saturating_u32(hits: Hits) -> u32 {
    u32::try_from(hits.0).unwrap_or(u32::MAX)
}
