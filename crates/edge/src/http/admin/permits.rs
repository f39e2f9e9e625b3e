//! Serves `/permits`: the oldest permits in flight and the busiest buckets.
//!
//! Guarantees:
//! - The two lists have at most [`MAX_ROWS`] rows; the totals count all permits and buckets.
//! - Request ids are not shown: anybody who knows an id could release its permits.

use serde_json::{Value, json};

use crate::config::descriptor_text::format_entries;
use crate::engine::concurrency::{BucketMetrics, BucketName, ConcurrencyLimits};
use crate::kernel::key::CounterKey;
use crate::kernel::units::Nanos;

const MAX_ROWS: usize = 1_000;

/// Returns the page `/permits` as JSON.
#[must_use]
pub fn permits(limits: &ConcurrencyLimits) -> Value {
    let total = limits.totals();
    let mut buckets = limits.snapshots();
    buckets.sort_by(|(a, a_metrics), (b, b_metrics)| {
        b_metrics.load.in_flight.cmp(&a_metrics.load.in_flight).then_with(|| a.cmp(b))
    });
    json!({
        "in_flight": total.in_flight,
        "waiting": total.waiting,
        "buckets": total.buckets,
        "oldest": limits.oldest_permits(MAX_ROWS).iter().map(permit_json).collect::<Vec<_>>(),
        "busiest": buckets.iter().take(MAX_ROWS).map(bucket_json).collect::<Vec<_>>(),
    })
}

fn permit_json((name, age): &(BucketName, Nanos)) -> Value {
    let (domain, descriptor) = bucket_name(name);
    json!({"domain": domain, "descriptor": descriptor, "age_us": age.0 / 1_000})
}

fn bucket_json((name, metrics): &(BucketName, BucketMetrics)) -> Value {
    let (domain, descriptor) = bucket_name(name);
    json!({
        "domain": domain,
        "descriptor": descriptor,
        "in_flight": metrics.load.in_flight,
        "waiting": metrics.load.waiting,
        "limit": metrics.load.limit(),
        "rtt_us": metrics.rtt.map(|time| time.0 / 1_000),
        "min_rtt_us": metrics.min_rtt.map(|time| time.0 / 1_000),
        "gradient": metrics.gradient().map(to_ratio),
    })
}

/// Converts a latency gradient from millionths to a ratio: 1 500 000 is 1.5. Saturates at
/// `u32::MAX` millionths.
pub(super) fn to_ratio(millionths: u64) -> f64 {
    f64::from(u32::try_from(millionths).unwrap_or(u32::MAX)) / 1e6
}

fn bucket_name(name: &BucketName) -> (&str, String) {
    let Some((domain, entries)) = CounterKey::parse_concurrency_bucket(name) else {
        return ("", String::new());
    };
    (domain, format_entries(entries))
}
