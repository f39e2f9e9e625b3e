//! Shared limits in the engine, with one in-process store and manual clocks.

mod rounds;

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::concurrency::ShareSnapshot;
use sluicegate::engine::concurrency::fleet::{FleetReporter, SharePace};
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine, Membership, RequestPermits};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Reason, Verdict};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Hits, Nanos, Revision, Share};
use sluicegate::store::heartbeat::{ShareRound, ShareRoundReply};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::coordinators::Coordinators;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::{Charges, CounterStore, FleetStore, Outcomes, StoreFailure, StoreReply};

/// Awaits the future, and fails the test after ten seconds.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("it waits still")
}

/// A store with injected faults that records its calls.
#[derive(Debug)]
struct Store {
    memory: MemoryStore,
    /// The coordinators of all shared limits, if the store started without state.
    unsettled: Option<Mutex<Coordinators>>,
    is_cut: AtomicBool,
    /// `true`: the store client knows that the store is unavailable.
    is_away: AtomicBool,
    /// `true`: a new store that knows the replicas of the old one, but no shares.
    is_another: AtomicBool,
    /// Replies arrive one poll later.
    is_slow: AtomicBool,
    /// Calls never return.
    is_silent: AtomicBool,
    calls: AtomicUsize,
    /// The largest number of reports in one call.
    largest: AtomicUsize,
    /// The reported buckets of each call.
    reported: Mutex<Vec<Vec<Box<[u8]>>>>,
}

impl Store {
    fn new() -> Arc<Self> {
        let memory = MemoryStore::new(1_000, WhenFull::Deny, [0; 16]);
        let (unsettled, is_cut, is_away, is_another, is_slow, is_silent) = Default::default();
        let (calls, largest, reported) = Default::default();
        Arc::new(Self {
            memory,
            unsettled,
            is_cut,
            is_away,
            is_another,
            is_slow,
            is_silent,
            calls,
            largest,
            reported,
        })
    }

    /// A store that may be new or may have lost its data.
    fn unsettled() -> Arc<Self> {
        let knows_nothing = Some(Mutex::default());
        Arc::new(Self { unsettled: knows_nothing, ..Arc::into_inner(Self::new()).unwrap() })
    }

    fn lose_data(&self) {
        *self.unsettled.as_ref().unwrap().lock().unwrap() = Coordinators::default();
    }

    fn apply_round(&self, now: Nanos, round: &ShareRound) -> Result<ShareRoundReply, StoreFailure> {
        match &self.unsettled {
            Some(coordinators) => {
                let name = if self.is_another.load(Relaxed) { "another" } else { "one" };
                Ok(coordinators.lock().unwrap().apply_round(now, name, round))
            }
            None => match self.memory.report_shares(now, round) {
                StoreReply::Ready(heard) => heard,
                StoreReply::Pending(_) => unreachable!("memory answers at once"),
            },
        }
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

    fn current_failure(&self) -> Option<StoreFailure> {
        self.is_away.load(Relaxed).then_some(StoreFailure::Unreachable)
    }
}

impl FleetStore for Store {
    fn report_shares<'a>(
        &'a self,
        now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        self.calls.fetch_add(1, Relaxed);
        self.largest.fetch_max(round.reports.len(), Relaxed);
        let names = round.reports.iter().map(|beat| beat.bucket.clone()).collect();
        self.reported.lock().unwrap().push(names);
        if self.is_cut.load(Relaxed) {
            return StoreReply::Ready(Err(StoreFailure::Unreachable));
        }
        if self.is_silent.load(Relaxed) {
            return StoreReply::Pending(Box::pin(std::future::pending()));
        }
        let heard = self.apply_round(now, round);
        if !self.is_slow.load(Relaxed) {
            return StoreReply::Ready(heard);
        }
        StoreReply::Pending(Box::pin(async {
            tokio::task::yield_now().await;
            heard
        }))
    }
}

/// A replica and its permits.
struct Replica {
    engine: Engine,
    held: Vec<RequestPermits>,
}

impl Replica {
    fn new(store: &Arc<Store>, name: &str, limit: &str) -> Self {
        Self::of_incarnation(store, name, limit, Nanos::from_secs(1_000))
    }

