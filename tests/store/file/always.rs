//! Tests of `sync: always`: no answer before its charge is on disk.

use std::sync::Arc;
use std::time::Duration;

use sluicegate::kernel::decision::{Cost, StoreFailure};
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::{
    BorrowRequest, LeaseTerms, MessageNumber, Overshoot, ReplicaIncarnation,
};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::file::{FileStore, FileStoreOptions, SyncMode};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::{Charge, ChargeOutcome, CounterStore, Outcomes, StoreReply};

use super::{NEW_YEAR, charge, hits, open, options, remaining, strategies, time};
use crate::support::waiting::PATIENCE;

async fn answer(store: &dyn CounterStore, name: &str) -> Outcomes {
    let charges = hits(name, strategies(1_000)[0], 1);
    match store.charge(NEW_YEAR, &charges) {
        StoreReply::Ready(_) => panic!("the answer did not wait for the disk"),
        StoreReply::Pending(reply) => reply.await,
    }
}

pub(super) fn always(directory: &std::path::Path, deadline: Duration) -> FileStoreOptions {
    FileStoreOptions { sync: SyncMode::Always, deadline, ..options(directory) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_answered_charges_survive_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let file = FileStore::open(&always(directory.path(), PATIENCE), NEW_YEAR).unwrap();
    let store = Arc::new(file.store);
    let thread = file.writer.spawn(|| time(NEW_YEAR)).unwrap();
    let mut checks = tokio::task::JoinSet::new();
    for number in 0..200 {
        let store = Arc::clone(&store);
        checks.spawn(async move { answer(&*store, ["a", "b"][number % 2]).await });
    }
    let outcomes = checks.join_all().await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome[0], ChargeOutcome::Decided(_))));
    // A copy of the file, as if the machine had stopped here.
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(directory.path().join("counters.redb"), copy.path().join("counters.redb"))
        .unwrap();
    let restored = open(copy.path(), NEW_YEAR);
    for name in ["a", "b"] {
        let left = remaining(&restored.store, NEW_YEAR, name, strategies(1_000)[0]);
        assert_eq!(left, Some(900), "{name}");
    }
    thread.close();
}

#[tokio::test]
async fn a_check_fails_when_the_disk_takes_too_long() {
    let directory = tempfile::tempdir().unwrap();
    let file =
        FileStore::open(&always(directory.path(), Duration::from_millis(20)), NEW_YEAR).unwrap();
    // No thread writes.
    let outcome = answer(&file.store, "a").await[0];
    assert_eq!(outcome, ChargeOutcome::Failed(StoreFailure::TimedOut));
}

/// A message that charges 1 hit of `a`, and borrows 10.
fn borrow() -> LeaseMessage {
    let overshoot = Overshoot::AtMost(Hits(10));
    let terms =
        LeaseTerms { overshoot, duration: Nanos::from_secs(30), sizing: LeaseSizing::Learned };
    let Charge { key, placement, strategy, per_second, .. } =
        charge("a", strategies(1_000)[0], Cost::Charge(Hits(0)));
    let borrow = BorrowRequest {
        number: MessageNumber(1),
        hits: Hits(1),
        wanted: Hits(10),
        demand: Hits(10),
        balance: Hits(0),
        returned: Hits(0),
        last_lease: MessageNumber(0),
    };
    let sender = ReplicaIncarnation(7);
    LeaseMessage { key, placement, per_second, strategy, terms, sender, borrow }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_answered_after_its_hits_are_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let file = FileStore::open(&always(directory.path(), PATIENCE), NEW_YEAR).unwrap();
    let (store, message) = (file.store, borrow());
    let StoreReply::Pending(reply) = store.exchange_lease_message(NEW_YEAR, &message) else {
        panic!("the answer did not wait for the disk")
    };
    let thread = file.writer.spawn(|| time(NEW_YEAR)).unwrap();
    let LeaseOutcome::Applied(reply) = reply.await else { panic!("not applied") };
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(directory.path().join("counters.redb"), copy.path().join("counters.redb"))
        .unwrap();
    let restored = open(copy.path(), NEW_YEAR);
    let left = remaining(&restored.store, NEW_YEAR, "a", strategies(1_000)[0]);
    assert_eq!((reply.granted, left), (Hits(10), Some(989)));
    thread.close();
}
