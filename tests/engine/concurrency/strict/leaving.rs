//! Replicas that leave the fleet.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::poll_immediate;
use sluicegate::kernel::units::Nanos;

use super::{permit_count, two_replicas};
use crate::support::engine::block_on;
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{HEARTBEAT, Replica, advance_and_report};
use crate::support::waiting::soon;

#[test]
fn a_leaving_replica_reports_its_releases() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 2, mode: strict");
    assert_eq!(alone.acquire_all_strict(), 2);
    alone.finish(2);
    block_on(alone.engine.leave());
    assert_eq!(permit_count(&store, alone.now()), 0);
}

/// Reason: after an incomplete drain, requests of these streams may still run.
#[test]
fn leaving_replicas_requests_keep_permits_for_max_duration() {
    let store = FaultyStore::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 2, mode: strict, max_duration: 20s");
    assert_eq!(a.acquire_all_strict(), 2);
    advance_and_report(&[&a, &b], HEARTBEAT);
    block_on(a.engine.leave());
    b.advance_and_report(Nanos::from_secs(20).since(Nanos(1)));
    assert_eq!(b.acquire_all_strict(), 0);
    b.advance_and_report(HEARTBEAT.plus(Nanos(1)));
    assert_eq!(b.acquire_all_strict(), 2);
}

#[test]
fn leaving_stops_waiting_for_a_silent_store() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    assert!(alone.try_acquire_strict());
    store.is_silent.store(true, Relaxed);
    block_on(async {
        let mut report = pin!(alone.engine.report_once());
        assert!(poll_immediate(&mut report).await.is_none(), "it is under way");
        let leaves = alone.engine.leave();
        soon("the end of the replica", leaves).await;
    });
}
