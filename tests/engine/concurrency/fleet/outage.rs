//! Shares during a store outage: expiry, fallback and queued requests.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::clock::Clock;
use sluicegate::engine::AdmissionOutcome;
use sluicegate::kernel::units::{Nanos, Share};
use sluicegate::telemetry::metrics::{Gauges, METRICS};

use super::{HALF_SECOND, default_check};
use crate::support::engine::block_on;
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{Replica, advance_and_report};

/// Runs two replicas with unlimited demand until each has half of the limit.
fn split_evenly(fleet: &mut [Replica; 2], limit: usize) {
    assert_eq!((fleet[0].acquire_all(), fleet[1].acquire_all()), (limit, 0));
    for _ in 0..40 {
        let [a, b] = fleet;
        a.finish(usize::from(!a.permits.is_empty()));
        advance_and_report(&[a, b], Nanos(50 * Nanos::MILLI.0));
        a.acquire_all();
        b.acquire_all();
        assert!(
            a.permits.len() + b.permits.len() <= limit,
            "{} and {}",
            a.permits.len(),
            b.permits.len()
        );
    }
    assert_eq!(fleet.each_ref().map(|replica| replica.permits.len()), [limit / 2; 2]);
}

#[test]
fn two_replicas_share_the_limit_without_exceeding_it() {
    let store = FaultyStore::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 8"));
    split_evenly(&mut fleet, 8);
    let shown = fleet[1].snapshot();
    assert!(0 < shown.handoffs);
    // Four requests end, one every 50 ms. The handoff takes at most two more heartbeat intervals.
    let (drain, took) = (Nanos(200 * Nanos::MILLI.0), shown.handoff_duration.unwrap());
    assert!(took <= drain.plus(Nanos::from_secs(2)), "{took}");
}

#[test]
fn share_expires_without_replies_but_requests_still_count() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_store_failure: deny");
    assert_eq!(alone.acquire_all(), 4);
    store.is_unavailable.store(true, Relaxed);
    alone.finish(2);
    alone.advance(Nanos::from_secs(4));
    alone.report();
    assert_eq!(alone.acquire_all(), 2, "in its term");
    alone.finish(1);
    alone.advance(Nanos::SECOND);
    alone.report();
    assert_eq!(alone.acquire_all(), 0);
    assert_eq!((alone.snapshot().share, alone.snapshot().fences), (Share(0), 1));
    assert_eq!(alone.snapshot().in_flight, 3);
    let metrics = METRICS.page(Gauges::default()).to_string();
    let fenced = "sluicegate_concurrency_limit_events_total{limit=\"d.k\",event=\"fenced\"}";
    assert!(metrics.contains(fenced), "{metrics}");
    store.is_unavailable.store(false, Relaxed);
    alone.advance(Nanos::SECOND);
    alone.report();
    assert_eq!(alone.acquire_all(), 1, "back, and never more than the ceiling");
}

/// Runs until the limit is idle at all replicas.
fn become_idle(fleet: &[&Replica]) {
    for _ in 0..30 {
        advance_and_report(fleet, HALF_SECOND);
    }
    for replica in fleet {
        assert_eq!(replica.engine.share_record().largest_shares, []);
    }
}

#[test]
fn fence_and_handoff_counts_include_idle_limits() {
    let store = FaultyStore::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 8"));
    split_evenly(&mut fleet, 8);
    let [mut a, mut b] = fleet;
    let handoffs = b.snapshot().handoffs;
    store.is_unavailable.store(true, Relaxed);
    advance_and_report(&[&a, &b], Nanos::from_secs(6));
    store.is_unavailable.store(false, Relaxed);
    a.finish(4);
    b.finish(4);
    become_idle(&[&a, &b]);
    let counts = |replica: &Replica| {
        let record = replica.engine.share_record();
        (record.fences, record.handoffs)
    };
    assert_eq!((counts(&a).0, counts(&b)), (1, (1, handoffs)));
    assert!(b.try_acquire());
    assert_eq!(counts(&b), (1, handoffs), "it is told once");
    b.publish("limit: 8, mode: local");
    b.finish(1);
    become_idle(&[&b]);
    assert_eq!(counts(&b), (1, handoffs), "it is this replica's alone by now");
}

