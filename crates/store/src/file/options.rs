//! The parameters of a file store.

use std::path::PathBuf;
use std::time::Duration;

use crate::memory::WhenFull;

/// When charges are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Before the check is answered. Concurrent checks share a write.
    Always,
    /// Once per interval.
    Every(Duration),
}

/// The parameters of a file store.
#[derive(Clone, Debug)]
pub struct FileStoreOptions {
    /// The directory of the file, which is created if it does not exist.
    pub directory: PathBuf,
    /// When charges are written to disk.
    pub sync: SyncMode,
    /// The longest time that a check waits for a write, with [`SyncMode::Always`].
    pub deadline: Duration,
    /// The maximum number of counters.
    pub max_keys: usize,
    /// The verdict for a new key when the store is full.
    pub when_full: WhenFull,
    /// The secret of the hash function, for a new file. An existing file contains its secret.
    pub secret: [u8; 16],
}
