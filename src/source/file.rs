//! Loads configuration from files and directories, and watches them.
//!
//! Guarantees:
//! - A load replaces the whole configuration, or keeps the last good one.
//! - Directories are watched before they are read, so no change is lost.
//! - An unreadable file is read again at every poll.
//! - Unchanged content is not published again.
//! - Reading and parsing never block the threads that decide checks.
//!
//! Not covered:
//! - SIGHUP: its handler calls [`ReloadRequest::request`].

mod no_limits;
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

use super::{
    ConfigParser, ConfigSource, FailedLoad, LoadFailure, PublishedConfig, ReloadRequest,
    SourceReadError, TextFile,
};
use crate::config::Config;
use crate::config::diagnostic::{Diagnostic, Diagnostics};
use crate::kernel::units::{Nanos, Revision};
pub use tree::{FileFilter, MAX_DEPTH, MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES, read_tree};
use watches::{FileWatches, WatchResult};

/// The polling interval if the operating system reports file changes, of which it may miss some.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// The polling interval without reported file changes. 10,000 files cost 2 % of a core.
const UNWATCHED_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The longest wait for files that change constantly, as a multiple of the debounce time.
const MAX_DEBOUNCES: u32 = 10;
/// The lower bound of the longest wait for files that change constantly.
const MIN_DEBOUNCE_LIMIT: Duration = Duration::from_secs(1);
const MAX_LOGGED_DIAGNOSTICS: usize = 50;

/// The options of the file source.
#[derive(Clone, Debug)]
pub struct FileSourceOptions {
    /// The files and directories of limits.
    pub paths: Vec<PathBuf>,
    /// The debounce time: a changed file is read after this time without further changes.
    pub debounce: Duration,
    /// The longest interval for polling the files.
    pub poll_interval: Duration,
    /// The filter for files below `paths`.
    pub filter: FileFilter,
}

impl FileSourceOptions {
    /// Returns options for watching `paths` with a debounce time of `debounce`.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>, debounce: Nanos) -> Self {
        let debounce = Duration::from_nanos(debounce.0);
        Self { paths, debounce, poll_interval: POLL_INTERVAL, filter: FileFilter::default() }
    }
}