    fn of_incarnation(store: &Arc<Store>, name: &str, limit: &str, incarnation: Nanos) -> Self {
        Self::build(store, name, limit, (incarnation, Duration::from_millis(1), 100))
    }

    /// A replica that waits up to an hour for a share.
    fn with_hour_timeout(store: &Arc<Store>, name: &str, limit: &str) -> Self {
        let life = Nanos::from_secs(1_000);
        Self::build(store, name, limit, (life, Duration::from_secs(3_600), 1_000))
    }

    fn with_bucket_limit(
        store: &Arc<Store>,
        name: &str,
        ceiling: &str,
        (life, most): (Nanos, usize),
    ) -> Self {
        Self::build(store, name, ceiling, (life, Duration::from_millis(1), most))
    }

    fn build(
        store: &Arc<Store>,
        name: &str,
        ceiling: &str,
        (life, patience, most): (Nanos, Duration, usize),
    ) -> Self {
        let clock = Clock::manual(Nanos::from_secs(1_000));
        let membership = Arc::new(Membership::new(name, 1, NonZeroU32::new(4).unwrap()));
        let pace = SharePace { heartbeat: Nanos::SECOND, share_duration: Nanos::from_secs(5) };
        let fleet = Arc::new(FleetReporter::new(membership, life, pace, patience));
        let engine =
            Engine::new(clock, store.clone(), DecisionPolicy::default()).with_max_buckets(most, 0);
        let replica = Self { engine: engine.with_fleet(fleet), held: Vec::new() };
        replica.publish(ceiling);
        replica
    }

    fn publish(&self, limit: &str) {
        let text = format!("domain: d\ndescriptors: [{{key: k, concurrency: {{{limit}}}}}]\n");
        let (config, _) = config::load([("a.yaml", text.as_bytes())], Revision(1), false).unwrap();
        self.engine.publish(Arc::new(config));
    }

    /// Makes one check, and sends a report if one is due.
    fn try_acquire(&mut self) -> bool {
        self.try_acquire_key("k")
    }

    fn try_acquire_key(&mut self, key: &str) -> bool {
        let admitted = self.admit(&check_of_key(key));
        admitted.map(|permits| self.held.push(permits)).is_some()
    }

    fn admit(&self, check: &Check<'_>) -> AdmissionOutcome {
        block_on(async {
            let mut asked = pin!(self.engine.admit(check, None));
            tokio::select! {
                biased;
                admitted = &mut asked => admitted.unwrap(),
                () = self.engine.report_once() => asked.await.unwrap(),
            }
        })
    }

    /// Acquires permits until a denial, and returns their number.
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

    fn report(&self) {
        block_on(self.engine.report_once());
    }

    fn advance(&self, by: Nanos) {
        let Clock::Manual(clock) = self.engine.clock() else { panic!() };
        clock.advance(by);
    }

    fn snapshot(&self) -> ShareSnapshot {
        let fleet = self.engine.concurrency_limits().fleet_reporter().unwrap();
        fleet.share_snapshots(self.engine.clock(), 1).remove(0).1
    }
}

pub(super) fn default_check() -> Check<'static> {
    check_of_key("k")
}

fn check_of_key(key: &str) -> Check<'_> {
    check_of_entry((key, "v"))
}

fn check_of_entry<'a>(entry: (&'a str, &'a str)) -> Check<'a> {
    let entries = [entry].into_iter().collect();
    let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
    Check { domain: "d", descriptors: [descriptor].into_iter().collect() }
}

fn check_of_value(value: &str) -> Check<'_> {
    let entries = [("k", value)].into_iter().collect();
    let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
    Check { domain: "d", descriptors: [descriptor].into_iter().collect() }
}

trait MapPermits {
    fn map<T>(self, take: impl FnOnce(RequestPermits) -> T) -> Option<T>;
}

