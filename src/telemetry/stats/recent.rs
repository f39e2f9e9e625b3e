//! What took how long of late, for quantiles.
//!
//! Guarantees: what is older than ten minutes is not in it, what is younger than eight is; a quantile is one of the times that
//! were seen, exact up to a second and a hundredth part too low at most beyond; some thousand numbers at most.
//! Leaves out: the clock.

use std::collections::BTreeMap;

use crate::kernel::units::Nanos;

/// How long a slice takes up times.
const SLICE: Nanos = Nanos::from_secs(120);
/// Slices that are kept.
const SLICES: usize = 5;

/// Times of the last ten minutes.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// How often each time was seen, the youngest slice first.
    slices: [BTreeMap<u64, u64>; SLICES],
    /// The number of the youngest slice since the beginning of time.
    youngest: u64,
}

impl Recent {
    /// It is `now`. A time before the last one that was told changes nothing.
    pub(super) fn pass(&mut self, now: Nanos) {
        let number = now.0 / SLICE.0;
        let passed = usize::try_from(number.saturating_sub(self.youngest)).unwrap_or(usize::MAX);
        for _ in 0..passed.min(SLICES) {
            self.slices.rotate_right(1);
            self.slices[0].clear();
        }
        self.youngest = self.youngest.max(number);
    }

    /// Something took so many milliseconds.
    pub(super) fn took(&mut self, now: Nanos, millis: u64) {
        self.pass(now);
        *self.slices[0].entry(rounded(millis)).or_default() += 1;
    }

    /// The least time that at least this part of all, 0 to 1, did not exceed.
    pub(super) fn quantile(&self, part: f64) -> Option<u64> {
        let mut all: BTreeMap<u64, u64> = BTreeMap::new();
        for (millis, count) in self.slices.iter().flatten() {
            *all.entry(*millis).or_default() += count;
        }
        let total: u64 = all.values().sum();
        let wanted = rank(part, total);
        let mut seen = 0;
        all.into_iter().find_map(|(millis, count)| {
            seen += count;
            (wanted <= seen).then_some(millis)
        })
    }
}

/// Which of `total` in order is the quantile, from 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "shown to people: a rank that is off by one of 2^53 calls is none of theirs"
)]
fn rank(part: f64, total: u64) -> u64 {
    ((part * total as f64).ceil() as u64).clamp(1, total.max(1))
}

/// With three digits: what bounds how many different times there are.
const fn rounded(millis: u64) -> u64 {
    let mut unit = 1;
    while 1_000 <= millis / unit {
        unit *= 10;
    }
    millis - millis % unit
}

#[cfg(test)]
mod tests {
    use super::{Recent, SLICE};
    use crate::kernel::units::Nanos;

    #[test]
    fn a_quantile_is_the_least_time_that_its_part_did_not_exceed() {
        let mut recent = Recent::default();
        assert_eq!(recent.quantile(0.5), None);
        for millis in (1..=100).rev() {
            recent.took(Nanos(1), millis);
        }
        let found = [0.0, 0.5, 0.9, 0.99, 1.0].map(|part| recent.quantile(part));
        assert_eq!(found, [1, 50, 90, 99, 100].map(Some));
    }

    #[test]
    fn times_are_forgotten_after_ten_minutes_and_not_before_eight() {
        let mut recent = Recent::default();
        let came = SLICE.0 - 1;
        recent.took(Nanos(came), 7);
        recent.pass(Nanos(came + 4 * SLICE.0));
        assert_eq!(recent.quantile(0.5), Some(7));
        recent.pass(Nanos(came));
        assert_eq!(recent.quantile(0.5), Some(7), "time does not go back");
        recent.pass(Nanos(came + 4 * SLICE.0 + 1));
        assert_eq!(recent.quantile(0.5), None);
        recent.took(Nanos(u64::MAX), 9);
        assert_eq!(recent.quantile(0.5), Some(9));
    }

    #[test]
    fn long_times_lose_a_hundredth_part_at_most_and_few_are_kept() {
        let mut recent = Recent::default();
        for millis in [999, 1_000, 1_009, 123_456] {
            let mut alone = Recent::default();
            alone.took(Nanos(0), millis);
            let shown = alone.quantile(0.5).unwrap();
            assert!(shown <= millis && millis - shown <= millis / 100, "{millis} as {shown}");
        }
        (0..1_000_000).for_each(|millis| recent.took(Nanos(0), millis));
        assert!(recent.slices[0].len() <= 1_000 + 3 * 900);
    }
}
