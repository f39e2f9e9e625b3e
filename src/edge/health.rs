//! Whether this process wants to be asked: one state that every protocol's health check shows.
//!
//! Guarantees: once draining, never ready again; every watcher sees the last state.
//! Leaves out: why the state changes, which is for [`crate::cli`].

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

/// The state of readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Ask away.
    Yes,
    /// No limits have been loaded yet, and the process was told that it needs some.
    NoConfig,
    /// The process is about to end; questions under way are answered.
    Draining,
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "ready",
            Self::NoConfig => "not ready: no limits are loaded yet",
            Self::Draining => "not ready: draining",
        })
    }
}

/// The shared state of readiness. Clones are one state.
#[derive(Clone, Debug)]
pub struct Health(Arc<watch::Sender<Ready>>);

impl Health {
    /// A process that starts in `first`.
    #[must_use]
    pub fn new(first: Ready) -> Self {
        Self(Arc::new(watch::Sender::new(first)))
    }

    /// The state now.
    #[must_use]
    pub fn ready(&self) -> Ready {
        *self.0.borrow()
    }

    /// Changes the state, unless the process is draining: there is no way back from that.
    pub fn set(&self, next: Ready) {
        self.0.send_if_modified(|ready| {
            let changes = *ready != Ready::Draining && *ready != next;
            if changes {
                *ready = next;
            }
            changes
        });
    }

    /// Sees every change from now on.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Ready> {
        self.0.subscribe()
    }
}
