//! Writes the changed counters and budgets of the file store, and snapshots of its shards.
//!
//! Guarantees:
//! - A batch contains every change that was made before its collection began.
//! - Without changes, nothing is written.
//! - After a failed write, the next successful one contains all counters and budgets.
//!
//! A *round* replaces the snapshots of all shards, some with each batch, and then drops the journal before it. A
//! round begins when the journal is larger than the snapshots, so the cost of a change does not depend on the
//! number of counters.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::budgets::BudgetBatch;
use super::codec::{TIME_LEN, encode_record};
use super::database::{Batch, Database};
use super::error::{FileFault, FileStoreError};
use super::options::{FileStoreOptions, SyncMode};
use super::progress::Progress;
use super::saved_time::SavedTime;
use crate::memory::MemoryStore;

/// The journal is never dropped while it is smaller.
const MIN_JOURNAL_BYTES: usize = 4 << 20;

/// The fewest bytes of snapshots that a batch writes during a round.
const MIN_ROUND_BYTES: usize = 256 << 10;

/// The pause after a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The number of failures for each log line: a minute of retries.
const FAILURES_PER_LINE: u64 = 60;

/// Writes the changed counters and budgets of one file store.
#[derive(Debug)]
pub struct FileWriter {
    /// `None` after a failed write: `redb` accepts no write after a failure, until the file is opened again.
    database: Option<Database>,
    directory: PathBuf,
    sync: SyncMode,
    secret: [u8; 16],
    memory: Arc<MemoryStore>,
    progress: Arc<Progress>,
    changes: Vec<u8>,
    round: Option<SnapshotRound>,
    /// Older entries of the journal are deleted.
    journal_start: u64,
}

#[derive(Clone, Copy, Debug)]
struct SnapshotRound {
    first_batch: u64,
    next_shard: usize,
}

/// The thread of a [`FileWriter`].
#[derive(Debug)]
pub struct WriterThread {
    progress: Arc<Progress>,
    thread: JoinHandle<()>,
}

impl WriterThread {
    /// Writes the last changes, and ends the thread.
    pub fn close(self) {
        self.progress.close();
        if self.thread.join().is_err() {
            tracing::error!("internal error: the writer of the file store panicked");
        }
    }
}

impl FileWriter {
    pub(super) fn new(
        database: Database,
        options: &FileStoreOptions,
        memory: Arc<MemoryStore>,
        progress: Arc<Progress>,
    ) -> Self {
        Self {
            secret: database.secret(),
            database: Some(database),
            directory: options.directory.clone(),
            sync: options.sync,
            memory,
            progress,
            changes: Vec::new(),
            round: None,
            journal_start: 0,
        }
    }

    /// Starts the thread that writes the changed counters and budgets. `read_time` reads the clock of the checks.
    ///
    /// # Errors
    /// Fails if the operating system cannot start a thread.
    pub fn spawn(
        mut self,
        read_time: impl Fn() -> SavedTime + Send + 'static,
    ) -> std::io::Result<WriterThread> {
        let progress = Arc::clone(&self.progress);
        let thread = std::thread::Builder::new().name("file-store".to_owned());
        let thread = thread.spawn(move || {
            let guard = FailOnPanic(Arc::clone(&self.progress));
            self.run(&read_time);
            drop(guard);
        })?;
        Ok(WriterThread { progress, thread })
    }

    fn run(&mut self, read_time: &dyn Fn() -> SavedTime) {
        let mut outage: Option<Outage> = None;
        loop {
            let request = match (&outage, self.sync) {
                (Some(_), _) => self.progress.wait_for_pause(RETRY_INTERVAL),
                (None, SyncMode::Every(interval)) => self.progress.wait_for_pause(interval),
                (None, SyncMode::Always) => self.progress.wait_for_request(),
            };
            match self.write_changes(read_time) {
                Ok(()) => {
                    if let Some(outage) = outage.take() {
                        tracing::info!(failures = outage.failures, "counters are saved again");
                    }
                }
                Err(error) => outage.get_or_insert_default().log(&error),
            }
            if request.is_closing {
                return;
            }
        }
    }

    /// Writes the counters and budgets that changed since the last call, and waits until they are on disk. After
    /// a failure, opens the file again and writes all of them.
    ///
    /// # Errors
    /// Fails if the file cannot be written. The memory store then still contains all counters and budgets.
    pub fn write_changes(
        &mut self,
        read_time: &dyn Fn() -> SavedTime,
    ) -> Result<(), FileStoreError> {
        let number = self.progress.begin_batch();
        let written = match self.database.take() {
            Some(database) => self.write_batch(database, read_time),
            None => self.write_all(read_time),
        };
        match written {
            Ok(database) => {
                self.database = Some(database);
                self.progress.finish_batch(number);
                Ok(())
            }
            Err(fault) => {
                self.progress.fail_batch();
                Err(FileStoreError::new(&self.directory, fault))
            }
        }
    }

