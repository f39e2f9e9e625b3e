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
pub mod permit_registry;
pub mod permit_table;
mod queue;
pub mod reported_outcome;

pub use adaptive::AdaptiveLimit;
pub use in_flight::Permit;
pub use limiter::Limiter;
pub use permit_registry::PermitRegistry;
pub use queue::QueueTicket;
pub use reported_outcome::{OverloadAnswers, ReportedOutcome, RetryAfterRule, UpstreamAnswer};

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
