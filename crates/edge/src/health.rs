//! The readiness of this process, which the health endpoints of all protocols report.
//!
//! Guarantees:
//! - A draining process never becomes ready again.
//! - Every subscriber of [`Health::watch`] receives the latest readiness.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The readiness of this process for checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The process is ready to decide checks.
    Ready,
    /// No configuration is loaded, and the settings make readiness depend on it.
    NoConfig,
    /// The store is unavailable, and the settings make readiness depend on it.
    StoreUnavailable,
    /// The process is shutting down, and finishes the open requests.
    Draining,
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::NoConfig => "not ready: no limits are loaded",
            Self::StoreUnavailable => "not ready: the store is unavailable",
            Self::Draining => "not ready: draining",
        })
    }
}

/// The readiness of this process. All clones share one state.
#[derive(Clone, Debug)]
pub struct Health(Arc<HealthState>);

#[derive(Debug)]
struct HealthState {
    reported: watch::Sender<Readiness>,
    /// `true` unless the store is unavailable and the settings make readiness depend on it.
    is_store_available: AtomicBool,
    /// The readiness that would apply if the store were available.
    without_store: Mutex<Readiness>,
}

impl Health {
    /// Creates the state with the given readiness.
    #[must_use]
    pub fn new(initial: Readiness) -> Self {
        let (reported, is_store_available) = (watch::Sender::new(initial), AtomicBool::new(true));
        Self(Arc::new(HealthState {
            reported,
            is_store_available,
            without_store: Mutex::new(initial),
        }))
    }

    /// Returns the current readiness.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        *self.0.reported.borrow()
    }

    /// Changes the readiness, unless the process is draining.
    pub fn set_readiness(&self, next: Readiness) {
        let mut current = self.0.without_store.lock();
        if *current != Readiness::Draining {
            *current = next;
        }
        self.publish(*current);
    }

    /// Records whether the store is available. If not, a ready process becomes
    /// [`Readiness::StoreUnavailable`].
    pub fn set_store_available(&self, is_available: bool) {
        self.0.is_store_available.store(is_available, Ordering::Relaxed);
        let without_store = self.0.without_store.lock();
        self.publish(*without_store);
    }

    fn publish(&self, without_store: Readiness) {
        let is_store_available = self.0.is_store_available.load(Ordering::Relaxed);
        let next = if without_store == Readiness::Ready && !is_store_available {
            Readiness::StoreUnavailable
        } else {
            without_store
        };
        self.0.reported.send_if_modified(|reported| std::mem::replace(reported, next) != next);
    }

    /// Subscribes to later changes of the readiness.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Readiness> {
        self.0.reported.subscribe()
    }
}
