//! Releases, also of acquires that were canceled or timed out.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::poll_immediate;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::permits::PermitId;

use super::{STREAM_LIFETIME, default_check, permit_count, two_replicas};
use crate::support::engine::block_on;
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{HEARTBEAT, Replica, START, admitted_permits, advance_and_report};
use crate::support::waiting::soon;

#[test]
fn a_canceled_acquire_leaks_no_permit() {
    let store = FaultyStore::new();
    let alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    store.is_slow.store(true, Relaxed);
    block_on(async {
        let check = default_check();
        let mut asked = pin!(alone.engine.admit(&check, None));
        assert!(poll_immediate(&mut asked).await.is_none(), "it is under way");
        assert_eq!(permit_count(&store, START), 1);
        // A permit whose acquire has no reply is never reported as active.
        alone.advance(STREAM_LIFETIME);
        alone.engine.report_once().await;
        assert_eq!(permit_count(&store, alone.now()), 0);
        // The acquire arrives again, and the next report releases its permit.
        let asked = store.last_acquire.lock().take().unwrap();
        store.strict.lock().acquire(alone.now(), "", &asked);
    });
    assert_eq!(permit_count(&store, alone.now()), 1);
    block_on(alone.engine.report_once());
    assert_eq!(permit_count(&store, alone.now()), 0);
    assert_eq!(alone.engine.concurrency_limits().totals().in_flight, 0);
}

#[test]
fn acquire_that_times_out_leaks_no_permit() {
    let queue = "limit: 1, mode: strict, queue: {size: 9, timeout: 1h}";
    for shadow in [false, true] {
        let store = FaultyStore::new();
        let shadowed =
            || format!("{queue}}}, shadow_mode: true}}, {{key: o, concurrency: {{limit: 1");
        let alone = if shadow { shadowed() } else { queue.to_owned() };
        let alone = Replica::new(&store, "a", &alone);
        store.is_silent.store(true, Relaxed);
        block_on(async {
            let check = default_check();
            let asked = alone.engine.admit(&check, Some(Nanos(10 * Nanos::MILLI.0)));
            let held = admitted_permits(soon("an answer", asked).await.unwrap());
            assert_eq!(held.is_some_and(|held| held.is_empty()), shadow);
            assert_eq!(permit_count(&store, START), 1, "it has taken what nobody heard of");
            store.is_silent.store(false, Relaxed);
            alone.engine.report_once().await;
            assert_eq!(permit_count(&store, START), 0);
        });
    }
}

#[test]
fn shadow_mode_still_acquires_from_the_store() {
    let store = FaultyStore::new();
    let shadow = "limit: 1, mode: strict}, shadow_mode: true}, {key: o, concurrency: {limit: 1";
    let [a, b] = two_replicas(&store, shadow);
    let held = |replica: &Replica| {
        admitted_permits(block_on(replica.engine.admit(&default_check(), None)).unwrap()).unwrap()
    };
    let first = held(&a);
    assert!(!first.is_empty());
    assert!(held(&b).is_empty(), "counted, and let pass");
}

#[test]
fn permit_with_a_lost_reply_is_released_for_three_heartbeats() {
    let store = FaultyStore::new();
    let alone = "limit: 1, mode: strict, on_store_failure: deny, max_duration: 60s";
    let mut alone = Replica::new(&store, "a", alone);
    store.loses_replies.store(true, Relaxed);
    assert!(!alone.try_acquire_by_id());
    assert_eq!(permit_count(&store, alone.now()), 1);
    store.loses_replies.store(false, Relaxed);
    alone.report();
    assert_eq!(permit_count(&store, alone.now()), 0);
    // The delayed acquire arrives only now.
    let asked = store.last_acquire.lock().take().unwrap();
    store.strict.lock().acquire(alone.now(), "", &asked);
    assert_eq!(permit_count(&store, alone.now()), 1);
    advance_and_report(&[&alone], HEARTBEAT);
    assert_eq!(permit_count(&store, alone.now()), 0);
    alone.advance_and_report(STREAM_LIFETIME);
    store.strict.lock().acquire(alone.now(), "", &asked);
    alone.advance_and_report(HEARTBEAT);
    assert_eq!(permit_count(&store, alone.now()), 1, "by then no call is under way any more");
}

#[test]
fn an_undelivered_release_is_retried() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    assert!(alone.try_acquire_by_id());
    store.is_unavailable.store(true, Relaxed);
    alone.finish(1);
    for _ in 0..10 {
        advance_and_report(&[&alone], HEARTBEAT);
    }
    assert_eq!(permit_count(&store, alone.now()), 1);
    store.is_unavailable.store(false, Relaxed);
    advance_and_report(&[&alone], HEARTBEAT);
    assert_eq!(permit_count(&store, alone.now()), 0);
}

#[test]
fn new_release_does_not_wait_for_retries() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 2, mode: strict");
    assert_eq!(alone.acquire_all_strict(), 2);
    store.is_unavailable.store(true, Relaxed);
    alone.finish(1);
    alone.report();
    store.is_unavailable.store(false, Relaxed);
    alone.finish(1);
    alone.report();
    assert_eq!(permit_count(&store, alone.now()), 1);
    advance_and_report(&[&alone], HEARTBEAT);
    assert_eq!(permit_count(&store, alone.now()), 0);
}

#[test]
fn a_report_does_not_copy_pending_retries() {
    const KEPT: usize = 5_000;
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", &format!("limit: {KEPT}, mode: strict"));
    block_on(async {
        for _ in 0..KEPT {
            let admitted = alone.engine.admit(&default_check(), None).await.unwrap();
            alone.permits.extend(admitted_permits(admitted));
        }
    });
    assert_eq!(alone.permits.len(), KEPT);
    alone.report();
    let idle = allocation_counter::measure(|| alone.report());
    store.is_unavailable.store(true, Relaxed);
    alone.finish(KEPT);
    alone.report();
    let waiting = allocation_counter::measure(|| alone.report());
    // A copy would allocate the whole pending release, which is more than the two numbers of its
    // permit id.
    let moved = u64::try_from(KEPT * size_of::<PermitId>()).unwrap();
    assert!(waiting.bytes_total < idle.bytes_total + moved / 2, "{waiting:?} for {idle:?}");
    store.is_unavailable.store(false, Relaxed);
    advance_and_report(&[&alone], HEARTBEAT);
    assert_eq!(permit_count(&store, alone.now()), 0, "it was all there to be told again");
}
