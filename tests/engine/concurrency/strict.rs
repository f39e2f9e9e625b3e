//! Strict limits in the engine, with one in-process store and manual clocks.

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::poll_immediate;
use parking_lot::Mutex;
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::concurrency::fleet::{FleetReporter, SharePace};
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine, Membership, RequestPermits};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Reason, Verdict};
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
fn bucket_with_waiters_or_unreported_releases_is_not_evicted() {
    let store = Store::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 1, timeout: 1h}";
    let [mut a, b] = ["a", "b"].map(|name| Replica::with_bucket_limit(&store, name, ceiling, 1));
    let others =
        |replica: &Replica| match block_on(replica.engine.admit(&check_of_value("w"), None))
            .unwrap()
        {
            AdmissionOutcome::Rejected(rejection) => Err(rejection.reason),
            AdmissionOutcome::Decided(..) => Ok(()),
        };
    assert!(a.try_acquire());
    assert_eq!(others(&a), Err(Reason::TooManyBuckets), "in flight");
    block_on(async {
        let waits = default_check();
        let mut waits = Box::pin(b.engine.admit(&waits, None));
        assert!(poll_immediate(&mut waits).await.is_none(), "in line");
        b.engine.report_once().await;
        let taken = b.engine.admit(&check_of_value("w"), None).await.unwrap();
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
        let store = Store::new();
        let ceiling = format!("limit: {limit}, mode: strict");
        let fleet = names[..count].iter().map(|name| {
            let mut replica = Replica::new(&store, name, &ceiling);
            replica.set_members(&names[..count]);
            replica.try_acquire();
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
    let mut alone = Replica::new(&Store::new(), "a", "limit: 10, mode: strict");
    assert!(alone.try_acquire());
    assert_eq!(alone.shown_limit(), 10 / 4);
}

#[test]
fn a_local_limit_is_shown_in_full() {
    let mut alone = Replica::new(&Store::new(), "a", "limit: 10, mode: strict");
    assert!(alone.try_acquire());
    alone.publish("limit: 10, mode: local");
    assert_eq!(alone.shown_limit(), 10);
}

#[test]
fn replica_at_the_limit_makes_no_store_call() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 2, mode: strict");
    assert_eq!(alone.acquire_all(), 2);
    assert_eq!(store.acquire_calls.load(Relaxed), 2);
}

#[test]
fn permits_are_renewed_in_one_call_per_heartbeat() {
    let store = Store::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 2, mode: strict");
    assert_eq!(a.acquire_all(), 2);
    for _ in 0..10 {
        advance_all_and_report(&[&a], Nanos(HEARTBEAT.0 / 4));
        b.advance(Nanos(HEARTBEAT.0 / 4));
    }
    let calls = store.report_calls.load(Relaxed);
    for _ in 0..40 {
        advance_all_and_report(&[&a], Nanos(HEARTBEAT.0 / 4));
        b.advance(Nanos(HEARTBEAT.0 / 4));
        assert_eq!(b.acquire_all(), 0);
    }
    let calls = store.report_calls.load(Relaxed) - calls;
    assert!((9..=11).contains(&calls), "{calls} calls in ten beats");
}

#[test]
fn lost_replicas_streams_expire_after_three_heartbeats() {
    let store = Store::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 2, mode: strict");
    assert_eq!(a.acquire_all(), 2);
    advance_all_and_report(&[&a, &b], HEARTBEAT);
    b.advance_and_report(Nanos(STREAM_LIFETIME.0 - 1));
    assert_eq!(b.acquire_all(), 0);
    b.advance_and_report(Nanos(1));
    assert_eq!(b.acquire_all(), 2);
}

#[test]
fn lost_replicas_ids_expire_a_heartbeat_after_max_duration() {
    for is_reported in [false, true] {
        let store = Store::new();
        let [mut a, mut b] = two_replicas(&store, "limit: 1, mode: strict, max_duration: 20s");
        assert!(a.try_acquire_by_id());
        if is_reported {
            advance_all_and_report(&[&a, &b], HEARTBEAT);
            b.advance_and_report(Nanos::from_secs(19).plus(HEARTBEAT).since(Nanos(1)));
        } else {
            b.advance_and_report(Nanos::from_secs(20).plus(HEARTBEAT).since(Nanos(1)));
        }
        assert_eq!(b.acquire_all(), 0);
        b.advance_and_report(Nanos(1));
        assert_eq!(b.acquire_all(), 1);
    }
}

#[test]
fn renewal_at_the_last_moment_keeps_the_permit() {
    let store = Store::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 1, mode: strict, max_duration: 20s");
    assert!(a.try_acquire_by_id());
    for _ in 0..19 {
        advance_all_and_report(&[&a, &b], Nanos::from_secs(1));
    }
    a.advance(Nanos(900_000_000));
    assert!(a.held[0].renew());
    b.advance(Nanos(1_500_000_000));
    assert_eq!(b.acquire_all(), 0);
}

#[test]
fn an_unreleased_id_expires_at_max_duration() {
    let store = Store::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 1, mode: strict, max_duration: 5s");
    assert!(a.try_acquire_by_id());
    for _ in 0..4 {
        advance_all_and_report(&[&a, &b], HEARTBEAT);
        assert_eq!(b.acquire_all(), 0);
    }
    advance_all_and_report(&[&a, &b], HEARTBEAT);
    assert_eq!(b.acquire_all(), 1);
    assert_eq!(a.engine.concurrency_limits().totals().in_flight, 0);
}

#[test]
fn a_canceled_acquire_leaks_no_permit() {
    let store = Store::new();
    let alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    store.is_slow.store(true, Relaxed);
    block_on(async {
        let check = default_check();
        let mut asked = pin!(alone.engine.admit(&check, None));
        assert!(poll_immediate(&mut asked).await.is_none(), "it is under way");
        assert_eq!(store.permit_count(START), 1);
        // A permit whose acquire has no reply is never reported as active.
        alone.advance(STREAM_LIFETIME);
        alone.engine.report_once().await;
        assert_eq!(store.permit_count(alone.now()), 0);
        // The acquire arrives again, and the next report releases its permit.
        let asked = store.last.lock().take().unwrap();
        store.strict.lock().acquire(alone.now(), "", &asked);
    });
    assert_eq!(store.permit_count(alone.now()), 1);
    block_on(alone.engine.report_once());
    assert_eq!(store.permit_count(alone.now()), 0);
    assert_eq!(alone.engine.concurrency_limits().totals().in_flight, 0);
}

#[test]
fn acquire_that_times_out_leaks_no_permit() {
    let queue = "limit: 1, mode: strict, queue: {size: 9, timeout: 1h}";
    for shadow in [false, true] {
        let store = Store::new();
        let shadowed =
            || format!("{queue}}}, shadow_mode: true}}, {{key: o, concurrency: {{limit: 1");
        let alone = if shadow { shadowed() } else { queue.to_owned() };
        let alone = Replica::new(&store, "a", &alone);
        store.is_silent.store(true, Relaxed);
        block_on(async {
            let check = default_check();
            let asked = alone.engine.admit(&check, Some(Nanos(10 * Nanos::MILLI.0)));
            let asked = tokio::time::timeout(Duration::from_secs(10), asked).await;
            let held = admitted_permits(asked.expect("it waits still").unwrap());
            assert_eq!(held.is_some_and(|held| held.is_empty()), shadow);
            assert_eq!(store.permit_count(START), 1, "it has taken what nobody heard of");
            store.is_silent.store(false, Relaxed);
            alone.engine.report_once().await;
            assert_eq!(store.permit_count(START), 0);
        });
    }
}

#[test]
fn shadow_mode_still_acquires_from_the_store() {
    let store = Store::new();
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
    let store = Store::new();
    let alone = "limit: 1, mode: strict, on_backend_failure: deny, max_duration: 60s";
    let mut alone = Replica::new(&store, "a", alone);
    store.is_mute.store(true, Relaxed);
    assert!(!alone.try_acquire_by_id());
    assert_eq!(store.permit_count(alone.now()), 1);
    store.is_mute.store(false, Relaxed);
    alone.report();
    assert_eq!(store.permit_count(alone.now()), 0);
    // The delayed acquire arrives only now.
    let asked = store.last.lock().take().unwrap();
    store.strict.lock().acquire(alone.now(), "", &asked);
    assert_eq!(store.permit_count(alone.now()), 1);
    advance_all_and_report(&[&alone], HEARTBEAT);
    assert_eq!(store.permit_count(alone.now()), 0);
    alone.advance_and_report(STREAM_LIFETIME);
    store.strict.lock().acquire(alone.now(), "", &asked);
    alone.advance_and_report(HEARTBEAT);
    assert_eq!(store.permit_count(alone.now()), 1, "by then no call is under way any more");
}

#[test]
fn an_undelivered_release_is_retried() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    assert!(alone.try_acquire_by_id());
    store.is_cut.store(true, Relaxed);
    alone.finish(1);
    for _ in 0..10 {
        advance_all_and_report(&[&alone], HEARTBEAT);
    }
    assert_eq!(store.permit_count(alone.now()), 1);
    store.is_cut.store(false, Relaxed);
    advance_all_and_report(&[&alone], HEARTBEAT);
    assert_eq!(store.permit_count(alone.now()), 0);
}

#[test]
fn new_release_does_not_wait_for_retries() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 2, mode: strict");
    assert_eq!(alone.acquire_all(), 2);
    store.is_cut.store(true, Relaxed);
    alone.finish(1);
    alone.report();
    store.is_cut.store(false, Relaxed);
    alone.finish(1);
    alone.report();
    assert_eq!(store.permit_count(alone.now()), 1);
    advance_all_and_report(&[&alone], HEARTBEAT);
    assert_eq!(store.permit_count(alone.now()), 0);
}

