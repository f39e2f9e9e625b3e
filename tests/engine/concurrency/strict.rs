//! Strict limits in the engine, with one in-process store and manual clocks.

mod leaving;
mod outage;
mod queue;
mod release;
mod renewal;
mod shown_limits;

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use futures_util::future::poll_immediate;
use parking_lot::Mutex;
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::fleet::reporter::{FleetReporter, SharePace};
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine, Membership, RequestPermits};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Verdict};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Hits, Nanos, Revision, Share};
use sluicegate::store::fleet::{LiveReplica, MembershipReply as LiveReplicas};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::permits::StrictLimits;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::permits::{
    AcquireOutcome, PermitId, PermitReport, PermitReportReply, PermitTiming, StrictAcquire,
    StrictPermitReply, StrictPermitRequest,
};
use sluicegate::store::{Charges, CounterStore, FleetStore, Outcomes, StoreFailure, StoreReply};

const START: Nanos = Nanos::from_secs(1_000);

const HEARTBEAT: Nanos = Nanos::SECOND;

const STREAM_LIFETIME: Nanos = Nanos::from_secs(3);

const GRACE: Nanos = Nanos::from_secs(4);

/// A store with injected faults that counts its calls.
#[derive(Debug)]
struct Store {
    memory: MemoryStore,
    strict: Mutex<StrictLimits>,
    is_cut: AtomicBool,
    /// Calls take effect, but their replies are lost.
    is_mute: AtomicBool,
    /// Replies arrive one poll later.
    is_slow: AtomicBool,
    /// Calls never return, although acquires take effect.
    is_silent: AtomicBool,
    acquire_calls: AtomicUsize,
    report_calls: AtomicUsize,
    last: Mutex<Option<StrictPermitRequest>>,
}

impl Store {
    fn new() -> Arc<Self> {
        let memory = MemoryStore::new(1_000, WhenFull::Deny, [0; 16]);
        let strict = Mutex::new(StrictLimits::settled());
        let (is_cut, is_mute, is_slow, is_silent, acquire_calls, report_calls, last) =
            Default::default();
        Arc::new(Self {
            memory,
            strict,
            is_cut,
            is_mute,
            is_slow,
            is_silent,
            acquire_calls,
            report_calls,
            last,
        })
    }

    fn lose_data(&self) {
        *self.strict.lock() = StrictLimits::default();
    }

    /// The number of permits, as the store returns it to an acquire with a limit of 0.
    fn permit_count(&self, now: Nanos) -> u64 {
        let bucket =
            CounterKey::concurrency_bucket("d", [("k", "v")].into_iter()).as_bytes().into();
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
        self.strict.lock().acquire(now, "", &StrictPermitRequest { bucket, permit: ask }).held.0
    }
}

impl CounterStore for Store {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        self.memory.charge(now, charges)
    }

    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        self.memory.exchange_lease_message(now, message)
    }
}

impl FleetStore for Store {
    fn acquire_strict_permit<'a>(
        &'a self,
        now: Nanos,
        asked: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        self.acquire_calls.fetch_add(1, Relaxed);
        if self.is_cut.load(Relaxed) {
            return StoreReply::Ready(Err(StoreFailure::Unreachable));
        }
        let answer = self.strict.lock().acquire(now, "", asked);
        *self.last.lock() = Some(asked.clone());
        let answer =
            if self.is_mute.load(Relaxed) { Err(StoreFailure::TimedOut) } else { Ok(answer) };
        if self.is_silent.load(Relaxed) {
            return StoreReply::Pending(Box::pin(std::future::pending()));
        }
        let is_slow = self.is_slow.load(Relaxed);
        StoreReply::Pending(Box::pin(async move {
            if is_slow {
                tokio::task::yield_now().await;
            }
            answer
        }))
    }

    fn report_strict_permits<'a>(
        &'a self,
        now: Nanos,
        round: &'a PermitReport,
    ) -> StoreReply<'a, PermitReportReply> {
        self.report_calls.fetch_add(1, Relaxed);
        if self.is_silent.load(Relaxed) {
            return StoreReply::Pending(Box::pin(std::future::pending()));
        }
        if self.is_cut.load(Relaxed) {
            return StoreReply::Ready(round.failed_reply(StoreFailure::Unreachable));
        }
        let heard = self.strict.lock().apply_report(now, "", round).into_iter().map(Ok).collect();
        StoreReply::Ready(if self.is_mute.load(Relaxed) {
            round.failed_reply(StoreFailure::TimedOut)
        } else {
            heard
        })
    }
}

/// A replica and its permits.
struct Replica {
    engine: Engine,
    membership: Arc<Membership>,
    held: Vec<RequestPermits>,
}

impl Replica {
    fn new(store: &Arc<Store>, name: &str, limit: &str) -> Self {
        Self::with_bucket_limit(store, name, limit, 100)
    }

    fn with_bucket_limit(store: &Arc<Store>, name: &str, limit: &str, max_buckets: usize) -> Self {
        let clock = Clock::manual(START);
        let membership = Arc::new(Membership::new(name, 1, NonZeroU32::new(4).unwrap()));
        let pace = SharePace { heartbeat: HEARTBEAT, share_duration: Nanos::from_secs(5) };
        let fleet = FleetReporter::new(
            Arc::clone(&membership),
            clock.now(),
            pace,
            Duration::from_millis(1),
        );
        let engine = Engine::new(clock, store.clone(), DecisionPolicy::default());
        let engine = engine.with_max_buckets(max_buckets, 0).with_fleet(Arc::new(fleet));
        let replica = Self { engine, membership, held: Vec::new() };
        replica.publish(limit);
        replica
    }

