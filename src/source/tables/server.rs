//! A table on a server: rows in PostgreSQL or Redis, or a file over HTTP.
//!
//! Guarantees:
//! - A change that is committed within [`OVERLAP`] of its time stamp is never missed.
//! - With a query of changes, all rows are still read once an hour.
//! - Bad rows are reported until their ids have good ones.
//! - A read that failed on the way changes nothing, also if its first rows arrived.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use hyper::body::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::load::{CheckNumber, Loaded, ReadError, load_rows};
use crate::config::tables::{BadRow, LoadReport, Table, TableSpec};
use crate::kernel::units::Nanos;

/// The time by which a read of changes overlaps the one before. A transaction may commit a row some
/// time after the instant that the row names.
const OVERLAP: Duration = Duration::from_secs(30);

/// The pause between two full reads, if there is a query of changes.
const FULL_READ_INTERVAL: Nanos = Nanos::from_secs(3600);

/// The most bytes of changed rows in one read. If more changed, all rows are read instead.
const MAX_CHANGED_BYTES: usize = 64 << 20;

/// The chunks of rows that wait for the loader.
const QUEUED_CHUNKS: usize = 16;

/// Which rows to read.
#[derive(Clone, Copy, Debug)]
pub enum RowRead {
    /// All rows.
    All,
    /// The rows that changed since this instant of the server's clock.
    Since(SystemTime),
}

/// The end of a read without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsEnd {
    /// The rows were sent. The time is that of the server at the start of the read, if the server
    /// knows which rows change.
    Sent(Option<SystemTime>),
    /// No row was sent, because all are the same as in the last read.
    Same,
}

/// A server with the rows of a table.
pub trait RowServer: Send {
    /// `true` if the server can tell which rows changed.
    fn knows_changes(&self) -> bool {
        false
    }

    /// `true` if a read of unchanged rows is cheap.
    fn tells_sameness(&self) -> bool {
        self.knows_changes()
    }

    /// Sends rows in chunks that [`read_rows`](crate::config::tables::read_rows) accepts. Returns how
    /// the read ended, or a message.
    fn read(
        &mut self,
        read: RowRead,
        rows: mpsc::Sender<Bytes>,
    ) -> BoxFuture<'_, Result<RowsEnd, String>>;

