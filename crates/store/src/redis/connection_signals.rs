//! What calls found out about their connection, for the keeper task that replaces it.
//!
//! Guarantees:
//! - A signal since the last wait is never lost: the next wait returns at once.
//! - An error that only the value of one key causes is not recorded as a refused write.
//! - A signal concerns one connection, never a later one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fred::error::Error;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::StoreFailure;
use super::call_error::{classify_error, is_write_refusal};
use super::client::describe_error;

/// The signals of one connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionSignals {
    /// Notified when a reply shows that the connection must be replaced.
    useless_notify: Notify,
    /// The store failure of the first reply for which the connection must be replaced.
    useless_cause: OnceLock<StoreFailure>,
    /// Notified when Redis refuses a call for a reason that a new connection would not change.
    refusal_notify: Notify,
    /// The last refusal that a new connection would not change, until the keeper task takes it.
    last_refusal: Mutex<Option<StoreRefusal>>,
    /// True if a call succeeded, and no call was refused since.
    has_served: AtomicBool,
    served_notify: Notify,
    abandoned_notify: Notify,
    /// True while Redis refuses `EXPIRE`. Counters written meanwhile never expire.
    is_refusing_expiry: AtomicBool,
    expiry_notify: Notify,
}

/// A refused call. Every other connection to this Redis would get the same refusal.
#[derive(Debug)]
pub(super) struct StoreRefusal {
    pub(super) operation: RefusedOperation,
    pub(super) cause: StoreFailure,
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusedOperation {
    /// A call that counts hits, or another write.
    Count,
    /// Setting the expiry of a counter.
    Expiry,
}

impl ConnectionSignals {
    /// Waits for the first successful call of the connection, or for the first after a refused one.
    pub(super) async fn wait_served(&self) {
        loop {
            self.served_notify.notified().await;
            if self.has_served.load(Relaxed) {
                return;
            }
        }
    }

    /// Waits for a refused call that a new connection would not change, and returns the refusal.
    /// Returns at once if there was a refusal since the last wait.
    pub(super) async fn wait_refused(&self) -> StoreRefusal {
        loop {
            self.refusal_notify.notified().await;
            let refusing = self.last_refusal.lock().take();
            if let Some(refusing) = refusing {
                return refusing;
            }
        }
    }

    pub(super) fn record_abandoned(&self) {
        self.abandoned_notify.notify_one();
    }

    /// Waits until a caller abandons a call. Returns at once if a call was abandoned since the last
    /// wait.
    pub(super) async fn wait_abandoned(&self) {
        self.abandoned_notify.notified().await;
    }

    /// Returns the failure for which the connection must be replaced.
    pub(super) fn useless_cause(&self) -> Option<StoreFailure> {
        self.useless_cause.get().copied()
    }

    /// Waits for a reply that shows that the connection must be replaced.
    pub(super) async fn wait_useless(&self) {
        self.useless_notify.notified().await;
    }

    /// Records the result of a call. Several calls may report a failure; the first cause stays.
    pub(super) fn record_result(&self, failed: Option<StoreFailure>) {
        match failed {
            None => self.record_success(),
            Some(
                cause @ (StoreFailure::ReadOnly
                | StoreFailure::Loading
                | StoreFailure::NotPermitted),
            ) => {
                self.useless_cause.get_or_init(|| cause);
                self.useless_notify.notify_one();
            }
            Some(_) => {}
        }
    }

    /// Classifies and records the error of a call. If `accepts_any_value` is true, no value
    /// of a key can cause an error, so an unknown error is a refused write.
    pub(super) fn record_error(&self, error: &Error, accepts_any_value: bool) -> StoreFailure {
        let cause = classify_error(error);
        if is_write_refusal(error) || (accepts_any_value && cause == StoreFailure::Other) {
            self.record_refusal(StoreRefusal {
                operation: RefusedOperation::Count,
                cause,
                message: describe_error(error),
            });
        } else {
            self.record_result(Some(cause));
        }
        cause
    }

    /// Records that Redis refused `EXPIRE`, so that a counter never expires. The connection stays
    /// open, because another connection would get the same reply.
    pub(super) fn record_refused_expiry(&self, error: &Error) {
        let (what, cause) = (RefusedOperation::Expiry, classify_error(error));
        self.is_refusing_expiry.store(true, Relaxed);
        self.record_refusal(StoreRefusal {
            operation: what,
            cause,
            message: describe_error(error),
        });
    }

    /// Records that Redis accepted `EXPIRE`.
    pub(super) fn record_accepted_expiry(&self) {
        if self.is_refusing_expiry.load(Relaxed) && self.is_refusing_expiry.swap(false, Relaxed) {
            self.expiry_notify.notify_one();
        }
    }

    /// Waits until Redis accepts `EXPIRE` again.
    pub(super) async fn wait_expiry_accepted(&self) {
        self.expiry_notify.notified().await;
    }

    pub(super) fn is_refusing_expiry(&self) -> bool {
        self.is_refusing_expiry.load(Relaxed)
    }

    fn record_refusal(&self, refusing: StoreRefusal) {
        self.has_served.store(false, Relaxed);
        *self.last_refusal.lock() = Some(refusing);
        self.refusal_notify.notify_one();
    }

    fn record_success(&self) {
        // Load before the swap: if every call wrote, the cache line would move between cores each
        // time.
        if !self.has_served.load(Relaxed) && !self.has_served.swap(true, Relaxed) {
            self.served_notify.notify_one();
        }
    }
}
