//! The audit log of the file store: one JSON line for each record, in a file beside the counters.
//!
//! Guarantees:
//! - A record is on disk when the call returns.
//! - A crash leaves the old file or the new one, because the file is replaced as a whole.
//! - A line that cannot be read is skipped.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::kernel::units::Nanos;
use crate::store::audit::{AUDIT_RETENTION, AuditRecord, MAX_AUDIT_RECORDS, StoredAuditRecord};

const FILE_NAME: &str = "audit.jsonl";
const NEW_FILE_NAME: &str = "audit.jsonl.new";

#[derive(Debug)]
pub(super) struct AuditFile {
    directory: PathBuf,
    lock: Mutex<()>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct AuditLine {
    id: Box<str>,
    /// Milliseconds since the Unix epoch.
    at_ms: u64,
    text: Box<str>,
}

impl AuditFile {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.into(), lock: Mutex::default() }
    }

    /// Appends a record at the instant `now`. Cost: rewrites the file, at most a few hundred KiB.
    pub(super) fn append(&self, now: Nanos, record: &AuditRecord) -> io::Result<()> {
        let _guard = self.lock.lock();
        let mut lines = self.read_lines(now)?;
        lines.retain(|line| line.id != record.id);
        let at_ms = now.0 / Nanos::MILLI.0;
        lines.push(AuditLine { id: record.id.clone(), at_ms, text: record.text.clone() });
        lines.drain(..lines.len().saturating_sub(MAX_AUDIT_RECORDS));
        self.write_lines(&lines)
    }

    pub(super) fn read(&self, now: Nanos) -> io::Result<Vec<StoredAuditRecord>> {
        let _guard = self.lock.lock();
        let stored = |line: AuditLine| StoredAuditRecord {
            age: now.since(line.time()),
            record: AuditRecord { id: line.id, text: line.text },
        };
        Ok(self.read_lines(now)?.into_iter().map(stored).collect())
    }

    fn read_lines(&self, now: Nanos) -> io::Result<Vec<AuditLine>> {
        let text = match fs::read_to_string(self.directory.join(FILE_NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        let lines = text.lines().filter_map(|line| serde_json::from_str::<AuditLine>(line).ok());
        Ok(lines.filter(|line| now.since(line.time()) <= AUDIT_RETENTION).collect())
    }

    fn write_lines(&self, lines: &[AuditLine]) -> io::Result<()> {
        let new_path = self.directory.join(NEW_FILE_NAME);
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        let mut new = File::create(&new_path)?;
        new.write_all(&text)?;
        new.sync_all()?;
        fs::rename(&new_path, self.directory.join(FILE_NAME))?;
        File::open(&self.directory)?.sync_all()
    }
}

impl AuditLine {
    const fn time(&self) -> Nanos {
        Nanos(self.at_ms.saturating_mul(Nanos::MILLI.0))
    }
}