impl MapPermits for AdmissionOutcome {
    fn map<T>(self, take: impl FnOnce(RequestPermits) -> T) -> Option<T> {
        match self {
            Self::Decided(answer, permits) if answer.verdict == Verdict::Allow => {
                Some(take(permits))
            }
            _ => None,
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Advances all clocks, then sends all reports.
fn advance_and_report(fleet: &[&Replica], by: Nanos) {
    for replica in fleet {
        replica.advance(by);
    }
    for replica in fleet {
        replica.report();
    }
}

const HALF_SECOND: Nanos = Nanos(500 * Nanos::MILLI.0);

#[test]
fn the_first_check_waits_for_a_share() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert!(alone.try_acquire());
    assert_eq!(store.calls.load(Relaxed), 1);
    assert_eq!(alone.acquire_all(), 3);
    assert_eq!(store.calls.load(Relaxed), 1, "no call for a request");
}

#[test]
fn share_wait_ends_at_the_timeout() {
    let alone = Replica::with_hour_timeout(&Store::new(), "a", "limit: 4");
    let check = default_check();
    block_on(async {
        let timeout = Some(Nanos(10 * Nanos::MILLI.0));
        let asked = in_time(alone.engine.admit(&check, timeout)).await.unwrap();
        assert!(matches!(asked, AdmissionOutcome::Rejected(_)), "nobody has said a word");
        let ids = in_time(alone.engine.admit_with_deadline(&check, timeout)).await.unwrap();
        assert!(matches!(ids, AdmissionOutcome::Rejected(_)));
    });
}

#[test]
fn zero_queue_timeout_still_waits_for_a_share() {
    let alone = Replica::with_hour_timeout(&Store::new(), "a", "limit: 4");
    let check = default_check();
    let passed = block_on(async {
        let asked = alone.engine.admit(&check, Some(Nanos(0)));
        tokio::join!(asked, alone.engine.report_once()).0.unwrap().map(|_| ()).is_some()
    });
    assert!(passed);
}

#[test]
fn share_wait_counts_toward_the_queue_timeout() {
    let store = Store::new();
    let queue = "limit: 4, queue: {size: 9, timeout: 1h}";
    let mut other = Replica::new(&store, "b", queue);
    (0..4).for_each(|_| assert!(other.try_acquire()));
    let late = Replica::with_hour_timeout(&store, "a", queue);
    let check = default_check();
    block_on(async {
        let mut asked = pin!(late.engine.admit(&check, Some(Nanos::SECOND)));
        assert!(poll_immediate(&mut asked).await.is_none(), "cold");
        late.advance(HALF_SECOND);
        late.engine.report_once().await;
        assert!(poll_immediate(&mut asked).await.is_none(), "in the queue");
        late.advance(HALF_SECOND);
        late.engine.concurrency_limits().sweep();
        let asked = poll_immediate(&mut asked).await;
        assert!(matches!(asked, Some(Ok(AdmissionOutcome::Rejected(_)))), "a second is over");
    });
}

#[test]
fn shadow_mode_requests_a_share_without_waiting() {
    let store = Store::new();
    let shadow = "limit: 1}, shadow_mode: true}, {key: other, concurrency: {limit: 1";
    let alone = Replica::with_hour_timeout(&store, "a", shadow);
    let check = default_check();
    let held = |admitted| match admitted {
        Some(Ok(AdmissionOutcome::Decided(_, permits))) => permits,
        other => panic!("{other:?}"),
    };
    block_on(async {
        let first = held(poll_immediate(alone.engine.admit(&check, None)).await);
        assert!(first.is_empty(), "it passes without a place");
        alone.engine.report_once().await;
        let second = held(poll_immediate(alone.engine.admit(&check, None)).await);
        assert!(!second.is_empty(), "a share is there now");
    });
}

#[test]
fn new_replica_splits_many_reports_into_small_calls() {
    let store = Store::new();
    let alone = Replica::new(&store, "a", "limit: 4");
    let values: Vec<String> = (0..100).map(|value| format!("{value}")).collect();
    block_on(async {
        for value in &values {
            let check = check_of_value(value);
            assert!(poll_immediate(alone.engine.admit(&check, None)).await.is_none(), "cold");
        }
    });
    alone.report();
    assert_eq!(store.calls.load(Relaxed), 3);
    // Four replicas are expected. A report costs 10 µs + 4 · 3 µs, and 45 reports fit in 1 ms.
    assert_eq!(store.largest.load(Relaxed), 45);
}

fn name_of(value: &str) -> CounterKey {
    CounterKey::concurrency_bucket("d", [("k", value)].into_iter())
}

/// Returns `true` if the first report of call number `call` is about `value`.
fn reported_first(store: &Store, call: usize, value: &str) -> bool {
    let name = name_of(value);
    let spoken = store.reported.lock().unwrap();
    spoken[call].first().is_some_and(|first| **first == *name.as_bytes())
}

#[test]
fn limits_with_waiting_requests_are_reported_first() {
    let store = Store::new();
    let many = Replica::with_hour_timeout(&store, "a", "limit: 4");
    let values: Vec<String> = (0..100).map(|value| format!("{value}")).collect();
    let checks: Vec<Check> = values.iter().map(|value| check_of_value(value)).collect();
    let newcomers = ["before", "meanwhile"].map(check_of_value);
    block_on(async {
        let all = join_all(checks.iter().map(|check| many.engine.admit(check, None)));
        let held = tokio::join!(all, many.engine.report_once()).0;
        many.advance(Nanos::SECOND);
        store.is_slow.store(true, Relaxed);
        store.reported.lock().unwrap().clear();
        let [before, meanwhile] = &newcomers;
        let mut before = pin!(many.engine.admit(before, None));
        assert!(poll_immediate(&mut before).await.is_none());
        let mut report = pin!(many.engine.report_once());
        assert!(poll_immediate(&mut report).await.is_none(), "the first call is on its way");
        assert!(reported_first(&store, 0, "before"));
        let mut meanwhile = pin!(many.engine.admit(meanwhile, None));
        assert!(poll_immediate(&mut meanwhile).await.is_none());
        report.await;
        assert!(reported_first(&store, 1, "meanwhile"));
        for asked in [before.await, meanwhile.await] {
            assert!(asked.unwrap().map(|_| ()).is_some());
        }
        let reported_count: usize = store.reported.lock().unwrap().iter().map(Vec::len).sum();
        assert_eq!((reported_count, held.len()), (102, 100), "each once");
    });
}

#[test]
fn reply_after_the_share_expiry_grants_nothing() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_backend_failure: deny");
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
    store.is_cut.store(true, Relaxed);
    assert_eq!(alone.snapshot().share, Share(0));
    assert_eq!(alone.acquire_all(), 0);
}

#[test]
fn limit_changed_to_local_ignores_the_share_expiry() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.acquire_all(), 4);
    store.is_cut.store(true, Relaxed);
    alone.publish("limit: 4, mode: local");
    alone.finish(4);
    alone.advance(Nanos::from_secs(60));
    assert_eq!(alone.acquire_all(), 4);
}