/// Starts the file source and waits for the first load, even if the load fails.
pub async fn start(
    options: FileSourceOptions,
    load: Arc<ConfigParser>,
    now: impl Fn() -> Nanos + Send + Sync + 'static,
) -> ConfigSource {
    let (sender, published) = watch::channel(PublishedConfig::default());
    let (changed, reload_request) = (Arc::new(Notify::new()), ReloadRequest::default());
    let watches = FileWatches::new(&options.paths, Arc::clone(&changed));
    let poller = FilePoller {
        paths: options.paths.clone().into(),
        filter: Arc::new(options.filter.clone()),
        watches: Arc::new(Mutex::new(watches)),
        load,
        state: PollState::default(),
    };
    let reload = reload_request.clone();
    let mut loader = FileLoader {
        options,
        poller,
        sender,
        changed,
        reload_requests: reload_request,
        now: Box::new(now),
    };
    loader.load(LoadTrigger::Requested).await;
    ConfigSource { published, reload, task: tokio::spawn(loader.run()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadTrigger {
    Requested,
    FileChanged,
    Poll,
}

struct FileLoader {
    options: FileSourceOptions,
    poller: FilePoller,
    sender: watch::Sender<PublishedConfig>,
    changed: Arc<Notify>,
    reload_requests: ReloadRequest,
    now: Box<dyn Fn() -> Nanos + Send + Sync>,
}

impl FileLoader {
    async fn run(mut self) {
        while let Some(trigger) = self.next_trigger().await {
            self.load(trigger).await;
        }
    }

    async fn next_trigger(&self) -> Option<LoadTrigger> {
        let interval = if self.poller.state.has_unwatched {
            UNWATCHED_POLL_INTERVAL.min(self.options.poll_interval)
        } else {
            self.options.poll_interval
        };
        tokio::select! {
            () = self.sender.closed() => None,
            () = self.reload_requests.requested() => Some(LoadTrigger::Requested),
            () = self.changed.notified() => {
                self.wait_until_quiet().await;
                Some(LoadTrigger::FileChanged)
            }
            () = sleep(interval) => Some(LoadTrigger::Poll),
        }
    }

    /// Waits for the debounce time without changes, or for a bounded time if changes never stop.
    async fn wait_until_quiet(&self) {
        let debounce = self.options.debounce;
        let max_wait = MIN_DEBOUNCE_LIMIT.max(debounce.saturating_mul(MAX_DEBOUNCES));
        let quiet = async { while timeout(debounce, self.changed.notified()).await.is_ok() {} };
        timeout(max_wait, quiet).await.ok();
    }

    async fn load(&mut self, trigger: LoadTrigger) {
        let poller = self.poller.clone();
        let revision = Revision(self.sender.borrow().status.revision.0.saturating_add(1));
        let result = spawn_blocking(move || poller.poll(trigger, revision)).await;
        let (state, poll_result) =
            result.unwrap_or((self.poller.state, PollResult::Failed(LoadFailure::ParserPanicked)));
        self.poller.state = state;
        let now = (self.now)();
        match poll_result {
            PollResult::Unchanged => {}
            PollResult::AlreadyLoaded => self.record_unchanged(now),
            PollResult::StillFailing => {
                self.publish(|published| published.status.failed_loads += 1);
            }
            PollResult::Failed(reason) => self.record_failure(FailedLoad { at: now, reason }),
            PollResult::Loaded(new_config) => self.publish_config(now, new_config),
        }
    }

    fn publish_config(&self, now: Nanos, NewConfig { config, warnings, files }: NewConfig) {
        let (revision, domains) = (config.revision, config.domains.len());
        tracing::info!(%revision, files = files.len(), domains, "limits loaded");
        if !config.has_limits() {
            let looked = no_limits::describe_paths(&self.options.paths, &self.options.filter);
            tracing::warn!("no limits are loaded, so every check is allowed: {looked}");
        }
        log_diagnostics(&warnings);
        self.publish(|published| {
            published.config = Some(Arc::new(config));
            published.status.record_success(now);
            published.status.revision = revision;
            published.status.files = files;
            published.status.warnings = warnings.into();
        });
    }

    /// Records a successful load of unchanged files. Logs the success only after a failed load.
    fn record_unchanged(&self, now: Nanos) {
        let (Revision(revision), had_error) = {
            let status = &self.sender.borrow().status;
            (status.revision, status.last_error.is_some())
        };
        if had_error {
            tracing::info!(revision, "limits valid again, same as the current revision");
        }
        self.publish(|published| published.status.record_success(now));
    }

    fn record_failure(&self, failure: FailedLoad) {
        let (kept, failed_loads) = {
            let status = &self.sender.borrow().status;
            (describe_kept(status.revision), status.failed_loads + 1)
        };
        match &failure.reason {
            LoadFailure::Unreadable(error) => {
                tracing::error!(error = %error.with_cause(), "failed to load limits: {kept}");
            }
            LoadFailure::Invalid(diagnostics) => {
                let findings = diagnostics.counts().total();
                tracing::error!(findings, "limits rejected: {kept}");
                log_diagnostics(diagnostics);
            }
            LoadFailure::Unconvertible(error) => {
                tracing::error!(%error, "limits rejected: {kept}");
            }
            LoadFailure::ParserPanicked => {
                let error = "the parser crashed, which is a bug in Sluicegate";
                tracing::error!(error, "failed to load limits: {kept}");
            }
        }
        self.publish(|published| {
            published.status.failed_loads = failed_loads;
            published.status.last_error = Some(Arc::new(failure));
        });
    }

    fn publish(&self, change: impl FnOnce(&mut PublishedConfig)) {
        self.sender.send_modify(change);
    }
}

/// Describes the configuration that stays in use after a failed load.
fn describe_kept(revision: Revision) -> String {
    match revision {
        Revision(0) => "no limits are loaded yet".to_owned(),
        Revision(kept) => format!("keeping revision {kept}"),
    }
}

fn log_diagnostics(diagnostics: &Diagnostics) {
    let (most_severe, omitted) = diagnostics.most_severe(MAX_LOGGED_DIAGNOSTICS);
    for Diagnostic { location, message, help, .. } in most_severe {
        let place = format_args!("{}:{}:{}", location.file, location.line, location.column);
        tracing::warn!(%place, help, "{message}");
    }
    if !omitted.is_zero() {
        tracing::warn!("validation found {omitted}");
    }
}

enum PollResult {
    Unchanged,
    AlreadyLoaded,
    StillFailing,
    Failed(LoadFailure),
    Loaded(NewConfig),
}

struct NewConfig {
    config: Config,
    warnings: Diagnostics,
    files: Arc<[Arc<str>]>,
}

/// Polls the files for changes. Runs on a thread that may block.
#[derive(Clone)]
struct FilePoller {
    paths: Arc<[PathBuf]>,
    filter: Arc<FileFilter>,
    watches: Arc<Mutex<FileWatches>>,
    load: Arc<ConfigParser>,
    state: PollState,
}

#[derive(Clone, Copy, Default)]
struct PollState {
    listing_fingerprint: u64,
    loaded_digest: Option<u128>,
    failed_digest: Option<u128>,
    read_error_digest: Option<u128>,
    has_unwatched: bool,
}

impl FilePoller {
    fn poll(mut self, trigger: LoadTrigger, revision: Revision) -> (PollState, PollResult) {
        let (listing, error) = self.list_and_watch();
        let is_unchanged =
            trigger == LoadTrigger::Poll && listing.fingerprint == self.state.listing_fingerprint;
        // After a read error, read the files even if their listing is unchanged, because it may not
        // show that the cause is fixed.
        let last_read_error = self.state.read_error_digest.take();
        if is_unchanged && last_read_error.is_none() {
            return (self.state, PollResult::Unchanged);
        }
        self.state.listing_fingerprint = listing.fingerprint;
        if !is_unchanged {
            log_skipped(&listing);
        }
        let result = match error.map_or_else(|| self.read_listed(&listing), Err) {
            // Do not report the same read error again.
            Err(_)
                if trigger == LoadTrigger::Poll
                    && last_read_error.is_some()
                    && self.state.read_error_digest == last_read_error =>
            {
                PollResult::Unchanged
            }
            Err(error) => {
                // The read error replaces the last parse error in the status, so a load must report
                // the same parse error again.
                self.state.failed_digest = None;
                PollResult::Failed(LoadFailure::Unreadable(error))
            }
            Ok(texts) => self.parse_if_changed(trigger, &texts, revision),
        };
        (self.state, result)
    }

    fn read_listed(
        &mut self,
        listing: &tree::FileListing,
    ) -> Result<Vec<TextFile>, SourceReadError> {
        tree::read_files(listing)
            .inspect_err(|error| self.state.read_error_digest = Some(error_digest(error)))
    }

    /// Lists the files and watches their directories until no directory is new, because changes
    /// before the start of a watch are unknown.
    fn list_and_watch(&mut self) -> (tree::FileListing, Option<SourceReadError>) {
        let mut watches = self.watches.lock();
        for _ in 0..tree::MAX_DEPTH {
            let (listing, error) = tree::list_files(&self.paths, &self.filter);
            let WatchResult { has_new, is_complete } = watches.watch_only(&listing.directories);
            self.state.has_unwatched = !is_complete;
            if !has_new {
                return (listing, error);
            }
        }
        tree::list_files(&self.paths, &self.filter)
    }

    fn parse_if_changed(
        &mut self,
        trigger: LoadTrigger,
        texts: &[TextFile],
        revision: Revision,
    ) -> PollResult {
        let digest = Some(content_digest(texts));
        if digest == self.state.loaded_digest {
            self.state.failed_digest = None;
            return PollResult::AlreadyLoaded;
        }
        if digest == self.state.failed_digest && trigger != LoadTrigger::Requested {
            return PollResult::StillFailing;
        }
        match (self.load)(texts, revision) {
            Err(diagnostics) => {
                self.state.failed_digest = digest;
                PollResult::Failed(LoadFailure::Invalid(diagnostics))
            }
            Ok((mut config, warnings)) => {
                config.revision = revision;
                (self.state.loaded_digest, self.state.failed_digest) = (digest, None);
                let files = texts.iter().map(|text| Arc::clone(&text.name)).collect();
                PollResult::Loaded(NewConfig { config, warnings, files })
            }
        }
    }
}

fn log_skipped(listing: &tree::FileListing) {
    for path in &listing.skipped {
        tracing::warn!(path = %path.display(), "skipped a path that is not a regular file");
    }
}

/// Returns a digest of a read error and its cause, by which a repeated error is recognized.
fn error_digest(error: &SourceReadError) -> u128 {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let mut hasher = SipHasher13::new();
    (error.to_string(), cause).hash(&mut hasher);
    hasher.finish128().as_u128()
}

/// Returns a digest of the names and contents of all files. 128 bits make collisions negligible.
fn content_digest(texts: &[TextFile]) -> u128 {
    let mut hasher = SipHasher13::new();
    for TextFile { name, bytes } in texts {
        (name, bytes).hash(&mut hasher);
    }
    hasher.write_usize(texts.len());
    hasher.finish128().as_u128()
}
