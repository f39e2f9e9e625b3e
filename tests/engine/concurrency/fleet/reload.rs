//! Reloads that change the limit, its mode or its `max_duration`.

use std::sync::atomic::Ordering::Relaxed;

use sluicegate::kernel::units::{Nanos, Share};

use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{Replica, advance_and_report};

#[test]
fn reload_changes_the_limit_and_the_mode() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.acquire_all(), 4);
    alone.publish("limit: 6");
    assert_eq!(alone.acquire_all(), 0, "not before the store has heard of it");
    advance_and_report(&[&alone], Nanos::SECOND);
    assert_eq!(alone.acquire_all(), 2);
    alone.publish("limit: 7, mode: local");
    assert_eq!(alone.acquire_all(), 1);
    advance_and_report(&[&alone], Nanos::SECOND);
    let mut other = Replica::new(&store, "b", "limit: 6");
    alone.finish(7);
    for _ in 0..3 {
        advance_and_report(&[&alone], Nanos::SECOND);
    }
    assert_eq!(other.acquire_all(), 6);
    alone.publish("limit: 6");
    assert_eq!(alone.acquire_all(), 0, "shared again");
}

#[test]
fn a_lowered_limit_is_reported_without_traffic() {
    let store = FaultyStore::new();
    let mut idle = Replica::new(&store, "a", "limit: 4");
    assert!(idle.try_acquire());
    idle.publish("limit: 2");
    advance_and_report(&[&idle], Nanos::SECOND);
    assert_eq!(idle.snapshot().grant.unwrap().limit, Share(2));
}

/// Returns `true` if a finished request causes a report one second later.
fn reports_a_finished_request(store: &FaultyStore, alone: &mut Replica) -> bool {
    assert!(alone.try_acquire());
    alone.finish(1);
    store.largest_round.store(0, Relaxed);
    advance_and_report(&[alone], Nanos::SECOND);
    store.largest_round.load(Relaxed) == 1
}

#[test]
fn changed_max_duration_is_reported_with_the_next_heartbeat() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, max_duration: 10s");
    let is_reported = |alone: &mut Replica| reports_a_finished_request(&store, alone);
    let mut twice = || is_reported(&mut alone) && !is_reported(&mut alone);
    assert!((0..20).any(|_| twice()), "what was said is not said again at once");
    let mut once = || is_reported(&mut alone);
    assert!((0..20).any(|_| once()), "but now and then");
    alone.publish("limit: 4, max_duration: 11s");
    assert!(is_reported(&mut alone));
}

#[test]
fn shared_limit_without_a_fleet_is_local() {
    let mut alone = Replica::without_fleet();
    alone.publish("limit: 3, mode: shared, max_duration: 1s");
    assert_eq!(alone.acquire_all(), 3);
}
