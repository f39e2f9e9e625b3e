//! Pauses of growth: an upstream that asks clients to wait.

use sluicegate::kernel::concurrency::{ReportedOutcome, UpstreamAnswer};
use sluicegate::kernel::units::{Nanos, Share};

use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{Replica, advance_and_report};

/// Uses a fleet's limit of 10 for 20 s, after a refusal with `Retry-After: 60`. Returns the limit.
fn limit_after_refusal(paused_by: &str) -> Share {
    let store = FaultyStore::new();
    let limit = format!("limit: 10, adaptive: {{max: 100, paused_by: {paused_by}}}");
    let mut replica = Replica::new(&store, "a", &limit);
    replica.acquire_all();
    let refusal = UpstreamAnswer {
        retry_after: Some(Nanos::from_secs(60)),
        ..UpstreamAnswer::with_http_status(429)
    };
    replica.permits.remove(0).release(ReportedOutcome::Answered(refusal), None);
    for _ in 0..400 {
        advance_and_report(&[&replica], Nanos(50 * Nanos::MILLI.0));
        replica.finish(replica.permits.len());
        replica.acquire_all();
    }
    replica.snapshot().grant.unwrap().limit
}

#[test]
fn a_fleets_limit_does_not_grow_while_the_upstream_asks_to_wait() {
    let (ignoring, honouring) = (limit_after_refusal("none"), limit_after_refusal("retry_after"));
    assert!(Share(10) < ignoring, "{ignoring:?}");
    assert!(honouring <= Share(10), "{honouring:?}");
}
