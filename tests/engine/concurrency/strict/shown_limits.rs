//! The limits and permits that are shown, and eviction of buckets.

use futures_util::future::poll_immediate;
use sluicegate::engine::AdmissionOutcome;
use sluicegate::kernel::decision::Reason;
use sluicegate::kernel::units::Share;

use super::{default_check, two_replicas};
use crate::support::engine::{block_on, check_of_entry};
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{HEARTBEAT, Replica, advance_and_report};

#[test]
fn bucket_with_waiters_or_unreported_releases_is_not_evicted() {
    let store = FaultyStore::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 1, timeout: 1h}";
    let [mut a, b] = ["a", "b"].map(|name| Replica::with_max_buckets(&store, name, ceiling, 1));
    let others =
        |replica: &Replica| match block_on(replica.engine.admit(&check_of_entry("k", "w"), None))
            .unwrap()
        {
            AdmissionOutcome::Rejected(rejection) => Err(rejection.reason),
            AdmissionOutcome::Decided(..) => Ok(()),
        };
    assert!(a.try_acquire_strict());
    assert_eq!(others(&a), Err(Reason::TooManyBuckets), "in flight");
    block_on(async {
        let waits = default_check();
        let mut waits = Box::pin(b.engine.admit(&waits, None));
        assert!(poll_immediate(&mut waits).await.is_none(), "in line");
        b.engine.report_once().await;
        let taken = b.engine.admit(&check_of_entry("k", "w"), None).await.unwrap();
        let AdmissionOutcome::Rejected(rejection) = taken else { panic!("it took the place") };
        assert_eq!(rejection.reason, Reason::TooManyBuckets);
    });
    b.report();
    assert_eq!(others(&b), Ok(()), "who waited has left");
    b.report();
    a.finish(1);
    assert_eq!(others(&a), Err(Reason::TooManyBuckets), "to be told over");
    a.report();
    assert_eq!(others(&a), Ok(()));
}

/// Reason: dashboards sum this metric over replicas, although each enforces the whole limit.
#[test]
fn shown_limits_sum_to_the_limit() {
    let names = ["a", "b", "c", "d", "e"];
    for (limit, count) in [(10, 2), (10, 5), (3, 2), (3, 5), (1, 1), (1, 5), (7, 1)] {
        let store = FaultyStore::new();
        let ceiling = format!("limit: {limit}, mode: strict");
        let fleet = names[..count].iter().map(|name| {
            let mut replica = Replica::new(&store, name, &ceiling);
            replica.set_members(&names[..count]);
            replica.try_acquire_strict();
            replica
        });
        let fleet: Vec<_> = fleet.collect();
        let shown: Vec<_> = fleet.iter().map(Replica::shown_limit).collect();
        assert_eq!(shown.iter().sum::<u64>(), u64::from(limit), "{shown:?}");
        let looks =
            fleet.iter().flat_map(|replica| replica.engine.concurrency_limits().snapshots());
        assert!(looks.into_iter().all(|(_, look)| look.load.limit() == Some(limit)));
    }
}

#[test]
fn replica_without_membership_divides_the_limit_by_expected_replicas() {
    let mut alone = Replica::new(&FaultyStore::new(), "a", "limit: 10, mode: strict");
    assert!(alone.try_acquire_strict());
    assert_eq!(alone.shown_limit(), 10 / 4);
}

#[test]
fn a_local_limit_is_shown_in_full() {
    let mut alone = Replica::new(&FaultyStore::new(), "a", "limit: 10, mode: strict");
    assert!(alone.try_acquire_strict());
    alone.publish("limit: 10, mode: local");
    assert_eq!(alone.shown_limit(), 10);
}

#[test]
fn permits_appear_in_the_snapshot() {
    let store = FaultyStore::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 3, mode: strict");
    assert!(a.try_acquire_strict() && a.try_acquire_strict() && b.try_acquire_strict());
    let seen = a.engine.concurrency_limits().fleet_reporter().unwrap().strict_snapshots(9);
    let [(_, seen)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((seen.limit, seen.in_flight, seen.fleet_permits), (3, 2, Some(Share(2))));
    advance_and_report(&[&a, &b], HEARTBEAT);
    let seen = a.engine.concurrency_limits().fleet_reporter().unwrap().strict_snapshots(9)[0].1;
    assert_eq!((seen.in_flight, seen.fleet_permits, seen.is_outage), (2, Some(Share(3)), false));
    a.finish(2);
    advance_and_report(&[&a, &b], HEARTBEAT);
    assert!(a.engine.concurrency_limits().fleet_reporter().unwrap().strict_snapshots(9).is_empty());
}
