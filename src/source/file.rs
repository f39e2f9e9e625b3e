//! Loads configuration from files and directories, and watches them.
//!
//! Guarantees:
//! - A load replaces the whole configuration, or keeps the last good one.
//! - Directories are watched before they are read, so no change is lost.
//! - An unreadable file is retried at every poll until it can be read.
//! - Unchanged content is not published again.
//! - Reading and parsing never block the runtime's threads.
//!
//! Not covered:
//! - Signals: their handler calls [`Reload::now`].

mod tree;
mod watches;

use std::hash::{Hash as _, Hasher as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::{Load, Published, Refused, Reload, Source, SourceError, TextFile, Why};
use crate::config::Config;
use crate::config::diagnostic::{Diagnostic, Diagnostics};
use crate::kernel::units::{Nanos, Revision};
pub use tree::{DEEPEST, LARGEST_FILE, LARGEST_TOGETHER, MOST_FILES, Tree, read_tree};
use watches::{Armed, Watches};

/// The poll interval if the system reports changes. Polling finds the changes that it misses.
const LOOK: Duration = Duration::from_secs(10);
/// The poll interval without such reports. Costs a `stat`
/// per file: with 10,000 files, about 2 % of a core.
const LOOK_UNWATCHED: Duration = Duration::from_secs(1);
/// The longest wait for a file that changes constantly, as a multiple of the debounce time.
const RESTLESS: u32 = 10;
/// The lower bound of that wait.
const RESTLESS_LEAST: Duration = Duration::from_secs(1);
/// The maximum number of logged diagnostics per load, most severe first. `/config` has more.
const MOST_LOGGED: usize = 50;

/// The options of the file source.
#[derive(Clone, Debug)]
pub struct Options {
    /// The files and directories.
    pub paths: Vec<PathBuf>,
    /// The time without changes before a changed file is read.
    pub debounce: Duration,
    /// The poll interval, which applies even if the system reports changes.
    pub look: Duration,
    /// The filter for files below the paths.
    pub tree: Tree,
}

impl Options {
    /// Watches `paths` with a debounce time of `debounce`.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>, debounce: Nanos) -> Self {
        let debounce = Duration::from_nanos(debounce.0);
        Self { paths, debounce, look: LOOK, tree: Tree::default() }
    }
}

