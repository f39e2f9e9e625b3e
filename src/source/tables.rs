//! Loads a table from its source, again and again, and keeps its last good copy on disk.
//!
//! Guarantees:
//! - A source that fails or would remove too many ids changes nothing. The state says why.
//! - The copy is written to a new file, which then replaces the old one.
//! - A file is read only if it stays the same while it is read.
//!
//! Not covered:
//! - What a row means (see `tables`).

mod copy;
mod file;
mod http;
mod load;
mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::config::tables::{LoadReport, Table, TableSpec, TableStates};
use crate::kernel::units::Nanos;
use copy::CopyFile;
use file::FileTable;
pub use http::HttpRows;
pub use load::CheckNumber;
use load::{Loaded, ReadError};
use server::ServerTable;
pub use server::{RowRead, RowServer, RowsEnd};

/// Publishes the current versions of all tables.
pub type PublishTables = dyn Fn(Arc<[Arc<Table>]>) + Send + Sync;

/// The source of a table's rows.
pub enum RowSource {
    /// A file.
    File(PathBuf),
    /// A server.
    Server(Box<dyn RowServer>),
}

/// A table and where it comes from.
pub struct TableOptions {
    /// The definition.
    pub spec: Arc<TableSpec>,
    /// The source.
    pub source: RowSource,
    /// The pause between two reads.
    pub refresh: Nanos,
    /// The file with the last good copy.
    pub copy: Option<PathBuf>,
}

/// The parts of the service that a table is loaded for.
#[derive(Clone)]
pub struct TableContext {
    /// The states of all tables.
    pub states: Arc<TableStates>,
    /// Publishes new versions.
    pub publish: Arc<PublishTables>,
    /// Checks the numbers of rows.
    pub check: Arc<CheckNumber>,
    /// Returns the time, since the Unix epoch.
    pub now: Arc<dyn Fn() -> Nanos + Send + Sync>,
}

struct TableLoader {
    spec: Arc<TableSpec>,
    context: TableContext,
    current: Option<Arc<Table>>,
    copy: Option<CopyFile>,
    copying: Copying,
}

/// The writes of the copy.
#[derive(Default)]
struct Copying {
    /// The digest of the version in the copy.
    written: Arc<Mutex<Option<u64>>>,
    /// The start of the last write.
    started_at: Option<Nanos>,
    task: Option<JoinHandle<()>>,
}

impl Copying {
    /// Returns `true` if this version is not in the copy, and another write may begin.
    fn is_due(&self, digest: u64, now: Nanos) -> bool {
        let is_idle = self.task.as_ref().is_none_or(JoinHandle::is_finished);
        let is_time = self.started_at.is_none_or(|at| COPY_INTERVAL < now.since(at));
        is_idle && is_time && *self.written.lock() != Some(digest)
    }
}

/// The pause between two writes of the copy, which may be large.
const COPY_INTERVAL: Nanos = Nanos::from_secs(60);

/// Loads a table for as long as the process runs.
pub async fn follow(options: TableOptions, context: TableContext) {
    let TableOptions { spec, source, refresh, copy } = options;
    let copy = copy.map(CopyFile::new);
    let copying = Copying::default();
    let mut loader = TableLoader { spec, context, current: None, copy, copying };
    loader.load_copy().await;
    match source {
        RowSource::File(path) => loader.follow_file(FileTable::new(path), refresh).await,
        RowSource::Server(server) => {
            loader.follow_server(ServerTable::new(server), refresh).await;
        }
    }
}

/// Loads a table once, from a file of rows or a copy. Bad rows keep their row of `before`.
///
/// # Errors
/// The file cannot be read, is not complete, or would remove too many ids of `before`.
pub fn load_file(
    spec: &Arc<TableSpec>,
    path: &Path,
    before: Option<&Table>,
    check: &CheckNumber,
) -> Result<(Table, LoadReport), String> {
    let loaded = FileTable::new(path.to_owned()).read(spec, before, check);
    loaded.and_then(|loaded| loaded.ok_or(ReadError::Unstable)).map_err(|error| error.to_string())
}

/// The looks whether a version is still in use, and the pause between them.
const FREE_LOOKS: usize = 100;
const FREE_PAUSE: Duration = Duration::from_millis(100);

/// The shortest pause between two reads of a server that notifies of changes.
const NOTIFIED_PAUSE: Duration = Duration::from_millis(50);

/// The pause after the first failed read of a server. It doubles with each further one, up to the
/// pause between two reads.
const FIRST_RETRY: Duration = Duration::from_secs(1);

impl TableLoader {
    async fn follow_file(mut self, mut file: FileTable, refresh: Nanos) {
        loop {
            let (spec, before) = (Arc::clone(&self.spec), self.current.clone());
            let check = Arc::clone(&self.context.check);
            // The file is read on a thread that may block.
            let read = tokio::task::spawn_blocking(move || {
                let loaded = file.read(&spec, before.as_deref(), &*check);
                (file, loaded)
            });
            let Ok((same_file, loaded)) = read.await else { return };
            file = same_file;
            self.apply(loaded);
            tokio::time::sleep(Duration::from(refresh)).await;
        }
    }

