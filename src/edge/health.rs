//! Stores the readiness of this process, which the health checks of all protocols report.
//!
//! Guarantees:
//! - A draining process never becomes ready again.
//! - Every watcher receives the latest state.
//!
//! Not covered:
//! - The reasons for a change (see [`crate::cli`]).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The readiness of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The process is ready.
    Yes,
    /// No limits are loaded, and the settings require some.
    NoConfig,
    /// The store is unavailable, and the settings make readiness depend on it.
    NoBackend,
    /// The process is shutting down. Requests in flight are finished.
    Draining,
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "ready",
            Self::NoConfig => "not ready: no limits are loaded",
            Self::NoBackend => "not ready: the store of counters does not answer",
            Self::Draining => "not ready: draining",
        })
    }
}

/// The readiness, shared by all clones.
#[derive(Clone, Debug)]
pub struct Health(Arc<State>);

#[derive(Debug)]
struct State {
    shown: watch::Sender<Ready>,
    /// `false` if the store is unavailable and the settings make readiness depend on it.
    has_backend: AtomicBool,
    /// The readiness apart from the store.
    own: Mutex<Ready>,
}

impl Health {
    /// Creates the state with the readiness `first`.
    #[must_use]
    pub fn new(first: Ready) -> Self {
        let (shown, has_backend) = (watch::Sender::new(first), AtomicBool::new(true));
        Self(Arc::new(State { shown, has_backend, own: Mutex::new(first) }))
    }

    /// Returns the current readiness.
    #[must_use]
    pub fn ready(&self) -> Ready {
        *self.0.shown.borrow()
    }

    /// Changes the readiness. Does nothing while draining, which is final.
    pub fn set(&self, next: Ready) {
        let mut own = self.0.own.lock();
        if *own != Ready::Draining {
            *own = next;
        }
        self.show(*own);
    }

    /// Records if the store is available. A ready process
    /// without a store reports [`Ready::NoBackend`].
    pub fn set_backend(&self, answers: bool) {
        self.0.has_backend.store(answers, Ordering::Relaxed);
        let own = self.0.own.lock();
        self.show(*own);
    }

    fn show(&self, own: Ready) {
        let has_backend = self.0.has_backend.load(Ordering::Relaxed);
        let next = if own == Ready::Yes && !has_backend { Ready::NoBackend } else { own };
        self.0.shown.send_if_modified(|ready| std::mem::replace(ready, next) != next);
    }

    /// Returns a receiver of all changes from now on.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Ready> {
        self.0.shown.subscribe()
    }
}