#[test]
fn bucket_dropped_during_an_outage_is_not_reported() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_backend_failure: deny");
    store.is_cut.store(true, Relaxed);
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
    let (store, life) = (Store::new(), Nanos::from_secs(1_000));
    let mut alone = Replica::with_bucket_limit(&store, "a", "limit: 4", (life, 1));
    assert!(alone.try_acquire());
    alone.finish(1);
    let other = check_of_entry(("k", "w"));
    let AdmissionOutcome::Rejected(rejection) = alone.admit(&other) else {
        panic!("it took the place")
    };
    assert_eq!(rejection.reason, Reason::TooManyBuckets);
    for _ in 0..12 {
        advance_and_report(&[&alone], Nanos::SECOND);
    }
    assert!(alone.admit(&other).map(drop).is_some(), "ten heartbeats without a request");
    assert_eq!(alone.engine.concurrency_limits().bucket_count(), 1);
}

/// A replica with one idle bucket that returns its share with the next report.
fn about_to_return_share(store: &Arc<Store>) -> Replica {
    let mut alone =
        Replica::with_bucket_limit(store, "a", "limit: 4", (Nanos::from_secs(1_000), 1));
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
    let store = Store::new();
    let (alone, other) = (about_to_return_share(&store), check_of_entry(("k", "w")));
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
    assert!(alone.admit(&other).map(drop).is_some(), "it was heard");
}

#[test]
fn lost_or_refused_share_return_allows_eviction() {
    let other = check_of_entry(("k", "w"));
    let (store, away) = (Store::new(), Store::new());
    let mut younger = Replica::of_incarnation(&store, "a", "limit: 4", Nanos::from_secs(2_000));
    let refused = about_to_return_share(&store);
    younger.try_acquire();
    let lost = about_to_return_share(&away);
    away.is_cut.store(true, Relaxed);
    for alone in [refused, lost] {
        alone.report();
        assert!(alone.admit(&other).map(drop).is_some());
    }
}

