//! The durations of calls in the last ten minutes, for quantiles.
//!
//! Guarantees:
//! - Quantiles include all durations of the last eight minutes, and none older than ten minutes.
//! - A quantile is a recorded duration, rounded down to three significant digits.
//! - A time slice of two minutes stores at most 1,000 durations, plus 900 per power of ten.

use std::collections::BTreeMap;

use crate::kernel::units::Nanos;

const SLICE_DURATION: Nanos = Nanos::from_secs(120);
const SLICE_COUNT: usize = 5;

#[derive(Debug, Default)]
pub(super) struct RecentDurations {
    /// The count of each duration (in milliseconds) in each time slice, the youngest slice first.
    slices: [BTreeMap<u64, u64>; SLICE_COUNT],
    /// The number of the youngest time slice, counted from time zero.
    youngest: u64,
}

impl RecentDurations {
    /// Advances the time to `now`. An earlier time has no effect.
    pub(super) fn advance(&mut self, now: Nanos) {
        let number = now.0 / SLICE_DURATION.0;
        let new_slices =
            usize::try_from(number.saturating_sub(self.youngest)).unwrap_or(usize::MAX);
        for _ in 0..new_slices.min(SLICE_COUNT) {
            self.slices.rotate_right(1);
            self.slices[0].clear();
        }
        self.youngest = self.youngest.max(number);
    }

    pub(super) fn record(&mut self, now: Nanos, millis: u64) {
        self.advance(now);
        *self.slices[0].entry(round_down(millis)).or_default() += 1;
    }

    /// Returns a quantile by the nearest-rank method; `fraction` is from 0 to 1.
    pub(super) fn quantile(&self, fraction: f64) -> Option<u64> {
        let mut all: BTreeMap<u64, u64> = BTreeMap::new();
        for (millis, count) in self.slices.iter().flatten() {
            *all.entry(*millis).or_default() += count;
        }
        let total: u64 = all.values().sum();
        let rank = rank(fraction, total);
        let mut cumulative = 0;
        all.into_iter().find_map(|(millis, count)| {
            cumulative += count;
            (rank <= cumulative).then_some(millis)
        })
    }
}

/// Returns the rank of the quantile `fraction` among `total` sorted values, from 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "an error of one rank in 2^53 calls is not visible"
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
        let quantiles = [0.0, 0.5, 0.9, 0.99, 1.0].map(|fraction| recent.quantile(fraction));
        assert_eq!(quantiles, [1, 50, 90, 99, 100].map(Some));
    }

    #[test]
    fn durations_expire_after_eight_to_ten_minutes() {
        let mut recent = RecentDurations::default();
        let recorded_at = SLICE_DURATION.0 - 1;
        recent.record(Nanos(recorded_at), 7);
        recent.advance(Nanos(recorded_at + 4 * SLICE_DURATION.0));
        assert_eq!(recent.quantile(0.5), Some(7));
        recent.advance(Nanos(recorded_at));
        assert_eq!(recent.quantile(0.5), Some(7), "time does not go back");
        recent.advance(Nanos(recorded_at + 4 * SLICE_DURATION.0 + 1));
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
            let rounded = alone.quantile(0.5).unwrap();
            assert!(rounded <= millis && millis - rounded <= millis / 100, "{millis} as {rounded}");
        }
        (0..1_000_000).for_each(|millis| recent.record(Nanos(0), millis));
        assert!(recent.slices[0].len() <= 1_000 + 3 * 900);
    }
}
