//! Logs failed accepts and refused connections: the start, a count each minute, and the end.

use std::io;

use tokio::time::Instant;

use crate::telemetry::label::ListenPort;
use crate::telemetry::reason_log::{DueLine, QuietLog};

/// `EMFILE` and `ENFILE`: the process or the system has no free file descriptor.
const NO_FILE_DESCRIPTOR: [i32; 2] = [24, 23];

/// The failed accepts and refused connections of one port.
#[derive(Debug)]
pub(super) struct AcceptErrors {
    port: ListenPort,
    log: QuietLog,
}

impl AcceptErrors {
    pub(super) const fn new(port: ListenPort) -> Self {
        Self { port, log: QuietLog::new() }
    }

    pub(super) fn record_failure(&mut self, error: &io::Error) {
        if let Some(DueLine { times }) = self.log.count(&error.to_string(), Instant::now()) {
            let (port, help) = (self.port.as_str(), help_for(error));
            tracing::warn!(port, %error, times, help, "failed to accept a connection, retrying");
        }
    }

    /// Records a connection that is refused because `max_connections` connections are open.
    pub(super) fn record_refusal(&mut self, max_connections: usize) {
        if let Some(DueLine { times }) = self.log.count("too many connections", Instant::now()) {
            let port = self.port.as_str();
            let help = match self.port {
                ListenPort::Grpc | ListenPort::Http => {
                    "raise listen.max_connections, or find the client that opens so many"
                }
                ListenPort::Metrics | ListenPort::Admin | ListenPort::Peer => {
                    "find the client that opens so many"
                }
            };
            tracing::warn!(port, max_connections, times, help, "refused a connection: too many");
        }
    }

    pub(super) fn record_success(&mut self) {
        if self.log.record_success(Instant::now()) {
            tracing::info!(port = self.port.as_str(), "connections are accepted again");
        }
    }
}

fn help_for(error: &io::Error) -> Option<&'static str> {
    let is_limit = error.raw_os_error().is_some_and(|code| NO_FILE_DESCRIPTOR.contains(&code));
    is_limit.then_some("raise the limit on open files (ulimit -n; LimitNOFILE= in a systemd unit)")
}
