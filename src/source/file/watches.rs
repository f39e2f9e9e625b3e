//! Being told when something below the named paths changes.
//!
//! Guarantees: directories are watched one by one, and again after each change, so that one which
//! vanishes and comes back is watched anew; the places from which a named path could vanish or be
//! pointed elsewhere (its parent, and the parent of each symbolic link on the way) are watched, too.
//! Leaves out: files behind symbolic links that are written in place, and file systems that tell
//! nothing: for these the loader looks from time to time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// The directories that are watched.
pub(super) struct Watches {
    /// None where the operating system has no more to give.
    watcher: Option<RecommendedWatcher>,
    named: Arc<[PathBuf]>,
    armed: BTreeSet<PathBuf>,
}

/// What arming came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Armed {
    /// A directory is watched that was not: it may have changed unnoticed.
    pub(super) more: bool,
    /// Every directory is watched.
    pub(super) all: bool,
}

impl Watches {
    /// Watches nothing yet; tells `changed` of what concerns the `named` paths.
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

    /// Watches `directories` and the places that decide about the named paths, and nothing else.
    pub(super) fn arm(&mut self, directories: &[PathBuf]) -> Armed {
        let Some(watcher) = &mut self.watcher else { return Armed { more: false, all: false } };
        let mut wanted: BTreeSet<_> = directories.iter().map(|path| absolute(path)).collect();
        wanted.extend(self.named.iter().flat_map(|path| places(path)));
        for gone in self.armed.difference(&wanted) {
            // It is mostly gone itself, and its watch with it.
            watcher.unwatch(gone).ok();
        }
        // Those that are armed as well: a name may stand for another directory by now.
        let before = std::mem::take(&mut self.armed);
        let asked = wanted.len();
        wanted.retain(|path| watcher.watch(path, RecursiveMode::NonRecursive).is_ok());
        self.armed = wanted;
        Armed { more: !self.armed.is_subset(&before), all: self.armed.len() == asked }
    }
}

/// Where a named path could vanish from or be pointed elsewhere.
fn places(named: &Path) -> BTreeSet<PathBuf> {
    let parents = named.ancestors().skip(1);
    let nearest = parents.clone().find(|parent| parent.is_dir()).map(Path::to_owned);
    let links = named.ancestors().filter(|path| path.is_symlink());
    links.filter_map(Path::parent).map(Path::to_owned).chain(nearest).collect()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Whether an event may have changed what the named paths hold. Reading a file is an event as well:
/// taking it for a change would have every load bring about the next.
fn concerns(event: &Event, named: &[PathBuf]) -> bool {
    let reading = match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    };
    let touches = |path: &PathBuf| named.iter().any(|named| decides(path, named));
    event.need_rescan() || (!reading && event.paths.iter().any(touches))
}

/// Whether `path` is below `named`, on the way to it, or a link of Kubernetes' beside it.
fn decides(path: &Path, named: &Path) -> bool {
    let beside = path.parent() == named.parent()
        && path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
    path.starts_with(named) || named.starts_with(path) || beside
}
