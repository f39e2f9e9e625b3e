//! A table in a file of CSV or JSON lines.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use super::load::{CheckNumber, Loaded, ReadError, load_rows};
use crate::config::tables::{LoadReport, Table, TableSpec};

/// The largest file, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// A table in a file, and the version of the file that was last read, with its problem. A file with a
/// problem is read again once it changes.
#[derive(Debug)]
pub(super) struct FileTable {
    path: PathBuf,
    read: Option<(FileStamp, Result<(), String>)>,
}

/// Changes with every write to the file, and with every file that replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    fn of(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

impl FileTable {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, read: None }
    }

    /// Loads the table if the file is not the one that was last read.
    pub(super) fn read(
        &mut self,
        spec: &Arc<TableSpec>,
        before: Option<&Table>,
        check: &CheckNumber,
    ) -> Loaded {
        let named = |error| self.named(&error);
        // Before the file is opened, because opening a pipe would wait for its writer.
        let metadata = fs::metadata(&self.path).map_err(named)?;
        let stamp = FileStamp::of(&metadata);
        if !metadata.is_file() || MAX_FILE_BYTES < stamp.size {
            return Err(self.wrong(&format!("not a file of at most {MAX_FILE_BYTES} bytes")));
        }
        match &self.read {
            Some((read, Ok(()))) if *read == stamp && before.is_some() => return Ok(None),
            Some((read, Err(problem))) if *read == stamp => {
                return Err(ReadError::Source(problem.clone()));
            }
            _ => {}
        }
        let loaded = self.load(stamp, spec, before, check);
        let outcome = loaded.as_ref().map(|_| ()).map_err(ToString::to_string);
        // A file that changed, or that cannot be read, may be good at the next look.
        let is_final = !matches!(loaded, Err(ReadError::Unstable | ReadError::Io(_)));
        self.read = is_final.then_some((stamp, outcome));
        loaded.map(Some)
    }

    fn load(
        &self,
        stamp: FileStamp,
        spec: &Arc<TableSpec>,
        before: Option<&Table>,
        check: &CheckNumber,
    ) -> Result<(Table, LoadReport), ReadError> {
        if stamp.size == 0 {
            return Err(self.wrong("the file is empty"));
        }
        let mut file = File::open(&self.path).map_err(|error| self.named(&error))?;
        if !ends_with_line(&mut file).map_err(|error| self.named(&error))? {
            return Err(self.wrong("the last line has no end, so the file may be half written"));
        }
        let loading = load_rows(spec, before, check, &file).map_err(|error| match error {
            ReadError::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.wrong(&error.to_string())
            }
            ReadError::Io(error) => self.named(&error).into(),
            other => other,
        })?;
        if FileStamp::of(&file.metadata()?) != stamp {
            return Err(ReadError::Unstable);
        }
        Ok(loading.finish()?)
    }

    fn wrong(&self, problem: &str) -> ReadError {
        ReadError::Source(format!("{}: {problem}", self.path.display()))
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

/// Returns `true` if the file ends with a line break. Leaves the file at its start.
fn ends_with_line(file: &mut File) -> io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(last == *b"\n")
}
