//! Tests leases with `max_overshoot: 0` of strategies without windows: no hit above the limit.

use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::{
    BorrowRequest, LeaseTerms, MessageNumber, Overshoot, ReplicaIncarnation,
};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::sliding_window::SlidingWindow;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::file::{FileStore, FileStoreOptions, SavedTime, SyncMode};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::{CounterStore, Placement, StoreFailure, StoreReply};

use super::refill::K;
use super::{NEW_YEAR, engine, is_allowed, send_check, total_balance};
use crate::support::engine::{advance_clock, publish};
use crate::support::faulty_store::FaultyStore;
use crate::support::waiting::PATIENCE;

const STRATEGIES: [&str; 3] = ["gcra", "sliding_window", "sliding_log"];

fn occupying_limit(strategy: &str) -> String {
    format!(
        "- key: k\n  rate_limit: {{unit: day, requests_per_unit: 100, strategy: {strategy}, \
         mode: leased, max_overshoot: 0, lease_hits: 10}}\n"
    )
}

/// Returns how many checks of one hit `engine` allows, at most 200.
async fn allowed(engine: &Engine) -> u64 {
    let mut allowed = 0;
    while allowed < 200 && is_allowed(engine, K, 1).await {
        allowed += 1;
    }
    allowed
}

#[tokio::test]
async fn all_kinds_of_checks_together_allow_exactly_the_limit() {
    for strategy in STRATEGIES {
        let (store, limits) = (FaultyStore::new(), occupying_limit(strategy));
        let (one, other) = (engine(&store, &limits), engine(&store, &limits));
        let together = engine(&store, &limits);
        publish(&together, "charge: all_or_nothing\n", &limits);
        let mut count = 0;
        for _ in 0..2 {
            for engine in [&one, &other, &together] {
                count += u64::from(is_allowed(engine, K, 1).await);
            }
        }
        assert!(0 < total_balance(&one) + total_balance(&other), "{strategy}: nothing is leased");
        count += allowed(&together).await;
        let leased = total_balance(&one) + total_balance(&other) + total_balance(&together);
        assert_eq!(count + leased, 100, "{strategy}: leased hits occupy the limit");
        count += allowed(&one).await + allowed(&other).await + allowed(&together).await;
        assert_eq!(count, 100, "{strategy}");
    }
}

#[tokio::test]
async fn the_hits_of_a_crashed_replica_stay_charged() {
    for strategy in STRATEGIES {
        let (store, limits) = (FaultyStore::new(), occupying_limit(strategy));
        let one = engine(&store, &limits);
        let mut spent = 0;
        while total_balance(&one) < 10 {
            assert!(is_allowed(&one, K, 1).await);
            spent += 1;
        }
        drop(one);
        let other = engine(&store, &limits);
        advance_clock(&other, Nanos::from_secs(31));
        assert_eq!(allowed(&other).await, 100 - spent - 10, "{strategy}");
    }
}

#[tokio::test]
async fn a_denied_check_returns_its_charge() {
    for strategy in STRATEGIES {
        let strict = "- key: s\n  rate_limit: {unit: day, requests_per_unit: 5}\n";
        let (store, limits) = (FaultyStore::new(), occupying_limit(strategy) + strict);
        let engine = engine(&store, &limits);
        publish(&engine, "charge: all_or_nothing\n", &limits);
        assert!(!is_allowed(&engine, &[("k", "v"), ("s", "v")], 6).await);
        assert!(is_allowed(&engine, &[("k", "v"), ("s", "v")], 5).await);
        assert_eq!(allowed(&engine).await, 95, "{strategy}");
    }
}

/// The charge of the leased limit was never sent, and the other limit denies.
#[tokio::test]
async fn a_charge_that_failed_is_not_refunded() {
    for strategy in STRATEGIES {
        let strict = "- key: s\n  rate_limit: {unit: day, requests_per_unit: 5}\n";
        let (store, limits) = (FaultyStore::new(), occupying_limit(strategy) + strict);
        let engine = engine(&store, &limits);
        publish(&engine, "charge: all_or_nothing\n", &limits);
        assert!(is_allowed(&engine, K, 50).await);
        *store.rejection.lock() = Some(StoreFailure::Overloaded);
        let both = send_check(&engine, &[("k", "v"), ("s", "v")], 6).await;
        assert!(!both.is_ok_and(|decision| decision.verdict == Verdict::Allow), "{strategy}");
        *store.rejection.lock() = None;
        assert_eq!(allowed(&engine).await, 50, "{strategy}");
    }
}

