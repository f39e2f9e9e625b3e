//! Notifies the loader of changes below the configured paths.
//!
//! Guarantees:
//! - Watches are renewed after each change, so a recreated directory is watched again.
//! - Parent directories of configured paths and of symbolic links are watched, because a path is
//!   replaced there.
//!
//! Not covered:
//! - In-place writes behind symbolic links: polling finds them.
//! - File systems without notifications: polling finds their changes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

pub(super) struct FileWatches {
    /// The file watcher of the operating system. `None` if it cannot be created.
    watcher: Option<RecommendedWatcher>,
    paths: Arc<[PathBuf]>,
    watched: BTreeSet<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WatchResult {
    /// `true` if a directory is watched for the first time. The directory may have changed before
    /// the watch started.
    pub(super) has_new: bool,
    pub(super) is_complete: bool,
}

impl FileWatches {
    /// Creates the watcher without watches. Notifies `changed` of all later events that affect the
    /// configured paths.
    pub(super) fn new(named: &[PathBuf], changed: Arc<Notify>) -> Self {
        let named: Arc<[_]> = named.iter().map(|path| absolute(path)).collect();
        let watched_paths = Arc::clone(&named);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| !may_change_content(&event, &watched_paths)) {
                return;
            }
            changed.notify_one();
        });
        let watcher = watcher.inspect_err(|error| {
            let error: &dyn std::error::Error = error;
            tracing::warn!(error, "file watching is unavailable, polling every second");
        });
        Self { watcher: watcher.ok(), paths: named, watched: BTreeSet::new() }
    }

    /// Watches `directories` and the parent directories in which a configured path can be replaced.
    /// Ends all other watches.
    pub(super) fn watch_only(&mut self, directories: &[PathBuf]) -> WatchResult {
        let Some(watcher) = &mut self.watcher else {
            return WatchResult { has_new: false, is_complete: false };
        };
        let mut wanted: BTreeSet<_> = directories.iter().map(|path| absolute(path)).collect();
        wanted.extend(self.paths.iter().flat_map(|path| parent_directories(path)));
        for unwanted in self.watched.difference(&wanted) {
            // `unwatch` fails if the directory was deleted. The deletion has then ended the watch.
            watcher.unwatch(unwanted).ok();
        }
        // Renew existing watches too, because the path may be another directory now.
        let before = std::mem::take(&mut self.watched);
        let wanted_count = wanted.len();
        wanted.retain(|path| watcher.watch(path, RecursiveMode::NonRecursive).is_ok());
        self.watched = wanted;
        WatchResult {
            has_new: !self.watched.is_subset(&before),
            is_complete: self.watched.len() == wanted_count,
        }
    }
}

/// Returns the directories in which a configured path can be deleted or replaced.
fn parent_directories(named: &Path) -> BTreeSet<PathBuf> {
    let parents = named.ancestors().skip(1);
    let nearest = parents.clone().find(|parent| parent.is_dir()).map(Path::to_owned);
    let links = named.ancestors().filter(|path| path.is_symlink());
    links.filter_map(Path::parent).map(Path::to_owned).chain(nearest).collect()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns `true` if a file event may mean changed content. Read accesses are ignored, because
/// otherwise every load would cause the next load.
fn may_change_content(event: &Event, configured: &[PathBuf]) -> bool {
    let is_read = match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    };
    let touches = |path: &PathBuf| configured.iter().any(|named| affects(path, named));
    event.need_rescan() || (!is_read && event.paths.iter().any(touches))
}

/// Returns `true` if `path` is below a configured path, is a parent of it, or is a sibling such as
/// the link `..data`, which Kubernetes replaces at each update.
fn affects(path: &Path, configured: &Path) -> bool {
    let beside = path.parent() == configured.parent()
        && path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
    path.starts_with(configured) || configured.starts_with(path) || beside
}
