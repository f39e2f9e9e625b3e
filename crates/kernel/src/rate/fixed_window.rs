//! One count per window: the strategy of envoyproxy/ratelimit, plus calendar windows.
//!
//! | formula, for 5 per minute at 12:00:40 | worked row |
//! |---|---|
//! | window = ⌊now / length⌋·length | 12:00:00 |
//! | after = count + hits | 4 + 2 = 6 |
//! | allow iff after ≤ limit | 6 > 5, denied, and counted |
//! | remaining = limit − after, at least 0 | 0 |
//! | `retry_after` = `reset_after` = end of the window − now | 20 s |
//!
//! ```
//! use sluicegate_kernel::rate::fixed_window::{FixedWindow, WindowCount, Windows};
//! use sluicegate_kernel::rate::{CounterDecision, Headroom};
//! use sluicegate_kernel::units::{Hits, Nanos};
//!
//! let limit = FixedWindow::new(5, Windows::Every(Nanos::from_secs(60))).unwrap();
//! let mut state = WindowCount { start: Nanos::from_secs(12 * 3600), count: 4 };
//! let now = Nanos::from_secs(12 * 3600 + 40);
//! let wait = Nanos::from_secs(20);
//! let headroom = Headroom { remaining: Hits(0), reset_after: wait };
//! let denied = CounterDecision::Deny { retry_after: wait, headroom };
//! assert_eq!(limit.charge(&mut state, now, Hits(2)), denied);
//! assert_eq!(state.count, 6);
//! ```
//!
//! Guarantees:
//! - At most `limit` hits are allowed in a window.
//! - Denied hits are counted, as in envoyproxy/ratelimit.
//! - Windows only move forward: a hit before the current window counts into the current window.
//! - A changed limit keeps the count of the window.

use serde::{Deserialize, Serialize};

use super::counter_decision::{CounterDecision, Headroom};
use super::limit::{EXACT_BOUND, LimitError, Tick};
use super::on_excess::OnExcess;
use crate::units::{Hits, Nanos};

/// The shortest window; shorter ones would measure network jitter.
pub const MIN_WINDOW: Nanos = Nanos::MILLI;

/// A limit with one count per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    limit: u32,
    windows: Windows,
    on_excess: OnExcess,
}

/// The position of the windows in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Windows {
    /// Windows of this length, aligned to the Unix epoch.
    /// At least [`MIN_WINDOW`], in whole microseconds.
    Every(Nanos),
    /// Windows of a calendar unit, for example calendar months.
    Calendar {
        /// The starts of four windows: the previous, the current, the next, and the one after the
        /// next. The last start only ends the next window. Ascending, in whole microseconds.
        starts: [Nanos; 4],
    },
}

/// The state: one window and its count. The default is an empty counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WindowCount {
    /// The start of the window; it never moves back.
    pub start: Nanos,
    /// The hits requested in the window, also denied ones; saturates below 2^53.
    pub count: u64,
}

