//! The durations of gRPC calls, in whole milliseconds as in envoyproxy/ratelimit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::mapping::{DEFAULT_QUANTILES, StatKind, StatMapping};
use super::recent::RecentDurations;
use crate::kernel::units::Nanos;

/// The maximum number of durations that wait to be sent. Further durations are not sent.
const MAX_UNSENT: usize = 10_000;

/// The durations of the calls of one gRPC method.
#[derive(Debug)]
pub struct CallTimer {
    /// The upper bounds of the buckets, in the output's unit and in milliseconds. Empty for a
    /// summary.
    bounds: Vec<(f64, u64)>,
    /// The number of calls in each bucket. The last bucket is unbounded.
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
    scale: f64,
    /// The quantiles of a summary. Empty for a histogram.
    quantiles: Vec<f64>,
    recent: Mutex<RecentDurations>,
    max_unsent: usize,
    unsent: Mutex<Vec<u64>>,
}

/// The state of a timer at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct TimerSnapshot {
    /// The upper bounds and cumulative counts of the histogram's buckets. Empty for a summary.
    pub buckets: Vec<(f64, u64)>,
    /// The quantiles of the last ten minutes, `None` without calls. Empty for a histogram.
    pub quantiles: Vec<(f64, Option<f64>)>,
    /// The number of durations.
    pub count: u64,
    /// The sum of the durations, in the unit of `buckets` and `quantiles`.
    pub sum: f64,
}

impl CallTimer {
    pub(super) fn new(mapping: &StatMapping, name: &str) -> Self {
        let mapped = mapping.map(name, StatKind::Timer);
        let scale = mapped.as_ref().map_or(1.0, |mapped| mapped.scale);
        let quantiles =
            mapped.as_ref().map_or_else(|| DEFAULT_QUANTILES.to_vec(), |m| m.quantiles.clone());
        let bounds = mapped.map(|mapped| mapped.buckets).unwrap_or_default();
        let bounds: Vec<_> =
            bounds.into_iter().map(|bound| (bound, bucket_bound_millis(bound, scale))).collect();
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            quantiles: if bounds.is_empty() { quantiles } else { Vec::new() },
            bounds,
            counts,
            sum: AtomicU64::new(0),
            scale,
            recent: Mutex::default(),
            max_unsent: MAX_UNSENT,
            unsent: Mutex::default(),
        }
    }

    pub(super) const fn disable_sending(&mut self) {
        self.max_unsent = 0;
    }

    pub(super) fn advance(&self, now: Nanos) {
        self.recent.lock().advance(now);
    }

    pub(super) fn record(&self, now: Nanos, millis: u64) {
        let bucket = self.bounds.iter().position(|(_, bound)| millis <= *bound);
        self.counts[bucket.unwrap_or(self.bounds.len())].fetch_add(1, Relaxed);
        self.sum.fetch_add(millis, Relaxed);
        if !self.quantiles.is_empty() {
            self.recent.lock().record(now, millis);
        }
        if self.max_unsent == 0 {
            return;
        }
        let mut unsent = self.unsent.lock();
        if unsent.len() < self.max_unsent {
            unsent.push(millis);
        }
    }

    /// Removes and returns the durations that wait to be sent, in milliseconds.
    pub fn take_unsent(&self) -> Vec<u64> {
        std::mem::take(&mut *self.unsent.lock())
    }

    /// Returns the current state of the timer.
    #[expect(clippy::cast_precision_loss, reason = "the values are far below 2^53 ms")]
    pub fn snapshot(&self) -> TimerSnapshot {
        let mut count = 0;
        let mut counts = self.counts.iter().map(|counter| counter.load(Relaxed));
        let buckets = self.bounds.iter().map(|(bound, _)| {
            count += counts.next().unwrap_or(0);
            (*bound, count)
        });
        let buckets = buckets.collect();
        count += counts.next().unwrap_or(0);
        let recent = self.recent.lock();
        let with_value = |quantile: &f64| {
            (*quantile, recent.quantile(*quantile).map(|millis| millis as f64 * self.scale))
        };
        let quantiles = self.quantiles.iter().map(with_value).collect();
        TimerSnapshot { buckets, quantiles, count, sum: self.sum.load(Relaxed) as f64 * self.scale }
    }
}

impl TimerSnapshot {
    /// Returns `true` for a summary (quantiles), and `false` for a histogram (buckets).
    #[must_use]
    pub const fn is_summary(&self) -> bool {
        self.buckets.is_empty()
    }
}

/// Returns the largest number of milliseconds whose scaled value is at most `bound`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounded down; larger bounds are never reached"
)]
fn bucket_bound_millis(bound: f64, scale: f64) -> u64 {
    // Add `1e-9`, so that a quotient slightly below a whole number is not rounded down.
    (bound / scale + 1e-9).floor() as u64
}
