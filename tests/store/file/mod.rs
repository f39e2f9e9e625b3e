//! Tests of the file store: restarts, clocks, faults and crashes.

mod always;
mod budgets;
mod clock;
mod faults;
mod modes;
mod restart;
mod rounds;
mod service;

use std::path::Path;
use std::time::Duration;

use sluicegate::kernel::decision::{Cost, Enforcement};
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::sliding_window::SlidingWindow;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::file::{
    FileStore, FileStoreError, FileStoreOptions, OpenedFileStore, SavedTime, SyncMode,
};
use sluicegate::store::memory::WhenFull;
use sluicegate::store::{
    Charge, ChargeOutcome, Charges, CounterStore, Outcomes, Placement, StoreReply,
};

/// 2026-01-01T00:00:00Z.
const NEW_YEAR: Nanos = Nanos::from_secs(1_767_225_600);
const MINUTE: Nanos = Nanos::from_secs(60);

fn options(directory: &Path) -> FileStoreOptions {
    FileStoreOptions {
        directory: directory.to_owned(),
        sync: SyncMode::Every(Duration::from_millis(10)),
        deadline: Duration::from_secs(20),
        max_keys: 100_000,
        when_full: WhenFull::Deny,
        secret: [7; 16],
    }
}

fn try_open(directory: &Path, wall: Nanos) -> Result<OpenedFileStore, FileStoreError> {
    FileStore::open(&options(directory), wall)
}

fn open(directory: &Path, wall: Nanos) -> OpenedFileStore {
    try_open(directory, wall).unwrap()
}

/// The time of a store whose wall clock was never set back.
fn time(now: Nanos) -> SavedTime {
    SavedTime { store: now, wall: now }
}

fn sync(file: &mut OpenedFileStore, now: Nanos) {
    file.writer.write_changes(&|| time(now)).unwrap();
}

/// A limit of `limit` hits per minute for each strategy.
fn strategies(limit: u32) -> [Strategy; 4] {
    [
        Strategy::Gcra(Gcra::new(limit, MINUTE, limit).unwrap()),
        Strategy::FixedWindow(FixedWindow::new(limit, Windows::Every(MINUTE)).unwrap()),
        Strategy::SlidingWindow(SlidingWindow::new(limit, MINUTE).unwrap()),
        Strategy::SlidingLog(SlidingLog::new(limit, MINUTE).unwrap()),
    ]
}

fn charge(name: &str, strategy: Strategy, cost: Cost) -> Charge {
    let counting = match strategy {
        Strategy::Gcra(_) => KeyStrategy::Gcra,
        Strategy::FixedWindow(_) => KeyStrategy::FixedWindow(MINUTE),
        Strategy::SlidingWindow(_) => KeyStrategy::SlidingWindow(MINUTE),
        Strategy::SlidingLog(_) => KeyStrategy::SlidingLog,
    };
    Charge {
        key: CounterKey::unique("d", [("k", name)].into_iter(), counting),
        placement: Placement::ByKey,
        strategy,
        cost,
        standing: Enforcement::default(),
        per_second: false,
    }
}

fn hits(name: &str, strategy: Strategy, hits: u64) -> Charges {
    let list = [charge(name, strategy, Cost::Charge(Hits(hits)))];
    Charges { list: list.into_iter().collect(), ..Charges::default() }
}

fn execute(store: &dyn CounterStore, now: Nanos, charges: &Charges) -> Outcomes {
    match store.charge(now, charges) {
        StoreReply::Ready(outcomes) => outcomes,
        StoreReply::Pending(_) => panic!("a check waits for the disk"),
    }
}

/// The hits that `name` has left; `None` if the counter is above its limit.
fn remaining(store: &dyn CounterStore, now: Nanos, name: &str, strategy: Strategy) -> Option<u64> {
    match execute(store, now, &hits(name, strategy, 0))[0] {
        ChargeOutcome::Decided(CounterDecision::Allow(room)) => Some(room.remaining.0),
        ChargeOutcome::Decided(_) => None,
        other => panic!("a peek was answered {other:?}"),
    }
}
