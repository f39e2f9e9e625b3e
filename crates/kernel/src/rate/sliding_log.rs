//! A log of every arrival in the last period.
//!
//! Arrivals of one instant share an entry. Entries older than a period are removed by the next
//! charge or refund.
//!
//! | formula, for 3 per 10 s; 2 hits at 0 s and 1 at 4 s; now 5 s | worked row |
//! |---|---|
//! | used = hits younger than the period | 3 |
//! | allow iff used + hits ≤ N | 3 + 1 > 3, denied |
//! | `retry_after`: until enough of the oldest hits are a period old | 0 + 10 − 5 = 5 s |
//! | `reset_after`: until the newest hit is a period old | 4 + 10 − 5 = 9 s |
//!
//! ```
//! use sluicegate_kernel::rate::sliding_log::{ArrivalLog, SlidingLog};
//! use sluicegate_kernel::rate::{CounterDecision, Headroom};
//! use sluicegate_kernel::units::{Hits, Nanos};
//!
//! let limit = SlidingLog::new(3, Nanos::from_secs(10)).unwrap();
//! let (mut log, at) = (ArrivalLog::default(), |second: u64| Nanos::from_secs(100 + second));
//! assert!(matches!(limit.charge(&mut log, at(0), Hits(2)), CounterDecision::Allow(_)));
//! assert!(matches!(limit.charge(&mut log, at(4), Hits(1)), CounterDecision::Allow(_)));
//! let headroom = Headroom { remaining: Hits(0), reset_after: Nanos::from_secs(9) };
//! let denied = CounterDecision::Deny { retry_after: Nanos::from_secs(5), headroom };
//! assert_eq!(limit.charge(&mut log, at(5), Hits(1)), denied);
//! ```
//!
//! Excess hits need no more memory: the oldest hits expire first, so only the newest N change a
//! result. A refund therefore ignores hits beyond these N.
//!
//! Memory: 12 bytes per arrival, at most 12·N + 40 per key. Time: each
//! entry is removed once; a denial scans to the entry that it waits for.
//!
//! Guarantees:
//! - At most N hits in any half-open interval of one period.
//! - A denied check costs nothing, unless the limit charges excess hits.
//! - A lowered limit keeps the newest hits, and so does a limit that charges excess hits.
//! - After the clock stepped back, entries in the future are moved to now.
//! - No hit is dropped early or kept for longer than a period.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::counter_decision::{CounterDecision, Headroom};
use super::limit::{EXACT_BOUND, LimitError, Tick};
use super::on_excess::OnExcess;
use crate::units::{Hits, Nanos};

/// A limit on the hits in every interval of one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    limit: u32,
    /// In microseconds.
    period: u64,
    on_excess: OnExcess,
}

/// The state: the arrivals of the last period, oldest first. The default is an empty counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArrivalLog {
    entries: VecDeque<Arrivals>,
    total: u64,
}

/// The hits that arrived at one instant.
// Packed to 12 bytes: a log has up to N of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(C, packed(4))]
struct Arrivals {
    /// Microseconds since the Unix epoch.
    at: u64,
    hits: u32,
}