/// Runs two replicas with unlimited demand until each has half of the limit.
fn split_evenly(fleet: &mut [Replica; 2], limit: usize) {
    assert_eq!((fleet[0].acquire_all(), fleet[1].acquire_all()), (limit, 0));
    for _ in 0..40 {
        let [a, b] = fleet;
        a.finish(usize::from(!a.held.is_empty()));
        advance_and_report(&[a, b], Nanos(50 * Nanos::MILLI.0));
        a.acquire_all();
        b.acquire_all();
        assert!(a.held.len() + b.held.len() <= limit, "{} and {}", a.held.len(), b.held.len());
    }
    assert_eq!(fleet.each_ref().map(|replica| replica.held.len()), [limit / 2; 2]);
}

#[test]
fn two_replicas_share_the_limit_without_exceeding_it() {
    let store = Store::new();
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
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_backend_failure: deny");
    assert_eq!(alone.acquire_all(), 4);
    store.is_cut.store(true, Relaxed);
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
    store.is_cut.store(false, Relaxed);
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
        assert_eq!(replica.engine.share_record().seats, []);
    }
}

#[test]
fn fence_and_handoff_counts_include_idle_limits() {
    let store = Store::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 8"));
    split_evenly(&mut fleet, 8);
    let [mut a, mut b] = fleet;
    let handoffs = b.snapshot().handoffs;
    store.is_cut.store(true, Relaxed);
    advance_and_report(&[&a, &b], Nanos::from_secs(6));
    store.is_cut.store(false, Relaxed);
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
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert!(alone.try_acquire());
    let Clock::Manual(clock) = alone.engine.clock() else { panic!() };
    clock.step_wall_clock(Nanos::from_secs(3_600));
    store.is_cut.store(true, Relaxed);
    assert_eq!(alone.acquire_all(), 3);
    assert_eq!((alone.snapshot().share, alone.snapshot().fences), (Share(4), 0));
}

#[test]
fn fallback_sets_the_share_during_an_outage() {
    for (word, wanted) in [("deny", 0), ("local", 2), ("allow", 4)] {
        let store = Store::new();
        let ceiling = format!("limit: 4, on_backend_failure: {word}");
        let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, &ceiling));
        split_evenly(&mut fleet, 4);
        store.is_cut.store(true, Relaxed);
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
    let store = Store::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 8"));
    assert_eq!((fleet[0].acquire_all(), fleet[1].acquire_all()), (8, 0));
    assert_eq!(fleet[1].snapshot().grant.unwrap().fair_share, Share(4));
    store.is_cut.store(true, Relaxed);
    fleet[0].finish(8);
    advance_and_report(&fleet.each_ref(), Nanos::from_secs(6));
    advance_and_report(&fleet.each_ref(), Nanos::SECOND);
    assert!(fleet.iter().all(|replica| replica.snapshot().is_outage));
    let found: usize = fleet.each_mut().map(Replica::acquire_all).iter().sum();
    assert_eq!(found, 8, "all of the ceiling, and no more");
}

#[test]
fn superseded_replica_loses_its_fallback_when_the_store_returns() {
    let store = Store::new();
    let mut older = Replica::new(&store, "a", "limit: 4, on_backend_failure: allow");
    assert!(older.try_acquire());
    store.is_cut.store(true, Relaxed);
    older.advance(Nanos::from_secs(6));
    older.report();
    assert!(older.try_acquire(), "in an outage all is allowed");
    store.is_cut.store(false, Relaxed);
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
    let store = Store::new();
    store.is_cut.store(true, Relaxed);
    let mut lonely = Replica::new(&store, "a", "limit: 9");
    assert_eq!(lonely.acquire_all(), 9 / 4);
}

