//! The file of the file store: a `redb` database with a journal of batches and a snapshot of each shard.
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | `format`, `secret` | format version and number of shards; secret of the hash function |
//! | `journal` | number of the batch | time, then the counters that changed |
//! | `shards` | index of the shard | number of a batch, then all counters of the shard after it |
//! | `budgets` | name of the budget | the budget, and how long it is kept |
//!
//! Guarantees:
//! - A batch, with its counters and budgets, is in the file as a whole or not at all.
//! - A changed counter costs about twice its own size in writes, however many counters exist.
//! - The journal is at most about twice as large as the snapshots, or 4 MiB.
//! - A changed budget replaces its record; budgets are not in the journal.
//!
//! A record for each counter would cost a page of 4 KiB for each change, because hashes are random.

use std::fs::{self, OpenOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::{ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::budgets::{self, BudgetBatch};
use super::codec::{Decoder, FORMAT_VERSION, InvalidRecord, TIME_LEN, encode_time};
use super::error::FileFault;
use super::private;
use super::saved_time::SavedTime;
use crate::kernel::units::Nanos;
use crate::memory::MemoryStore;

const FILE_NAME: &str = "counters.redb";

const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
const JOURNAL: TableDefinition<u64, &[u8]> = TableDefinition::new("journal");
const SHARDS: TableDefinition<u32, &[u8]> = TableDefinition::new("shards");

/// The counters are in memory, so a cache of the file saves little.
const CACHE_BYTES: usize = 8 << 20;

/// The most journal entries that one batch deletes.
const MAX_DELETIONS: usize = 64;

/// One transaction.
pub(super) struct Batch<'b> {
    /// [`TIME_LEN`] bytes for the time, then the encoded counters.
    pub(super) changes: &'b mut [u8],
    /// Encoded shards, with their index.
    pub(super) shards: &'b mut dyn Iterator<Item = (u32, Vec<u8>)>,
    pub(super) budgets: &'b BudgetBatch,
    /// Journal entries before this number are deleted, because all shards are newer.
    pub(super) journal_start: u64,
    /// Reads the time after all counters and budgets were collected, so that none of them is later.
    pub(super) read_time: &'b dyn Fn() -> SavedTime,
}

#[derive(Debug)]
pub(super) struct Database {
    redb: redb::Database,
    secret: [u8; 16],
    next_batch: u64,
    journal_bytes: usize,
    shard_bytes: Vec<usize>,
}

struct SavedMeta {
    format: Vec<u8>,
    secret: Vec<u8>,
}

impl Database {
    /// Opens the file in `directory`, or creates it with `secret`.
    pub(super) fn open(directory: &Path, secret: [u8; 16]) -> Result<Self, FileFault> {
        private::create_directory(directory)?;
        let path = directory.join(FILE_NAME);
        // redb panics on some invalid files.
        let opened = catch_unwind(AssertUnwindSafe(|| Self::open_file(&path, secret)));
        let database = opened
            .unwrap_or_else(|_| Err(FileFault::Corrupt("unreadable structure".to_owned())))?;
        fs::File::open(directory)?.sync_all()?;
        Ok(database)
    }

    fn open_file(path: &Path, secret: [u8; 16]) -> Result<Self, FileFault> {
        let mut builder = redb::Database::builder();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = private::open_file(path, &mut options)?;
        let mut redb =
            builder.set_cache_size(CACHE_BYTES).create_file(file).map_err(redb::Error::from)?;
        redb.check_integrity().map_err(redb::Error::from)?;
        let shard_bytes = vec![0; MemoryStore::SHARDS];
        let mut database = Self { redb, secret, next_batch: 1, journal_bytes: 0, shard_bytes };
        match database.read_meta().map_err(FileFault::from)? {
            None => database.write_meta().map_err(FileFault::from)?,
            Some(SavedMeta { format, secret }) => {
                let mut format = Decoder(&format);
                let (version, shards) = (format.u32()?, format.u32()?);
                if version != FORMAT_VERSION || shards as usize != MemoryStore::SHARDS {
                    return Err(FileFault::OtherVersion(version));
                }
                database.secret = secret.as_slice().try_into().map_err(|_| InvalidRecord)?;
            }
        }
        Ok(database)
    }

    fn read_meta(&self) -> Result<Option<SavedMeta>, redb::Error> {
        let read = self.redb.begin_read()?;
        let meta = match read.open_table(META) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            meta => meta?,
        };
        let value =
            |name| Ok::<_, redb::Error>(meta.get(name)?.map(|value| value.value().to_vec()));
        let found = value("format")?.zip(value("secret")?);
        Ok(found.map(|(format, secret)| SavedMeta { format, secret }))
    }

    fn write_meta(&self) -> Result<(), redb::Error> {
        let shards = u32::try_from(MemoryStore::SHARDS).unwrap_or(u32::MAX);
        let format = [FORMAT_VERSION.to_le_bytes(), shards.to_le_bytes()].concat();
        let write = self.redb.begin_write()?;
        {
            let mut meta = write.open_table(META)?;
            meta.insert("format", &format[..])?;
            meta.insert("secret", &self.secret[..])?;
            write.open_table(JOURNAL)?;
            write.open_table(SHARDS)?;
        }
        Ok(write.commit()?)
    }

    pub(super) const fn secret(&self) -> [u8; 16] {
        self.secret
    }

    pub(super) const fn next_batch(&self) -> u64 {
        self.next_batch
    }

    pub(super) const fn journal_bytes(&self) -> usize {
        self.journal_bytes
    }

    pub(super) fn snapshot_bytes(&self) -> usize {
        self.shard_bytes.iter().sum()
    }

    /// Returns the time of the last batch; `None` in a new file.
    pub(super) fn saved_time(&self) -> Result<Option<SavedTime>, FileFault> {
        let newest = || -> Result<Option<Vec<u8>>, redb::Error> {
            let journal = self.redb.begin_read()?.open_table(JOURNAL)?;
            Ok(journal.last()?.map(|(_, value)| value.value().to_vec()))
        };
        Ok(newest()?.map(|value| Decoder(&value).time()).transpose()?)
    }

    /// Inserts all counters into `memory`, except those that are empty at `now`.
    pub(super) fn restore(&mut self, memory: &MemoryStore, now: Nanos) -> Result<(), FileFault> {
        let read = self.redb.begin_read().map_err(redb::Error::from)?;
        let shards = read.open_table(SHARDS).map_err(redb::Error::from)?;
        let mut shard_batches = vec![0; MemoryStore::SHARDS];
        for entry in shards.iter().map_err(redb::Error::from)? {
            let (index, value) = entry.map_err(redb::Error::from)?;
            let index = index.value() as usize;
            let mut decoder = Decoder(value.value());
            *shard_batches.get_mut(index).ok_or(InvalidRecord)? = decoder.u64()?;
            *self.shard_bytes.get_mut(index).ok_or(InvalidRecord)? = value.value().len();
            restore_records(&mut decoder, memory, now, |_| true)?;
        }
        let journal = read.open_table(JOURNAL).map_err(redb::Error::from)?;
        for entry in journal.iter().map_err(redb::Error::from)? {
            let (number, value) = entry.map_err(redb::Error::from)?;
            let batch = number.value();
            self.next_batch = batch + 1;
            self.journal_bytes += value.value().len();
            let mut decoder = Decoder(value.value().get(TIME_LEN..).ok_or(InvalidRecord)?);
            restore_records(&mut decoder, memory, now, |shard| shard_batches[shard] < batch)?;
        }
        Ok(())
    }

    /// Inserts all budgets into `memory`, except those that need not be kept at `now`.
    pub(super) fn restore_budgets(
        &self,
        memory: &MemoryStore,
        now: Nanos,
    ) -> Result<(), FileFault> {
        let read = self.redb.begin_read().map_err(redb::Error::from)?;
        budgets::restore(&read, memory, now)
    }

    /// Continues after the newest batch without restoring any counter.
    pub(super) fn skip_saved_batches(&mut self) -> Result<(), FileFault> {
        let read = self.redb.begin_read().map_err(redb::Error::from)?;
        let journal = read.open_table(JOURNAL).map_err(redb::Error::from)?;
        for entry in journal.iter().map_err(redb::Error::from)? {
            let (number, value) = entry.map_err(redb::Error::from)?;
            self.next_batch = number.value() + 1;
            self.journal_bytes += value.value().len();
        }
        Ok(())
    }

    /// Writes a batch and waits until it is on disk.
    pub(super) fn commit(&mut self, batch: Batch<'_>) -> Result<(), FileFault> {
        self.write(batch).map_err(FileFault::from)?;
        self.next_batch += 1;
        Ok(())
    }

    fn write(&mut self, batch: Batch<'_>) -> Result<(), redb::Error> {
        let write = self.redb.begin_write()?;
        batch.budgets.write(&write)?;
        {
            let mut shards = write.open_table(SHARDS)?;
            for (index, value) in batch.shards {
                shards.insert(index, &value[..])?;
                if let Some(bytes) = self.shard_bytes.get_mut(index as usize) {
                    *bytes = value.len();
                }
            }
            if let Some(time) = batch.changes.first_chunk_mut() {
                *time = encode_time((batch.read_time)());
            }
            let mut journal = write.open_table(JOURNAL)?;
            journal.insert(self.next_batch, &*batch.changes)?;
            self.journal_bytes += batch.changes.len();
            for _ in 0..MAX_DELETIONS {
                if journal.first()?.is_none_or(|(number, _)| batch.journal_start <= number.value())
                {
                    break;
                }
                let deleted = journal.pop_first()?.map_or(0, |(_, value)| value.value().len());
                self.journal_bytes = self.journal_bytes.saturating_sub(deleted);
            }
        }
        Ok(write.commit()?)
    }
}

/// Inserts the records of the shards that `is_wanted` selects.
fn restore_records(
    decoder: &mut Decoder<'_>,
    memory: &MemoryStore,
    now: Nanos,
    is_wanted: impl Fn(usize) -> bool,
) -> Result<(), FileFault> {
    while let Some(record) = decoder.record()? {
        let is_wanted = is_wanted(MemoryStore::shard_of(record.hash));
        if is_wanted && !memory.restore(record, now) {
            return Err(FileFault::TooManyCounters { max_keys: memory.max_keys() });
        }
    }
    Ok(())
}

impl From<InvalidRecord> for FileFault {
    fn from(_: InvalidRecord) -> Self {
        Self::Corrupt("invalid record".to_owned())
    }
}
