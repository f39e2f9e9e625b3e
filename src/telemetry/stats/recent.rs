//! The durations of calls in the last ten minutes, for quantiles.
//!
//! Guarantees:
//! - Quantiles include all durations of the last eight minutes.
//! - Quantiles exclude durations that are older than ten minutes.
//! - A quantile is a recorded duration, rounded down to three significant digits.
//! - A quantile below one second is exact, and a larger one is at most 1 % too low.
//! - Each time slice of two minutes stores at most 1,000 durations, plus 900 per power of ten.
//!
//! Not covered:
//! - The clock: callers pass the current time.

use std::collections::BTreeMap;

use crate::kernel::units::Nanos;

const SLICE_DURATION: Nanos = Nanos::from_secs(120);
const SLICE_COUNT: usize = 5;

#[derive(Debug, Default)]
pub(super) struct RecentDurations {
    /// The count of each duration in milliseconds, for each time slice, the youngest first.
    slices: [BTreeMap<u64, u64>; SLICE_COUNT],
    /// The number of the youngest time slice, counted from time zero.
    youngest: u64,
}

impl RecentDurations {
    /// Advances the time to `now`. An earlier time has no effect.
    pub(super) fn advance(&mut self, now: Nanos) {
        let number = now.0 / SLICE_DURATION.0;
        let passed = usize::try_from(number.saturating_sub(self.youngest)).unwrap_or(usize::MAX);
        for _ in 0..passed.min(SLICE_COUNT) {
            self.slices.rotate_right(1);
            self.slices[0].clear();
        }
        self.youngest = self.youngest.max(number);
    }

    pub(super) fn record(&mut self, now: Nanos, millis: u64) {
        self.advance(now);
        *self.slices[0].entry(round_down(millis)).or_default() += 1;
    }

    /// Returns a quantile: the smallest duration that at least the fraction `fraction` (0 to 1) of
    /// all recorded durations does not exceed.
    pub(super) fn quantile(&self, fraction: f64) -> Option<u64> {
        let mut all: BTreeMap<u64, u64> = BTreeMap::new();
        for (millis, count) in self.slices.iter().flatten() {
            *all.entry(*millis).or_default() += count;
        }
        let total: u64 = all.values().sum();
        let wanted = rank(fraction, total);
        let mut seen = 0;
        all.into_iter().find_map(|(millis, count)| {
            seen += count;
            (wanted <= seen).then_some(millis)
        })
    }
}

/// Returns the rank of the quantile `fraction` among `total` sorted values, from 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "shown to people: a rank that is off by one of 2^53 calls is none of theirs"
)]
fn rank(fraction: f64, total: u64) -> u64 {
    ((fraction * total as f64).ceil() as u64).clamp(1, total.max(1))
}

/// Rounds down to three significant digits, which bounds the number of distinct durations.
const fn round_down(millis: u64) -> u64 {
    let mut unit = 1;
    while 1_000 <= millis / unit {
        unit *= 10;
    }
    millis - millis % unit
}

#[cfg(test)]
mod tests {
    use super::{RecentDurations, SLICE_DURATION};
    use crate::kernel::units::Nanos;

    #[test]
    fn quantiles_use_the_nearest_rank_method() {
        let mut recent = RecentDurations::default();
        assert_eq!(recent.quantile(0.5), None);
        for millis in (1..=100).rev() {
            recent.record(Nanos(1), millis);
        }
        let found = [0.0, 0.5, 0.9, 0.99, 1.0].map(|part| recent.quantile(part));
        assert_eq!(found, [1, 50, 90, 99, 100].map(Some));
    }

    #[test]
    fn durations_expire_after_eight_to_ten_minutes() {
        let mut recent = RecentDurations::default();
        let came = SLICE_DURATION.0 - 1;
        recent.record(Nanos(came), 7);
        recent.advance(Nanos(came + 4 * SLICE_DURATION.0));
        assert_eq!(recent.quantile(0.5), Some(7));
        recent.advance(Nanos(came));
        assert_eq!(recent.quantile(0.5), Some(7), "time does not go back");
        recent.advance(Nanos(came + 4 * SLICE_DURATION.0 + 1));
        assert_eq!(recent.quantile(0.5), None);
        recent.record(Nanos(u64::MAX), 9);
        assert_eq!(recent.quantile(0.5), Some(9));
    }

    #[test]
    fn long_durations_are_rounded_down_by_at_most_one_percent() {
        let mut recent = RecentDurations::default();
        for millis in [999, 1_000, 1_009, 123_456] {
            let mut alone = RecentDurations::default();
            alone.record(Nanos(0), millis);
            let shown = alone.quantile(0.5).unwrap();
            assert!(shown <= millis && millis - shown <= millis / 100, "{millis} as {shown}");
        }
        (0..1_000_000).for_each(|millis| recent.record(Nanos(0), millis));
        assert!(recent.slices[0].len() <= 1_000 + 3 * 900);
    }
}
