//! The file store: the memory store, whose counters and budgets also survive a restart of the process.
//!
//! Checks are decided in memory. A thread collects the changed counters and budgets once per [`SyncMode`] interval, and
//! writes them as one batch, in one transaction with one `fsync`.
//!
//! Guarantees:
//! - After a crash, each counter and budget is at most one interval and one write behind, and never ahead.
//! - With [`SyncMode::Always`], a check, a lease or a call to budgets is answered after it is on disk.
//! - A drained process loses nothing.
//! - Time in the store never steps back, and includes the time during which no process ran.
//! - A failed write is repeated until it succeeds; then the file contains all counters and budgets again.
//! - One process uses a directory at a time.
//! - Only the user of the process can read new directories and all files.
//!
//! Not covered:
//! - Leases and permits: after a restart, unspent hits of a lease count as spent.
//! - A sliding log is written as a whole, at 12 bytes for each arrival.
//! - A budget is written as a whole, at about 42 bytes for each hold and each known id.
//! - A lost or restored file: counters and budgets are then empty, or older.
//!
//! **Engine.** `redb`, because it has no dependencies, checksums every page, commits atomically, compiles in 5 s
//! and supports Rust 1.89. `fjall` 3 needs Rust 1.90 and 20 more crates, and ends the replay of its journal at the
//! first unreadable byte without an error. Measured with a commit of 1,000 random counters among a million:
//!
//! | layout | CPU for a counter | bytes written for a counter |
//! |---|---|---|
//! | `redb`, a record for each counter | 15 µs | 6,100 |
//! | `fjall`, a record for each counter | 3.8 µs | 204 |
//!
//! This module writes the counters of a batch as one value instead, so neither cost applies (see [`database`]).

mod audit;
mod budgets;
mod codec;
mod database;
mod error;
mod options;
mod private;
mod progress;
mod saved_time;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use super::audit::{AuditRecord, StoredAuditRecord};
use super::budgets::{BudgetCall, BudgetReply};
use super::lease::{LeaseMessage, LeaseOutcome};
use super::memory::MemoryStore;
use super::{
    AuditStore, BudgetStore, ChargeOutcome, Charges, CounterStore, FleetStore, Outcomes,
    StoreFailure, StoreReply,
};
use crate::kernel::units::Nanos;
use audit::AuditFile;
use database::Database;
pub use error::{FileFault, FileStoreError};
pub use options::{FileStoreOptions, SyncMode};
use progress::Progress;
pub use saved_time::SavedTime;
pub use writer::{FileWriter, WriterThread};

/// A memory store whose counters and budgets are saved in a file.
#[derive(Debug)]
pub struct FileStore {
    memory: Arc<MemoryStore>,
    progress: Arc<Progress>,
    audit: Arc<AuditFile>,
    /// `None` if checks do not wait for the disk.
    deadline: Option<Duration>,
}

/// An opened file store.
#[derive(Debug)]
pub struct OpenedFileStore {
    /// The store.
    pub store: FileStore,
    /// Writes the changed counters and budgets.
    pub writer: FileWriter,
    /// The earliest time of the clock that the store's checks must use.
    pub earliest: Nanos,
    /// How far the wall clock is behind the saved time of the store; 0 normally.
    pub clock_set_back: Nanos,
}

impl FileStore {
    /// Opens or creates the file, and restores its counters and budgets. `wall` is the wall clock.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written, or if it contains more counters or budgets than
    /// `max_keys`.
    pub fn open(
        options: &FileStoreOptions,
        wall: Nanos,
    ) -> Result<OpenedFileStore, FileStoreError> {
        let fail = |fault| FileStoreError::new(&options.directory, fault);
        let mut database = Database::open(&options.directory, options.secret).map_err(fail)?;
        let saved = database.saved_time().map_err(fail)?;
        let earliest = saved.map_or(wall, |saved| saved.store_time_at(wall));
        let memory = MemoryStore::new(options.max_keys, options.when_full, database.secret());
        database.restore(&memory, earliest).map_err(fail)?;
        let memory = Arc::new(memory.with_change_tracking());
        // With change tracking, so that the next batch removes the budgets that need not be kept.
        database.restore_budgets(&memory, earliest).map_err(fail)?;
        let progress = Arc::new(Progress::default());
        let mut writer =
            FileWriter::new(database, options, Arc::clone(&memory), Arc::clone(&progress));
        // Finds a full disk at the start.
        writer.write_time(SavedTime { store: earliest, wall })?;
        let deadline = (options.sync == SyncMode::Always).then_some(options.deadline);
        let clock_set_back = saved.map_or(Nanos(0), |saved| saved.wall.since(wall));
        let audit = Arc::new(AuditFile::new(&options.directory));
        let store = Self { memory, progress, audit, deadline };
        Ok(OpenedFileStore { store, writer, earliest, clock_set_back })
    }

