//! Whether this process wants to be asked: one state that every protocol's health check shows.
//!
//! Guarantees: once draining, never ready again; every watcher sees the last state.
//! Leaves out: why the state changes, which is for [`crate::cli`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The state of readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Ask away.
    Yes,
    /// No limits are loaded, and the process was told that it needs some.
    NoConfig,
    /// The store of counters does not answer, and the process was told to heed that.
    NoBackend,
    /// The process is about to end; questions under way are answered.
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

/// The shared state of readiness. Clones are one state.
#[derive(Clone, Debug)]
pub struct Health(Arc<State>);

#[derive(Debug)]
struct State {
    shown: watch::Sender<Ready>,
    /// Whether the store of counters answers, as far as that is heeded.
    has_backend: AtomicBool,
    /// The state but for that.
    own: Mutex<Ready>,
}

impl Health {
    /// A process that starts in `first`.
    #[must_use]
    pub fn new(first: Ready) -> Self {
        let (shown, has_backend) = (watch::Sender::new(first), AtomicBool::new(true));
        Self(Arc::new(State { shown, has_backend, own: Mutex::new(first) }))
    }

    /// The state now.
    #[must_use]
    pub fn ready(&self) -> Ready {
        *self.0.shown.borrow()
    }

    /// Changes the state, unless the process is draining: there is no way back from that.
    pub fn set(&self, next: Ready) {
        let mut own = self.0.own.lock();
        if *own != Ready::Draining {
            *own = next;
        }
        self.show(*own);
    }

    /// Heeds whether the store of counters answers: without it a ready process is not.
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

    /// Sees every change from now on.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Ready> {
        self.0.shown.subscribe()
    }
}