impl SlidingLog {
    /// Creates a limit of `limit` hits in any `period`; 0 denies every hit.
    ///
    /// # Errors
    /// Fails for a period of 0, with a fraction of a microsecond, or of at least 2^53 of them.
    pub fn new(limit: u32, period: Nanos) -> Result<Self, LimitError> {
        let micros = Tick::Micro.floor(period);
        match period {
            Nanos(0) => Err(LimitError::ZeroPeriod),
            _ if Tick::Micro.nanos(micros) != period => Err(LimitError::UnevenPeriod { period }),
            _ if EXACT_BOUND <= micros => Err(LimitError::LongPeriod { period }),
            _ => Ok(Self { limit, period: micros, on_excess: OnExcess::ByStrategy }),
        }
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

    /// The hits allowed in any period.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// The length of the interval that the limit applies to.
    #[must_use]
    pub const fn period(&self) -> Nanos {
        Tick::Micro.nanos(self.period)
    }

    /// Returns the result that [`SlidingLog::charge`] would give; changes nothing.
    #[must_use]
    pub fn peek(&self, state: &ArrivalLog, now: Nanos, hits: Hits) -> CounterDecision {
        let now = Tick::Micro.floor(now);
        let expired = state
            .entries
            .iter()
            .map_while(|entry| self.is_expired(*entry, now).then_some(entry.hits));
        let used = state.total.saturating_sub(expired.map(u64::from).fold(0, u64::saturating_add));
        self.decide(state, used, now, hits)
    }

    /// Records `hits` if they are allowed, or if the limit charges excess hits. Then the retry-after
    /// includes these hits. 0 hits are always allowed unless the limit charges excess hits. Cost:
    /// allocates when the log grows. Capacity doubles, up to N entries.
    pub fn charge(&self, state: &mut ArrivalLog, now: Nanos, hits: Hits) -> CounterDecision {
        let now = Tick::Micro.floor(now);
        self.normalize(state, now);
        let result = self.decide(state, state.total, now, hits);
        if hits.0 != 0 && (self.on_excess.is_charge() || is_allowed(result)) {
            state.push(now, hits, self.max_kept());
        }
        result
    }

    /// Refunds the newest `hits`.
    pub fn refund(&self, state: &mut ArrivalLog, now: Nanos, hits: Hits) -> CounterDecision {
        let now = Tick::Micro.floor(now);
        self.normalize(state, now);
        state.drop_newest(hits.0);
        CounterDecision::Allow(self.headroom(state, state.total, now))
    }

    /// Returns `true` if the counter is empty, so that its state can be deleted.
    #[must_use]
    pub fn is_empty(&self, state: &ArrivalLog, now: Nanos) -> bool {
        let now = Tick::Micro.floor(now);
        state.entries.back().is_none_or(|newest| self.is_expired(*newest, now))
    }

    /// Returns the result if `used` hits are younger than a period.
    fn decide(&self, state: &ArrivalLog, used: u64, now: u64, hits: Hits) -> CounterDecision {
        let limit = u64::from(self.limit);
        let needed = self.on_excess.needed(hits);
        let fits = used.saturating_add(needed.0) <= limit || needed.0 == 0;
        let charged = if fits || self.on_excess.is_charge() { hits.0 } else { 0 };
        let used = used.saturating_add(charged);
        let reset = match state.entries.back() {
            _ if charged != 0 => self.period,
            newest => newest.map_or(0, |newest| self.time_left(*newest, now)),
        };
        let reset_after = Tick::Micro.nanos(reset);
        let room = Headroom { remaining: Hits(limit).less(Hits(used)), reset_after };
        if fits {
            return CounterDecision::Allow(room);
        }
        if limit < needed.0 {
            return CounterDecision::ExceedsLimit(room);
        }
        let excess = used.saturating_add(needed.0).saturating_sub(limit);
        let wait = self.time_until_freed(state, excess, now);
        CounterDecision::Deny { retry_after: Tick::Micro.nanos(wait), headroom: room }
    }

    /// Returns the most hits that a log keeps. With a limit of 0 one hit is kept, so that the
    /// reset-after stays known.
    fn max_kept(&self) -> u32 {
        self.limit.max(1)
    }

    /// Returns the microseconds until the oldest `excess` hits are a period old.
    fn time_until_freed(&self, state: &ArrivalLog, excess: u64, now: u64) -> u64 {
        let mut freed = 0_u64;
        for entry in state.entries.iter().filter(|entry| !self.is_expired(**entry, now)) {
            freed = freed.saturating_add(u64::from(entry.hits));
            if excess <= freed {
                return self.time_left(*entry, now);
            }
        }
        self.period
    }

    fn headroom(&self, state: &ArrivalLog, used: u64, now: u64) -> Headroom {
        let reset = state.entries.back().map_or(0, |newest| self.time_left(*newest, now));
        Headroom {
            remaining: Hits(u64::from(self.limit)).less(Hits(used)),
            reset_after: Tick::Micro.nanos(reset),
        }
    }

    /// Returns the microseconds until an entry is a period old; an entry in the future counts as
    /// arriving now.
    fn time_left(&self, entry: Arrivals, now: u64) -> u64 {
        entry.at.min(now).saturating_add(self.period).saturating_sub(now)
    }

    fn is_expired(&self, entry: Arrivals, now: u64) -> bool {
        self.time_left(entry, now) == 0
    }

    /// Removes entries that are a period old and moves entries in the future to `now`. Keeps only
    /// the newest hits up to the limit: older hits expire first, so they never change a result.
    fn normalize(&self, state: &mut ArrivalLog, now: u64) {
        state.drop_oldest(state.total.saturating_sub(u64::from(self.max_kept())));
        while let Some(oldest) = state.entries.front().filter(|entry| self.is_expired(**entry, now))
        {
            state.total = state.total.saturating_sub(u64::from(oldest.hits));
            state.entries.pop_front();
        }
        let mut future = 0_u32;
        while let Some(newest) = state.entries.back().filter(|entry| now < entry.at) {
            // The sum is at most the limit, as is the sum of all entries.
            future = future.saturating_add(newest.hits);
            state.entries.pop_back();
        }
        if future != 0 {
            state.total = state.total.saturating_sub(u64::from(future));
            state.push(now, Hits(u64::from(future)), self.max_kept());
        }
    }
}

impl ArrivalLog {
    /// Creates a log from arrivals, oldest first: the microsecond and the hits of each. Returns `None` if they
    /// are not in ascending order.
    #[must_use]
    pub fn from_arrivals(arrivals: impl IntoIterator<Item = (u64, u32)>) -> Option<Self> {
        let mut log = Self::default();
        for (at, hits) in arrivals {
            if log.entries.back().is_some_and(|newest| at <= newest.at) {
                return None;
            }
            log.total = log.total.saturating_add(u64::from(hits));
            log.entries.push_back(Arrivals { at, hits });
        }
        Some(log)
    }

