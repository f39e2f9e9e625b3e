//! The validated `concurrency` block of a rule: a limit on requests in flight.

use std::fmt;

use super::resolve::keywords;
use crate::kernel::concurrency::adaptive::AdaptiveConfig;
use crate::kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use crate::kernel::units::Nanos;

/// The default of `max_duration`, the lifetime of a permit whose release never arrives.
pub const DEFAULT_MAX_DURATION: Nanos = Nanos::from_secs(60);

/// The longest `max_duration` without warning W30. For this time, the store reserves the share of a
/// crashed replica.
pub const LONG_MAX_DURATION: Nanos = Nanos::from_secs(300);

/// The largest limit for which `mode: leased` causes warning W31: many replicas would have no
/// share.
pub const SMALL_LIMIT: u32 = 10;

/// The smallest limit for which `mode: strict` causes warning W32: shares would avoid store calls.
pub const LARGE_LIMIT: u32 = 1_000;

/// The scope of a concurrency limit: one replica or the fleet (field `mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConcurrencyMode {
    /// Each replica has the whole limit for itself, without store calls.
    Local,
    /// One limit for the whole fleet, split into shares.
    Leased,
    /// One limit for the whole fleet. Each acquire of a permit is a store call.
    Strict,
}

/// The limit of a replica whose share expired during a store outage (field `on_backend_failure`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConcurrencyFallback {
    /// 0: every request is rejected.
    Deny,
    /// The smaller of the replica's last share and last fair share. Before its first share: the
    /// limit divided by the number of replicas.
    #[default]
    Local,
    /// The whole limit, enforced by each replica on its own.
    Allow,
}

/// A concurrency limit, and the response to a request that gets no permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// The initial limit, the adaptive algorithm with its bounds, and the queue.
    pub rules: LimiterConfig,
    /// The mode in the file. Default: `leased` with a shared store, else `local`.
    pub mode: Option<ConcurrencyMode>,
    /// The limit of a replica whose share expired during a store outage.
    pub on_backend_failure: ConcurrencyFallback,
    /// The lifetime of a permit whose release never arrives.
    pub max_duration: Nanos,
    /// The response to a request that the concurrency limit rejects.
    pub reject: RejectReply,
    /// Shadow mode: requests above the limit are reported, but not rejected.
    pub shadow: bool,
    /// The full path of the rule, as in [`super::Rule::path`].
    pub path: Box<str>,
    /// The file and line of the limit, `file:line`.
    pub location: Box<str>,
}

/// The response to a request that the concurrency limit rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectReply {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// The value of the response header `Retry-After`; `None` omits the header.
    pub retry_after: Option<Nanos>,
    /// The response body.
    pub body: Box<str>,
}

impl Default for RejectReply {
    fn default() -> Self {
        Self { status: 503, retry_after: None, body: Box::default() }
    }
}

/// Formats the limit as `64 in flight, queue of 100 for 300ms, rejected with 503`.
impl fmt::Display for ConcurrencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimiterConfig { limit, adaptive, queue } = &self.rules;
        write!(f, "{limit} in flight")?;
        if let Some(AdaptiveConfig { algorithm, min, max }) = adaptive {
            let algorithm = keywords::keyword_of(keywords::ALGORITHMS, *algorithm);
            write!(f, ", {algorithm} from {min} to {max}")?;
        }
        if let Some(QueueConfig { size, timeout }) = queue {
            write!(f, ", queue of {size} for {timeout}")?;
        }
        if let Some(mode) = self.mode {
            write!(f, ", mode {}", keywords::keyword_of(keywords::CONCURRENCY_MODES, mode))?;
        }
        if self.on_backend_failure != ConcurrencyFallback::default() {
            let fallback =
                keywords::keyword_of(keywords::CONCURRENCY_FALLBACKS, self.on_backend_failure);
            write!(f, ", on backend failure {fallback}")?;
        }
        if self.max_duration != DEFAULT_MAX_DURATION {
            write!(f, ", at most {}", self.max_duration)?;
        }
        write!(f, ", rejected with {}", self.reject)?;
        f.write_str(if self.shadow { ", shadow" } else { "" })
    }
}

/// Formats the response as `503, retry after 1s, "busy"`.
impl fmt::Display for RejectReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)?;
        if let Some(retry_after) = self.retry_after {
            write!(f, ", retry after {retry_after}")?;
        }
        if self.body.is_empty() { Ok(()) } else { write!(f, ", {:?}", self.body) }
    }
}
