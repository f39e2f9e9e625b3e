//! Delays the repeated rejection (NACK) of a response, and bounds its log lines.
//!
//! Some xDS servers answer each NACK at once with the same response. Without a delay, both sides
//! would loop thousands of times a second.
//!
//! Guarantees:
//! - A response with a new version or a new error is rejected at once.
//! - The same rejection is delayed by 0.5 s, then by twice the last delay, up to 60 s.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::backoff::{Backoff, BackoffBounds};
use crate::telemetry::reason_log::{DueLine, ReasonLog};

const DELAYS: BackoffBounds = BackoffBounds {
    min: Duration::from_millis(500),
    max: Duration::from_secs(60),
    jitter: false,
    seed: 0,
};

/// The rejected responses since the last accepted response.
#[derive(Debug)]
pub(super) struct Rejections {
    last: Option<(String, String)>,
    delays: Backoff,
    reasons: ReasonLog,
}

/// A NACK that is sent after a delay.
pub(super) struct DelayedNack {
    due: Pin<Box<Sleep>>,
    pub(super) nonce: String,
    pub(super) error: String,
}

impl Rejections {
    pub(super) fn new() -> Self {
        Self { last: None, delays: Backoff::new(DELAYS), reasons: ReasonLog::new() }
    }

    /// Records a rejection, and logs it if a line is due. `kept` names the limits that stay in use.
    /// Returns `true` if the last rejection was the same.
    pub(super) fn record(&mut self, version: &str, error: &str, kept: &str) -> bool {
        if let Some(DueLine { times }) =
            self.reasons.count(&format!("{version}: {error}"), Instant::now())
        {
            tracing::error!(version, %error, times, "limits from the xDS server rejected: {kept}");
        }
        let is_same =
            self.last.as_ref().is_some_and(|last| (&*last.0, &*last.1) == (version, error));
        if !is_same {
            self.delays.reset();
            self.last = Some((version.to_owned(), error.to_owned()));
        }
        is_same
    }

    /// Creates the NACK of a repeated rejection.
    pub(super) fn delay(&mut self, nonce: String, error: String) -> DelayedNack {
        DelayedNack { due: Box::pin(sleep(self.delays.next_wait())), nonce, error }
    }

    /// Ends the rejections, because a response was accepted.
    pub(super) fn accept(&mut self, version: &str) {
        if self.reasons.is_begin_logged() {
            tracing::info!(version, "limits from the xDS server accepted again");
        }
        self.reasons.end();
        self.last = None;
    }
}

/// Waits until the NACK is due, and takes it. Never returns without a NACK.
pub(super) async fn take_due(nack: &mut Option<DelayedNack>) -> DelayedNack {
    match nack {
        Some(waiting) => (&mut waiting.due).await,
        None => std::future::pending().await,
    }
    match nack.take() {
        Some(due) => due,
        None => std::future::pending().await,
    }
}
