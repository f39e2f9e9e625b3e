//! Shared limits in the engine, with one in-process store and manual clocks.

mod data_loss;
mod eviction;
mod fair;
mod growth_pause;
mod idle_limits;
mod leaving;
mod outage;
mod reload;
mod rounds;
mod share_wait;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use sluicegate::engine::AdmissionOutcome;
use sluicegate::engine::concurrency::ShareSnapshot;
use sluicegate::kernel::coordinator::aggregate::VoteAggregate;
use sluicegate::kernel::decision::Check;
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::Nanos;

use crate::support::engine::{block_on, check_of_entry};
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{Replica, ReplicaOptions, admitted_permits};
use crate::support::waiting::soon;

/// Awaits the future, and fails the test if the future waits for a timeout of an hour.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    soon("the end of the wait", future).await
}

impl Replica {
    fn of_incarnation(
        store: &Arc<FaultyStore>,
        name: &str,
        limit: &str,
        incarnation: Nanos,
    ) -> Self {
        Self::with(store, name, limit, &ReplicaOptions { incarnation, ..Default::default() })
    }

    /// A replica that waits up to an hour for a share.
    fn with_hour_timeout(store: &Arc<FaultyStore>, name: &str, limit: &str) -> Self {
        let share_timeout = Duration::from_secs(3_600);
        let options = ReplicaOptions { share_timeout, max_buckets: 1_000, ..Default::default() };
        Self::with(store, name, limit, &options)
    }

    /// Makes one check, and sends a report if one is due.
    fn try_acquire(&mut self) -> bool {
        self.try_acquire_key("k")
    }

    fn try_acquire_key(&mut self, key: &str) -> bool {
        let admitted = self.admit(&check_of_entry(key, "v"));
        self.keep(admitted)
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
        let before = self.permits.len();
        while self.try_acquire() {}
        self.permits.len() - before
    }

    fn snapshot(&self) -> ShareSnapshot {
        let fleet = self.engine.concurrency_limits().fleet_reporter().unwrap();
        fleet.share_snapshots(self.engine.clock(), 1).remove(0).1
    }
}

pub(super) fn default_check() -> Check<'static> {
    check_of_entry("k", "v")
}

const HALF_SECOND: Nanos = Nanos(500 * Nanos::MILLI.0);

#[test]
fn new_replica_splits_many_reports_into_small_calls() {
    let store = FaultyStore::new();
    let alone = Replica::new(&store, "a", "limit: 4");
    let values: Vec<String> = (0..100).map(|value| format!("{value}")).collect();
    block_on(async {
        for value in &values {
            let check = check_of_entry("k", value);
            assert!(poll_immediate(alone.engine.admit(&check, None)).await.is_none(), "cold");
        }
    });
    alone.report();
    assert_eq!(store.share_calls.load(Relaxed), 3);
    // Four replicas are expected. A report costs 10 µs + 4 · 3 µs, and 45 reports fit in 1 ms.
    assert_eq!(store.largest_round.load(Relaxed), 45);
}

#[test]
fn reports_carry_the_vote_rule_of_the_limit() {
    for (fields, aggregate) in [("", VoteAggregate::Median), ("aggregate: min", VoteAggregate::Min)]
    {
        let store = FaultyStore::new();
        let limit = format!("limit: 4, adaptive: {{{fields}}}, mode: shared");
        let mut replica = Replica::new(&store, "a", &limit);
        assert!(replica.try_acquire());
        assert_eq!(store.last_config.lock().unwrap().aggregate, aggregate);
    }
}

fn name_of(value: &str) -> CounterKey {
    CounterKey::concurrency_bucket("d", [("k", value)].into_iter())
}

/// Returns `true` if the first report of call number `call` is about `value`.
fn reported_first(store: &FaultyStore, call: usize, value: &str) -> bool {
    let name = name_of(value);
    let spoken = store.reported.lock();
    spoken[call].first().is_some_and(|first| **first == *name.as_bytes())
}

#[test]
fn limits_with_waiting_requests_are_reported_first() {
    let store = FaultyStore::new();
    let many = Replica::with_hour_timeout(&store, "a", "limit: 4");
    let values: Vec<String> = (0..100).map(|value| format!("{value}")).collect();
    let checks: Vec<Check> = values.iter().map(|value| check_of_entry("k", value)).collect();
    let newcomers = ["before", "meanwhile"].map(|value| check_of_entry("k", value));
    block_on(async {
        let all = join_all(checks.iter().map(|check| many.engine.admit(check, None)));
        let held = tokio::join!(all, many.engine.report_once()).0;
        many.advance(Nanos::SECOND);
        store.is_slow.store(true, Relaxed);
        store.reported.lock().clear();
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
            assert!(admitted_permits(asked.unwrap()).is_some());
        }
        let reported_count: usize = store.reported.lock().iter().map(Vec::len).sum();
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
