//! Renewal and expiry of permits in the store.

use std::sync::atomic::Ordering::Relaxed;

use sluicegate::kernel::units::Nanos;

use super::{STREAM_LIFETIME, two_replicas};
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{HEARTBEAT, advance_and_report};

#[test]
fn permits_are_renewed_in_one_call_per_heartbeat() {
    let store = FaultyStore::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 2, mode: strict");
    assert_eq!(a.acquire_all_strict(), 2);
    for _ in 0..10 {
        advance_and_report(&[&a], Nanos(HEARTBEAT.0 / 4));
        b.advance(Nanos(HEARTBEAT.0 / 4));
    }
    let calls = store.permit_report_calls.load(Relaxed);
    for _ in 0..40 {
        advance_and_report(&[&a], Nanos(HEARTBEAT.0 / 4));
        b.advance(Nanos(HEARTBEAT.0 / 4));
        assert_eq!(b.acquire_all_strict(), 0);
    }
    let calls = store.permit_report_calls.load(Relaxed) - calls;
    assert!((9..=11).contains(&calls), "{calls} calls in ten beats");
}

#[test]
fn lost_replicas_streams_expire_after_three_heartbeats() {
    let store = FaultyStore::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 2, mode: strict");
    assert_eq!(a.acquire_all_strict(), 2);
    advance_and_report(&[&a, &b], HEARTBEAT);
    b.advance_and_report(Nanos(STREAM_LIFETIME.0 - 1));
    assert_eq!(b.acquire_all_strict(), 0);
    b.advance_and_report(Nanos(1));
    assert_eq!(b.acquire_all_strict(), 2);
}

#[test]
fn lost_replicas_ids_expire_a_heartbeat_after_max_duration() {
    for is_reported in [false, true] {
        let store = FaultyStore::new();
        let [mut a, mut b] = two_replicas(&store, "limit: 1, mode: strict, max_duration: 20s");
        assert!(a.try_acquire_by_id());
        if is_reported {
            advance_and_report(&[&a, &b], HEARTBEAT);
            b.advance_and_report(Nanos::from_secs(19).plus(HEARTBEAT).since(Nanos(1)));
        } else {
            b.advance_and_report(Nanos::from_secs(20).plus(HEARTBEAT).since(Nanos(1)));
        }
        assert_eq!(b.acquire_all_strict(), 0);
        b.advance_and_report(Nanos(1));
        assert_eq!(b.acquire_all_strict(), 1);
    }
}

#[test]
fn renewal_at_the_last_moment_keeps_the_permit() {
    let store = FaultyStore::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 1, mode: strict, max_duration: 20s");
    assert!(a.try_acquire_by_id());
    for _ in 0..19 {
        advance_and_report(&[&a, &b], Nanos::from_secs(1));
    }
    a.advance(Nanos(900_000_000));
    assert!(a.permits[0].renew());
    b.advance(Nanos(1_500_000_000));
    assert_eq!(b.acquire_all_strict(), 0);
}

#[test]
fn an_unreleased_id_expires_at_max_duration() {
    let store = FaultyStore::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 1, mode: strict, max_duration: 5s");
    assert!(a.try_acquire_by_id());
    for _ in 0..4 {
        advance_and_report(&[&a, &b], HEARTBEAT);
        assert_eq!(b.acquire_all_strict(), 0);
    }
    advance_and_report(&[&a, &b], HEARTBEAT);
    assert_eq!(b.acquire_all_strict(), 1);
    assert_eq!(a.engine.concurrency_limits().totals().in_flight, 0);
}
