//! The meaning of a node's `concurrency` block: a limit on requests in flight.
//!
//! Guarantees:
//! - Limits that differ in a number or a keyword have different descriptions.
//!
//! Not covered:
//! - Enforcement (see [`crate::kernel::concurrency`]).

use std::fmt;

use super::resolve::keywords;
use crate::kernel::concurrency::adaptive::AdaptiveConfig;
use crate::kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use crate::kernel::units::Nanos;

/// The default of `max_duration`.
pub const DEFAULT_MAX_DURATION: Nanos = Nanos::from_secs(60);

/// The `max_duration` of a fleet-wide limit above which warning W30
/// is reported. The share of a lost replica stays reserved that long.
pub const LONG_MAX_DURATION: Nanos = Nanos::from_secs(300);

/// The largest limit for which `mode: leased` causes warning
/// W31. Most of a few dozen replicas would have no share.
pub const SMALL_LIMIT: u32 = 10;

/// The smallest limit for which `mode: strict` causes warning W32. At
/// this size, shares are fine enough to avoid a store call per request.
pub const LARGE_LIMIT: u32 = 1_000;

/// The replicas that a concurrency limit covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConcurrencyMode {
    /// Each replica enforces the limit alone.
    Local,
    /// One limit for the whole fleet, split into shares.
    Leased,
    /// One limit for the whole fleet, with a store call for each permit.
    Strict,
}

/// The fallback of a replica without a valid share while the store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConcurrencyFallback {
    /// No requests in flight.
    Deny,
    /// The smaller of the replica's last share and its last fair share.
    /// A replica that never had a share uses an even part of the limit.
    #[default]
    Local,
    /// The whole limit, enforced by this replica alone.
    Allow,
}

/// A concurrency limit and the reply to rejected requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// The size of the limit, its adaptive range and its queue.
    pub rules: LimiterConfig,
    /// The replicas that the limit covers. `None` means
    /// the whole fleet, if there is a shared store.
    pub mode: Option<ConcurrencyMode>,
    /// The fallback while the store does not answer; unused in `local` mode.
    pub on_backend_failure: ConcurrencyFallback,
    /// The time after which a permit expires if its release may be lost.
    pub max_duration: Nanos,
    /// The reply to a rejected request.
    pub reject: RejectReply,
    /// Shadow mode: counted and reported, not enforced.
    pub shadow: bool,
    /// The node's full path, as in [`super::Rule`].
    pub path: Box<str>,
    /// The source file and line.
    pub location: Box<str>,
}

/// The reply to a rejected request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectReply {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// The value of `Retry-After`, if the reply has one.
    pub retry_after: Option<Nanos>,
    /// The body.
    pub body: Box<str>,
}

impl Default for RejectReply {
    fn default() -> Self {
        Self { status: 503, retry_after: None, body: Box::default() }
    }
}

/// `64 in flight, gradient from 8 to 512, queue of 100 for 300ms, rejected with 503`.
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
        if self.on_backend_failure != ConcurrencyFallback::default() {
            let failure =
                keywords::keyword_of(keywords::CONCURRENCY_FALLBACKS, self.on_backend_failure);
            write!(f, ", on backend failure {failure}")?;
        }
        if self.max_duration != DEFAULT_MAX_DURATION {
            write!(f, ", at most {}", self.max_duration)?;
        }
        write!(f, ", rejected with {}", self.reject)?;
        f.write_str(if self.shadow { ", shadow" } else { "" })
    }
}

/// `503, retry after 1s, "busy"`.
impl fmt::Display for RejectReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)?;
        if let Some(retry_after) = self.retry_after {
            write!(f, ", retry after {retry_after}")?;
        }
        if self.body.is_empty() { Ok(()) } else { write!(f, ", {:?}", self.body) }
    }
}