#[test]
fn a_report_does_not_copy_pending_retries() {
    const KEPT: usize = 5_000;
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", &format!("limit: {KEPT}, mode: strict"));
    block_on(async {
        for _ in 0..KEPT {
            let admitted = alone.engine.admit(&default_check(), None).await.unwrap();
            alone.held.extend(admitted_permits(admitted));
        }
    });
    assert_eq!(alone.held.len(), KEPT);
    alone.report();
    let idle = allocation_counter::measure(|| alone.report());
    store.is_cut.store(true, Relaxed);
    alone.finish(KEPT);
    alone.report();
    let waiting = allocation_counter::measure(|| alone.report());
    // A copy would allocate the whole pending release, which is more than the two numbers of its
    // permit id.
    let moved = u64::try_from(KEPT * size_of::<PermitId>()).unwrap();
    assert!(waiting.bytes_total < idle.bytes_total + moved / 2, "{waiting:?} for {idle:?}");
    store.is_cut.store(false, Relaxed);
    advance_all_and_report(&[&alone], HEARTBEAT);
    assert_eq!(store.permit_count(alone.now()), 0, "it was all there to be told again");
}

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
            let ceiling = format!("limit: 9, mode: strict, on_backend_failure: {word}");
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

#[test]
fn local_release_wakes_queued_requests_in_order() {
    let store = Store::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 2, timeout: 1h}";
    let mut alone = Replica::new(&store, "a", ceiling);
    assert!(alone.try_acquire());
    block_on(async {
        let checks = [default_check(), default_check(), default_check()];
        let admit = |at: usize| alone.engine.admit(&checks[at], None);
        let (mut first, mut second) = (pin!(admit(0)), pin!(admit(1)));
        assert!(poll_immediate(&mut first).await.is_none());
        assert!(poll_immediate(&mut second).await.is_none());
        assert_eq!(alone.engine.concurrency_limits().totals().waiting, 2);
        assert!(admitted_permits(admit(2).await.unwrap()).is_none(), "the line is full");
        for permits in alone.held.drain(..) {
            permits.release(RequestOutcome::Success, None);
        }
        alone.engine.report_once().await;
        assert!(poll_immediate(&mut second).await.is_none(), "overtaken");
        let woken = poll_immediate(&mut first).await;
        let permits =
            admitted_permits(woken.expect("woken, not left to ask again").unwrap()).unwrap();
        assert_eq!(alone.engine.concurrency_limits().totals().waiting, 1);
        permits.release(RequestOutcome::Success, None);
        alone.engine.report_once().await;
        assert!(admitted_permits(second.await.unwrap()).is_some());
        assert_eq!(alone.engine.concurrency_limits().totals().waiting, 0);
    });
}