    fn publish(&self, limit: &str) {
        let text = format!("domain: d\ndescriptors: [{{key: k, concurrency: {{{limit}}}}}]\n");
        let (config, _) = config::load([("a.yaml", text.as_bytes())], Revision(1), false).unwrap();
        self.engine.publish(Arc::new(config));
    }

    /// Acquires a permit for a stream.
    fn try_acquire(&mut self) -> bool {
        let passed = admitted_permits(block_on(self.engine.admit(&default_check(), None)).unwrap());
        self.store_permits(passed)
    }

    /// Acquires a permit with a deadline, as for an id.
    fn try_acquire_by_id(&mut self) -> bool {
        let admitted = block_on(self.engine.admit_with_deadline(&default_check(), None)).unwrap();
        self.store_permits(admitted_permits(admitted))
    }

    fn store_permits(&mut self, permits: Option<RequestPermits>) -> bool {
        let is_some = permits.is_some();
        self.held.extend(permits);
        is_some
    }

    fn acquire_all(&mut self) -> usize {
        let before = self.held.len();
        while self.try_acquire() {}
        self.held.len() - before
    }

    fn finish(&mut self, count: usize) {
        for permits in self.held.drain(..count) {
            permits.release(RequestOutcome::Success, None);
        }
    }

    fn set_members(&self, nodes: &[&str]) {
        let (silent, record) = (Nanos(0), "{}");
        let member = |node: &&str| LiveReplica {
            node: (*node).into(),
            silent_for: silent,
            record: record.into(),
        };
        let members = nodes.iter().map(member).collect();
        self.membership
            .apply_reply(LiveReplicas { replicas: members, previous_record: None }, self.now());
    }

    /// The limit in this replica's metrics.
    fn shown_limit(&self) -> u64 {
        self.engine.concurrency_in_use().values().map(|ceiling| ceiling.limit).sum()
    }

    fn report(&self) {
        block_on(self.engine.report_once());
    }

    fn advance(&self, by: Nanos) {
        let Clock::Manual(clock) = self.engine.clock() else { panic!() };
        clock.advance(by);
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

    fn now(&self) -> Nanos {
        self.engine.clock().now()
    }
}

fn default_check() -> Check<'static> {
    check_of_value("v")
}

fn check_of_value(value: &str) -> Check<'_> {
    let entries = [("k", value)].into_iter().collect();
    let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
    Check { domain: "d", descriptors: [descriptor].into_iter().collect() }
}

fn admitted_permits(admitted: AdmissionOutcome) -> Option<RequestPermits> {
    match admitted {
        AdmissionOutcome::Decided(answer, permits) if answer.verdict == Verdict::Allow => {
            Some(permits)
        }
        _ => None,
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Advances all clocks, then sends all reports.
fn advance_all_and_report(fleet: &[&Replica], by: Nanos) {
    for replica in fleet {
        replica.advance(by);
    }
    for replica in fleet {
        replica.report();
    }
}

fn two_replicas(store: &Arc<Store>, limit: &str) -> [Replica; 2] {
    ["a", "b"].map(|name| Replica::new(store, name, limit))
}

#[test]
fn two_replicas_share_the_limit_with_one_call_per_acquire() {
    let store = Store::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 3, mode: strict");
    assert!(a.try_acquire() && b.try_acquire() && a.try_acquire());
    assert!(!b.try_acquire() && !a.try_acquire());
    assert_eq!(store.acquire_calls.load(Relaxed), 5);
    a.finish(1);
    a.report();
    assert_eq!((b.acquire_all(), b.held.len()), (1, 2));
    assert_eq!(store.permit_count(b.now()), 3);
}

#[test]
fn replica_at_the_limit_makes_no_store_call() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 2, mode: strict");
    assert_eq!(alone.acquire_all(), 2);
    assert_eq!(store.acquire_calls.load(Relaxed), 2);
}

#[test]
fn reload_changes_the_limit_and_the_mode() {
    let store = Store::new();
    let queue = "queue: {size: 2, timeout: 1h}";
    let mut alone = Replica::new(&store, "a", &format!("limit: 1, mode: strict, {queue}"));
    assert!(alone.try_acquire());
    let permits = block_on(async {
        let check = default_check();
        let mut waits = pin!(alone.engine.admit(&check, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        alone.publish(&format!("limit: 2, mode: strict, {queue}"));
        admitted_permits(waits.await.unwrap())
    });
    assert!(alone.store_permits(permits));
    alone.publish("limit: 3, mode: local");
    assert_eq!(alone.acquire_all(), 1);
    assert_eq!(store.permit_count(alone.now()), 2);
    alone.finish(3);
    alone.report();
    assert_eq!(store.permit_count(alone.now()), 0);
    alone.publish("limit: 3, mode: strict");
    assert_eq!((alone.acquire_all(), store.permit_count(alone.now())), (3, 3));
}

#[test]
fn reply_that_took_a_heartbeat_grants_nothing() {
    let store = Store::new();
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
    assert_eq!(store.permit_count(alone.now()), 0);
}

#[test]
fn strict_limit_without_a_fleet_is_local() {
    let memory = Arc::new(MemoryStore::new(10, WhenFull::Deny, [0; 16]));
    let engine = Engine::new(Clock::manual(START), memory, DecisionPolicy::default());
    let membership = Arc::new(Membership::new("a", 1, NonZeroU32::new(4).unwrap()));
    let mut alone = Replica { engine, membership, held: Vec::new() };
    alone.publish("limit: 3, mode: strict");
    assert_eq!((alone.acquire_all(), alone.shown_limit()), (3, 3));
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
