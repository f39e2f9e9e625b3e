//! Delays the HTTP/2 pings of hyper on connections without permit streams.
//!
//! Guarantees:
//! - While a [`ShortIdleGuard`](super::incoming::ShortIdleGuard) exists, hyper pings as configured.
//! - Otherwise, each wait takes the idle delay longer.
//! - A guard that is created during a wait ends the delay when hyper polls the connection next.
//!
//! Not covered:
//! - Other timers of hyper: an HTTP/2 server has only those of pings.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt;
use tokio::time;

use super::incoming::ShortIdleHandle;
use super::timeouts::GrpcTimeouts;

/// The timer of one HTTP/2 connection.
#[derive(Clone, Debug)]
pub(super) struct PingTimer {
    idle_handle: ShortIdleHandle,
    idle_delay: Duration,
}

impl PingTimer {
    /// Creates the timer of the connection that `idle_handle` belongs to.
    pub(super) const fn new(idle_handle: ShortIdleHandle, timeouts: &GrpcTimeouts) -> Self {
        let idle_delay = timeouts.idle_ping_interval.saturating_sub(timeouts.ping_interval);
        Self { idle_handle, idle_delay }
    }
}

impl rt::Timer for PingTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        let deadline = time::Instant::from_std(deadline);
        let sleep = Box::pin(time::sleep_until(deadline + self.idle_delay));
        Box::pin(PingSleep { timer: self.clone(), deadline, sleep })
    }
}

#[derive(Debug)]
struct PingSleep {
    timer: PingTimer,
    /// The end of the wait without the idle delay.
    deadline: time::Instant,
    sleep: Pin<Box<time::Sleep>>,
}

impl Future for PingSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let PingTimer { idle_handle, idle_delay } = &self.timer;
        let delay = if idle_handle.has_guards() { Duration::ZERO } else { *idle_delay };
        let end = self.deadline + delay;
        if self.sleep.deadline() != end {
            self.sleep.as_mut().reset(end);
        }
        self.sleep.as_mut().poll(cx)
    }
}

impl rt::Sleep for PingSleep {}
