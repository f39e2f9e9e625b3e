//! Opens the counters of this process: in memory only, or saved in a file.

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::config::settings::{self, FileSync, Settings, StoreUrl};
use crate::engine::Engine;
use crate::kernel::units::Nanos;
use crate::store::Store;
use crate::store::file::{
    FileStore, FileStoreOptions, FileWriter, OpenedFileStore, SavedTime, SyncMode, WriterThread,
};
use crate::store::memory::{self, MemoryStore};

/// The time in which expired counters are removed from all shards of the memory store once.
const SWEEP_ROUND: Duration = Duration::from_secs(60);

/// A step of the wall clock that is worth a warning.
const NOTABLE_STEP: Nanos = Nanos::SECOND;

/// The counters of this process.
pub(super) struct LocalCounters {
    pub(super) memory: Arc<MemoryStore>,
    /// The store without Redis.
    pub(super) store: Arc<dyn Store>,
    /// The clock of the store's checks.
    pub(super) clock: Clock,
}

/// Creates the memory store, or restores the counters of the directory in `store.url`.
///
/// # Errors
/// A message if the file cannot be used.
pub(super) fn open(settings: &Settings) -> Result<(LocalCounters, Option<FileWriter>), String> {
    let max_keys = usize::try_from(settings.store.max_keys).unwrap_or(usize::MAX);
    let (when_full, secret) = (when_full(settings), hash_secret());
    let StoreUrl::File(directory) = &settings.store.url else {
        let memory = Arc::new(MemoryStore::new(max_keys, when_full, secret));
        let store = Arc::clone(&memory) as Arc<dyn Store>;
        return Ok((LocalCounters { memory, store, clock: Clock::system() }, None));
    };
    let sync = match settings.store.file.sync {
        FileSync::Always => SyncMode::Always,
        FileSync::Every(interval) => SyncMode::Every(interval.into()),
    };
    let deadline = Duration::from(settings.store.call_timeout());
    let directory = directory.clone();
    let options = FileStoreOptions { directory, sync, deadline, max_keys, when_full, secret };
    let wall = Clock::system().wall();
    let opened = FileStore::open(&options, wall).map_err(|error| error.to_string())?;
    let OpenedFileStore { store, writer, earliest, clock_set_back } = opened;
    let memory = Arc::clone(store.memory());
    tracing::info!(counters = memory.live_keys(), "restored counters from store.url");
    if NOTABLE_STEP <= clock_set_back {
        tracing::warn!(
            by = %clock_set_back,
            "the wall clock was set back; counters continue at the time that was saved with them"
        );
    }
    let clock = Clock::system_from(earliest);
    Ok((LocalCounters { memory, store: Arc::new(store), clock }, Some(writer)))
}

/// Starts the thread that saves the counters.
///
/// # Errors
/// Fails if the operating system cannot start a thread.
pub(super) fn start_writer(
    writer: FileWriter,
    engine: &Arc<Engine>,
) -> std::io::Result<WriterThread> {
    let engine = Arc::clone(engine);
    writer.spawn(move || SavedTime { store: engine.clock().now(), wall: engine.clock().wall() })
}

/// Writes the last changes.
pub(super) async fn close(writer: Option<WriterThread>) {
    if let Some(writer) = writer {
        // The write would block a worker thread.
        drop(tokio::task::spawn_blocking(|| writer.close()).await);
    }
}

const fn when_full(settings: &Settings) -> memory::WhenFull {
    match settings.store.when_full {
        settings::WhenFull::Deny => memory::WhenFull::Deny,
        settings::WhenFull::Allow => memory::WhenFull::Allow,
    }
}

/// Returns 16 unpredictable bytes, from hashers that the standard library seeds with the operating
/// system's random numbers.
fn hash_secret() -> [u8; 16] {
    let random = std::hash::RandomState::new();
    let mut secret = [0; 16];
    secret[..8].copy_from_slice(&random.hash_one(0_u8).to_le_bytes());
    secret[8..].copy_from_slice(&random.hash_one(1_u8).to_le_bytes());
    secret
}

/// Removes expired counters from the memory store, one shard per tick. Warns at most once per
/// [`SWEEP_ROUND`] if the store had no room for new keys.
pub(super) async fn sweep_counters(memory: Arc<MemoryStore>, engine: Arc<Engine>) {
    let shards = u32::try_from(MemoryStore::SHARDS).unwrap_or(u32::MAX);
    let mut ticks = tokio::time::interval(SWEEP_ROUND / shards);
    let mut reported = 0;
    loop {
        for _ in 0..shards {
            ticks.tick().await;
            memory.sweep_next(engine.clock().now());
        }
        let full = memory.times_full();
        if full > reported {
            tracing::warn!(
                new_keys = full - reported,
                max_keys = memory.max_keys(),
                "store is full: raise store.max_keys, or find the descriptor with too many values"
            );
            reported = full;
        }
    }
}