    async fn follow_server(mut self, mut server: ServerTable, refresh: Nanos) {
        let (refresh, mut retry) = (Duration::from(refresh), FIRST_RETRY);
        loop {
            let start = (self.context.now)();
            let loaded =
                server.read(&self.spec, self.current.as_ref(), &self.context.check, start).await;
            let took = (self.context.now)().since(start);
            let has_failed = loaded.is_err();
            self.apply(loaded);
            tokio::time::sleep(NOTIFIED_PAUSE.min(refresh)).await;
            // A failed read may have used up a notification, so it is repeated soon.
            let pause =
                if has_failed { retry.min(refresh) } else { server.pause(refresh, took.into()) };
            retry = if has_failed { retry.saturating_mul(2) } else { FIRST_RETRY };
            drop(tokio::time::timeout(pause, server.notified()).await);
        }
    }

    async fn load_copy(&mut self) {
        let Some(copy) = &self.copy else { return };
        let (copy, spec) = (copy.clone(), Arc::clone(&self.spec));
        let check = Arc::clone(&self.context.check);
        let read = tokio::task::spawn_blocking(move || copy.read(&spec, &*check));
        let Ok(Some((table, report))) = read.await else { return };
        *self.copying.written.lock() = Some(table.digest());
        self.publish(table, report, true);
    }

    fn apply(&mut self, loaded: Loaded) {
        match loaded {
            Ok(None) => self.confirm(),
            Ok(Some((table, report))) => {
                log_load(&table, &report);
                self.publish(table, report, false);
            }
            Err(error) => self.fail(&error),
        }
        self.write_copy_if_due();
    }

    fn publish(&mut self, table: Table, report: LoadReport, is_from_copy: bool) {
        let (table, now) = (Arc::new(table), (self.context.now)());
        let before = self.current.replace(Arc::clone(&table));
        let all = self.context.states.update(self.spec.name(), |state| {
            state.table = Some(table);
            state.is_from_copy = is_from_copy;
            state.changed_at = Some(now);
            state.confirmed_at = (!is_from_copy).then_some(now);
            (state.bad, state.bad_rows) = (report.bad, report.bad_rows);
            state.error = None;
        });
        if let Some(all) = all {
            (self.context.publish)(all);
        }
        if let Some(before) = before {
            tokio::spawn(free(before));
        }
    }

    /// Records that the source has the rows in use, also if they came from the copy.
    fn confirm(&self) {
        let now = (self.context.now)();
        self.context.states.update(self.spec.name(), |state| {
            state.is_from_copy = false;
            state.confirmed_at = Some(now);
            state.error = None;
        });
    }

    /// Records a failure. A repeated one is logged once.
    fn fail(&self, error: &ReadError) {
        let (name, text) = (self.spec.name(), shown(&error.to_string()));
        let mut is_new = false;
        self.context.states.update(name, |state| {
            is_new = state.error.as_deref() != Some(&*text);
            state.error = Some(text.as_str().into());
        });
        if is_new {
            let first = "this replica waits for its first rows";
            let effect = self.current.as_ref().map_or(first, |_| "the rows before stay");
            tracing::warn!(table = name, error = text, "failed to load the table, {effect}");
        }
    }

    /// Writes the copy beside the reads, which must not wait for it.
    fn write_copy_if_due(&mut self) {
        let Some((copy, table)) = self.copy.clone().zip(self.current.clone()) else { return };
        let (now, digest) = ((self.context.now)(), table.digest());
        if !self.copying.is_due(digest, now) {
            return;
        }
        self.copying.started_at = Some(now);
        let written = Arc::clone(&self.copying.written);
        self.copying.task = Some(tokio::task::spawn_blocking(move || match copy.write(&table) {
            Ok(()) => *written.lock() = Some(digest),
            Err(error) => {
                let (table, path) = (table.name(), copy.path().display().to_string());
                tracing::warn!(table, path, %error, "failed to write the copy of the table");
            }
        }));
    }
}

/// The longest error that is shown, in characters. A server chooses its text.
const MAX_ERROR: usize = 1_000;

/// Returns a text of one line.
fn shown(error: &str) -> String {
    let plain = |character: char| if character.is_control() { ' ' } else { character };
    error.chars().take(MAX_ERROR).map(plain).collect()
}

/// Frees a version on a thread that may block, once no check uses it. A million rows take milliseconds, for
/// which a check must not wait.
async fn free(table: Arc<Table>) {
    for _ in 0..FREE_LOOKS {
        if Arc::strong_count(&table) == 1 {
            break;
        }
        tokio::time::sleep(FREE_PAUSE).await;
    }
    tokio::task::spawn_blocking(move || drop(table));
}

fn log_load(table: &Table, report: &LoadReport) {
    let (name, rows, digest) = (table.name(), table.rows(), format!("{:016x}", table.digest()));
    match report.bad_rows.first() {
        None => tracing::info!(table = name, rows, digest, "table loaded"),
        Some(first) => tracing::warn!(
            table = name, rows, digest, bad_rows = report.bad, first_bad_row = %first,
            "table loaded without its bad rows"
        ),
    }
}