#[test]
fn queued_requests_are_denied_when_the_share_expires() {
    let store = Store::new();
    let queue = "limit: 1, on_backend_failure: deny, queue: {size: 5, timeout: 1h}";
    let mut alone = Replica::new(&store, "a", queue);
    assert!(alone.try_acquire());
    store.is_cut.store(true, Relaxed);
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

#[test]
fn leaving_replica_frees_its_share_at_once() {
    let store = Store::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 4"));
    assert_eq!((fleet[0].acquire_all(), fleet[1].acquire_all()), (4, 0));
    fleet[0].finish(4);
    block_on(fleet[0].engine.concurrency_limits().leave_fleet(&*store));
    assert_eq!(fleet[0].acquire_all(), 0);
    fleet[1].advance(HALF_SECOND);
    fleet[1].report();
    assert_eq!(fleet[1].acquire_all(), 4);
}

/// A replica with a due report, a slow store, and the number of calls so far.
fn with_due_report(store: &Arc<Store>) -> (Replica, usize) {
    let mut alone = Replica::new(store, "a", "limit: 4");
    assert_eq!(alone.acquire_all(), 4);
    alone.finish(4);
    alone.advance(Nanos::SECOND);
    store.is_slow.store(true, Relaxed);
    (alone, store.calls.load(Relaxed))
}

#[test]
fn leaving_waits_for_the_current_heartbeat() {
    let store = Store::new();
    let (alone, before) = with_due_report(&store);
    let ceilings = alone.engine.concurrency_limits();
    block_on(async {
        let mut report = pin!(alone.engine.report_once());
        assert!(poll_immediate(&mut report).await.is_none(), "a heartbeat is on its way");
        let mut leaves = pin!(ceilings.leave_fleet(&*store));
        assert!(poll_immediate(&mut leaves).await.is_none());
        assert_eq!(store.calls.load(Relaxed), before + 1, "nothing is said beside it");
        tokio::join!(report, leaves);
    });
    let spoken_of = ceilings.fleet_reporter().unwrap().share_snapshots(alone.engine.clock(), 9);
    assert!(spoken_of.is_empty(), "{spoken_of:?}");
    store.is_slow.store(false, Relaxed);
    let mut other = Replica::new(&store, "b", "limit: 4");
    other.advance(Nanos::SECOND);
    assert_eq!(other.acquire_all(), 4);
}

#[test]
fn leaving_stops_waiting_for_a_stuck_heartbeat() {
    let store = Store::new();
    let (alone, before) = with_due_report(&store);
    block_on(async {
        let mut report = pin!(alone.engine.report_once());
        assert!(poll_immediate(&mut report).await.is_none(), "a heartbeat is on its way");
        let leaves = alone.engine.concurrency_limits().leave_fleet(&*store);
        let left = tokio::time::timeout(Duration::from_secs(60), leaves).await;
        assert!(left.is_ok(), "it waits still");
    });
    assert_eq!(store.calls.load(Relaxed), before + 1);
}

#[test]
fn leaving_stops_waiting_for_a_silent_store() {
    let store = Store::new();
    let (alone, _) = with_due_report(&store);
    store.is_silent.store(true, Relaxed);
    block_on(in_time(alone.engine.concurrency_limits().leave_fleet(&*store)));
}

#[test]
fn idle_limit_costs_no_call_after_ten_heartbeats() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.acquire_all(), 4);
    alone.finish(4);
    for _ in 0..30 {
        advance_and_report(&[&alone], HALF_SECOND);
    }
    let calls = store.calls.load(Relaxed);
    for _ in 0..30 {
        advance_and_report(&[&alone], HALF_SECOND);
    }
    assert_eq!(store.calls.load(Relaxed), calls);
    let mut other = Replica::new(&store, "b", "limit: 4");
    assert_eq!(other.acquire_all(), 4, "nothing is reserved for the idle");
    assert_eq!(alone.acquire_all(), 0);
}

#[test]
fn undelivered_share_return_is_reversed_by_the_next_reply() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_backend_failure: deny");
    assert_eq!(alone.acquire_all(), 4);
    alone.finish(4);
    run_for(&[&alone], &[&alone], Nanos::from_secs(9));
    store.is_cut.store(true, Relaxed);
    run_for(&[&alone], &[&alone], Nanos::from_secs(2));
    assert!(!alone.try_acquire(), "what it has let go of it does not use");
    store.is_cut.store(false, Relaxed);
    run_for(&[&alone], &[&alone], Nanos::SECOND);
    assert_eq!(alone.acquire_all(), 4);
}

#[test]
fn check_during_a_share_return_waits_for_the_next_report() {
    let store = Store::new();
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
        asked.unwrap().map(|_| ()).is_some()
    });
    assert!(passed);
}

