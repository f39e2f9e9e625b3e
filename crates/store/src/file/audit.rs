//! The audit log of the file store: one JSON line for each record, in a file beside the counters.
//!
//! Guarantees:
//! - A record is on disk when the append completes.
//! - A crash leaves the old file or the new one, because the file is replaced as a whole.
//! - A line that cannot be read is skipped, and removed with the next append.
//! - The file is read once; later reads need no I/O.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::private;
use crate::audit::{AUDIT_RETENTION, AuditRecord, MAX_AUDIT_RECORDS, StoredAuditRecord};
use crate::kernel::units::Nanos;

const FILE_NAME: &str = "audit.jsonl";
const NEW_FILE_NAME: &str = "audit.jsonl.new";

#[derive(Debug)]
pub(super) struct AuditFile {
    directory: PathBuf,
    /// The lines of the file, oldest first. `None` before the first successful read.
    lines: Mutex<Option<Vec<AuditLine>>>,
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
        Self { directory: directory.into(), lines: Mutex::default() }
    }

    /// Appends a record at the instant `now`. Blocks: it rewrites the file, at most a few hundred KiB.
    pub(super) fn append(&self, now: Nanos, record: &AuditRecord) -> io::Result<()> {
        let mut kept = self.lines.lock();
        let mut lines = self.current_lines(kept.take(), now)?;
        lines.retain(|line| line.id != record.id);
        let at_ms = now.0 / Nanos::MILLI.0;
        lines.push(AuditLine { id: record.id.clone(), at_ms, text: record.text.clone() });
        lines.drain(..lines.len().saturating_sub(MAX_AUDIT_RECORDS));
        self.write_lines(&lines)?;
        *kept = Some(lines);
        Ok(())
    }

    /// Returns all records. Blocks the first time.
    pub(super) fn read(&self, now: Nanos) -> io::Result<Vec<StoredAuditRecord>> {
        let mut kept = self.lines.lock();
        let lines = self.current_lines(kept.take(), now)?;
        let stored = |line: &AuditLine| StoredAuditRecord {
            age: now.since(line.time()),
            record: AuditRecord { id: line.id.clone(), text: line.text.clone() },
        };
        let records = lines.iter().map(stored).collect();
        *kept = Some(lines);
        Ok(records)
    }

    /// Returns the lines that have not expired, from memory or from the file.
    fn current_lines(
        &self,
        kept: Option<Vec<AuditLine>>,
        now: Nanos,
    ) -> io::Result<Vec<AuditLine>> {
        let mut lines = match kept {
            Some(lines) => lines,
            None => self.read_file()?,
        };
        lines.retain(|line| now.since(line.time()) <= AUDIT_RETENTION);
        Ok(lines)
    }

    fn read_file(&self) -> io::Result<Vec<AuditLine>> {
        let path = self.directory.join(FILE_NAME);
        let mut file = match private::open_file(&path, OpenOptions::new().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let lines = bytes.split(|byte| *byte == b'\n');
        Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    fn write_lines(&self, lines: &[AuditLine]) -> io::Result<()> {
        let new_path = self.directory.join(NEW_FILE_NAME);
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        let options = &mut OpenOptions::new();
        let mut new =
            private::open_file(&new_path, options.write(true).create(true).truncate(true))?;
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
