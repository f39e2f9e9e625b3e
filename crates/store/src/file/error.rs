//! The errors of the file store, with their causes and fixes.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error about the directory of a file store.
#[derive(Debug)]
pub struct FileStoreError {
    directory: PathBuf,
    fault: FileFault,
}

/// The cause of a [`FileStoreError`].
#[derive(Debug)]
pub enum FileFault {
    /// Another process has opened the file.
    InUse,
    /// The contents are invalid.
    Corrupt(String),
    /// A newer version of the program wrote the file.
    OtherVersion(u32),
    /// The file contains more counters, or more budgets, than `store.max_keys`.
    TooManyCounters {
        /// The setting `store.max_keys`.
        max_keys: usize,
    },
    /// The operating system returned an error.
    Io(io::Error),
}

impl FileStoreError {
    pub(super) fn new(directory: &Path, fault: FileFault) -> Self {
        Self { directory: directory.to_owned(), fault }
    }

    /// Returns the cause.
    #[must_use]
    pub const fn fault(&self) -> &FileFault {
        &self.fault
    }
}

impl std::error::Error for FileStoreError {}

/// `file:///data: no space left on device; free some space (setting store.url)`.
impl fmt::Display for FileStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.directory.display();
        write!(f, "file://{directory}: ")?;
        match &self.fault {
            FileFault::InUse => f.write_str(
                "another process uses this directory; stop it, or use a directory for each process \
                 (setting store.url)",
            ),
            FileFault::Corrupt(why) => write!(
                f,
                "the counters are corrupt: {why}; to start with empty counters, move the directory away: \
                 mv {directory} {directory}.corrupt (setting store.url)"
            ),
            FileFault::OtherVersion(version) => write!(
                f,
                "the file has format {version}, which this version cannot read; start a newer version, or \
                 use another directory (setting store.url)"
            ),
            FileFault::TooManyCounters { max_keys } => write!(
                f,
                "the file has more counters or budgets than store.max_keys ({max_keys}); raise store.max_keys"
            ),
            FileFault::Io(error) => {
                write!(f, "{}; {} (setting store.url)", io_text(error), io_fix(error))
            }
        }
    }
}

/// Returns the system's text of an error without its number: `No space left on device`.
fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn io_fix(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space on the volume"
        }
        io::ErrorKind::FileTooLarge => "raise the limit on file sizes (ulimit -f)",
        io::ErrorKind::ReadOnlyFilesystem => "mount the volume for writing",
        io::ErrorKind::PermissionDenied => "let this user write to the directory",
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => "name a directory",
        _ => "check the volume",
    }
}

impl From<io::Error> for FileFault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The file is shorter than its header says, or its header is invalid.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => {
                Self::Corrupt(error.to_string())
            }
            _ => Self::Io(error),
        }
    }
}

impl From<redb::Error> for FileFault {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::InUse,
            redb::Error::Io(error) => error.into(),
            other => Self::Corrupt(other.to_string()),
        }
    }
}
