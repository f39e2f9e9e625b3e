//! A table in a file of CSV or JSON lines.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use super::load::{CheckNumber, Loaded, ReadError};
use crate::config::tables::{Loading, RowFormat, Table, TableSpec, read_rows};

/// The largest file, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// A table in a file, and the version of the file that was last read.
#[derive(Debug)]
pub(super) struct FileTable {
    path: PathBuf,
    format: RowFormat,
    read: Option<FileStamp>,
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
    pub(super) const fn new(path: PathBuf, format: RowFormat) -> Self {
        Self { path, format, read: None }
    }

    /// Loads the table if the file is not the one that was last read.
    pub(super) fn read(
        &mut self,
        spec: &Arc<TableSpec>,
        before: Option<&Table>,
        check: &CheckNumber,
    ) -> Loaded {
        // Opening a pipe would wait for its writer.
        let is_file = fs::metadata(&self.path).map_err(|error| self.named(&error))?.is_file();
        let file = if is_file { File::open(&self.path) } else { File::open("/dev/null") };
        let mut file = file.map_err(|error| self.named(&error))?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || MAX_FILE_BYTES < metadata.size() {
            let path = self.path.display();
            let problem = format!("{path}: not a file of at most {MAX_FILE_BYTES} bytes");
            return Err(io::Error::other(problem).into());
        }
        let stamp = FileStamp::of(&metadata);
        if self.read == Some(stamp) && before.is_some() {
            return Ok(None);
        }
        if !ends_with_line(&mut file).map_err(|error| self.named(&error))? {
            let path = self.path.display();
            let problem =
                format!("{path}: the last line has no end, so the file may be half written");
            return Err(io::Error::other(problem).into());
        }
        let mut loading = Loading::new(Arc::clone(spec), before);
        let check = |column: &str, number| check(spec.name(), column, number);
        let mut refused = None;
        let rows = read_rows(self.format, &file, &mut |row| {
            loading.add(row, &check).map_err(|error| {
                refused = Some(error.clone());
                io::Error::other(error)
            })
        });
        if let Some(error) = refused {
            return Err(error.into());
        }
        rows.map_err(|error| self.named(&error))?;
        if FileStamp::of(&file.metadata()?) != stamp {
            return Err(ReadError::Unstable);
        }
        let loaded = loading.finish()?;
        self.read = Some(stamp);
        Ok(Some(loaded))
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

/// Returns `true` if the file is empty or ends with a line break. Leaves the file at its start.
fn ends_with_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(last == *b"\n")
}