    /// Returns the counters and budgets in memory.
    #[must_use]
    pub const fn memory(&self) -> &Arc<MemoryStore> {
        &self.memory
    }

    /// Completes a reply of the memory store when it is on disk, if checks wait for the disk.
    /// `fail` returns the reply after a failed write.
    fn reply_when_saved<'a, T: Send + 'a>(
        &'a self,
        reply: StoreReply<'a, T>,
        fail: impl FnOnce(T, StoreFailure) -> T + Send + 'a,
    ) -> StoreReply<'a, T> {
        let (deadline, reply) = match (self.deadline, reply) {
            (Some(deadline), StoreReply::Ready(reply)) => (deadline, reply),
            (_, reply) => return reply,
        };
        let batch = self.progress.request_batch();
        StoreReply::Pending(Box::pin(async move {
            match self.progress.wait_until_saved(batch, deadline).await {
                Ok(()) => reply,
                Err(cause) => fail(reply, cause),
            }
        }))
    }
}

impl CounterStore for FileStore {
    fn is_synchronous(&self) -> bool {
        self.deadline.is_none()
    }

    fn has_leases(&self) -> bool {
        false
    }

    fn max_wait(&self) -> Option<Nanos> {
        self.deadline.map(|deadline| Nanos(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX)))
    }

    fn current_failure(&self) -> Option<StoreFailure> {
        self.progress.is_failing().then_some(StoreFailure::NotSaved)
    }

    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        self.reply_when_saved(self.memory.charge(now, charges), |outcomes, cause| {
            outcomes.iter().map(|_| ChargeOutcome::Failed(cause)).collect()
        })
    }

    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        let reply = self.memory.exchange_lease_message(now, message);
        self.reply_when_saved(reply, |_, cause| LeaseOutcome::Failed(cause))
    }
}

impl FleetStore for FileStore {
    fn wrapped_fleet_store(&self) -> Option<&dyn FleetStore> {
        Some(&*self.memory)
    }
}

impl BudgetStore for FileStore {
    fn call_budgets<'a>(
        &'a self,
        now: Nanos,
        call: &'a BudgetCall,
    ) -> StoreReply<'a, Result<BudgetReply, StoreFailure>> {
        self.reply_when_saved(self.memory.call_budgets(now, call), |_, cause| Err(cause))
    }
}

impl AuditStore for FileStore {
    fn has_audit_log(&self) -> bool {
        true
    }

    fn append_audit<'a>(
        &'a self,
        now: Nanos,
        record: &'a AuditRecord,
    ) -> StoreReply<'a, Result<(), StoreFailure>> {
        let (audit, record) = (Arc::clone(&self.audit), record.clone());
        StoreReply::Pending(Box::pin(on_blocking_thread(move || audit.append(now, &record))))
    }

    fn read_audit(
        &self,
        now: Nanos,
    ) -> StoreReply<'_, Result<Vec<StoredAuditRecord>, StoreFailure>> {
        let audit = Arc::clone(&self.audit);
        StoreReply::Pending(Box::pin(on_blocking_thread(move || audit.read(now))))
    }
}

/// Runs an operation on the audit log outside of the threads that decide checks.
async fn on_blocking_thread<T: Send + 'static>(
    operation: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, StoreFailure> {
    let done = tokio::task::spawn_blocking(operation).await;
    done.unwrap_or_else(|panic| Err(std::io::Error::other(panic))).map_err(|error| {
        tracing::warn!(%error, "the audit log in store.url cannot be read or written");
        StoreFailure::NotSaved
    })
}
