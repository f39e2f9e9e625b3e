//! A store that lost its data, and its grace period.

use std::sync::atomic::Ordering::Relaxed;

use sluicegate::kernel::units::Nanos;

use super::{GRACE, HALF_SECOND, run_for};
use crate::support::engine::block_on;
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::Replica;

#[test]
fn new_store_grants_shares_after_the_grace_period() {
    let store = FaultyStore::unsettled();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    run_for(&[&alone], &[&alone], Nanos::from_secs(5));
    let calls = store.share_calls.load(Relaxed);
    run_for(&[&alone], &[&alone], Nanos::from_secs(55));
    assert_eq!(store.share_calls.load(Relaxed), calls, "said once is enough");
    assert!(!alone.try_acquire(), "not before");
    run_for(&[&alone], &[&alone], Nanos::from_secs(5));
    assert!(
        !alone.try_acquire(),
        "who was turned away has a seat, and speaks for it once a second"
    );
    run_for(&[&alone], &[&alone], Nanos::SECOND);
    assert_eq!(alone.acquire_all(), 4);
}

#[test]
fn only_replicas_with_shared_limits_report_to_a_new_store() {
    let store = FaultyStore::unsettled();
    let lonely = Replica::new(&store, "b", "limit: 4, mode: local");
    run_for(&[&lonely], &[&lonely], Nanos::from_secs(5));
    assert_eq!(store.share_calls.load(Relaxed), 0);
    store.is_unavailable.store(true, Relaxed);
    store.is_disconnected.store(true, Relaxed);
    let mut alone = Replica::new(&store, "a", "limit: 4, on_store_failure: deny");
    run_for(&[&alone], &[&alone], Nanos::from_secs(9));
    assert_eq!(store.share_calls.load(Relaxed), 0, "nobody would hear it");
    store.is_disconnected.store(false, Relaxed);
    run_for(&[&alone], &[&alone], Nanos::from_secs(9));
    assert!((9..=10).contains(&store.share_calls.load(Relaxed)), "once a heartbeat");
    store.is_unavailable.store(false, Relaxed);
    run_for(&[&alone], &[&alone], GRACE.plus(Nanos::from_secs(2)));
    assert_eq!(alone.acquire_all(), 4);
}

#[test]
fn idle_replica_detects_store_data_loss_within_a_minute() {
    let store = FaultyStore::unsettled();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    run_for(&[&alone], &[&alone], Nanos::from_secs(9));
    store.lose_shares();
    run_for(&[&alone], &[&alone], GRACE.plus(Nanos::from_secs(62)));
    assert_eq!(alone.acquire_all(), 4);
}

#[test]
fn restarted_store_does_not_wait_for_departed_replicas() {
    let store = FaultyStore::unsettled();
    let [mut leaving, mut remaining] =
        ["a", "b"].map(|name| Replica::new(&store, name, "limit: 4"));
    run_for(&[&leaving, &remaining], &[&leaving, &remaining], GRACE.plus(Nanos::from_secs(2)));
    assert_eq!(leaving.acquire_all(), 4);
    leaving.finish(4);
    block_on(leaving.engine.leave());
    store.is_another.store(true, Relaxed);
    assert!(!remaining.try_acquire(), "its own word is missing");
    run_for(&[&remaining], &[&remaining], Nanos::from_secs(3));
    assert_eq!(remaining.acquire_all(), 4);
}

#[test]
fn idle_replica_cannot_end_the_grace_period_after_data_loss() {
    let store = FaultyStore::unsettled();
    let [mut busy, mut idle] = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 4"));
    run_for(&[&busy, &idle], &[&busy, &idle], GRACE.plus(Nanos::from_secs(2)));
    assert_eq!((busy.acquire_all(), idle.acquire_all()), (4, 0));
    store.is_unavailable.store(true, Relaxed);
    run_for(&[&busy, &idle], &[&busy, &idle], Nanos::from_secs(20));
    store.lose_shares();
    store.is_unavailable.store(false, Relaxed);
    // The idle replica reports first.
    run_for(&[&busy, &idle], &[&idle], HALF_SECOND);
    assert_eq!(idle.acquire_all(), 0, "beside four that are in flight");
    run_for(&[&busy, &idle], &[&busy, &idle], GRACE.plus(Nanos::from_secs(2)));
    busy.finish(4);
    assert_eq!(idle.acquire_all(), 0);
    run_for(&[&busy, &idle], &[&busy, &idle], Nanos::from_secs(2));
    assert_ne!(idle.acquire_all(), 0);
}

#[test]
fn grace_period_covers_max_duration_of_limits_used_elsewhere() {
    let store = FaultyStore::unsettled();
    let two = "limit: 4}}, {key: short, concurrency: {limit: 4, max_duration: 1s";
    let [mut silent, mut active] = ["a", "b"].map(|name| Replica::new(&store, name, two));
    run_for(&[&silent, &active], &[&silent, &active], GRACE.plus(Nanos::from_secs(2)));
    assert_eq!(silent.acquire_all(), 4);
    assert!(active.try_acquire_key("short"));
    store.lose_shares();
    run_for(&[&silent, &active], &[&active], Nanos::from_secs(9));
    assert!(!active.try_acquire(), "beside four that are in flight where nobody hears of them");
    run_for(&[&silent, &active], &[&active], GRACE);
    assert_eq!(active.acquire_all(), 4);
}
