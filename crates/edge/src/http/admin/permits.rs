//! Serves `/permits`: the oldest permits in flight and the busiest buckets.
//!
//! Guarantees:
//! - The two lists have at most [`MAX_ROWS`] rows; the totals count all permits and buckets.
//! - Values have the form of the setting `telemetry.descriptor_values`.
//! - Request ids are not shown: anybody who knows an id could release its permits.

use serde_json::{Value, json};

use crate::engine::Engine;
use crate::engine::concurrency::{BucketMetrics, BucketName};
use crate::kernel::units::Nanos;

const MAX_ROWS: usize = 1_000;

/// Returns the page `/permits` as JSON.
#[must_use]
pub fn permits(engine: &Engine) -> Value {
    let limits = engine.concurrency_limits();
    let total = limits.totals();
    let mut buckets = limits.snapshots();
    buckets.sort_by(|(a, a_metrics), (b, b_metrics)| {
        b_metrics.load.in_flight.cmp(&a_metrics.load.in_flight).then_with(|| a.cmp(b))
    });
    let oldest = limits.oldest_permits(MAX_ROWS);
    json!({
        "in_flight": total.in_flight,
        "waiting": total.waiting,
        "buckets": total.buckets,
        "oldest": oldest.iter().map(|row| permit_json(engine, row)).collect::<Vec<_>>(),
        "busiest": buckets.iter().take(MAX_ROWS).map(|row| bucket_json(engine, row)).collect::<Vec<_>>(),
    })
}

fn permit_json(engine: &Engine, (name, age): &(BucketName, Nanos)) -> Value {
    let (domain, descriptor) = engine.bucket_text(name);
    json!({"domain": domain, "descriptor": descriptor, "age_us": age.0 / 1_000})
}

fn bucket_json(engine: &Engine, (name, metrics): &(BucketName, BucketMetrics)) -> Value {
    let (domain, descriptor) = engine.bucket_text(name);
    json!({
        "domain": domain,
        "descriptor": descriptor,
        "in_flight": metrics.load.in_flight,
        "waiting": metrics.load.waiting,
        "limit": metrics.load.limit(),
        "rate_per_second": metrics.pace.map(rate_per_second),
        "rtt_us": metrics.rtt.map(|time| time.0 / 1_000),
        "min_rtt_us": metrics.min_rtt.map(|time| time.0 / 1_000),
        "gradient": metrics.gradient().map(to_ratio),
    })
}

/// Converts a rate from thousandths of a request per second. Saturates at `u32::MAX` thousandths.
pub(super) fn rate_per_second(thousandths: u64) -> f64 {
    f64::from(u32::try_from(thousandths).unwrap_or(u32::MAX)) / 1e3
}

/// Converts a latency gradient from millionths to a ratio: 1 500 000 is 1.5. Saturates at
/// `u32::MAX` millionths.
pub(super) fn to_ratio(millionths: u64) -> f64 {
    f64::from(u32::try_from(millionths).unwrap_or(u32::MAX)) / 1e6
}
