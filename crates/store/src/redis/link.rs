//! The current connection to one Redis process, and why calls fail without one.
//!
//! Guarantees:
//! - While there is no connection, calls fail at once.
//! - [`Link::outage_cause`] reports a failed connection until a new connection has been stable for
//!   a while.
//! - [`Link::outage_cause`] reports refused writes until no write was refused for a while.
//! - If Redis refused the connection as not permitted, loading or out of memory, calls fail with this
//!   cause.
//!
//! Not covered:
//! - Opening and watching the connection ([`super::keeper`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use fred::error::Error;
use parking_lot::Mutex;

use super::StoreFailure;
use super::call_error::connect_refusal;
use super::connection::LiveConnection;
use crate::breaker::Breaker;

/// The current connection to one Redis process. The keeper task replaces it, and callers use it.
#[derive(Debug, Default)]
pub(super) struct Link {
    connection: ArcSwapOption<LiveConnection>,
    pub(super) breaker: Breaker,
    /// The cause for which Redis refused the last connection attempt. `None` if the attempt
    /// succeeded, got no reply, or failed for another cause.
    connect_failure: Mutex<Option<StoreFailure>>,
    /// Why the previous connection failed, or why Redis refuses calls on this one. Cleared after a
    /// connection was stable for a while.
    recent_failure: Mutex<Option<StoreFailure>>,
    /// True if the last connection is to a proxy of Redis.
    is_proxied: AtomicBool,
}

impl Link {
    /// Returns the current connection.
    ///
    /// # Errors
    /// There is no connection, or the circuit breaker is open.
    pub(super) fn connection(&self) -> Result<Arc<LiveConnection>, StoreFailure> {
        let none = || self.connect_failure.lock().unwrap_or(StoreFailure::Unreachable);
        let live = self.connection.load_full().ok_or_else(none)?;
        if self.breaker.is_open() { Err(StoreFailure::BreakerOpen) } else { Ok(live) }
    }

    /// Returns why calls fail now, if known. An open connection does not prove that calls succeed:
    /// a read-only Redis accepts connections, too.
    pub(super) fn outage_cause(&self) -> Option<StoreFailure> {
        self.connection().err().or_else(|| *self.recent_failure.lock())
    }

    pub(super) fn set_connection(&self, live: Arc<LiveConnection>) {
        self.breaker.close();
        *self.connect_failure.lock() = None;
        self.is_proxied.store(live.proxy().is_some(), Relaxed);
        self.connection.store(Some(live));
    }

    /// Returns `true` if a proxy may route each key to another server.
    pub(super) fn is_proxied(&self) -> bool {
        self.is_proxied.load(Relaxed)
    }

    pub(super) fn clear_connection(&self) {
        let lost = self.connection.swap(None);
        if let Some(cause) = lost.and_then(|live| live.signals.useless_cause()) {
            self.set_recent_failure(cause);
        }
    }

    /// Stores the cause if Redis refused a connection attempt.
    pub(super) fn set_connect_failure(&self, error: &Error) {
        *self.connect_failure.lock() = connect_refusal(error);
    }

    /// Records that calls fail for `cause`, even if there is a connection.
    pub(super) fn set_recent_failure(&self, cause: StoreFailure) {
        *self.recent_failure.lock() = Some(cause);
    }

    /// Forgets the last failure, because the connection was stable for a while.
    pub(super) fn clear_recent_failure(&self) {
        *self.recent_failure.lock() = None;
    }

    /// Counts late replies for the circuit breaker. A call without a connection says nothing about
    /// the time of a reply.
    pub(super) fn record_result(&self, failed: Option<StoreFailure>) {
        match failed {
            Some(StoreFailure::TimedOut) => log_if_opened(self.breaker.record_late()),
            Some(StoreFailure::Unreachable | StoreFailure::ConnectionLost) => {}
            _ => self.breaker.record_timely(),
        }
    }

    /// Opens the circuit breaker after a series of late probes.
    pub(super) fn open_breaker(&self) {
        log_if_opened(self.breaker.open());
    }
}

fn log_if_opened(opened: bool) {
    if opened {
        tracing::warn!("redis timed out repeatedly, pausing calls until it responds in time");
    }
}
