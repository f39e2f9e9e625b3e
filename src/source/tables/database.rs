//! A table in a database, which sends rows as JSON lines.
//!
//! Guarantees:
//! - Rows that changed while a read ran are in the next read: each covers [`OVERLAP`] again.
//! - All rows are read once an hour, also with a query of changes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::load::{CheckNumber, Loaded, ReadError};
use crate::config::tables::{BadRow, Loading, RowFormat, Table, TableSpec, read_rows};
use crate::kernel::units::Nanos;

/// The time by which a read of changes overlaps the one before. A transaction may commit a row some
/// time after the instant that the row names.
const OVERLAP: Duration = Duration::from_secs(30);

/// The pause between two full reads, if there is a query of changes.
const FULL_READ_INTERVAL: Nanos = Nanos::from_secs(3600);

/// The most bytes of changed rows in one read. More changes are read with all rows.
const MAX_CHANGED_BYTES: usize = 64 << 20;

/// The chunks of rows that wait for the loader.
const QUEUED_CHUNKS: usize = 16;

/// The rows of a read.
#[derive(Clone, Copy, Debug)]
pub enum RowRead {
    /// All rows.
    All,
    /// The rows that changed since this instant of the database's clock.
    Since(SystemTime),
}

/// A database with the rows of a table.
pub trait RowDatabase: Send {
    /// `true` if the database can tell which rows changed.
    fn knows_changes(&self) -> bool;

    /// Sends rows as chunks of JSON lines. Returns the database's time at the start of the read, or a
    /// message.
    fn read(
        &mut self,
        read: RowRead,
        rows: mpsc::Sender<String>,
    ) -> BoxFuture<'_, Result<SystemTime, String>>;

    /// Waits for a notification of a change; forever if there are none.
    fn notified(&mut self) -> BoxFuture<'_, ()>;
}

pub(super) struct DatabaseTable {
    database: Box<dyn RowDatabase>,
    /// The database's time at the start of the last good read.
    read_at: Option<SystemTime>,
    full_read_at: Option<Nanos>,
    /// The bad rows of the last read of changes.
    bad_rows: Vec<BadRow>,
}

impl DatabaseTable {
    pub(super) fn new(database: Box<dyn RowDatabase>) -> Self {
        Self { database, read_at: None, full_read_at: None, bad_rows: Vec::new() }
    }

    pub(super) async fn notified(&mut self) {
        self.database.notified().await;
    }

    pub(super) async fn read(
        &mut self,
        spec: &Arc<TableSpec>,
        before: Option<&Arc<Table>>,
        check: &Arc<CheckNumber>,
        now: Nanos,
    ) -> Loaded {
        let is_full_due = self.full_read_at.is_none_or(|at| FULL_READ_INTERVAL < now.since(at));
        let since = self.read_at.filter(|_| self.database.knows_changes() && !is_full_due);
        if let Some((since, before)) = since.zip(before) {
            return self.read_changes(since, before, check).await;
        }
        // Also if this read is refused: meanwhile, changes must arrive.
        self.full_read_at = Some(now);
        self.read_all(spec, before, check).await
    }

    async fn read_all(
        &mut self,
        spec: &Arc<TableSpec>,
        before: Option<&Arc<Table>>,
        check: &Arc<CheckNumber>,
    ) -> Loaded {
        let (sender, mut chunks) = mpsc::channel::<String>(QUEUED_CHUNKS);
        let (whole, is_whole) = oneshot::channel::<()>();
        let (spec, before, check) = (Arc::clone(spec), before.cloned(), Arc::clone(check));
        let loading = tokio::task::spawn_blocking(move || {
            let mut loading = Loading::new(Arc::clone(&spec), before.as_deref());
            let check = |column: &str, number| check(spec.name(), column, number);
            while let Some(chunk) = chunks.blocking_recv() {
                let mut refused = None;
                let read = read_rows(RowFormat::JsonLines, chunk.as_bytes(), &mut |row| {
                    loading.add(row, &check).map_err(|error| {
                        refused = Some(error.clone());
                        std::io::Error::other(error)
                    })
                });
                if let Some(error) = refused {
                    return Err(ReadError::from(error));
                }
                read?;
            }
            // A closed channel may also mean a read that failed.
            if is_whole.blocking_recv().is_err() {
                return Ok(None);
            }
            Ok(Some(loading.finish()?))
        });
        let read = self.database.read(RowRead::All, sender).await;
        if read.is_ok() {
            whole.send(()).ok();
        } else {
            drop(whole);
        }
        // If the loader refused the rows, the read failed for that reason.
        let loaded = loading.await.map_err(std::io::Error::other)??;
        let read_at = read.map_err(ReadError::Source)?;
        self.read_at = Some(read_at);
        Ok(loaded)
    }

    async fn read_changes(
        &mut self,
        since: SystemTime,
        before: &Arc<Table>,
        check: &Arc<CheckNumber>,
    ) -> Loaded {
        let since = since.checked_sub(OVERLAP).unwrap_or(SystemTime::UNIX_EPOCH);
        let (sender, mut chunks) = mpsc::channel::<String>(QUEUED_CHUNKS);
        let collect = async {
            let mut lines = String::new();
            while let Some(chunk) = chunks.recv().await {
                lines.push_str(&chunk);
                if MAX_CHANGED_BYTES < lines.len() {
                    return None;
                }
            }
            Some(lines)
        };
        let (read, lines) =
            tokio::join!(self.database.read(RowRead::Since(since), sender), collect);
        let Some(lines) = lines else {
            self.full_read_at = None;
            return Err(ReadError::Source("too many rows changed; reading all rows".to_owned()));
        };
        let read_at = read.map_err(ReadError::Source)?;
        let name = before.name();
        let check = |column: &str, number| check(name, column, number);
        let (table, report) = before.with_json_changes(&lines, &check)?;
        self.read_at = Some(read_at);
        // The overlap repeats the bad rows of the last reads, too.
        let is_same = table.digest() == before.digest() && report.bad_rows == self.bad_rows;
        self.bad_rows.clone_from(&report.bad_rows);
        Ok((!is_same).then_some((table, report)))
    }
}
