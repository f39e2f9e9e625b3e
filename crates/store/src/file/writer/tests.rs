//! Tests of batches with budgets, after failed writes and restarts.

use super::*;
use crate::Placement;
use crate::StoreReply;
use crate::budgets::{BudgetAction, BudgetCall, BudgetPart, BudgetStore as _};
use crate::file::{FileStore, OpenedFileStore};
use crate::kernel::budget::{Amount, BudgetPeriod, BudgetTerms, HoldId, OnExpiry};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::units::Nanos;
use crate::memory::WhenFull;

const NOW: Nanos = Nanos::from_secs(1_767_225_600);
const HOUR: Nanos = Nanos::from_secs(3_600);

fn open(directory: &std::path::Path, wall: Nanos) -> Result<OpenedFileStore, FileStoreError> {
    let options = FileStoreOptions {
        directory: directory.to_owned(),
        sync: SyncMode::Every(Duration::from_secs(1)),
        deadline: Duration::from_secs(20),
        max_keys: 1_000,
        when_full: WhenFull::Deny,
        secret: [7; 16],
    };
    FileStore::open(&options, wall)
}

/// Sends a call of 10 to a budget of 100 for each hour.
fn send(store: &FileStore, action: BudgetAction, name: &str) {
    let part = BudgetPart {
        key: CounterKey::budget("d", [("budget", name)].into_iter(), 0),
        placement: Placement::ByKey,
        terms: BudgetTerms {
            amount: Amount(100),
            period: BudgetPeriod::Each(Windows::Every(HOUR)),
            time_limit: Nanos::from_secs(600),
            on_expiry: OnExpiry::Charge,
            is_enforced: true,
        },
        amount: Amount(10),
    };
    let call = BudgetCall { id: HoldId(7, 1), action, budgets: [part].into_iter().collect() };
    assert!(matches!(store.call_budgets(NOW, &call), StoreReply::Ready(Ok(_))));
}

fn write(writer: &mut FileWriter) -> Result<(), FileStoreError> {
    writer.write_changes(&|| SavedTime { store: NOW, wall: NOW })
}

/// Returns the number of budgets in the file, also of those that need not be kept.
fn saved_budgets(writer: &FileWriter) -> Result<usize, FileFault> {
    let memory = MemoryStore::new(1_000, WhenFull::Deny, [7; 16]);
    if let Some(database) = &writer.database {
        database.restore_budgets(&memory, Nanos(0))?;
    }
    Ok(memory.take_all_budgets().len())
}

#[test]
fn the_batch_after_a_failed_one_has_all_budgets() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let OpenedFileStore { store, mut writer, .. } = open(directory.path(), NOW)?;
    for name in ["a", "b"] {
        send(&store, BudgetAction::Reserve, name);
        write(&mut writer)?;
    }
    // A failed batch: its changes were taken, and the file was closed.
    send(&store, BudgetAction::Settle, "a");
    store.memory().take_changed_budgets();
    writer.database = None;
    send(&store, BudgetAction::Reserve, "c");
    write(&mut writer)?;
    let wanted = store.memory().take_all_budgets();
    drop((store, writer));
    let restored = open(directory.path(), NOW)?.store;
    assert_eq!(restored.memory().take_all_budgets(), wanted);
    assert_eq!(wanted.len(), 3);
    Ok(())
}

#[test]
fn budgets_that_need_not_be_kept_leave_the_file() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let OpenedFileStore { store, mut writer, .. } = open(directory.path(), NOW)?;
    for name in ["a", "b", "c"] {
        send(&store, BudgetAction::Charge, name);
    }
    write(&mut writer)?;
    assert_eq!(saved_budgets(&writer).ok(), Some(3));
    let kept_until = NOW.plus(Nanos(HOUR.0 * 32));
    store.memory().sweep_next(Nanos(kept_until.0 - 1));
    write(&mut writer)?;
    assert_eq!(saved_budgets(&writer).ok(), Some(3), "the usage of 32 periods is kept");
    drop((store, writer));
    let OpenedFileStore { store, writer, .. } = open(directory.path(), kept_until)?;
    assert_eq!(store.memory().take_all_budgets().len(), 0);
    drop((store, writer));
    let OpenedFileStore { store, mut writer, .. } = open(directory.path(), kept_until)?;
    write(&mut writer)?;
    assert_eq!(saved_budgets(&writer).ok(), Some(0), "the next batch removes them");
    send(&store, BudgetAction::Charge, "a");
    write(&mut writer)?;
    store.memory().sweep_next(kept_until);
    write(&mut writer)?;
    assert_eq!(saved_budgets(&writer).ok(), Some(0), "the batch after a sweep removes them");
    Ok(())
}

#[test]
fn calls_that_change_nothing_write_nothing() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let OpenedFileStore { store, mut writer, .. } = open(directory.path(), NOW)?;
    for _ in 0..11 {
        send(&store, BudgetAction::Charge, "a");
    }
    send(&store, BudgetAction::Settle, "a");
    write(&mut writer)?;
    let batches = |writer: &FileWriter| writer.database.as_ref().map(Database::next_batch);
    let before = batches(&writer);
    for name in ["a", "new"] {
        send(&store, BudgetAction::Read, name);
        send(&store, BudgetAction::Renew, name);
    }
    send(&store, BudgetAction::Reserve, "a");
    send(&store, BudgetAction::Settle, "a");
    write(&mut writer)?;
    assert_eq!(batches(&writer), before);
    send(&store, BudgetAction::Charge, "a");
    write(&mut writer)?;
    assert_ne!(batches(&writer), before);
    Ok(())
}