    /// Returns the arrivals, oldest first: the microsecond and the hits of each.
    #[must_use]
    pub fn arrivals(&self) -> impl ExactSizeIterator<Item = (u64, u32)> + '_ {
        self.entries.iter().map(|entry| (entry.at, entry.hits))
    }

    /// Adds `hits` at `now`, which is at or after the newest entry. Keeps the newest `limit` hits.
    fn push(&mut self, now: u64, hits: Hits, limit: u32) {
        let hits = u32::try_from(hits.0).map_or(limit, |hits| hits.min(limit));
        let kept = limit.saturating_sub(hits);
        self.drop_oldest(self.total.saturating_sub(u64::from(kept)));
        self.total = self.total.saturating_add(u64::from(hits));
        match self.entries.back_mut() {
            Some(newest) if newest.at == now => newest.hits = newest.hits.saturating_add(hits),
            _ => {
                self.grow(limit);
                self.entries.push_back(Arrivals { at: now, hits });
            }
        }
    }

    /// Doubles the capacity of a full log, up to `limit` entries.
    fn grow(&mut self, limit: u32) {
        let len = self.entries.len();
        if len == self.entries.capacity() {
            let max_growth = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(len);
            self.entries.reserve_exact(len.max(1).min(max_growth));
        }
    }

    /// Refunds up to `hits` of the arrivals at `at`; does nothing if they were removed.
    pub(crate) fn refund_at(&mut self, at: Nanos, hits: Hits) {
        let at = Tick::Micro.floor(at);
        let Ok(index) = self.entries.binary_search_by_key(&at, |entry| entry.at) else { return };
        let Some(entry) = self.entries.get_mut(index) else { return };
        let taken = u32::try_from(hits.0).unwrap_or(u32::MAX).min(entry.hits);
        entry.hits = entry.hits.saturating_sub(taken);
        self.total = self.total.saturating_sub(u64::from(taken));
        if entry.hits == 0 {
            self.entries.remove(index);
        }
    }

    fn drop_oldest(&mut self, hits: u64) {
        let mut remaining = hits.min(self.total);
        self.total = self.total.saturating_sub(remaining);
        while let Some(entry) = self.entries.front_mut() {
            if !take_hits(entry, &mut remaining) {
                return;
            }
            self.entries.pop_front();
        }
    }

    fn drop_newest(&mut self, hits: u64) {
        let mut remaining = hits.min(self.total);
        self.total = self.total.saturating_sub(remaining);
        while let Some(entry) = self.entries.back_mut() {
            if !take_hits(entry, &mut remaining) {
                return;
            }
            self.entries.pop_back();
        }
    }
}

const fn is_allowed(decision: CounterDecision) -> bool {
    matches!(decision, CounterDecision::Allow(_))
}

/// Takes up to `remaining` hits out of an entry. Returns `true` if the entry is empty now.
fn take_hits(entry: &mut Arrivals, remaining: &mut u64) -> bool {
    let taken = u32::try_from(*remaining).unwrap_or(u32::MAX).min(entry.hits);
    entry.hits = entry.hits.saturating_sub(taken);
    *remaining = remaining.saturating_sub(u64::from(taken));
    entry.hits == 0
}
