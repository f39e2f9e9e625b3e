//! Replicas that leave the fleet.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::poll_immediate;
use sluicegate::kernel::units::Nanos;

use super::{HALF_SECOND, in_time};
use crate::support::engine::block_on;
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::Replica;

#[test]
fn leaving_replica_frees_its_share_at_once() {
    let store = FaultyStore::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 4"));
    assert_eq!((fleet[0].acquire_all(), fleet[1].acquire_all()), (4, 0));
    fleet[0].finish(4);
    block_on(fleet[0].engine.leave());
    assert_eq!(fleet[0].acquire_all(), 0);
    fleet[1].advance(HALF_SECOND);
    fleet[1].report();
    assert_eq!(fleet[1].acquire_all(), 4);
}

/// A replica with a due report, a slow store, and the number of calls so far.
fn with_due_report(store: &Arc<FaultyStore>) -> (Replica, usize) {
    let mut alone = Replica::new(store, "a", "limit: 4");
    assert_eq!(alone.acquire_all(), 4);
    alone.finish(4);
    alone.advance(Nanos::SECOND);
    store.is_slow.store(true, Relaxed);
    (alone, store.share_calls.load(Relaxed))
}

#[test]
fn leaving_waits_for_the_current_heartbeat() {
    let store = FaultyStore::new();
    let (alone, before) = with_due_report(&store);
    let ceilings = alone.engine.concurrency_limits();
    block_on(async {
        let mut report = pin!(alone.engine.report_once());
        assert!(poll_immediate(&mut report).await.is_none(), "a heartbeat is on its way");
        let mut leaves = pin!(alone.engine.leave());
        assert!(poll_immediate(&mut leaves).await.is_none());
        assert_eq!(store.share_calls.load(Relaxed), before + 1, "nothing is said beside it");
        tokio::join!(report, leaves);
    });
    let spoken_of = ceilings.fleet_reporter().unwrap().share_snapshots(alone.engine.clock(), 9);
    assert!(spoken_of.is_empty(), "{spoken_of:?}");
    store.is_slow.store(false, Relaxed);
    let mut other = Replica::new(&store, "b", "limit: 4");
    other.advance(Nanos::SECOND);
    assert_eq!(other.acquire_all(), 4);
}

#[test]
fn leaving_stops_waiting_for_a_stuck_heartbeat() {
    let store = FaultyStore::new();
    let (alone, before) = with_due_report(&store);
    block_on(async {
        let mut report = pin!(alone.engine.report_once());
        assert!(poll_immediate(&mut report).await.is_none(), "a heartbeat is on its way");
        let leaves = alone.engine.leave();
        let left = tokio::time::timeout(Duration::from_secs(60), leaves).await;
        assert!(left.is_ok(), "it waits still");
    });
    assert_eq!(store.share_calls.load(Relaxed), before + 1);
}

#[test]
fn leaving_stops_waiting_for_a_silent_store() {
    let store = FaultyStore::new();
    let (alone, _) = with_due_report(&store);
    store.is_silent.store(true, Relaxed);
    block_on(in_time(alone.engine.leave()));
}
