//! Concurrency limits: the largest number of requests in flight.
//!
//! [`Limiter`] applies one limit as a step function: an event in, effects out.
//! [`PermitRegistry`] maps the ids that proxies mint to permits and remembers early releases.
//! [`AdaptiveLimit`] adapts a limit to the latency of finished requests. [`permit_table`] is the
//! store's table for limits in strict mode, where every acquire goes to the store.
//!
//! Guarantees:
//! - An admission never raises the number in flight above the current limit.
//! - Waiting requests are admitted in the order of their arrival.
//! - A permit is released once.
//! - Memory is bounded: permits, waiting requests, and early releases of each source.
//!
//! Not covered:
//! - The choice of a limit for a request, and the waiting itself.
//! - The computation of this replica's share; it arrives here as a number.

pub mod adaptive;
mod deadline_heap;
mod in_flight;
pub mod limiter;
pub mod permit_registry;
pub mod permit_table;
mod queue;

pub use adaptive::AdaptiveLimit;
pub use in_flight::Permit;
pub use limiter::Limiter;
pub use permit_registry::PermitRegistry;
pub use queue::QueueTicket;

/// The result of a request, as far as its latency is evidence about the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestOutcome {
    /// The backend served the request, so its latency is a measurement.
    Success,
    /// No evidence: the client left, another limit denied the request, or a cache served it.
    Ignored,
    /// The backend refused the request or timed out: a sign of overload, without a usable latency.
    Dropped,
}
