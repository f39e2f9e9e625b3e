//! Replies of Sluicegate to a client of the test, beside the requests that the test judges.
//!
//! Guarantees:
//! - A request that fails while these replies are prompt fails the test.
//! - A test in which they are late is repeated, because the filter waits only 100 ms for a borrow.
//! - A test that fails in each attempt fails.
#![expect(clippy::print_stdout, reason = "which attempt did not count is part of the proof")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::now;

/// A reply that takes longer is late: a fifth of the filter's wait for a borrow.
const PROMPT: Duration = Duration::from_millis(20);

/// The time before a failure in which a late reply explains it: a session that missed a deadline
/// gets few calls until its next reply.
const EARLIER: Duration = Duration::from_secs(1);

const PAUSE: Duration = Duration::from_millis(5);

const MAX_ATTEMPTS: usize = 10;

/// Start and end.
pub(super) type Interval = (Instant, Instant);

/// An attempt does not count, because the machine was late.
pub(super) struct LateMachine(pub(super) String);

/// Repeats a test until an attempt counts.
pub(super) fn repeat_while_late(mut attempt: impl FnMut() -> Result<(), LateMachine>) {
    let counts = (0..MAX_ATTEMPTS).any(|_| match attempt() {
        Ok(()) => true,
        Err(LateMachine(why)) => {
            println!("does not count: {why}");
            false
        }
    });
    assert!(counts, "no attempt counts");
}

/// A client that sends one request to Sluicegate after another.
pub(super) struct Yardstick {
    is_over: Arc<AtomicBool>,
    client: JoinHandle<Vec<Interval>>,
}

/// The requests of the client.
pub(super) struct Replies(Vec<Interval>);

impl Yardstick {
    pub(super) fn start(service: &Service) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (address, ends) = (service.http, Arc::clone(&is_over));
        Self { is_over, client: spawn(move || send_requests(address, &ends)) }
    }

    pub(super) fn stop(self) -> Replies {
        self.is_over.store(true, Relaxed);
        Replies(self.client.join().unwrap())
    }
}

fn send_requests(service: SocketAddr, is_over: &AtomicBool) -> Vec<Interval> {
    let mut requests = Vec::new();
    while !is_over.load(Relaxed) {
        let began = now();
        assert_eq!(http1::get(service, "/readyz", &[]).unwrap().status, 200);
        requests.push((began, now()));
        sleep(PAUSE);
    }
    requests
}

impl Replies {
    /// Returns the time of the slowest reply to a request in this interval.
    pub(super) fn slowest(&self, (from, to): Interval) -> Duration {
        let within = self.0.iter().filter(|(began, ended)| *began <= to && from <= *ended);
        within.map(|(began, ended)| *ended - *began).max().unwrap_or_default()
    }

    /// Requires that replies were late beside each of these failures.
    pub(super) fn judge(&self, failures: &[Interval]) -> Result<(), LateMachine> {
        let slowest = |&(began, ended): &Interval| {
            self.slowest((began.checked_sub(EARLIER).unwrap_or(began), ended))
        };
        let Some(slowest) = failures.iter().map(slowest).min() else { return Ok(()) };
        let why = format!("{} requests failed, with replies of {slowest:?}", failures.len());
        assert!(PROMPT < slowest, "{why}");
        Err(LateMachine(why))
    }
}