    /// Waits for a notification of a change; forever if there are none.
    fn notified(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

pub(super) struct ServerTable {
    server: Box<dyn RowServer>,
    /// The server's time at the start of the last good read.
    read_at: Option<SystemTime>,
    full_read_at: Option<Nanos>,
    /// The bad rows of the last report.
    bad_rows: Vec<BadRow>,
    /// The reason why the rows that the server has were refused.
    refused: Option<String>,
}

impl ServerTable {
    pub(super) fn new(server: Box<dyn RowServer>) -> Self {
        Self { server, read_at: None, full_read_at: None, bad_rows: Vec::new(), refused: None }
    }

    pub(super) async fn notified(&mut self) {
        self.server.notified().await;
    }

    /// Returns the pause after a read that took `took`. Reads of a server that always sends all rows
    /// take at most a tenth of the time.
    pub(super) fn pause(&self, refresh: Duration, took: Duration) -> Duration {
        if self.server.tells_sameness() { refresh } else { refresh.max(took.saturating_mul(9)) }
    }

    pub(super) async fn read(
        &mut self,
        spec: &Arc<TableSpec>,
        before: Option<&Arc<Table>>,
        check: &Arc<CheckNumber>,
        now: Nanos,
    ) -> Loaded {
        let is_full_due = self.full_read_at.is_none_or(|at| FULL_READ_INTERVAL < now.since(at));
        let since = self.read_at.filter(|_| self.server.knows_changes() && !is_full_due);
        if let Some((since, before)) = since.zip(before) {
            return self.read_changes(since, before, check).await;
        }
        // Set even if this read is refused, so that changes keep arriving meanwhile.
        self.full_read_at = Some(now);
        self.read_all(spec, before, check).await
    }

    async fn read_all(
        &mut self,
        spec: &Arc<TableSpec>,
        before: Option<&Arc<Table>>,
        check: &Arc<CheckNumber>,
    ) -> Loaded {
        let before_digest = before.map(|before| before.digest());
        let (sender, chunks) = mpsc::channel(QUEUED_CHUNKS);
        let (whole, is_whole) = oneshot::channel::<()>();
        let (spec, before, check) = (Arc::clone(spec), before.cloned(), Arc::clone(check));
        let loading = tokio::task::spawn_blocking(move || {
            let mut chunks = Chunks { receiver: chunks, current: Bytes::new(), has_ended: false };
            let loading = load_rows(&spec, before.as_deref(), &*check, &mut chunks);
            // Chunks also end when the read failed. Then its error counts, not the loader's.
            if chunks.has_ended && is_whole.blocking_recv().is_err() {
                return Ok(None);
            }
            Ok::<_, ReadError>(Some(loading?.finish()?))
        });
        let read = self.server.read(RowRead::All, sender).await;
        match &read {
            Ok(RowsEnd::Sent(_)) => drop(whole.send(())),
            Ok(RowsEnd::Same) | Err(_) => drop(whole),
        }
        // A loader that refuses rows also fails the read, so the loader's reason comes first.
        let loaded = loading.await.map_err(io::Error::other)?;
        if let Ok(RowsEnd::Same) = read {
            return self
                .refused
                .clone()
                .map_or(Ok(None), |refused| Err(ReadError::Source(refused)));
        }
        self.refused = loaded.as_ref().err().map(ToString::to_string);
        let loaded = loaded?;
        if let RowsEnd::Sent(Some(at)) = read.map_err(ReadError::Source)? {
            self.read_at = Some(at);
        }
        Ok(loaded.filter(|(table, report)| self.is_news(before_digest, table, report)))
    }

    async fn read_changes(
        &mut self,
        since: SystemTime,
        before: &Arc<Table>,
        check: &Arc<CheckNumber>,
    ) -> Loaded {
        let since = since.checked_sub(OVERLAP).unwrap_or(SystemTime::UNIX_EPOCH);
        let (sender, mut chunks) = mpsc::channel::<Bytes>(QUEUED_CHUNKS);
        let collect = async {
            let mut lines = Vec::new();
            while let Some(chunk) = chunks.recv().await {
                lines.extend_from_slice(&chunk);
                if MAX_CHANGED_BYTES < lines.len() {
                    return None;
                }
            }
            Some(lines)
        };
        let (read, lines) = tokio::join!(self.server.read(RowRead::Since(since), sender), collect);
        let Some(lines) = lines else {
            self.full_read_at = None;
            return Err(ReadError::Source(
                "more than 64 MiB of rows changed; reading all rows".to_owned(),
            ));
        };
        let RowsEnd::Sent(read_at) = read.map_err(ReadError::Source)? else { return Ok(None) };
        let lines = String::from_utf8(lines).map_err(|_| ReadError::Source(NOT_TEXT.to_owned()))?;
        let name = before.name();
        let check = |column: &str, number| check(name, column, number);
        let (table, report) = before.with_json_changes(&lines, &self.bad_rows, &check)?;
        self.read_at = read_at;
        let loaded = Some((table, report));
        Ok(loaded.filter(|(table, report)| self.is_news(Some(before.digest()), table, report)))
    }

    /// Returns `true` if rows or bad rows differ from the last read.
    fn is_news(&mut self, before: Option<u64>, table: &Table, report: &LoadReport) -> bool {
        let is_same = before == Some(table.digest()) && report.bad_rows == self.bad_rows;
        self.bad_rows.clone_from(&report.bad_rows);
        !is_same
    }
}

const NOT_TEXT: &str = "the rows of `changes` are not UTF-8";

/// The chunks of a read, as bytes.
struct Chunks {
    receiver: mpsc::Receiver<Bytes>,
    current: Bytes,
    /// `true` if no chunk follows.
    has_ended: bool,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.has_ended {
            match self.receiver.blocking_recv() {
                Some(chunk) => self.current = chunk,
                None => self.has_ended = true,
            }
        }
        let count = self.current.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.current.split_to(count));
        Ok(count)
    }
}
