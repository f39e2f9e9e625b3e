//! Whether a Redis that was late too often is asked.
//!
//! Guarantees: opens after [`LATE_IN_A_ROW`] late answers without one in time between, to calls or to probes; while it is
//! open nobody waits; it is closed by a probe that was answered in time or by a new connection, and
//! by nothing else.
//! Leaves out: the probe, which is the connection's.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use tokio::sync::Notify;

/// Late answers in a row that open the breaker: one can be a hiccup, of five in a row the
/// sixth caller should not pay.
pub(super) const LATE_IN_A_ROW: u32 = 5;

/// The state.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    late: AtomicU32,
    open: AtomicBool,
    opened: Notify,
}

impl Breaker {
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// An answer came in time.
    pub(super) fn in_time(&self) {
        // Read first: a store by every call would be fought over by every core.
        if self.late.load(Relaxed) != 0 {
            self.late.store(0, Relaxed);
        }
    }

    /// No answer came in time. True when this opened the breaker.
    pub(super) fn late(&self) -> bool {
        LATE_IN_A_ROW <= self.late.fetch_add(1, Relaxed).saturating_add(1) && self.open()
    }

    /// Opens it. True unless it was open.
    pub(super) fn open(&self) -> bool {
        let opens = !self.open.swap(true, Relaxed);
        if opens {
            self.opened.notify_one();
        }
        opens
    }

    /// Returns once the breaker opens, at once if it is open and nobody has been told.
    pub(super) async fn opened(&self) {
        loop {
            self.opened.notified().await;
            // Nobody may have been told before it was closed, with the connection that it was about.
            if self.is_open() {
                return;
            }
        }
    }

    /// Asks as ever.
    pub(super) fn close(&self) {
        self.late.store(0, Relaxed);
        self.open.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::{Breaker, LATE_IN_A_ROW};

    /// Whether who waits for it to open is told now.
    fn tells(breaker: &Breaker) -> bool {
        pin!(breaker.opened()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn open(breaker: &Breaker) {
        assert!((0..LATE_IN_A_ROW).any(|_| breaker.late()));
    }

    #[test]
    fn who_comes_after_it_was_closed_is_not_told_that_it_opened_and_of_the_next_time_is() {
        let breaker = Breaker::default();
        open(&breaker);
        breaker.close();
        assert!(!tells(&breaker));
        open(&breaker);
        assert!(tells(&breaker) && !tells(&breaker), "once");
        breaker.close();
        open(&breaker);
        breaker.close();
        open(&breaker);
        assert!(tells(&breaker) && !tells(&breaker), "of the last time alone");
    }

    #[test]
    fn it_opens_at_the_last_of_so_many_late_answers_in_a_row_and_once() {
        let breaker = Breaker::default();
        for _ in 1..LATE_IN_A_ROW {
            assert!(!breaker.late());
        }
        breaker.in_time();
        for _ in 1..LATE_IN_A_ROW {
            assert!(!breaker.late() && !breaker.is_open(), "one in time begins the count anew");
        }
        assert!(breaker.late() && breaker.is_open());
        assert!(!breaker.late(), "it is open already");
        breaker.in_time();
        assert!(breaker.is_open(), "a straggler's answer does not close it");
        breaker.close();
        assert!(!breaker.is_open() && !breaker.late());
    }
}