#[test]
fn limit_shared_again_gets_its_share_back() {
    for heard in [false, true] {
        let store = Store::new();
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
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.acquire_all(), 4);
    alone.finish(4);
    run_for(&[&alone], &[&alone], Nanos::from_secs(12));
    block_on(alone.engine.concurrency_limits().leave_fleet(&*store));
    assert_eq!(alone.acquire_all(), 0);
}

/// Advances all clocks by `by`. The replicas in `reporting` report every 50 ms.
fn run_for(all: &[&Replica], reporting: &[&Replica], by: Nanos) {
    const TICK: Nanos = Nanos(50 * Nanos::MILLI.0);
    for _ in 0..by.0 / TICK.0 {
        for replica in all {
            replica.advance(TICK);
        }
        for replica in reporting {
            replica.report();
        }
    }
}

/// The grace period of a store without state: the defaults of `fleet.share_expiry` (5 s) and `max_duration`
/// (60 s).
const GRACE: Nanos = Nanos::from_secs(5 + 60);

#[test]
fn new_store_grants_shares_after_the_grace_period() {
    let store = Store::unsettled();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    run_for(&[&alone], &[&alone], Nanos::from_secs(5));
    let calls = store.calls.load(Relaxed);
    run_for(&[&alone], &[&alone], Nanos::from_secs(55));
    assert_eq!(store.calls.load(Relaxed), calls, "said once is enough");
    assert!(!alone.try_acquire(), "not before");
    run_for(&[&alone], &[&alone], Nanos::from_secs(5));
    assert!(
        !alone.try_acquire(),
        "who was turned away has a seat, and speaks for it once a second"
    );
    run_for(&[&alone], &[&alone], Nanos::SECOND);
    assert_eq!(alone.acquire_all(), 4);
}

#[test]
fn only_replicas_with_shared_limits_report_to_a_new_store() {
    let store = Store::unsettled();
    let lonely = Replica::new(&store, "b", "limit: 4, mode: local");
    run_for(&[&lonely], &[&lonely], Nanos::from_secs(5));
    assert_eq!(store.calls.load(Relaxed), 0);
    store.is_cut.store(true, Relaxed);
    store.is_away.store(true, Relaxed);
    let mut alone = Replica::new(&store, "a", "limit: 4, on_backend_failure: deny");
    run_for(&[&alone], &[&alone], Nanos::from_secs(9));
    assert_eq!(store.calls.load(Relaxed), 0, "nobody would hear it");
    store.is_away.store(false, Relaxed);
    run_for(&[&alone], &[&alone], Nanos::from_secs(9));
    assert!((9..=10).contains(&store.calls.load(Relaxed)), "once a heartbeat");
    store.is_cut.store(false, Relaxed);
    run_for(&[&alone], &[&alone], GRACE.plus(Nanos::from_secs(2)));
    assert_eq!(alone.acquire_all(), 4);
}

#[test]
fn idle_replica_detects_store_data_loss_within_a_minute() {
    let store = Store::unsettled();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    run_for(&[&alone], &[&alone], Nanos::from_secs(9));
    store.lose_data();
    run_for(&[&alone], &[&alone], GRACE.plus(Nanos::from_secs(62)));
    assert_eq!(alone.acquire_all(), 4);
}

#[test]
fn restarted_store_does_not_wait_for_departed_replicas() {
    let store = Store::unsettled();
    let [mut leaving, mut remaining] =
        ["a", "b"].map(|name| Replica::new(&store, name, "limit: 4"));
    run_for(&[&leaving, &remaining], &[&leaving, &remaining], GRACE.plus(Nanos::from_secs(2)));
    assert_eq!(leaving.acquire_all(), 4);
    leaving.finish(4);
    block_on(leaving.engine.concurrency_limits().leave_fleet(&*store));
    store.is_another.store(true, Relaxed);
    assert!(!remaining.try_acquire(), "its own word is missing");
    run_for(&[&remaining], &[&remaining], Nanos::from_secs(3));
    assert_eq!(remaining.acquire_all(), 4);
}

