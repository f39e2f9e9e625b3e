//! The validated `concurrency` block of a rule: a limit on requests in flight.
//!
//! Guarantees:
//! - Two limits with different numbers or keywords have different text descriptions.
//!
//! Not covered:
//! - Enforcement (see [`crate::kernel::concurrency`]).

use std::fmt;

use super::resolve::keywords;
use crate::kernel::concurrency::adaptive::AdaptiveConfig;
use crate::kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use crate::kernel::units::Nanos;

/// The default of `max_duration`, the lifetime of a permit whose release never arrives.
pub const DEFAULT_MAX_DURATION: Nanos = Nanos::from_secs(60);

/// The longest `max_duration` of a fleet-wide limit without warning W30. The store keeps the share
/// of a crashed replica reserved for `max_duration`.
pub const LONG_MAX_DURATION: Nanos = Nanos::from_secs(300);

/// The largest concurrency limit for which `mode: shared` causes warning W31. Split among
/// a few dozen replicas, such a limit leaves most of them without a share.
pub const SMALL_LIMIT: u32 = 10;

/// The smallest concurrency limit for which `mode: strict` causes warning W32. A limit of this size
/// can be split into shares, which avoids a store call for each request.
pub const LARGE_LIMIT: u32 = 1_000;

/// The replicas over which a concurrency limit counts requests in flight (field `mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConcurrencyMode {
    /// Each replica has the whole limit for itself, without store calls.
    Local,
    /// One limit for the whole fleet, split into shares.
    Shared,
    /// One limit for the whole fleet; each acquire of a permit is a store call.
    Strict,
}

/// The limit of a replica whose share expired because the store did not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConcurrencyFallback {
    /// 0: every request is rejected.
    Deny,
    /// The smaller of two numbers: the replica's last share, and its last fair share. A replica
    /// that never had a share uses the limit divided by the number of replicas.
    #[default]
    Local,
    /// The whole limit, which this replica then enforces for itself.
    Allow,
}

/// A concurrency limit, and the response to a request that gets no permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// The initial limit, the bounds and algorithm of an adaptive limit, and the queue.
    pub rules: LimiterConfig,
    /// The mode, if the file has one. Without it, the limit is fleet-wide (`shared`) with a shared
    /// store and `local` with the memory store.
    pub mode: Option<ConcurrencyMode>,
    /// The limit of a replica whose share expired during a store outage; unused in `local` mode.
    pub on_store_failure: ConcurrencyFallback,
    /// The lifetime of a permit whose release never arrives. Then the permit is free again.
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

/// Formats the limit as `64 in flight, gradient from 8 to 512, queue of 100 for 300ms, rejected
/// with 503`.
impl fmt::Display for ConcurrencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimiterConfig { limit, adaptive, queue: waiting } = &self.rules;
        write!(f, "{limit} in flight")?;
        if let Some(AdaptiveConfig { algorithm: law, min, max }) = adaptive {
            write!(
                f,
                ", {} from {min} to {max}",
                keywords::keyword_of(keywords::ALGORITHMS, *law)
            )?;
        }
        if let Some(QueueConfig { size, timeout }) = waiting {
            write!(f, ", queue of {size} for {timeout}")?;
        }
        if let Some(mode) = self.mode {
            write!(f, ", mode {}", keywords::keyword_of(keywords::CONCURRENCY_MODES, mode))?;
        }
        if self.on_store_failure != ConcurrencyFallback::default() {
            let failure =
                keywords::keyword_of(keywords::CONCURRENCY_FALLBACKS, self.on_store_failure);
            write!(f, ", on store failure {failure}")?;
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
