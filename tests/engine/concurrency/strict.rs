//! Strict limits in the engine, with one in-process store and manual clocks.

mod leaving;
mod outage;
mod queue;
mod release;
mod renewal;
mod shown_limits;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::poll_immediate;
use sluicegate::kernel::decision::Check;
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Nanos, Share};
use sluicegate::store::fleet::{LiveReplica, MembershipReply as LiveReplicas};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::permits::{
    AcquireOutcome, PermitId, PermitTiming, StrictAcquire, StrictPermitRequest,
};
use sluicegate::store::{FleetStore, StoreReply};

use crate::support::engine::{block_on, check_of_entry};
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{HEARTBEAT, Replica, START, admitted_permits};

const STREAM_LIFETIME: Nanos = Nanos::from_secs(3);

const GRACE: Nanos = Nanos::from_secs(4);

/// The number of permits, as the store returns it to an acquire with a limit of 0.
fn permit_count(store: &FaultyStore, now: Nanos) -> u64 {
    let bucket = CounterKey::concurrency_bucket("d", [("k", "v")].into_iter()).as_bytes().into();
    let times = PermitTiming {
        grace: GRACE,
        max_silence: Nanos(u64::MAX),
        max_lifetime: Nanos::from_secs(60),
    };
    let ask = StrictAcquire {
        id: PermitId(0, 0),
        limit: Share(0),
        lifetime: STREAM_LIFETIME,
        timing: times,
    };
    store.strict.lock().acquire(now, "", &StrictPermitRequest { bucket, permit: ask }).held.0
}

impl Replica {
    /// Acquires a permit for a stream.
    fn try_acquire_strict(&mut self) -> bool {
        let admitted = block_on(self.engine.admit(&default_check(), None)).unwrap();
        self.keep(admitted)
    }

    /// Acquires a permit with a deadline, as for an id.
    fn try_acquire_by_id(&mut self) -> bool {
        let admitted = block_on(self.engine.admit_with_deadline(&default_check(), None)).unwrap();
        self.keep(admitted)
    }

    fn acquire_all_strict(&mut self) -> usize {
        let before = self.permits.len();
        while self.try_acquire_strict() {}
        self.permits.len() - before
    }

    fn set_members(&self, nodes: &[&str]) {
        let member = |node: &&str| LiveReplica {
            node: (*node).into(),
            silent_for: Nanos(0),
            record: "{}".into(),
        };
        let replicas = nodes.iter().map(member).collect();
        self.membership.apply_reply(LiveReplicas { replicas, previous_record: None }, self.now());
    }

    /// The limit in this replica's metrics.
    fn shown_limit(&self) -> u64 {
        self.engine.concurrency_in_use().values().map(|usage| usage.limit).sum()
    }

    /// Advances the clock and reports once a heartbeat.
    fn advance_and_report(&self, by: Nanos) {
        let mut left = by;
        while Nanos(0) < left {
            let step = left.min(HEARTBEAT);
            self.advance(step);
            self.report();
            left = left.since(step);
        }
    }
}

fn default_check() -> Check<'static> {
    check_of_entry("k", "v")
}

fn two_replicas(store: &Arc<FaultyStore>, limit: &str) -> [Replica; 2] {
    ["a", "b"].map(|name| Replica::new(store, name, limit))
}

#[test]
fn two_replicas_share_the_limit_with_one_call_per_acquire() {
    let store = FaultyStore::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 3, mode: strict");
    assert!(a.try_acquire_strict() && b.try_acquire_strict() && a.try_acquire_strict());
    assert!(!b.try_acquire_strict() && !a.try_acquire_strict());
    assert_eq!(store.acquire_calls.load(Relaxed), 5);
    a.finish(1);
    a.report();
    assert_eq!((b.acquire_all_strict(), b.permits.len()), (1, 2));
    assert_eq!(permit_count(&store, b.now()), 3);
}

#[test]
fn replica_at_the_limit_makes_no_store_call() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 2, mode: strict");
    assert_eq!(alone.acquire_all_strict(), 2);
    assert_eq!(store.acquire_calls.load(Relaxed), 2);
}

#[test]
fn reload_changes_the_limit_and_the_mode() {
    let store = FaultyStore::new();
    let queue = "queue: {size: 2, timeout: 1h}";
    let mut alone = Replica::new(&store, "a", &format!("limit: 1, mode: strict, {queue}"));
    assert!(alone.try_acquire_strict());
    let admitted = block_on(async {
        let check = default_check();
        let mut waits = pin!(alone.engine.admit(&check, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        alone.publish(&format!("limit: 2, mode: strict, {queue}"));
        waits.await.unwrap()
    });
    assert!(alone.keep(admitted));
    alone.publish("limit: 3, mode: local");
    assert_eq!(alone.acquire_all_strict(), 1);
    assert_eq!(permit_count(&store, alone.now()), 2);
    alone.finish(3);
    alone.report();
    assert_eq!(permit_count(&store, alone.now()), 0);
    alone.publish("limit: 3, mode: strict");
    assert_eq!((alone.acquire_all_strict(), permit_count(&store, alone.now())), (3, 3));
}

#[test]
fn reply_that_took_a_heartbeat_grants_nothing() {
    let store = FaultyStore::new();
    let alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    store.is_slow.store(true, Relaxed);
    let admitted = block_on(async {
        let check = default_check();
        let mut asked = pin!(alone.engine.admit(&check, None));
        assert!(poll_immediate(&mut asked).await.is_none());
        alone.advance(HEARTBEAT);
        asked.await.unwrap()
    });
    assert!(admitted_permits(admitted).is_none());
    alone.report();
    assert_eq!(permit_count(&store, alone.now()), 0);
}

#[test]
fn strict_limit_without_a_fleet_is_local() {
    let mut alone = Replica::without_fleet();
    alone.publish("limit: 3, mode: strict");
    assert_eq!((alone.acquire_all_strict(), alone.shown_limit()), (3, 3));
}

#[test]
fn memory_store_counts_permits_of_all_replicas() {
    let memory = MemoryStore::new(10, WhenFull::Deny, [0; 16]);
    let times =
        PermitTiming { grace: GRACE, max_silence: HEARTBEAT, max_lifetime: STREAM_LIFETIME };
    let asked = |number| StrictPermitRequest {
        bucket: b"c".as_slice().into(),
        permit: StrictAcquire {
            id: PermitId(number, 0),
            limit: Share(1),
            lifetime: STREAM_LIFETIME,
            timing: times,
        },
    };
    let acquired = |number| match memory.acquire_strict_permit(START, &asked(number)) {
        StoreReply::Ready(Ok(answer)) => answer.result,
        _ => panic!("it waits"),
    };
    assert_eq!(
        (acquired(1), acquired(2)),
        (AcquireOutcome::Acquired, AcquireOutcome::LimitReached)
    );
}
