//! A store that is unavailable or lost its data.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    GRACE, HEARTBEAT, Replica, STREAM_LIFETIME, Store, advance_all_and_report, two_replicas,
};

#[test]
fn store_after_data_loss_waits_for_reported_permits() {
    let store = Store::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 3, mode: strict");
    assert!(a.try_acquire() && a.try_acquire());
    advance_all_and_report(&[&a, &b], HEARTBEAT);
    store.lose_data();
    assert_eq!(b.acquire_all(), 0);
    advance_all_and_report(&[&a, &b], HEARTBEAT);
    assert_eq!((store.permit_count(a.now()), b.acquire_all()), (2, 0));
    for _ in 0..2 {
        advance_all_and_report(&[&a, &b], HEARTBEAT);
        assert_eq!(b.acquire_all(), 0);
    }
    advance_all_and_report(&[&a, &b], HEARTBEAT);
    assert_eq!(b.acquire_all(), 1, "and then all but what is held");
}

#[test]
fn unreported_permits_survive_a_store_outage() {
    let store = Store::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 2, mode: strict");
    assert_eq!(a.acquire_all(), 2);
    advance_all_and_report(&[&a, &b], HEARTBEAT);
    // The store is unreachable until the permits expire.
    store.is_cut.store(true, Relaxed);
    advance_all_and_report(&[&a, &b], STREAM_LIFETIME);
    store.is_cut.store(false, Relaxed);
    assert_eq!(b.acquire_all(), 0, "before anybody has told it anything");
    for _ in 0..5 {
        advance_all_and_report(&[&b, &a], HEARTBEAT);
        assert_eq!(b.acquire_all(), 0);
    }
    assert_eq!(store.permit_count(a.now()), 2);
}

#[test]
fn reports_of_idle_replicas_open_a_new_store_for_acquires() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    store.lose_data();
    alone.report();
    alone.advance_and_report(GRACE);
    assert_eq!(alone.acquire_all(), 1);
}

#[test]
fn fallback_limits_each_replica_during_an_outage() {
    for (word, wanted) in [("deny", 0), ("local", 2), ("allow", 9)] {
        for (is_cut, is_mute) in [(true, false), (false, true)] {
            let store = Store::new();
            let ceiling = format!("limit: 9, mode: strict, on_store_failure: {word}");
            let [mut a, mut b] = two_replicas(&store, &ceiling);
            store.is_cut.store(is_cut, Relaxed);
            store.is_mute.store(is_mute, Relaxed);
            assert_eq!(a.acquire_all(), wanted, "{word}");
            assert_eq!(a.engine.concurrency_limits().totals().in_flight, wanted as u64);
            store.is_cut.store(false, Relaxed);
            store.is_mute.store(false, Relaxed);
            advance_all_and_report(&[&a, &b], HEARTBEAT);
            assert_eq!(b.acquire_all(), 9 - wanted, "{word}: what was let pass is told");
        }
    }
}