/// A proxy leases hits from a replica whose store is in memory.
#[tokio::test]
async fn checks_in_memory_see_the_hits_that_a_proxy_leased() {
    for (strategy, counter) in STRATEGIES.into_iter().zip(counters()) {
        for mode in ["", "charge: all_or_nothing\n"] {
            let store = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]));
            let (shared, policy) = (Arc::clone(&store), DecisionPolicy::default());
            let engine = Engine::new(Clock::manual(NEW_YEAR), shared, policy);
            publish(&engine, mode, &occupying_limit(strategy));
            assert!(is_allowed(&engine, K, 1).await);
            assert_eq!(borrow_ten(&store, counter), Hits(10), "{strategy}");
            assert_eq!(allowed(&engine).await, 89, "{strategy}, {mode}");
        }
    }
}

/// The same with a store that replies after a write to the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_in_a_file_see_the_hits_that_a_proxy_leased() {
    let directory = tempfile::tempdir().unwrap();
    let options = FileStoreOptions {
        directory: directory.path().to_owned(),
        sync: SyncMode::Always,
        deadline: PATIENCE,
        max_keys: 1_000,
        when_full: WhenFull::Deny,
        secret: [7; 16],
    };
    let file = FileStore::open(&options, NEW_YEAR).unwrap();
    let store = Arc::new(file.store);
    let writer = file.writer.spawn(|| SavedTime { store: NEW_YEAR, wall: NEW_YEAR }).unwrap();
    let (shared, policy) = (Arc::clone(&store), DecisionPolicy::default());
    let engine = Engine::new(Clock::manual(NEW_YEAR), shared, policy);
    publish(&engine, "", &occupying_limit("gcra"));
    assert!(is_allowed(&engine, K, 1).await);
    let message = borrow_message(counters()[0]);
    let lent = store.exchange_lease_message(NEW_YEAR, &message).wait().await;
    assert!(matches!(lent, LeaseOutcome::Applied(reply) if reply.granted == Hits(10)));
    assert_eq!(allowed(&engine).await, 89);
    writer.close();
}

const DAY: Nanos = Nanos::from_secs(86_400);

fn counters() -> [(Strategy, KeyStrategy); 3] {
    [
        (Strategy::Gcra(Gcra::new(100, DAY, 100).unwrap()), KeyStrategy::Gcra),
        (
            Strategy::SlidingWindow(SlidingWindow::new(100, DAY).unwrap()),
            KeyStrategy::SlidingWindow(DAY),
        ),
        (Strategy::SlidingLog(SlidingLog::new(100, DAY).unwrap()), KeyStrategy::SlidingLog),
    ]
}

/// Borrows 10 hits of the counter `k` = `v`, as the service does for a proxy. Returns the grant.
fn borrow_ten(store: &MemoryStore, counter: (Strategy, KeyStrategy)) -> Hits {
    match store.exchange_lease_message(NEW_YEAR, &borrow_message(counter)) {
        StoreReply::Ready(LeaseOutcome::Applied(reply)) => reply.granted,
        _ => panic!("a memory store replies at once"),
    }
}

fn borrow_message((strategy, key): (Strategy, KeyStrategy)) -> LeaseMessage {
    LeaseMessage {
        key: CounterKey::unique("d", K.iter().copied(), key),
        placement: Placement::by_domain("d"),
        per_second: false,
        strategy,
        terms: LeaseTerms {
            overshoot: Overshoot::Occupying(Hits(10)),
            duration: Nanos::from_secs(30),
            sizing: LeaseSizing::Learned,
        },
        sender: ReplicaIncarnation(1),
        borrow: BorrowRequest {
            number: MessageNumber(1),
            wanted: Hits(10),
            ..BorrowRequest::without_lease(Hits(0))
        },
    }
}
