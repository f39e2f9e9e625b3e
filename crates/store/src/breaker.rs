//! The circuit breaker of a slow store.
//!
//! Guarantees:
//! - [`LATE_REPLIES_TO_OPEN`] consecutive late replies, to calls or to probes, open the breaker.
//! - While the breaker is open, calls fail at once.
//! - Only a probe with a timely reply, or a new connection, closes the breaker.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use tokio::sync::Notify;

/// The number of late replies in a row that opens the breaker: one may be an exception, but after
/// five the next caller would probably wait in vain.
pub(crate) const LATE_REPLIES_TO_OPEN: u32 = 5;

#[derive(Debug, Default)]
pub(crate) struct Breaker {
    late_replies: AtomicU32,
    open: AtomicBool,
    opened_notify: Notify,
}

impl Breaker {
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    pub(crate) fn record_timely(&self) {
        // Load before the store: if every call wrote, the cache line would move between cores.
        if self.late_replies.load(Relaxed) != 0 {
            self.late_replies.store(0, Relaxed);
        }
    }

    /// Records a late reply. Returns `true` if it opened the breaker.
    pub(crate) fn record_late(&self) -> bool {
        LATE_REPLIES_TO_OPEN <= self.late_replies.fetch_add(1, Relaxed).saturating_add(1)
            && self.open()
    }

    /// Opens the breaker. Returns `false` if it was open already.
    pub(crate) fn open(&self) -> bool {
        let is_newly_open = !self.open.swap(true, Relaxed);
        if is_newly_open {
            self.opened_notify.notify_one();
        }
        is_newly_open
    }

    /// Waits until the breaker opens, or returns at once if it opened since the last wait and is
    /// still open.
    pub(crate) async fn wait_opened(&self) {
        loop {
            self.opened_notify.notified().await;
            // The notification may be old: a new connection may have closed the breaker since.
            if self.is_open() {
                return;
            }
        }
    }

    pub(crate) fn close(&self) {
        self.late_replies.store(0, Relaxed);
        self.open.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::{Breaker, LATE_REPLIES_TO_OPEN};

    fn is_notified(breaker: &Breaker) -> bool {
        pin!(breaker.wait_opened()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn open(breaker: &Breaker) {
        assert!((0..LATE_REPLIES_TO_OPEN).any(|_| breaker.record_late()));
    }

    #[test]
    fn wait_opened_returns_once_and_only_while_the_breaker_is_open() {
        let breaker = Breaker::default();
        open(&breaker);
        breaker.close();
        assert!(!is_notified(&breaker));
        open(&breaker);
        assert!(is_notified(&breaker) && !is_notified(&breaker), "once");
        breaker.close();
        open(&breaker);
        breaker.close();
        open(&breaker);
        assert!(is_notified(&breaker) && !is_notified(&breaker), "only the last opening counts");
    }

    #[test]
    fn consecutive_late_replies_open_the_breaker_once() {
        let breaker = Breaker::default();
        for _ in 1..LATE_REPLIES_TO_OPEN {
            assert!(!breaker.record_late());
        }
        breaker.record_timely();
        for _ in 1..LATE_REPLIES_TO_OPEN {
            assert!(
                !breaker.record_late() && !breaker.is_open(),
                "a timely reply restarts the count"
            );
        }
        assert!(breaker.record_late() && breaker.is_open());
        assert!(!breaker.record_late(), "it is open already");
        breaker.record_timely();
        assert!(breaker.is_open(), "a timely reply to a call does not close it");
        breaker.close();
        assert!(!breaker.is_open() && !breaker.record_late());
    }
}
