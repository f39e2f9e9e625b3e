//! Loads configuration from files or xDS.
//!
//! Guarantees:
//! - A published configuration is complete and valid.
//! - A failed load keeps the last good configuration and reports the reason.
//! - Revisions only increase.

pub mod file;
pub mod tables;
pub mod xds;

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::config::diagnostic::Diagnostics;
use crate::kernel::units::{Nanos, Revision};

/// The name and content of a configuration file or an xDS resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile {
    /// The configured path plus the path of the file below it, or the name of the xDS resource.
    pub name: Arc<str>,
    /// The content before parsing.
    pub bytes: Vec<u8>,
}

/// A function that parses files into a configuration with this revision, and its warnings.
pub type ConfigParser =
    dyn Fn(&[TextFile], Revision) -> Result<(Config, Diagnostics), Diagnostics> + Send + Sync;

/// A running source of configuration. Stops when every receiver of `published` is dropped.
#[derive(Debug)]
pub struct ConfigSource {
    /// The current configuration and its load status.
    pub published: watch::Receiver<PublishedConfig>,
    /// The handle that requests a load of the configuration.
    pub reload: ReloadRequest,
    /// The task of the source. If the task ends while the process serves, the process must exit.
    pub task: JoinHandle<()>,
}

/// A handle that requests a load of the configuration.
#[derive(Clone, Debug, Default)]
pub struct ReloadRequest(Arc<Notify>);

impl ReloadRequest {
    /// Requests a load of the configuration, even if no file changed.
    pub fn request(&self) {
        self.0.notify_one();
    }

    /// Waits for the next call of [`Self::request`].
    pub async fn requested(&self) {
        self.0.notified().await;
    }
}

/// The current configuration of a source, and the results of its loads.
#[derive(Clone, Debug, Default)]
pub struct PublishedConfig {
    /// The current configuration. The same `Arc` until a file changes; `None` before the first
    /// load.
    pub config: Option<Arc<Config>>,
    /// The results of all loads.
    pub status: LoadStatus,
}

/// The results of all loads of a source.
#[derive(Clone, Debug, Default)]
pub struct LoadStatus {
    /// The revision of the current configuration, 0 before the first successful load.
    pub revision: Revision,
    /// The number of successful loads, including loads of unchanged files.
    pub successful_loads: u64,
    /// The number of failed loads.
    pub failed_loads: u64,
    /// The time of the last successful load, since the Unix epoch.
    pub loaded_at: Option<Nanos>,
    /// The names of the files of the current configuration.
    pub files: Arc<[Arc<str>]>,
    /// The warnings about the current configuration.
    pub warnings: Arc<Diagnostics>,
    /// The last load, if it failed.
    pub last_error: Option<Arc<FailedLoad>>,
}

impl LoadStatus {
    fn record_success(&mut self, now: Nanos) {
        self.successful_loads += 1;
        self.loaded_at = Some(now);
        self.last_error = None;
    }
}

/// A failed load of the configuration.
#[derive(Debug)]
pub struct FailedLoad {
    /// The time of the load, since the Unix epoch.
    pub at: Nanos,
    /// The reason for the failure.
    pub reason: LoadFailure,
}

/// The reasons for a failed load of the configuration.
#[derive(Debug)]
pub enum LoadFailure {
    /// The files could not be read, or the xDS response could not be decoded.
    Unreadable(SourceReadError),
    /// The files have errors. Contains the errors and warnings.
    Invalid(Diagnostics),
    /// The xDS resources cannot be converted to files, or have no limits although
    /// `limits.xds.allow_empty` is off. Contains the error message.
    Unconvertible(String),
    /// The parser panicked, which is a bug in Sluicegate.
    ParserPanicked,
}

/// The reasons why files of limits cannot be read.
#[derive(Debug, Error)]
pub enum SourceReadError {
    /// The operating system returned an error.
    #[error("{}: cannot be read", path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A configured path is a device, a pipe or a socket.
    #[error("{}: neither a file nor a directory", path.display())]
    NeitherFileNorDirectory {
        /// The configured path.
        path: PathBuf,
    },
    /// A file is larger than the maximum.
    #[error("{}: larger than the maximum of {most} bytes", path.display())]
    TooLarge {
        /// The file that is too large.
        path: PathBuf,
        /// The maximum in bytes.
        most: u64,
    },
    /// The files are too large in total.
    #[error("{}: all limits files together exceed the maximum of {most} bytes", path.display())]
    TotalTooLarge {
        /// The file that exceeded the maximum.
        path: PathBuf,
        /// The maximum in bytes.
        most: u64,
    },
    /// There are too many files.
    #[error("{}: there are more limits files than the maximum of {most}", path.display())]
    TooManyFiles {
        /// The file that exceeded the maximum.
        path: PathBuf,
        /// The maximum number of files.
        most: usize,
    },
    /// Directories are nested too deeply.
    #[error("{}: nested more than {most} directories deep", path.display())]
    TooDeep {
        /// The first directory that is nested too deeply.
        path: PathBuf,
        /// The maximum number of directories below a configured path.
        most: usize,
    },
}

impl SourceReadError {
    /// Returns the error message with its cause, in one sentence.
    #[must_use]
    pub fn with_cause(&self) -> String {
        match self.source() {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }
}
