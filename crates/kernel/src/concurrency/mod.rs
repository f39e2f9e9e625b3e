//! Concurrency limits: the largest number of requests in flight.
//!
//! [`Limiter`] applies one limit: the caller passes an event and carries out the returned effects.
//! [`PermitRegistry`] maps the request ids of proxies to permits and remembers early releases,
//! which arrive before their acquire. [`AdaptiveLimit`] adapts a limit to the latency of finished
//! requests. [`permit_table`] contains the store's permits for limits in strict mode, where every
//! acquire is a store call.

pub mod adaptive;
mod deadline_heap;
mod in_flight;
pub mod limiter;
pub mod pace;
pub mod permit_registry;
pub mod permit_table;
mod queue;
pub mod reported_outcome;
mod requester;

use std::fmt;
use std::sync::Arc;

use crate::units::Nanos;
pub use adaptive::AdaptiveLimit;
pub use in_flight::Permit;
pub use limiter::Limiter;
pub use pace::{AdaptivePace, Pace, PaceConfig};
pub use permit_registry::PermitRegistry;
pub use queue::QueueTicket;
pub use reported_outcome::{OverloadAnswers, ReportedOutcome, RetryAfterRule, UpstreamAnswer};
pub use requester::{
    ClassParts, ClassUse, CustomerUse, MAX_CLASSES, MAX_WEIGHT, Requester, RequesterKeys,
    RequesterUse,
};

/// The processes over which a concurrency limit counts requests in flight (field `mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConcurrencyMode {
    /// Each replica and proxy has the whole limit for itself, without store calls.
    Local,
    /// One limit for the whole fleet, split into shares.
    Shared,
    /// One limit for the whole fleet; each acquire of a permit is a store call.
    Strict,
}

/// The response to a request that a concurrency limit rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectReply {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// The value of the response header `Retry-After`; `None` omits the header.
    pub retry_after: Option<Nanos>,
    /// The response body.
    pub body: Arc<str>,
}

impl Default for RejectReply {
    fn default() -> Self {
        Self { status: 503, retry_after: None, body: Arc::from("") }
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

/// The result of a request, which decides if its latency is evidence about the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestOutcome {
    /// The backend served the request, so its latency is a measurement.
    Success,
    /// No evidence: the client disconnected, another limit denied the request, or a cache served
    /// it.
    Ignored,
    /// The backend refused the request or timed out: a sign of overload, but no usable latency.
    Dropped,
}
