//! Notifies the loader of changes below the configured paths.
//!
//! Guarantees:
//! - Watches are renewed after each change, so a recreated directory is watched again.
//! - The parents of configured paths and symbolic links are watched, to notice a replaced path.
//!
//! Not covered:
//! - In-place writes behind symbolic links, which polling finds.
//! - File systems without notifications, where polling finds the changes.

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
    /// `true` if a directory is watched for the first time. Its earlier changes are unknown.
    pub(super) has_new: bool,
    pub(super) is_complete: bool,
}

impl FileWatches {
    /// Creates a watcher without watches. Notifies `changed` of changes of the configured paths.
    pub(super) fn new(configured_paths: &[PathBuf], changed: Arc<Notify>) -> Self {
        let paths: Arc<[_]> = configured_paths.iter().map(|path| absolute(path)).collect();
        let event_paths = Arc::clone(&paths);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| !may_change_content(&event, &event_paths)) {
                return;
            }
            changed.notify_one();
        });
        let watcher = watcher.inspect_err(|error| {
            tracing::warn!(%error, "file watching is unavailable, polling every second");
        });
        Self { watcher: watcher.ok(), paths, watched: BTreeSet::new() }
    }

    /// Watches only `directories` and the directories in which a configured path can be replaced.
    pub(super) fn watch_only(&mut self, directories: &[PathBuf]) -> WatchResult {
        let Some(watcher) = &mut self.watcher else {
            return WatchResult { has_new: false, is_complete: false };
        };
        let mut wanted: BTreeSet<_> = directories.iter().map(|path| absolute(path)).collect();
        wanted.extend(self.paths.iter().flat_map(|path| parent_directories(path)));
        for unwanted in self.watched.difference(&wanted) {
            // `unwatch` fails if the directory was deleted, which has already ended the watch.
            watcher.unwatch(unwanted).ok();
        }
        // Renew existing watches too, because the path may be another directory now.
        let previously_watched = std::mem::take(&mut self.watched);
        let wanted_count = wanted.len();
        wanted.retain(|path| watcher.watch(path, RecursiveMode::NonRecursive).is_ok());
        self.watched = wanted;
        WatchResult {
            has_new: !self.watched.is_subset(&previously_watched),
            is_complete: self.watched.len() == wanted_count,
        }
    }
}

/// Returns the directories in which a configured path can be deleted or replaced.
fn parent_directories(configured_path: &Path) -> BTreeSet<PathBuf> {
    let mut parents = configured_path.ancestors().skip(1);
    let nearest = parents.find(|parent| parent.is_dir()).map(Path::to_owned);
    let links = configured_path.ancestors().filter(|path| path.is_symlink());
    links.filter_map(Path::parent).map(Path::to_owned).chain(nearest).collect()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Ignores read accesses, because otherwise every load would cause the next load.
fn may_change_content(event: &Event, configured_paths: &[PathBuf]) -> bool {
    let is_read = match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    };
    let is_relevant = |path: &PathBuf| {
        configured_paths.iter().any(|configured| affects_configured_path(path, configured))
    };
    event.need_rescan() || (!is_read && event.paths.iter().any(is_relevant))
}

/// Returns `true` if `path` is below or above the configured path, or is a sibling such as
/// `..data`, a link that Kubernetes replaces at each update.
fn affects_configured_path(path: &Path, configured: &Path) -> bool {
    let is_update_link = path.parent() == configured.parent()
        && path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
    path.starts_with(configured) || configured.starts_with(path) || is_update_link
}
