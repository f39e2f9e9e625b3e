//! The hits of one key in the last minutes, and the period in which they repeat.
//!
//! Example: a job sends 500 hits at the start of every minute. In the third minute, after its first
//! hit, the forecast for the next 30 s is the rest of the job.
//!
//! | formula | worked row |
//! |---|---|
//! | error of a period = Σ abs(hits of an interval − hits one period earlier), 12 intervals | 0 for 60 s |
//! | hits in the time to come, one and two periods ago | 500 and 500 |
//! | less the hits already requested in the current interval | 499 and 499 |
//!
//! ```
//! # use sluicegate_kernel::lease::history::DemandHistory;
//! # use sluicegate_kernel::units::{Hits, Nanos};
//! let mut history = DemandHistory::default();
//! for minute in 10..12 {
//!     history.record(Nanos::from_secs(60 * minute), Hits(500));
//! }
//! let now = Nanos::from_secs(720);
//! history.record(now, Hits(1));
//! let forecast = history.forecast(now, Nanos::from_secs(30));
//! assert_eq!((forecast.least, forecast.most), (Hits(499), Some(Hits(499))));
//! ```
//!
//! An interval lasts [`INTERVAL`]. The period is the one with the smallest error, from 2 to 12
//! intervals. Shorter periods that divide one of them repeat in it, too.
//!
//! Guarantees:
//! - O(1), no allocation, [`INTERVALS`] counts for each key.
//!
//! Not covered:
//! - Periods above two minutes. They would save less than one store call in ten seconds.

use crate::units::{Hits, Nanos};

/// The length of one interval.
pub const INTERVAL: Nanos = Nanos::from_secs(10);

/// The longest period, in intervals.
const MAX_PERIOD: usize = 12;

/// The shortest period, in intervals.
const MIN_PERIOD: usize = 2;

/// A key without a check is kept for this many intervals: the longest period, and one.
const LONGEST_PAUSE: u64 = 13;

/// The stored intervals: two of the longest periods, and the current interval.
pub const INTERVALS: usize = 25;

/// After as many intervals as are stored, all counts are 0.
const MAX_SHIFTS: u64 = 25;

/// A history of fewer hits is not kept without a check for more than two demand spans.
const MIN_KEPT_HITS: u64 = 64;

/// The hits of one key in the last intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DemandHistory {
    started_at: Nanos,
    /// The hits by the age of the interval; the first is the current one.
    counts: [u32; INTERVALS],
    /// The learned period, in intervals.
    period: usize,
}

/// The hits expected in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemandForecast {
    /// The smaller count of the last two periods.
    pub least: Hits,
    /// The larger count of the last two periods, plus their difference. `None` if the current
    /// interval already has more hits.
    pub most: Option<Hits>,
}

impl Default for DemandHistory {
    fn default() -> Self {
        Self::new()
    }
}

impl DemandHistory {
    /// Creates a history without hits.
    #[must_use]
    pub const fn new() -> Self {
        Self { started_at: Nanos(0), counts: [0; INTERVALS], period: MIN_PERIOD }
    }

    /// Records requested hits.
    pub fn record(&mut self, now: Nanos, hits: Hits) {
        self.rotate(now);
        let hits = u32::try_from(hits.0).unwrap_or(u32::MAX);
        let [current, ..] = &mut self.counts;
        *current = current.saturating_add(hits);
    }

    /// Returns `true` if these hits may repeat, so that the history of an idle key is worth its
    /// memory. At most two minutes after the last hits.
    #[must_use]
    pub fn may_repeat(&self, now: Nanos) -> bool {
        let longest = Nanos(INTERVAL.0.saturating_mul(LONGEST_PAUSE));
        let total: u64 = self.counts.iter().map(|count| u64::from(*count)).sum();
        now.since(self.started_at) < longest && MIN_KEPT_HITS <= total
    }

    /// Returns the hits expected from `now` for `time`: as in the last two periods.
    #[must_use]
    pub fn forecast(&self, now: Nanos, time: Nanos) -> DemandForecast {
        let mut history = *self;
        history.rotate(now);
        let passed = now.since(history.started_at);
        let (one, two) = (history.period, history.period.saturating_mul(2));
        let (current, firsts) = (history.count(0), [history.count(one), history.count(two)]);
        let following = [one, two].map(|age| history.hits_after(age, passed, time));
        let rests =
            [0, 1].map(|at| firsts[at].saturating_sub(current).saturating_add(following[at]));
        let rest = upper(firsts).checked_sub(current);
        DemandForecast {
            least: Hits(rests[0].min(rests[1])),
            most: rest.map(|rest| Hits(rest.saturating_add(upper(following)))),
        }
    }

    /// Returns the hits after the interval that was `age` intervals ago, up to the end of the next
    /// `time`; `passed` is the age of the current interval.
    fn hits_after(&self, age: usize, passed: Nanos, time: Nanos) -> u64 {
        let (mut hits, mut rest) = (0_u64, time.since(INTERVAL.since(passed)));
        for step in 1..=MAX_PERIOD {
            let part = rest.min(INTERVAL);
            let into_period = step.checked_rem(self.period).unwrap_or(0);
            let count = self.count(age.saturating_sub(into_period));
            hits = hits.saturating_add(scaled(count, part.0, INTERVAL.0));
            rest = rest.since(part);
        }
        hits
    }

    /// Returns the hits of the interval `age` intervals ago; 0 is the current one.
    fn count(&self, age: usize) -> u64 {
        self.counts.get(age).copied().map_or(0, u64::from)
    }

    /// Starts new intervals up to the one of `now`, and learns the period from the ended ones.
    fn rotate(&mut self, now: Nanos) {
        let age = now.since(self.started_at);
        if age < INTERVAL {
            return;
        }
        let ended = age.0 / INTERVAL.0;
        for _ in 0..ended.min(MAX_SHIFTS) {
            self.counts.rotate_right(1);
            let [current, ..] = &mut self.counts;
            *current = 0;
        }
        self.started_at = self.started_at.plus(Nanos(ended.saturating_mul(INTERVAL.0)));
        self.period = self.best_period();
    }

    /// Returns the period with the smallest error; of several, the shortest.
    fn best_period(&self) -> usize {
        let error = |period: &usize| -> u64 {
            (1..=MAX_PERIOD)
                .map(|age| self.count(age).abs_diff(self.count(age.saturating_add(*period))))
                .sum()
        };
        (MIN_PERIOD..=MAX_PERIOD).min_by_key(error).unwrap_or(MIN_PERIOD)
    }
}

/// Returns the larger count plus the difference of both.
fn upper(counts: [u64; 2]) -> u64 {
    let [one, two] = counts;
    one.max(two).saturating_add(one.abs_diff(two))
}

/// Returns ⌊value · numerator / denominator⌋; 0 if the denominator is 0.
pub(super) fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(value).saturating_mul(u128::from(numerator));
    let scaled = product.checked_div(u128::from(denominator)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
