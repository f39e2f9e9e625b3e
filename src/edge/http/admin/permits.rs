//! Serves `/permits`: the oldest permits in flight and the busiest buckets.
//!
//! Guarantees:
//! - Each list has at most [`MOST`] rows; the totals include the rest.
//!
//! Not covered:
//! - The ids of permits: with an id, anybody could release its permit.

use serde_json::{Value, json};

use crate::config::written::written;
use crate::engine::admit::{Admission, Look, Name};
use crate::kernel::key::CounterKey;
use crate::kernel::units::Nanos;

const MOST: usize = 1_000;

/// Returns the oldest permits, and the buckets with the most requests in flight.
#[must_use]
pub fn permits(ceilings: &Admission) -> Value {
    let total = ceilings.total();
    let mut looks = ceilings.looks();
    looks.sort_by(|(a, one), (b, other)| {
        other.load.in_flight.cmp(&one.load.in_flight).then_with(|| a.cmp(b))
    });
    json!({
        "in_flight": total.in_flight,
        "waiting": total.waiting,
        "buckets": total.buckets,
        "oldest": ceilings.oldest(MOST).iter().map(permit).collect::<Vec<_>>(),
        "busiest": looks.iter().take(MOST).map(bucket).collect::<Vec<_>>(),
    })
}

fn permit((name, age): &(Name, Nanos)) -> Value {
    let (domain, descriptor) = named(name);
    json!({"domain": domain, "descriptor": descriptor, "age_us": age.0 / 1_000})
}

fn bucket((name, look): &(Name, Look)) -> Value {
    let (domain, descriptor) = named(name);
    json!({
        "domain": domain,
        "descriptor": descriptor,
        "in_flight": look.load.in_flight,
        "waiting": look.load.waiting,
        "limit": look.load.limit(),
        "rtt_us": look.rtt.map(|time| time.0 / 1_000),
        "min_rtt_us": look.min_rtt.map(|time| time.0 / 1_000),
        "gradient": look.gradient().map(ratio),
    })
}

/// Converts millionths to a ratio. Saturates at `u32::MAX`
/// millionths, which real latencies cannot reach.
pub(super) fn ratio(millionths: u64) -> f64 {
    f64::from(u32::try_from(millionths).unwrap_or(u32::MAX)) / 1e6
}

fn named(name: &Name) -> (&str, String) {
    let Some((domain, entries)) = CounterKey::read_ceiling(name) else {
        return ("", String::new());
    };
    (domain, written(entries))
}
