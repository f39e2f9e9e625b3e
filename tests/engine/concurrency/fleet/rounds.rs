//! The schedule of share reports: duration and order of a share round, pauses, and the last report.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::FutureExt as _;
use futures_util::future::{join_all, poll_immediate};
use sluicegate::kernel::decision::Check;
use sluicegate::kernel::units::{Nanos, Share};

use super::{GRACE, HALF_SECOND, name_of, reported_first, run_for};
use crate::support::engine::{block_on, check_of_entry};
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::Replica;

/// The duration of a call to a slow store.
const CALL: Nanos = Nanos(50 * Nanos::MILLI.0);

fn share_of(replica: &Replica, value: &str) -> Share {
    let all = replica
        .engine
        .concurrency_limits()
        .fleet_reporter()
        .unwrap()
        .share_snapshots(replica.engine.clock(), 1_000);
    let of_it = all.into_iter().find(|(name, _)| **name == *name_of(value).as_bytes());
    of_it.unwrap().1.share
}

#[test]
fn new_limits_cannot_extend_a_share_round_past_share_expiry() {
    let store = FaultyStore::new();
    let mut many = Replica::with_hour_timeout(&store, "a", "limit: 4, on_store_failure: deny");
    assert!(many.try_acquire());
    store.is_slow.store(true, Relaxed);
    let values: Vec<String> = (0..200).map(|value| format!("{value}")).collect();
    let checks: Vec<Check> = values.iter().map(|value| check_of_entry("k", value)).collect();
    let mut newcomers = checks.iter();
    // Futures of acquires that are not polled again. Each waits for its share until the test ends.
    let mut pending = Vec::new();
    let mut add_limit = || {
        let Some(newcomer) = newcomers.next() else { return false };
        many.advance(CALL);
        let mut newcomer = Box::pin(many.engine.admit(newcomer, None));
        assert!((&mut newcomer).now_or_never().is_none(), "cold");
        pending.push(newcomer);
        true
    };
    block_on(async {
        while add_limit() {
            let mut report = pin!(many.engine.report_once());
            for calls in 0.. {
                assert!(calls <= 10, "the round has lasted for half a heartbeat");
                if poll_immediate(&mut report).await.is_some() {
                    break;
                }
                add_limit();
            }
            assert_eq!(share_of(&many, "v"), Share(4));
        }
    });
}

#[test]
fn share_that_expires_first_is_reported_first() {
    let store = FaultyStore::new();
    let many = Replica::with_hour_timeout(&store, "a", "limit: 4");
    let values: Vec<String> = (0..100).map(|value| format!("{value}")).collect();
    let checks: Vec<Check> = values.iter().map(|value| check_of_entry("k", value)).collect();
    let oldest = check_of_entry("k", "oldest");
    let held = block_on(async {
        let oldest = tokio::join!(many.engine.admit(&oldest, None), many.engine.report_once()).0;
        many.advance(HALF_SECOND);
        let all = join_all(checks.iter().map(|check| many.engine.admit(check, None)));
        (oldest, tokio::join!(all, many.engine.report_once()).0)
    });
    // More than half of the lifetime of every share has passed.
    many.advance(Nanos::from_secs(3));
    store.reported.lock().clear();
    many.report();
    assert!(reported_first(&store, 0, "oldest"));
    let reported_count: usize = store.reported.lock().iter().map(Vec::len).sum();
    assert_eq!((reported_count, held.1.len()), (101, 100));
}

/// Runs both replicas with unlimited demand. The first one's requests stay in flight.
fn run_with_demand(fleet: &mut [Replica; 2], by: Nanos) {
    for _ in 0..by.0 / CALL.0 {
        let [holder, waiter] = &mut *fleet;
        run_for(&[holder, waiter], &[holder, waiter], CALL);
        for replica in &mut *fleet {
            replica.try_acquire();
        }
    }
}

