//! The settings of the connection to Sluicegate, and of one filter.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use crate::kernel::decision::Verdict;

/// The address of Sluicegate, and the TLS settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceSettings {
    /// The host and port of Sluicegate's gRPC port, such as `sluicegate:8081`.
    pub address: String,
    /// The TLS settings; `None` for a connection without TLS.
    pub tls: Option<TlsSettings>,
}

/// The TLS settings of the connection. The files are read again for each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TlsSettings {
    /// The CA bundle (PEM) that verifies Sluicegate. `None`: the CAs of the operating system.
    pub ca_file: Option<PathBuf>,
    /// The client certificate and its private key (PEM), for mutual TLS.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in Sluicegate's certificate. `None`: the host of the address.
    pub server_name: Option<String>,
}

/// The wait of a filter for Sluicegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSettings {
    /// The longest wait of a request, from 1 ms to 1 s.
    pub deadline: Duration,
    /// The failure rule: the decision after this wait, and without a connection, unless the limit has a rule of its
    /// own (`on_store_failure`).
    pub failure: Verdict,
}

impl WaitSettings {
    /// Returns the end of a wait that begins now, on the clock of the runtime's timers.
    pub(crate) fn end(self) -> Instant {
        Instant::now() + self.deadline
    }
}

/// The settings of a limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimiterSettings {
    /// The connection to Sluicegate.
    pub service: ServiceSettings,
    /// The name of the process.
    pub identity: ProxyIdentity,
    /// The memory of all tables, in bytes; see [`crate::DEFAULT_MEMORY_BYTES`].
    pub memory_bytes: usize,
}

/// The name of the process for operators of Sluicegate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyIdentity {
    /// The name for operators, such as the node id of Envoy.
    pub name: String,
    /// The software and its version.
    pub software: String,
}
