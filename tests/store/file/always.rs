//! Tests of `sync: always`: no answer before its charge is on disk.

use std::sync::Arc;
use std::time::Duration;

use sluicegate::kernel::decision::StoreFailure;
use sluicegate::store::file::{FileStore, FileStoreOptions, SyncMode};
use sluicegate::store::{ChargeOutcome, CounterStore, Outcomes, StoreReply};

use super::{NEW_YEAR, hits, open, options, remaining, strategies, time};

async fn answer(store: &dyn CounterStore, name: &str) -> Outcomes {
    let charges = hits(name, strategies(1_000)[0], 1);
    match store.charge(NEW_YEAR, &charges) {
        StoreReply::Ready(_) => panic!("the answer did not wait for the disk"),
        StoreReply::Pending(reply) => reply.await,
    }
}

fn always(directory: &std::path::Path, deadline: Duration) -> FileStoreOptions {
    FileStoreOptions { sync: SyncMode::Always, deadline, ..options(directory) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_answered_charges_survive_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let file =
        FileStore::open(&always(directory.path(), Duration::from_secs(20)), NEW_YEAR).unwrap();
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