#[test]
fn idle_replica_cannot_end_the_grace_period_after_data_loss() {
    let store = Store::unsettled();
    let [mut busy, mut idle] = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 4"));
    run_for(&[&busy, &idle], &[&busy, &idle], GRACE.plus(Nanos::from_secs(2)));
    assert_eq!((busy.acquire_all(), idle.acquire_all()), (4, 0));
    store.is_cut.store(true, Relaxed);
    run_for(&[&busy, &idle], &[&busy, &idle], Nanos::from_secs(20));
    store.lose_data();
    store.is_cut.store(false, Relaxed);
    // The idle replica reports first.
    run_for(&[&busy, &idle], &[&idle], HALF_SECOND);
    assert_eq!(idle.acquire_all(), 0, "beside four that are in flight");
    run_for(&[&busy, &idle], &[&busy, &idle], GRACE.plus(Nanos::from_secs(2)));
    busy.finish(4);
    assert_eq!(idle.acquire_all(), 0);
    run_for(&[&busy, &idle], &[&busy, &idle], Nanos::from_secs(2));
    assert_ne!(idle.acquire_all(), 0);
}

#[test]
fn grace_period_covers_max_duration_of_limits_used_elsewhere() {
    let store = Store::unsettled();
    let two = "limit: 4}}, {key: short, concurrency: {limit: 4, max_duration: 1s";
    let [mut silent, mut active] = ["a", "b"].map(|name| Replica::new(&store, name, two));
    run_for(&[&silent, &active], &[&silent, &active], GRACE.plus(Nanos::from_secs(2)));
    assert_eq!(silent.acquire_all(), 4);
    assert!(active.try_acquire_key("short"));
    store.lose_data();
    run_for(&[&silent, &active], &[&active], Nanos::from_secs(9));
    assert!(!active.try_acquire(), "beside four that are in flight where nobody hears of them");
    run_for(&[&silent, &active], &[&active], GRACE);
    assert_eq!(active.acquire_all(), 4);
}

#[test]
fn reload_changes_the_limit_and_the_mode() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.acquire_all(), 4);
    alone.publish("limit: 6");
    assert_eq!(alone.acquire_all(), 0, "not before the store has heard of it");
    advance_and_report(&[&alone], Nanos::SECOND);
    assert_eq!(alone.acquire_all(), 2);
    alone.publish("limit: 7, mode: local");
    assert_eq!(alone.acquire_all(), 1);
    advance_and_report(&[&alone], Nanos::SECOND);
    let mut other = Replica::new(&store, "b", "limit: 6");
    alone.finish(7);
    for _ in 0..3 {
        advance_and_report(&[&alone], Nanos::SECOND);
    }
    assert_eq!(other.acquire_all(), 6);
    alone.publish("limit: 6");
    assert_eq!(alone.acquire_all(), 0, "shared again");
}

#[test]
fn a_lowered_limit_is_reported_without_traffic() {
    let store = Store::new();
    let mut idle = Replica::new(&store, "a", "limit: 4");
    assert!(idle.try_acquire());
    idle.publish("limit: 2");
    advance_and_report(&[&idle], Nanos::SECOND);
    assert_eq!(idle.snapshot().grant.unwrap().limit, Share(2));
}

/// Returns `true` if a finished request causes a report one second later.
fn reports_a_finished_request(store: &Store, alone: &mut Replica) -> bool {
    assert!(alone.try_acquire());
    alone.finish(1);
    store.largest.store(0, Relaxed);
    advance_and_report(&[alone], Nanos::SECOND);
    store.largest.load(Relaxed) == 1
}

#[test]
fn changed_max_duration_is_reported_with_the_next_heartbeat() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, max_duration: 10s");
    let is_reported = |alone: &mut Replica| reports_a_finished_request(&store, alone);
    let mut twice = || is_reported(&mut alone) && !is_reported(&mut alone);
    assert!((0..20).any(|_| twice()), "what was said is not said again at once");
    let mut once = || is_reported(&mut alone);
    assert!((0..20).any(|_| once()), "but now and then");
    alone.publish("limit: 4, max_duration: 11s");
    assert!(is_reported(&mut alone));
}

#[test]
fn shared_limit_without_a_fleet_is_local() {
    let memory = Arc::new(MemoryStore::new(10, WhenFull::Deny, [0; 16]));
    let engine = Engine::new(Clock::manual(Nanos::SECOND), memory, DecisionPolicy::default());
    let mut alone = Replica { engine, held: Vec::new() };
    alone.publish("limit: 3, mode: leased, max_duration: 1s");
    assert_eq!(alone.acquire_all(), 3);
}