/// Loads once, then again after each change. Returns after
/// the first load was published as a success or a failure.
pub async fn start(
    options: Options,
    load: Arc<Load>,
    now: impl Fn() -> Nanos + Send + Sync + 'static,
) -> Source {
    let (sender, published) = watch::channel(Published::default());
    let (changed, asked) = (Arc::new(Notify::new()), Reload::default());
    let watches = Watches::new(&options.paths, Arc::clone(&changed));
    let look = Look {
        paths: options.paths.clone().into(),
        tree: Arc::new(options.tree.clone()),
        watches: Arc::new(Mutex::new(watches)),
        load,
        seen: Seen::default(),
    };
    let reload = asked.clone();
    let mut loader = Loader { options, look, sender, changed, asked, now: Box::new(now) };
    loader.load(Cause::Asked).await;
    Source { published, reload, task: tokio::spawn(loader.run()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Asked,
    Told,
    Look,
}

struct Loader {
    options: Options,
    look: Look,
    sender: watch::Sender<Published>,
    changed: Arc<Notify>,
    asked: Reload,
    now: Box<dyn Fn() -> Nanos + Send + Sync>,
}

impl Loader {
    async fn run(mut self) {
        while let Some(cause) = self.cause().await {
            self.load(cause).await;
        }
    }

    async fn cause(&self) -> Option<Cause> {
        let unwatched = self.look.seen.unwatched;
        let look =
            if unwatched { LOOK_UNWATCHED.min(self.options.look) } else { self.options.look };
        tokio::select! {
            () = self.sender.closed() => None,
            () = self.asked.asked() => Some(Cause::Asked),
            () = self.changed.notified() => {
                self.rest().await;
                Some(Cause::Told)
            }
            () = sleep(look) => Some(Cause::Look),
        }
    }

    /// Waits until the files stop changing. Gives up after a bounded time, in case they never do.
    async fn rest(&self) {
        let debounce = self.options.debounce;
        let restless = RESTLESS_LEAST.max(debounce.saturating_mul(RESTLESS));
        let rest = async { while timeout(debounce, self.changed.notified()).await.is_ok() {} };
        timeout(restless, rest).await.ok();
    }

    async fn load(&mut self, cause: Cause) {
        let look = self.look.clone();
        let revision = Revision(self.sender.borrow().status.revision.0.saturating_add(1));
        let found = spawn_blocking(move || look.at(cause, revision)).await;
        let (seen, found) = found.unwrap_or((self.look.seen, Found::Refused(Why::Broke)));
        self.look.seen = seen;
        let at = (self.now)();
        match found {
            Found::Nothing => {}
            Found::InForce => self.confirm(at),
            Found::StillRefused => self.publish(|published| published.status.refused += 1),
            Found::Refused(why) => self.refuse(Refused { at, why }),
            Found::Accepted(accepted) => self.accept(at, accepted),
        }
    }

    fn accept(&self, at: Nanos, Accepted { config, warnings, files }: Accepted) {
        let (revision, domains) = (config.revision, config.domains.len());
        tracing::info!(%revision, files = files.len(), domains, "limits are loaded");
        tell(&warnings);
        self.publish(|published| {
            published.config = Some(Arc::new(config));
            published.status.accept(at);
            published.status.revision = revision;
            published.status.files = files;
            published.status.warnings = warnings.into();
        });
    }

    /// Records a load without a change. Logs it after a
    /// failed load, because the failure was logged too.
    fn confirm(&self, at: Nanos) {
        let (Revision(in_force), was_refused) = {
            let status = &self.sender.borrow().status;
            (status.revision, status.last_error.is_some())
        };
        if was_refused {
            tracing::info!(in_force, "limits are as before; nothing is refused any more");
        }
        self.publish(|published| published.status.accept(at));
    }

    fn refuse(&self, refused: Refused) {
        let (Revision(in_force), refusals) = {
            let status = &self.sender.borrow().status;
            (status.revision, status.refused + 1)
        };
        match &refused.why {
            Why::Source(error) => {
                let error: &dyn std::error::Error = error;
                tracing::error!(in_force, error, "limits cannot be read; what is in force stays");
            }
            Why::Diagnostics(diagnostics) => {
                let findings = diagnostics.counts().sum();
                tracing::error!(in_force, findings, "limits are refused; what is in force stays");
                tell(diagnostics);
            }
            Why::Words(why) => {
                tracing::error!(in_force, why, "limits are refused; what is in force stays");
            }
            Why::Broke => tracing::error!(in_force, "the loader broke; what is in force stays"),
        }
        self.publish(|published| {
            published.status.refused = refusals;
            published.status.last_error = Some(Arc::new(refused));
        });
    }

    fn publish(&self, change: impl FnOnce(&mut Published)) {
        self.sender.send_modify(change);
    }
}

/// Logs one line for each diagnostic, and one line for the number of the others.
fn tell(diagnostics: &Diagnostics) {
    let (worst, more) = diagnostics.worst(MOST_LOGGED);
    for Diagnostic { place, message, help, .. } in worst {
        let place = format_args!("{}:{}:{}", place.file, place.line, place.column);
        tracing::warn!(%place, help, "{message}");
    }
    if !more.is_none() {
        tracing::warn!("and {more}");
    }
}

enum Found {
    Nothing,
    InForce,
    StillRefused,
    Refused(Why),
    Accepted(Accepted),
}

struct Accepted {
    config: Config,
    warnings: Diagnostics,
    files: Arc<[Arc<str>]>,
}

/// A poll of the files. Runs on a thread that may block.
#[derive(Clone)]
struct Look {
    paths: Arc<[PathBuf]>,
    tree: Arc<Tree>,
    watches: Arc<Mutex<Watches>>,
    load: Arc<Load>,
    seen: Seen,
}

/// The state after the last poll.
#[derive(Clone, Copy, Default)]
struct Seen {
    fingerprint: u64,
    in_force: Option<u128>,
    refused: Option<u128>,
    unread: Option<u128>,
    unwatched: bool,
}

impl Look {
    fn at(mut self, cause: Cause, revision: Revision) -> (Seen, Found) {
        let (listing, error) = self.list();
        let is_known = cause == Cause::Look && listing.fingerprint == self.seen.fingerprint;
        // The cause of a read error, and its fix, may be invisible in the listing. So retry.
        let unread = self.seen.unread.take();
        if is_known && unread.is_none() {
            return (self.seen, Found::Nothing);
        }
        self.seen.fingerprint = listing.fingerprint;
        if !is_known {
            tell_passed_over(&listing);
        }
        let found = match error.map_or_else(|| self.read(&listing), Err) {
            // The same error was already reported.
            Err(_) if cause == Cause::Look && unread.is_some() && self.seen.unread == unread => {
                Found::Nothing
            }
            Err(error) => {
                // This error replaces a failed parse, so report that failure again if it returns.
                self.seen.refused = None;
                Found::Refused(Why::Source(error))
            }
            Ok(texts) => self.judge(cause, &texts, revision),
        };
        (self.seen, found)
    }

    fn read(&mut self, listing: &tree::Listing) -> Result<Vec<TextFile>, SourceError> {
        tree::read(listing).inspect_err(|error| self.seen.unread = Some(digest_of(error)))
    }

    /// Lists the files and watches their directories. Repeats until no directory
    /// is new, because changes before a watch starts are not reported.
    fn list(&mut self) -> (tree::Listing, Option<SourceError>) {
        let mut watches = self.watches.lock();
        for _ in 0..tree::DEEPEST {
            let (listing, error) = tree::list(&self.paths, &self.tree);
            let Armed { more, all } = watches.arm(&listing.directories);
            self.seen.unwatched = !all;
            if !more {
                return (listing, error);
            }
        }
        tree::list(&self.paths, &self.tree)
    }

    fn judge(&mut self, cause: Cause, texts: &[TextFile], revision: Revision) -> Found {
        let digest = Some(digest(texts));
        if digest == self.seen.in_force {
            self.seen.refused = None;
            return Found::InForce;
        }
        if digest == self.seen.refused && cause != Cause::Asked {
            return Found::StillRefused;
        }
        match (self.load)(texts, revision) {
            Err(diagnostics) => {
                self.seen.refused = digest;
                Found::Refused(Why::Diagnostics(diagnostics))
            }
            Ok((mut config, warnings)) => {
                config.revision = revision;
                (self.seen.in_force, self.seen.refused) = (digest, None);
                let files = texts.iter().map(|text| Arc::clone(&text.name)).collect();
                Found::Accepted(Accepted { config, warnings, files })
            }
        }
    }
}

fn tell_passed_over(listing: &tree::Listing) {
    for path in &listing.passed_over {
        tracing::warn!(path = %path.display(), "passed over: no regular file");
    }
}

/// Returns a digest of the error and its cause, to recognize a repeated failure.
fn digest_of(error: &SourceError) -> u128 {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let mut hasher = SipHasher13::new();
    (error.to_string(), cause).hash(&mut hasher);
    hasher.finish128().as_u128()
}

/// Returns a digest of all files. With 128 bits, accidental collisions are negligible.
fn digest(texts: &[TextFile]) -> u128 {
    let mut hasher = SipHasher13::new();
    for TextFile { name, bytes } in texts {
        (name, bytes).hash(&mut hasher);
    }
    hasher.write_usize(texts.len());
    hasher.finish128().as_u128()
}