impl FixedWindow {
    /// Creates a limit of `limit` hits per window; 0 denies every hit.
    ///
    /// # Errors
    /// Fails for a window that is shorter than [`MIN_WINDOW`], has a fraction of a microsecond or
    /// at least 2^53 of them, and for unordered calendar windows.
    pub fn new(limit: u32, windows: Windows) -> Result<Self, LimitError> {
        windows.validate()?;
        Ok(Self { limit, windows, on_excess: OnExcess::ByStrategy })
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

    /// The hits allowed per window.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// The position of the windows in time.
    #[must_use]
    pub const fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Returns the result that [`FixedWindow::charge`] would give; changes nothing.
    #[must_use]
    pub fn peek(&self, state: &WindowCount, now: Nanos, hits: Hits) -> CounterDecision {
        self.decide(*state, now, hits).1
    }

    /// Counts `hits`, allowed or denied. 0 hits are allowed unless the window is over its limit; with
    /// [`OnExcess::Charge`], unless it is at its limit. Cost: no allocation.
    pub fn charge(&self, state: &mut WindowCount, now: Nanos, hits: Hits) -> CounterDecision {
        let (count, result) = self.decide(*state, now, hits);
        *state = count;
        result
    }

    /// Refunds `hits` to the current window; a window that is over gets no refund.
    pub fn refund(&self, state: &mut WindowCount, now: Nanos, hits: Hits) -> CounterDecision {
        let Some((mut count, end)) = self.current(*state, now) else {
            return CounterDecision::OutsideWindows;
        };
        count.count = count.count.saturating_sub(hits.0);
        *state = count;
        CounterDecision::Allow(self.headroom(count, end, now))
    }

    /// Returns `true` if the counter is empty, so that its state can be deleted.
    #[must_use]
    pub fn is_empty(&self, state: &WindowCount, now: Nanos) -> bool {
        state.count == 0 || self.windows.has_boundary_between(state.start, now)
    }

    fn decide(&self, state: WindowCount, now: Nanos, hits: Hits) -> (WindowCount, CounterDecision) {
        let Some((mut count, end)) = self.current(state, now) else {
            return (state, CounterDecision::OutsideWindows);
        };
        // Saturates like the Redis script: Lua only has doubles, which are exact up to 2^53.
        count.count = count.count.saturating_add(hits.0).min(EXACT_BOUND.saturating_sub(1));
        let room = self.headroom(count, end, now);
        let limit = u64::from(self.limit);
        let needed = self.on_excess.needed(hits);
        let result = if count.count.saturating_add(needed.less(hits).0) <= limit {
            CounterDecision::Allow(room)
        } else if limit < needed.0 {
            CounterDecision::ExceedsLimit(room)
        } else {
            CounterDecision::Deny { retry_after: room.reset_after, headroom: room }
        };
        (count, result)
    }

    /// Moves the state to its current window, and returns it with the window's end.
    fn current(&self, state: WindowCount, now: Nanos) -> Option<(WindowCount, Nanos)> {
        let (start, end) = self.windows.current(state.start, now)?;
        let fresh = WindowCount { start, count: 0 };
        Some((if state.start < start { fresh } else { state }, end))
    }

    fn headroom(&self, count: WindowCount, end: Nanos, now: Nanos) -> Headroom {
        let now = Tick::Micro.nanos(Tick::Micro.floor(now));
        Headroom {
            remaining: Hits(u64::from(self.limit)).less(Hits(count.count)),
            reset_after: end.since(now),
        }
    }
}

impl Windows {
    fn validate(&self) -> Result<(), LimitError> {
        match *self {
            Self::Every(window) if window < MIN_WINDOW => {
                Err(LimitError::ShortWindow { window, shortest: MIN_WINDOW })
            }
            Self::Every(period) if !period.0.is_multiple_of(Nanos::MICRO.0) => {
                Err(LimitError::UnevenPeriod { period })
            }
            Self::Every(period) if EXACT_BOUND <= Tick::Micro.floor(period) => {
                Err(LimitError::LongPeriod { period })
            }
            Self::Calendar { starts } if !starts.is_sorted_by(|a, b| a < b) => {
                Err(LimitError::UnorderedWindows)
            }
            _ => Ok(()),
        }
    }

    /// Returns start and end of the window at `now`, or at `since` if
    /// that is later. `None` if `now` is outside the calendar windows.
    pub(crate) fn current(&self, since: Nanos, now: Nanos) -> Option<(Nanos, Nanos)> {
        let instant = now.max(since);
        match self {
            Self::Every(length) => {
                let start = Nanos(instant.0.saturating_sub(instant.0.checked_rem(length.0)?));
                Some((start, start.plus(*length)))
            }
            Self::Calendar { starts: [first, second, third, end] } => {
                if now < *first || *end <= now {
                    return None;
                }
                // A state later than all planned windows counts into the last of them. Otherwise
                // the counter would be unusable until the clock reaches that state.
                Some(match instant {
                    instant if instant < *second => (*first, *second),
                    instant if instant < *third => (*second, *third),
                    _ => (*third, *end),
                })
            }
        }
    }

    /// Returns the time until the window at `now` ends. `boundary` is the start of a window, at or
    /// before `now`. Returns 0 if no planned calendar window starts after `now`.
    #[must_use]
    pub fn time_left(&self, boundary: Nanos, now: Nanos) -> Nanos {
        match self {
            Self::Every(length) => {
                let elapsed = now.since(boundary).0.checked_rem(length.0).unwrap_or(0);
                length.since(Nanos(elapsed))
            }
            Self::Calendar { starts } => {
                let next = starts.iter().find(|start| now < **start);
                next.map_or(Nanos(0), |start| start.since(now))
            }
        }
    }

    /// Returns `true` if a window starts after `since` and not after `now`.
    fn has_boundary_between(&self, since: Nanos, now: Nanos) -> bool {
        match self {
            Self::Every(_) => self.current(since, now).is_some_and(|(start, _)| since < start),
            Self::Calendar { starts } => starts.iter().any(|start| since < *start && *start <= now),
        }
    }
}
