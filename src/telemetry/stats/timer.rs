//! Times of calls, in whole milliseconds as the reference counts them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::mapping::{Kind, Mapping, QUANTILES};
use super::recent::Recent;
use crate::kernel::units::Nanos;

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
    /// Which quantiles are shown, where it is no histogram.
    quantiles: Vec<f64>,
    recent: Mutex<Recent>,
    /// Most times that wait to be sent.
    most: usize,
    waiting: Mutex<Vec<u64>>,
}

/// A timer at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// Upper bounds and how many are below or at them. Empty where it is no histogram.
    pub buckets: Vec<(f64, u64)>,
    /// Quantiles of the last ten minutes, nothing where nobody called. Empty where it is a histogram.
    pub quantiles: Vec<(f64, Option<f64>)>,
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
        let quantiles = mapped.as_ref().map_or_else(|| QUANTILES.to_vec(), |m| m.quantiles.clone());
        let bounds = mapped.map(|mapped| mapped.buckets).unwrap_or_default();
        let bounds: Vec<_> =
            bounds.into_iter().map(|bound| (bound, millis(bound, scale))).collect();
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            quantiles: if bounds.is_empty() { quantiles } else { Vec::new() },
            bounds,
            counts,
            sum: AtomicU64::new(0),
            scale,
            recent: Mutex::default(),
            most: MOST_WAITING,
            waiting: Mutex::default(),
        }
    }

    /// Nobody is sent what comes from now on.
    pub(super) const fn keep_none(&mut self) {
        self.most = 0;
    }

    pub(super) fn pass(&self, now: Nanos) {
        self.recent.lock().pass(now);
    }

    pub(super) fn took(&self, now: Nanos, millis: u64) {
        let at = self.bounds.iter().position(|(_, bound)| millis <= *bound);
        self.counts[at.unwrap_or(self.bounds.len())].fetch_add(1, Relaxed);
        self.sum.fetch_add(millis, Relaxed);
        if !self.quantiles.is_empty() {
            self.recent.lock().took(now, millis);
        }
        if self.most == 0 {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() < self.most {
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
        let recent = self.recent.lock();
        let of = |quantile: &f64| {
            (*quantile, recent.quantile(*quantile).map(|millis| millis as f64 * self.scale))
        };
        let quantiles = self.quantiles.iter().map(of).collect();
        Times { buckets, quantiles, count, sum: self.sum.load(Relaxed) as f64 * self.scale }
    }
}

impl Times {
    /// Whether it is shown by quantiles, not by buckets.
    #[must_use]
    pub const fn is_summary(&self) -> bool {
        self.buckets.is_empty()
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