#[test]
fn waiting_replica_gets_its_share_within_two_heartbeats() {
    for later in 0..13 {
        let store = FaultyStore::new();
        let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 20"));
        assert_eq!((fleet[0].acquire_all(), fleet[1].acquire_all()), (20, 0));
        // After 14 s, the pauses between reports of the second replica exceed half of a share
        // lifetime.
        run_with_demand(&mut fleet, Nanos(14 * Nanos::SECOND.0 + later * 200 * Nanos::MILLI.0));
        assert_eq!(fleet[1].permits.len(), 0);
        fleet[0].finish(20);
        run_with_demand(&mut fleet, Nanos::from_secs(2));
        let share = fleet[1].snapshot().share;
        assert!(Share(10) <= share, "{share}, {later}");
    }
}

#[test]
fn limit_made_local_is_reported_until_old_requests_end() {
    let store = FaultyStore::unsettled();
    let ceiling = "limit: 4, max_duration: 10s";
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, ceiling));
    let [alone, other] = &mut fleet;
    run_for(&[alone, other], &[alone, other], Nanos::from_secs(17));
    assert_eq!(alone.acquire_all(), 4);
    alone.publish("limit: 4, mode: local, max_duration: 10s");
    // One request ends each second and another starts, so the limit is never idle.
    for second in 0..17 {
        run_for(&[alone, other], &[alone, other], Nanos::SECOND);
        alone.finish(1);
        assert_eq!(alone.acquire_all(), 1, "{second}");
    }
    assert_eq!(other.acquire_all(), 4, "nothing of it counts for the fleet");
    store.reported.lock().clear();
    for _ in 0..5 {
        run_for(&[alone], &[alone], Nanos::SECOND);
        alone.finish(1);
        alone.acquire_all();
    }
    let spoken = store.reported.lock().concat();
    assert!(spoken.is_empty(), "fleet.share_expiry and max_duration are over: {spoken:?}");
}

#[test]
fn local_requests_do_not_prolong_a_restarted_stores_grace() {
    let store = FaultyStore::unsettled();
    let [mut alone, mut other] = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 4"));
    run_for(&[&alone, &other], &[&alone, &other], GRACE.plus(Nanos::from_secs(2)));
    assert_eq!(alone.acquire_all(), 4);
    alone.publish("limit: 4, mode: local");
    // New requests are local. The earlier ones have ended, but the store receives no report.
    store.is_unavailable.store(true, Relaxed);
    alone.advance(Nanos::SECOND);
    alone.finish(4);
    assert_eq!(alone.acquire_all(), 4);
    store.is_another.store(true, Relaxed);
    store.is_unavailable.store(false, Relaxed);
    assert!(!other.try_acquire(), "its own word is missing");
    run_for(&[&alone, &other], &[&alone, &other], Nanos::from_secs(3));
    assert_eq!(other.acquire_all(), 4);
}

#[test]
fn permit_that_moves_between_replicas_is_idle_at_most_one_heartbeat_interval() {
    let store = FaultyStore::new();
    let mut fleet = ["a", "b", "c"].map(|name| Replica::new(&store, name, "limit: 1"));
    let (mut idle, mut longest, mut turns, mut holder) = (Nanos(0), Nanos(0), 0, None);
    for step in 0..Nanos::from_secs(90).0 / CALL.0 {
        let [a, b, c] = &mut fleet;
        run_for(&[a, b, c], &[a, b, c], CALL);
        for replica in &mut fleet {
            replica.finish(replica.permits.len());
            replica.try_acquire();
        }
        let holds = fleet.iter().position(|replica| replica.snapshot().share != Share(0));
        turns += u32::from(holds.is_some() && holds != holder);
        holder = holds.or(holder);
        idle = if holds.is_some() { Nanos(0) } else { idle.plus(CALL) };
        // Ignores the first heartbeats, in which all replicas are new.
        longest = longest.max(if step < 100 { Nanos(0) } else { idle });
    }
    assert!(6 <= turns, "{turns} turns");
    assert!(longest <= Nanos::SECOND, "{longest}");
}
