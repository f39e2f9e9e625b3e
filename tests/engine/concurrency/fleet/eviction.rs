//! Eviction of buckets with a share, and shares whose bucket or limit is gone.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::poll_immediate;
use sluicegate::engine::AdmissionOutcome;
use sluicegate::kernel::decision::Reason;
use sluicegate::kernel::units::{Nanos, Share};

use super::in_time;
use crate::support::engine::{block_on, check_of_entry};
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{Replica, admitted_permits, advance_and_report};

#[test]
fn reply_after_the_share_expiry_grants_nothing() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_store_failure: deny");
    assert_eq!(alone.acquire_all(), 4);
    alone.finish(4);
    alone.advance(Nanos::SECOND);
    store.is_slow.store(true, Relaxed);
    block_on(async {
        let mut report = pin!(alone.engine.report_once());
        let begun = poll_immediate(&mut report).await;
        assert!(begun.is_none(), "the heartbeat is on its way");
        alone.advance(Nanos::from_secs(60));
        report.await;
    });
    store.is_unavailable.store(true, Relaxed);
    assert_eq!(alone.snapshot().share, Share(0));
    assert_eq!(alone.acquire_all(), 0);
}

#[test]
fn limit_changed_to_local_ignores_the_share_expiry() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.acquire_all(), 4);
    store.is_unavailable.store(true, Relaxed);
    alone.publish("limit: 4, mode: local");
    alone.finish(4);
    alone.advance(Nanos::from_secs(60));
    assert_eq!(alone.acquire_all(), 4);
}

#[test]
fn bucket_dropped_during_an_outage_is_not_reported() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_store_failure: deny");
    store.is_unavailable.store(true, Relaxed);
    assert!(!alone.try_acquire());
    let reported_count = |alone: &Replica| {
        alone
            .engine
            .concurrency_limits()
            .fleet_reporter()
            .unwrap()
            .share_snapshots(alone.engine.clock(), 9)
            .len()
    };
    assert_eq!(reported_count(&alone), 1);
    for _ in 0..2 {
        alone.advance(Nanos::from_secs(700));
        alone.report();
        alone.engine.concurrency_limits().sweep();
    }
    alone.report();
    assert_eq!((alone.engine.concurrency_limits().bucket_count(), reported_count(&alone)), (0, 0));
}

#[test]
fn bucket_with_a_share_is_not_evicted() {
    let store = FaultyStore::new();
    let mut alone = Replica::with_max_buckets(&store, "a", "limit: 4", 1);
    assert!(alone.try_acquire());
    alone.finish(1);
    let other = check_of_entry("k", "w");
    let AdmissionOutcome::Rejected(rejection) = alone.admit(&other) else {
        panic!("it took the place")
    };
    assert_eq!(rejection.reason, Reason::TooManyBuckets);
    for _ in 0..12 {
        advance_and_report(&[&alone], Nanos::SECOND);
    }
    assert!(admitted_permits(alone.admit(&other)).is_some(), "ten heartbeats without a request");
    assert_eq!(alone.engine.concurrency_limits().bucket_count(), 1);
}

/// A replica with one idle bucket that returns its share with the next report.
fn about_to_return_share(store: &Arc<FaultyStore>) -> Replica {
    let mut alone = Replica::with_max_buckets(store, "a", "limit: 4", 1);
    assert!(alone.try_acquire());
    alone.finish(1);
    (0..9).for_each(|_| advance_and_report(&[&alone], Nanos::SECOND));
    alone.advance(Nanos::from_secs(2));
    alone
}

/// Reason: if the bucket were evicted and created again too early, it would wait for its own old
/// share.
#[test]
fn eviction_waits_until_the_store_accepts_the_returned_share() {
    let store = FaultyStore::new();
    let (alone, other) = (about_to_return_share(&store), check_of_entry("k", "w"));
    store.is_slow.store(true, Relaxed);
    block_on(async {
        let mut report = pin!(alone.engine.report_once());
        assert!(poll_immediate(&mut report).await.is_none(), "the goodbye is under way");
        let asked = in_time(alone.engine.admit(&other, None)).await.unwrap();
        let AdmissionOutcome::Rejected(rejection) = asked else { panic!("it took the place") };
        assert_eq!(rejection.reason, Reason::TooManyBuckets);
        in_time(report).await;
    });
    store.is_slow.store(false, Relaxed);
    assert!(admitted_permits(alone.admit(&other)).is_some(), "it was heard");
}

#[test]
fn lost_or_refused_share_return_allows_eviction() {
    let other = check_of_entry("k", "w");
    let (store, away) = (FaultyStore::new(), FaultyStore::new());
    let mut younger = Replica::of_incarnation(&store, "a", "limit: 4", Nanos::from_secs(2_000));
    let refused = about_to_return_share(&store);
    younger.try_acquire();
    let lost = about_to_return_share(&away);
    away.is_unavailable.store(true, Relaxed);
    for alone in [refused, lost] {
        alone.report();
        assert!(admitted_permits(alone.admit(&other)).is_some());
    }
}
