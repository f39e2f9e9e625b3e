//! Notifies the loader of changes below the configured paths.
//!
//! Guarantees:
//! - Watches are renewed after each change, so a recreated directory is watched again.
//! - Parents of configured paths and of symbolic links are watched for replacement.
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

pub(super) struct Watches {
    /// `None` if the system has no free watch.
    watcher: Option<RecommendedWatcher>,
    named: Arc<[PathBuf]>,
    armed: BTreeSet<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Armed {
    /// `true` if a directory is watched for the first time. It may have changed before.
    pub(super) more: bool,
    pub(super) all: bool,
}

impl Watches {
    /// Watches nothing yet. Later events about the paths `named` notify `changed`.
    pub(super) fn new(named: &[PathBuf], changed: Arc<Notify>) -> Self {
        let named: Arc<[_]> = named.iter().map(|path| absolute(path)).collect();
        let concerned = Arc::clone(&named);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| !concerns(&event, &concerned)) {
                return;
            }
            changed.notify_one();
        });
        let watcher = watcher.inspect_err(|error| {
            let error: &dyn std::error::Error = error;
            tracing::warn!(
                error,
                "the system does not tell of changed files, looking every second"
            );
        });
        Self { watcher: watcher.ok(), named, armed: BTreeSet::new() }
    }

    /// Watches exactly `directories` and the parents that can replace a configured path.
    pub(super) fn arm(&mut self, directories: &[PathBuf]) -> Armed {
        let Some(watcher) = &mut self.watcher else { return Armed { more: false, all: false } };
        let mut wanted: BTreeSet<_> = directories.iter().map(|path| absolute(path)).collect();
        wanted.extend(self.named.iter().flat_map(|path| places(path)));
        for gone in self.armed.difference(&wanted) {
            // Fails if the directory was deleted, which removes the watch as well.
            watcher.unwatch(gone).ok();
        }
        // Renew existing watches too: the path may be another directory now.
        let before = std::mem::take(&mut self.armed);
        let asked = wanted.len();
        wanted.retain(|path| watcher.watch(path, RecursiveMode::NonRecursive).is_ok());
        self.armed = wanted;
        Armed { more: !self.armed.is_subset(&before), all: self.armed.len() == asked }
    }
}

/// Returns the directories in which a configured path can be deleted or replaced.
fn places(named: &Path) -> BTreeSet<PathBuf> {
    let parents = named.ancestors().skip(1);
    let nearest = parents.clone().find(|parent| parent.is_dir()).map(Path::to_owned);
    let links = named.ancestors().filter(|path| path.is_symlink());
    links.filter_map(Path::parent).map(Path::to_owned).chain(nearest).collect()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns `true` if an event may have changed the content. Read accesses
/// are ignored, because otherwise every load would cause the next one.
fn concerns(event: &Event, named: &[PathBuf]) -> bool {
    let reading = match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    };
    let touches = |path: &PathBuf| named.iter().any(|named| decides(path, named));
    event.need_rescan() || (!reading && event.paths.iter().any(touches))
}

/// Returns `true` if `path` is below `named`, is a parent of it, or is a Kubernetes link beside it.
fn decides(path: &Path, named: &Path) -> bool {
    let beside = path.parent() == named.parent()
        && path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
    path.starts_with(named) || named.starts_with(path) || beside
}
