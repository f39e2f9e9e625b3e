//! Idle limits, which return their shares.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::poll_immediate;
use sluicegate::kernel::units::Nanos;

use super::{HALF_SECOND, default_check, run_for};
use crate::support::engine::block_on;
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{Replica, admitted_permits, advance_and_report};

#[test]
fn idle_limit_costs_no_call_after_ten_heartbeats() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.acquire_all(), 4);
    alone.finish(4);
    for _ in 0..30 {
        advance_and_report(&[&alone], HALF_SECOND);
    }
    let calls = store.share_calls.load(Relaxed);
    for _ in 0..30 {
        advance_and_report(&[&alone], HALF_SECOND);
    }
    assert_eq!(store.share_calls.load(Relaxed), calls);
    let mut other = Replica::new(&store, "b", "limit: 4");
    assert_eq!(other.acquire_all(), 4, "nothing is reserved for the idle");
    assert_eq!(alone.acquire_all(), 0);
}

#[test]
fn undelivered_share_return_is_reversed_by_the_next_reply() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_store_failure: deny");
    assert_eq!(alone.acquire_all(), 4);
    alone.finish(4);
    run_for(&[&alone], &[&alone], Nanos::from_secs(9));
    store.is_unavailable.store(true, Relaxed);
    run_for(&[&alone], &[&alone], Nanos::from_secs(2));
    assert!(!alone.try_acquire(), "what it has let go of it does not use");
    store.is_unavailable.store(false, Relaxed);
    run_for(&[&alone], &[&alone], Nanos::SECOND);
    assert_eq!(alone.acquire_all(), 4);
}

#[test]
fn check_during_a_share_return_waits_for_the_next_report() {
    let store = FaultyStore::new();
    let mut alone = Replica::with_hour_timeout(&store, "a", "limit: 4");
    assert!(alone.try_acquire());
    alone.finish(1);
    run_for(&[&alone], &[&alone], Nanos::from_secs(9));
    alone.advance(Nanos::SECOND);
    store.is_slow.store(true, Relaxed);
    let check = default_check();
    let passed = block_on(async {
        let mut report = pin!(alone.engine.report_once());
        assert!(poll_immediate(&mut report).await.is_none(), "the goodbye is on its way");
        let mut asked = pin!(alone.engine.admit(&check, None));
        assert!(poll_immediate(&mut asked).await.is_none());
        let report_twice = async {
            report.await;
            alone.engine.report_once().await;
        };
        let (asked, ()) = tokio::join!(asked, report_twice);
        admitted_permits(asked.unwrap()).is_some()
    });
    assert!(passed);
}

#[test]
fn limit_shared_again_gets_its_share_back() {
    for heard in [false, true] {
        let store = FaultyStore::new();
        let mut alone = Replica::new(&store, "a", "limit: 4");
        assert_eq!(alone.acquire_all(), 4);
        alone.publish("limit: 4, mode: local");
        if heard {
            advance_and_report(&[&alone], Nanos::SECOND);
        }
        alone.publish("limit: 4");
        assert!(!alone.try_acquire(), "four are in flight");
        alone.finish(4);
        advance_and_report(&[&alone], Nanos::SECOND);
        assert_eq!(alone.acquire_all(), 4, "heard: {heard}");
    }
}

#[test]
fn a_returned_share_allows_nothing_after_leaving() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.acquire_all(), 4);
    alone.finish(4);
    run_for(&[&alone], &[&alone], Nanos::from_secs(12));
    block_on(alone.engine.leave());
    assert_eq!(alone.acquire_all(), 0);
}
