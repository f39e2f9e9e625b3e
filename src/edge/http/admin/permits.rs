//! `/permits`: who is in flight, the oldest first, and under which ceilings.
//!
//! Guarantees: bounded by [`MOST`] of each; what is left out is counted.
//! Leaves out: the ids that hold permits, with which anybody could give them back.

use serde_json::{Value, json};

use crate::config::written::written;
use crate::engine::admit::{Admission, Look, Name};
use crate::kernel::key::CounterKey;
use crate::kernel::units::Nanos;

/// Permits, and buckets, that are shown at most.
const MOST: usize = 1_000;

/// The permits that have been out for longest, and the buckets with most in flight.
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

/// Of millionths; one that latencies cannot have is as large as can be said.
pub(super) fn ratio(millionths: u64) -> f64 {
    f64::from(u32::try_from(millionths).unwrap_or(u32::MAX)) / 1e6
}

/// The domain and the descriptor, as a person writes it.
fn named(name: &Name) -> (&str, String) {
    let Some((domain, entries)) = CounterKey::read_ceiling(name) else {
        return ("", String::new());
    };
    (domain, written(entries))
}
