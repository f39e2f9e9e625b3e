//! Shared limits in the engine, with one in-process store and manual clocks.

mod data_loss;
mod eviction;
mod idle_limits;
mod leaving;
mod outage;
mod reload;
mod rounds;
mod share_wait;

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::concurrency::ShareSnapshot;
use sluicegate::engine::fleet::reporter::{FleetReporter, SharePace};
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine, Membership, RequestPermits};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Verdict};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Hits, Nanos, Revision};
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
