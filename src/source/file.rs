//! Files and directories of limits, watched.
//!
//! Guarantees: all or nothing, and the last good configuration stays; directories are watched
//! before they are read, so that a change in between is not lost; what could not be read is read
//! again at each look until it can be; texts that are byte for byte those in force are not published
//! again. Reading and loading run beside the runtime's threads.
//! Leaves out: signals; whoever catches one calls [`Reload::now`].

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

/// How often files are looked at where the system tells of changes: for what it cannot tell of.
const LOOK: Duration = Duration::from_secs(10);
/// How often where it does not. A `stat` of each file; with ten thousand, about 2 % of a core.
const LOOK_UNWATCHED: Duration = Duration::from_secs(1);
/// A writer that never rests is read after so many times the debounce…
const RESTLESS: u32 = 10;
/// …but not before this long.
const RESTLESS_LEAST: Duration = Duration::from_secs(1);
/// The most diagnostics of one load that are logged, the worst; `/config` has more of them.
const MOST_LOGGED: usize = 50;

/// What to watch, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Files and directories.
    pub paths: Vec<PathBuf>,
    /// How long files must rest after a change before they are read.
    pub debounce: Duration,
    /// How often to look, whether or not the system tells of a change.
    pub look: Duration,
    /// Which files below the paths count.
    pub tree: Tree,
}

impl Options {
    /// Watches `paths`, which must rest for `debounce` after a change before they are read.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>, debounce: Nanos) -> Self {
        let debounce = Duration::from_nanos(debounce.0);
        Self { paths, debounce, look: LOOK, tree: Tree::default() }
    }
}

/// Loads once, then again after each change. When this returns, the first load is published:
/// accepted or refused.
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

/// What brings a load about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Somebody asked for it.
    Asked,
    /// The system told of a change.
    Told,
    /// It is time to look.
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

    /// Waits until files rest, or for so long that waiting on would help nobody.
    async fn rest(&self) {
        let debounce = self.options.debounce;
        let restless = RESTLESS_LEAST.max(debounce.saturating_mul(RESTLESS));
        let rest = async { while timeout(debounce, self.changed.notified()).await.is_ok() {} };
        // Either way it is time to read.
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

    /// The texts in force were read again. That nothing is refused any more is told: the refusal was.
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

/// One line for each finding, and one for those that have none.
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

/// What a look at the files came to.
enum Found {
    /// Nothing that was not known.
    Nothing,
    /// The texts that are in force.
    InForce,
    /// The texts that were refused before.
    StillRefused,
    /// Texts that cannot be had, or are wrong.
    Refused(Why),
    /// A new configuration.
    Accepted(Accepted),
}

struct Accepted {
    config: Config,
    warnings: Diagnostics,
    files: Arc<[Arc<str>]>,
}

/// One look at the files; runs where it may block.
#[derive(Clone)]
struct Look {
    paths: Arc<[PathBuf]>,
    tree: Arc<Tree>,
    watches: Arc<Mutex<Watches>>,
    load: Arc<Load>,
    seen: Seen,
}

/// What the last look saw.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// The listing's fingerprint.
    fingerprint: u64,
    /// The digest of the texts in force.
    in_force: Option<u128>,
    /// The digest of the texts that were refused last.
    refused: Option<u128>,
    /// The digest of what was said when what is listed could not be read.
    unread: Option<u128>,
    /// Some directory could not be watched.
    unwatched: bool,
}

impl Look {
    fn at(mut self, cause: Cause, revision: Revision) -> (Seen, Found) {
        let (listing, error) = self.list();
        let is_known = cause == Cause::Look && listing.fingerprint == self.seen.fingerprint;
        // What keeps a file from being read, and what mends it, may leave no trace in the listing.
        let unread = self.seen.unread.take();
        if is_known && unread.is_none() {
            return (self.seen, Found::Nothing);
        }
        self.seen.fingerprint = listing.fingerprint;
        if !is_known {
            tell_passed_over(&listing);
        }
        let found = match error.map_or_else(|| self.read(&listing), Err) {
            // It was told of when it was new.
            Err(_) if cause == Cause::Look && unread.is_some() && self.seen.unread == unread => {
                Found::Nothing
            }
            Err(error) => {
                // Texts that were refused before are told of anew: this is the last error now.
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

    /// Watches what it lists, and lists until there was nothing left to watch: what comes to be in a
    /// directory before it is watched, nobody tells of.
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

/// Of what is said and its cause, to know the same failure again.
fn digest_of(error: &SourceError) -> u128 {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let mut hasher = SipHasher13::new();
    (error.to_string(), cause).hash(&mut hasher);
    hasher.finish128().as_u128()
}

/// Not a proof of equality, but 128 bits: texts that differ and share it do not happen by accident.
fn digest(texts: &[TextFile]) -> u128 {
    let mut hasher = SipHasher13::new();
    for TextFile { name, bytes } in texts {
        (name, bytes).hash(&mut hasher);
    }
    hasher.write_usize(texts.len());
    hasher.finish128().as_u128()
}