#[test]
fn wall_clock_step_forward_expires_no_share() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert!(alone.try_acquire());
    let Clock::Manual(clock) = alone.engine.clock() else { panic!() };
    clock.step_wall_clock(Nanos::from_secs(3_600));
    store.is_unavailable.store(true, Relaxed);
    assert_eq!(alone.acquire_all(), 3);
    assert_eq!((alone.snapshot().share, alone.snapshot().fences), (Share(4), 0));
}

#[test]
fn fallback_sets_the_share_during_an_outage() {
    for (word, wanted) in [("deny", 0), ("local", 2), ("allow", 4)] {
        let store = FaultyStore::new();
        let ceiling = format!("limit: 4, on_store_failure: {word}");
        let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, &ceiling));
        split_evenly(&mut fleet, 4);
        store.is_unavailable.store(true, Relaxed);
        for replica in &mut fleet {
            replica.finish(2);
            replica.advance(Nanos::from_secs(6));
            replica.report();
            replica.advance(Nanos::SECOND);
            replica.report();
        }
        let share = Share(u64::try_from(wanted).unwrap());
        for replica in &fleet {
            let shown = replica.snapshot();
            assert_eq!((shown.share, shown.is_outage), (share, true), "{word}");
            assert_eq!(replica.engine.share_record().share, share.0, "{word}");
        }
        let found = fleet.each_mut().map(Replica::acquire_all);
        assert_eq!(found, [wanted; 2], "{word}");
    }
}

#[test]
fn local_shares_in_an_outage_never_exceed_the_limit() {
    let store = FaultyStore::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 8"));
    assert_eq!((fleet[0].acquire_all(), fleet[1].acquire_all()), (8, 0));
    assert_eq!(fleet[1].snapshot().grant.unwrap().fair_share, Share(4));
    store.is_unavailable.store(true, Relaxed);
    fleet[0].finish(8);
    advance_and_report(&fleet.each_ref(), Nanos::from_secs(6));
    advance_and_report(&fleet.each_ref(), Nanos::SECOND);
    assert!(fleet.iter().all(|replica| replica.snapshot().is_outage));
    let found: usize = fleet.each_mut().map(Replica::acquire_all).iter().sum();
    assert_eq!(found, 8, "all of the ceiling, and no more");
}

#[test]
fn superseded_replica_loses_its_fallback_when_the_store_returns() {
    let store = FaultyStore::new();
    let mut older = Replica::new(&store, "a", "limit: 4, on_store_failure: allow");
    assert!(older.try_acquire());
    store.is_unavailable.store(true, Relaxed);
    older.advance(Nanos::from_secs(6));
    older.report();
    assert!(older.try_acquire(), "in an outage all is allowed");
    store.is_unavailable.store(false, Relaxed);
    let life = Nanos::from_secs(1_001);
    let mut younger = Replica::of_incarnation(&store, "a", "limit: 4", life);
    younger.advance(Nanos::from_secs(6));
    younger.try_acquire();
    older.advance(Nanos::SECOND);
    older.report();
    assert!(!older.try_acquire());
    assert_eq!((older.snapshot().share, older.snapshot().in_flight), (Share(0), 2));
}

#[test]
fn limit_is_divided_by_expected_replicas_without_a_grant() {
    let store = FaultyStore::new();
    store.is_unavailable.store(true, Relaxed);
    let mut lonely = Replica::new(&store, "a", "limit: 9");
    assert_eq!(lonely.acquire_all(), 9 / 4);
}

#[test]
fn queued_requests_are_denied_when_the_share_expires() {
    let store = FaultyStore::new();
    let queue = "limit: 1, on_store_failure: deny, queue: {size: 5, timeout: 1h}";
    let mut alone = Replica::new(&store, "a", queue);
    assert!(alone.try_acquire());
    store.is_unavailable.store(true, Relaxed);
    let check = default_check();
    let turned_away = block_on(async {
        let mut waits = pin!(alone.engine.admit(&check, None));
        tokio::select! {
            biased;
            _ = &mut waits => panic!("nobody left"),
            () = std::future::ready(()) => {}
        }
        alone.advance(Nanos::from_secs(5));
        alone.engine.report_once().await;
        matches!(waits.await.unwrap(), AdmissionOutcome::Rejected(_))
    });
    assert!(turned_away);
}
