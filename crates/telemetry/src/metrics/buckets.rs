//! The buckets of histograms.
//!
//! Guarantees:
//! - A value equal to a bound belongs to the bucket of this bound.
//!
//! Not covered:
//! - The counts (see [`super::Metrics`]).

use crate::kernel::units::Nanos;

/// Upper bounds of the histogram of check durations: from a decision in memory (0.5 µs) to several
/// store timeouts. The text is the value of the label `le`, in seconds.
pub(super) const DURATION_BOUNDS: [(Nanos, &str); 13] = [
    (Nanos(500), "5e-07"),
    (Nanos(1_000), "1e-06"),
    (Nanos(2_500), "2.5e-06"),
    (Nanos(10_000), "1e-05"),
    (Nanos(50_000), "5e-05"),
    (Nanos(250_000), "0.00025"),
    (Nanos(1_000_000), "0.001"),
    (Nanos(2_500_000), "0.0025"),
    (Nanos(5_000_000), "0.005"),
    (Nanos(15_000_000), "0.015"),
    (Nanos(20_000_000), "0.02"),
    (Nanos(50_000_000), "0.05"),
    (Nanos(250_000_000), "0.25"),
];

/// The name of the histogram of check durations. Only the buckets of this histogram have exemplars.
pub(super) const DURATION_METRIC: &str = "sluicegate_decision_duration_seconds";

/// Upper bounds of the histogram of checks per store call, up to the largest call.
pub(super) const CHECK_COUNT_BOUNDS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

pub(super) fn duration_bucket(duration: Nanos) -> usize {
    let mut bounds = DURATION_BOUNDS.iter();
    bounds.position(|&(bound, _)| duration <= bound).unwrap_or(DURATION_BOUNDS.len())
}
