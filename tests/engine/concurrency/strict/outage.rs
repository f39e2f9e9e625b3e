//! A store that is unavailable or lost its data.

use std::sync::atomic::Ordering::Relaxed;

use super::{GRACE, STREAM_LIFETIME, permit_count, two_replicas};
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{HEARTBEAT, Replica, advance_and_report};

#[test]
fn store_after_data_loss_waits_for_reported_permits() {
    let store = FaultyStore::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 3, mode: strict");
    assert!(a.try_acquire_strict() && a.try_acquire_strict());
    advance_and_report(&[&a, &b], HEARTBEAT);
    store.lose_strict_permits();
    assert_eq!(b.acquire_all_strict(), 0);
    advance_and_report(&[&a, &b], HEARTBEAT);
    assert_eq!((permit_count(&store, a.now()), b.acquire_all_strict()), (2, 0));
    for _ in 0..2 {
        advance_and_report(&[&a, &b], HEARTBEAT);
        assert_eq!(b.acquire_all_strict(), 0);
    }
    advance_and_report(&[&a, &b], HEARTBEAT);
    assert_eq!(b.acquire_all_strict(), 1, "and then all but what is held");
}

#[test]
fn unreported_permits_survive_a_store_outage() {
    let store = FaultyStore::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 2, mode: strict");
    assert_eq!(a.acquire_all_strict(), 2);
    advance_and_report(&[&a, &b], HEARTBEAT);
    // The store is unreachable until the permits expire.
    store.is_unavailable.store(true, Relaxed);
    advance_and_report(&[&a, &b], STREAM_LIFETIME);
    store.is_unavailable.store(false, Relaxed);
    assert_eq!(b.acquire_all_strict(), 0, "before anybody has told it anything");
    for _ in 0..5 {
        advance_and_report(&[&b, &a], HEARTBEAT);
        assert_eq!(b.acquire_all_strict(), 0);
    }
    assert_eq!(permit_count(&store, a.now()), 2);
}

#[test]
fn reports_of_idle_replicas_open_a_new_store_for_acquires() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    store.lose_strict_permits();
    alone.report();
    alone.advance_and_report(GRACE);
    assert_eq!(alone.acquire_all_strict(), 1);
}

#[test]
fn fallback_limits_each_replica_during_an_outage() {
    for (word, wanted) in [("deny", 0), ("local", 2), ("allow", 9)] {
        for (is_cut, is_mute) in [(true, false), (false, true)] {
            let store = FaultyStore::new();
            let ceiling = format!("limit: 9, mode: strict, on_store_failure: {word}");
            let [mut a, mut b] = two_replicas(&store, &ceiling);
            store.is_unavailable.store(is_cut, Relaxed);
            store.loses_replies.store(is_mute, Relaxed);
            assert_eq!(a.acquire_all_strict(), wanted, "{word}");
            assert_eq!(a.engine.concurrency_limits().totals().in_flight, wanted as u64);
            store.is_unavailable.store(false, Relaxed);
            store.loses_replies.store(false, Relaxed);
            advance_and_report(&[&a, &b], HEARTBEAT);
            assert_eq!(b.acquire_all_strict(), 9 - wanted, "{word}: what was let pass is told");
        }
    }
}