    /// Writes the time, without counters and budgets.
    pub(super) fn write_time(&mut self, time: SavedTime) -> Result<(), FileStoreError> {
        let Some(database) = &mut self.database else { return Ok(()) };
        let written = database.commit(Batch {
            changes: &mut [0; TIME_LEN],
            shards: &mut std::iter::empty(),
            budgets: &BudgetBatch::Changed(Vec::new()),
            journal_start: 0,
            read_time: &|| time,
        });
        written.map_err(|fault| FileStoreError::new(&self.directory, fault))
    }

    fn write_batch(
        &mut self,
        mut database: Database,
        read_time: &dyn Fn() -> SavedTime,
    ) -> Result<Database, FileFault> {
        let Self { changes, memory, round, .. } = self;
        changes.clear();
        changes.resize(TIME_LEN, 0);
        memory.take_changes(&mut |record| encode_record(&record, changes));
        let budgets = &BudgetBatch::changed(memory)?;
        if round.is_none() && is_round_due(&database) {
            *round = Some(SnapshotRound { first_batch: database.next_batch(), next_shard: 0 });
        }
        if changes.len() == TIME_LEN && round.is_none() && budgets.is_unchanged() {
            return Ok(database);
        }
        let wanted = MIN_ROUND_BYTES.max(changes.len() * 2);
        let number = database.next_batch();
        let mut shards =
            round.iter_mut().flat_map(|round| round.next_shards(memory, number, wanted));
        let journal_start = self.journal_start;
        database.commit(Batch {
            changes,
            shards: &mut shards,
            budgets,
            journal_start,
            read_time,
        })?;
        drop(shards);
        if let Some(ended) = self.round.take_if(|round| round.next_shard == MemoryStore::SHARDS) {
            self.journal_start = ended.first_batch;
        }
        Ok(database)
    }

    /// Opens the file again and writes all counters and budgets.
    fn write_all(&mut self, read_time: &dyn Fn() -> SavedTime) -> Result<Database, FileFault> {
        // The changes are a part of the snapshots below. The list must not grow meanwhile.
        self.memory.take_changes(&mut |_| {});
        let budgets = &BudgetBatch::all(&self.memory)?;
        let mut database = Database::open(&self.directory, self.secret)?;
        if database.secret() != self.secret {
            return Err(FileFault::Corrupt("another process replaced the file".to_owned()));
        }
        database.skip_saved_batches()?;
        let number = database.next_batch();
        let mut round = SnapshotRound { first_batch: number, next_shard: 0 };
        let mut shards = round.next_shards(&self.memory, number, usize::MAX);
        let changes = &mut [0; TIME_LEN];
        database.commit(Batch {
            changes,
            shards: &mut shards,
            budgets,
            journal_start: number,
            read_time,
        })?;
        self.round = None;
        self.journal_start = number;
        Ok(database)
    }
}

impl SnapshotRound {
    /// Returns encoded shards with at least `wanted` bytes in all, or all shards that are left.
    fn next_shards(
        &mut self,
        memory: &MemoryStore,
        batch: u64,
        wanted: usize,
    ) -> impl Iterator<Item = (u32, Vec<u8>)> {
        let mut written = 0;
        std::iter::from_fn(move || {
            if wanted <= written || self.next_shard == MemoryStore::SHARDS {
                return None;
            }
            let mut bytes = batch.to_le_bytes().to_vec();
            memory.visit_shard(self.next_shard, &mut |record| encode_record(&record, &mut bytes));
            written += bytes.len();
            let index = u32::try_from(self.next_shard).unwrap_or(u32::MAX);
            self.next_shard += 1;
            Some((index, bytes))
        })
    }
}

fn is_round_due(database: &Database) -> bool {
    MIN_JOURNAL_BYTES.max(database.snapshot_bytes()) < database.journal_bytes()
}

/// Marks the store as failing if the writer's thread panics.
struct FailOnPanic(Arc<Progress>);

impl Drop for FailOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail_batch();
        }
    }
}

/// A sequence of failed writes.
#[derive(Debug, Default)]
struct Outage {
    failures: u64,
}

impl Outage {
    /// Logs the first failure, and then one line per minute.
    fn log(&mut self, error: &FileStoreError) {
        let is_logged = self.failures.is_multiple_of(FAILURES_PER_LINE);
        self.failures += 1;
        if !is_logged {
            return;
        }
        tracing::error!(
            failures = self.failures,
            error = %error,
            "failed to save counters; checks are still decided in memory, retrying"
        );
    }
}

#[cfg(test)]
mod tests;
