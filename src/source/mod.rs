//! Where configuration comes from.
//!
//! Guarantees: what is published is complete and sound; a refused load leaves the last good
//! configuration in force and says why; revisions only grow.
//! Leaves out: what texts mean ([`crate::config`]) and who acts on them: a source and the engine
//! meet over the channel of [`Published`].

pub mod file;
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

/// A text and the name under which a person knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile {
    /// The path as it was given, and the path below it.
    pub name: Arc<str>,
    /// What is in it, undecoded.
    pub bytes: Vec<u8>,
}

/// Text to meaning: the configuration of this revision and its warnings, or everything wrong.
pub type Load =
    dyn Fn(&[TextFile], Revision) -> Result<(Config, Diagnostics), Diagnostics> + Send + Sync;

/// A running source. It stops when nobody receives any more.
#[derive(Debug)]
pub struct Source {
    /// What is in force and how it got there.
    pub published: watch::Receiver<Published>,
    /// Asks for a load.
    pub reload: Reload,
    /// Ends only when the source has stopped; its loss is fatal.
    pub task: JoinHandle<()>,
}

/// Asks a source for a load.
#[derive(Clone, Debug, Default)]
pub struct Reload(Arc<Notify>);

impl Reload {
    /// Loads soon, whether or not anything changed.
    pub fn now(&self) {
        self.0.notify_one();
    }

    /// Waits until somebody asks.
    pub async fn asked(&self) {
        self.0.notified().await;
    }
}

/// What a source has to say at the moment.
#[derive(Clone, Debug, Default)]
pub struct Published {
    /// The configuration in force; none until a load is accepted. The same allocation as long as no
    /// text changes.
    pub config: Option<Arc<Config>>,
    /// How it got there.
    pub status: LoadStatus,
}

/// How loads went.
#[derive(Clone, Debug, Default)]
pub struct LoadStatus {
    /// The revision in force; 0 when there is none.
    pub revision: Revision,
    /// Loads that were accepted, those that changed no text among them.
    pub loads: u64,
    /// Loads that were refused.
    pub refused: u64,
    /// When the last load was accepted.
    pub loaded_at: Option<Nanos>,
    /// The names of the files in force.
    pub files: Arc<[Arc<str>]>,
    /// What is probably not as it was meant in the files in force.
    pub warnings: Arc<Diagnostics>,
    /// The last load, when it was refused.
    pub last_error: Option<Arc<Refused>>,
}

impl LoadStatus {
    fn accept(&mut self, at: Nanos) {
        self.loads += 1;
        self.loaded_at = Some(at);
        self.last_error = None;
    }
}

/// A refused load.
#[derive(Debug)]
pub struct Refused {
    /// When.
    pub at: Nanos,
    /// Why.
    pub why: Why,
}

/// Why a load was refused.
#[derive(Debug)]
pub enum Why {
    /// The texts could not be had.
    Source(SourceError),
    /// The texts are wrong: everything that is, warnings among it.
    Diagnostics(Diagnostics),
    /// They are no texts: a sentence that says why.
    Words(String),
    /// The loader broke on them, which is a defect of ours.
    Broke,
}

/// Why texts could not be had.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The operating system would not.
    #[error("{}: cannot be read", path.display())]
    Unreadable {
        /// Which file or directory.
        path: PathBuf,
        /// What it said.
        #[source]
        error: io::Error,
    },
    /// A device, a pipe or a socket was named.
    #[error("{}: neither a file nor a directory", path.display())]
    NeitherFileNorDirectory {
        /// Which.
        path: PathBuf,
    },
    /// One file is larger than a file of limits can be.
    #[error("{}: larger than {most} bytes, which no file of limits is", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// The most, in bytes.
        most: u64,
    },
    /// All files together are larger than they can be.
    #[error("{}: with this file, the limits are larger than {most} bytes together", path.display())]
    TooLargeTogether {
        /// The file that was too much.
        path: PathBuf,
        /// The most, in bytes.
        most: u64,
    },
    /// There are too many files.
    #[error("{}: with this file, there are more than {most} files of limits", path.display())]
    TooMany {
        /// The file that was too much.
        path: PathBuf,
        /// The most.
        most: usize,
    },
    /// Directories are nested too deeply.
    #[error("{}: deeper than {most} directories below the one that was named", path.display())]
    TooDeep {
        /// Which directory.
        path: PathBuf,
        /// The most.
        most: usize,
    },
}

impl SourceError {
    /// What could not be had, and what the system said of it, in one sentence.
    #[must_use]
    pub fn in_full(&self) -> String {
        match self.source() {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }
}