#[test]
fn queued_request_retries_after_a_release_elsewhere() {
    let store = Store::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 2, timeout: 1h}";
    let [mut a, b] = two_replicas(&store, ceiling);
    assert!(a.try_acquire());
    block_on(async {
        let check = default_check();
        let mut waits = pin!(b.engine.admit(&check, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        a.finish(1);
        a.engine.report_once().await;
        assert!(admitted_permits(waits.await.unwrap()).is_some());
    });
}

#[test]
fn new_request_does_not_overtake_the_queue() {
    let store = Store::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 1, timeout: 1h}";
    let [a, mut b] = two_replicas(&store, ceiling);
    assert!(b.try_acquire());
    block_on(async {
        let (first, second) = (default_check(), default_check());
        let mut waits = pin!(a.engine.admit(&first, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        b.finish(1);
        b.engine.report_once().await;
        assert!(admitted_permits(a.engine.admit(&second, None).await.unwrap()).is_none());
        assert!(admitted_permits(waits.await.unwrap()).is_some());
    });
}

#[test]
fn timed_out_or_canceled_request_leaves_the_queue() {
    let store = Store::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 1, timeout: 30ms}";
    let mut alone = Replica::new(&store, "a", ceiling);
    assert!(alone.try_acquire());
    assert!(!alone.try_acquire(), "its time is over");
    assert_eq!(alone.engine.concurrency_limits().totals().waiting, 0);
    block_on(async {
        let check = default_check();
        let mut waits = Box::pin(alone.engine.admit(&check, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        drop(waits);
    });
    assert_eq!(alone.engine.concurrency_limits().totals().waiting, 0);
    assert_eq!(alone.engine.concurrency_limits().totals().in_flight, 1);
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
fn a_leaving_replica_reports_its_releases() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 2, mode: strict");
    assert_eq!(alone.acquire_all(), 2);
    alone.finish(2);
    block_on(alone.engine.concurrency_limits().leave_fleet(&*store));
    assert_eq!(store.permit_count(alone.now()), 0);
}

/// Reason: after an incomplete drain, requests of these streams may still run.
#[test]
fn leaving_replicas_requests_keep_permits_for_max_duration() {
    let store = Store::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 2, mode: strict, max_duration: 20s");
    assert_eq!(a.acquire_all(), 2);
    advance_all_and_report(&[&a, &b], HEARTBEAT);
    block_on(a.engine.concurrency_limits().leave_fleet(&*store));
    b.advance_and_report(Nanos::from_secs(20).since(Nanos(1)));
    assert_eq!(b.acquire_all(), 0);
    b.advance_and_report(HEARTBEAT.plus(Nanos(1)));
    assert_eq!(b.acquire_all(), 2);
}

#[test]
fn leaving_stops_waiting_for_a_silent_store() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    assert!(alone.try_acquire());
    store.is_silent.store(true, Relaxed);
    block_on(async {
        let mut report = pin!(alone.engine.report_once());
        assert!(poll_immediate(&mut report).await.is_none(), "it is under way");
        let leaves = alone.engine.concurrency_limits().leave_fleet(&*store);
        let left = tokio::time::timeout(Duration::from_secs(10), leaves).await;
        assert!(left.is_ok(), "it waits still");
    });
}

#[test]
fn permits_appear_in_the_snapshot() {
    let store = Store::new();
    let [mut a, mut b] = two_replicas(&store, "limit: 3, mode: strict");
    assert!(a.try_acquire() && a.try_acquire() && b.try_acquire());
    let seen = a.engine.concurrency_limits().fleet_reporter().unwrap().strict_snapshots(9);
    let [(_, seen)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((seen.limit, seen.in_flight, seen.fleet_permits), (3, 2, Some(Share(2))));
    advance_all_and_report(&[&a, &b], HEARTBEAT);
    let seen = a.engine.concurrency_limits().fleet_reporter().unwrap().strict_snapshots(9)[0].1;
    assert_eq!((seen.in_flight, seen.fleet_permits, seen.is_outage), (2, Some(Share(3)), false));
    a.finish(2);
    advance_all_and_report(&[&a, &b], HEARTBEAT);
    assert!(a.engine.concurrency_limits().fleet_reporter().unwrap().strict_snapshots(9).is_empty());
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
