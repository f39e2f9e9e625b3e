//! Logs failed streams to the xDS server: the start, a count each minute, and the end.
//!
//! Guarantees:
//! - A server that closes each stream after its response causes at most 8 lines a minute.
//! - Each other failed stream is logged at `debug`.

use std::time::Duration;

use tokio::time::Instant;

use super::XdsServer;
use crate::telemetry::reason_log::{DueLine, ReasonLog};

/// The failed streams since the last response.
#[derive(Debug)]
pub(super) struct StreamLog(ReasonLog);

impl StreamLog {
    pub(super) const fn new() -> Self {
        Self(ReasonLog::new())
    }

    /// Records that a stream failed with `error`. The next one starts after `wait`.
    pub(super) fn record_failure(&mut self, server: &XdsServer, error: &str, wait: Duration) {
        let retry_in = format!("{:.1}s", wait.as_secs_f64());
        if let Some(DueLine { times }) = self.0.count(error, Instant::now()) {
            tracing::warn!(%server, %error, times, %retry_in, "xDS stream failed, keeping the current limits and retrying");
        } else {
            tracing::debug!(%server, %error, %retry_in, "xDS stream failed again");
        }
    }

    pub(super) fn record_response(&mut self, server: &XdsServer) {
        if self.0.is_begin_logged() {
            tracing::info!(%server, "xDS server responds again");
        }
        self.0.end();
    }
}
