//! Times of calls, in whole milliseconds as the reference counts them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::mapping::{Kind, Mapping};

/// Most times that wait to be sent one by one; what comes then is only summed up.
const MOST_WAITING: usize = 10_000;

/// One timer.
#[derive(Debug)]
pub struct Timer {
    /// Upper bounds as they are shown, and in milliseconds. Empty where it is no histogram.
    bounds: Vec<(f64, u64)>,
    /// Per bound, not cumulated; the last has no upper bound.
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
    scale: f64,
    waiting: Mutex<Vec<u64>>,
}

/// A timer at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// Upper bounds and how many are below or at them. Empty where it is no histogram.
    pub buckets: Vec<(f64, u64)>,
    /// How many.
    pub count: u64,
    /// Their sum, in what bounds are in.
    pub sum: f64,
}

impl Timer {
    /// With the buckets and the scale that `mapping` gives to `name`.
    pub(super) fn new(mapping: &Mapping, name: &str) -> Self {
        let mapped = mapping.map(name, Kind::Timer);
        let scale = mapped.as_ref().map_or(1.0, |mapped| mapped.scale);
        let bounds = mapped.map(|mapped| mapped.buckets).unwrap_or_default();
        let bounds: Vec<_> =
            bounds.into_iter().map(|bound| (bound, millis(bound, scale))).collect();
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0), scale, waiting: Mutex::default() }
    }

    pub(super) fn took(&self, millis: u64) {
        let at = self.bounds.iter().position(|(_, bound)| millis <= *bound);
        self.counts[at.unwrap_or(self.bounds.len())].fetch_add(1, Relaxed);
        self.sum.fetch_add(millis, Relaxed);
        let mut waiting = self.waiting.lock();
        if waiting.len() < MOST_WAITING {
            waiting.push(millis);
        }
    }

    /// The times since the last call, in milliseconds.
    pub fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// What it is now.
    #[expect(clippy::cast_precision_loss, reason = "shown to people, who do not count to 2^53 ms")]
    pub fn times(&self) -> Times {
        let mut count = 0;
        let mut counts = self.counts.iter().map(|cell| cell.load(Relaxed));
        let buckets = self.bounds.iter().map(|(bound, _)| {
            count += counts.next().unwrap_or(0);
            (*bound, count)
        });
        let buckets = buckets.collect();
        count += counts.next().unwrap_or(0);
        Times { buckets, count, sum: self.sum.load(Relaxed) as f64 * self.scale }
    }
}

/// The most whole milliseconds that, scaled, are not above `bound`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounded down; a bound of more milliseconds than that is none"
)]
fn millis(bound: f64, scale: f64) -> u64 {
    // Beyond the rounding of `0.005 / 0.001`, which is not quite 5.
    (bound / scale + 1e-9).floor() as u64
}
