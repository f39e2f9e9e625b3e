//! How much at once: ceilings on requests in flight.
//!
//! [`Limiter`] is one ceiling: events in, effects out. [`Register`] ties the ids that proxies mint
//! to what they hold, and remembers a release that came before its acquire. [`Policy`] infers the
//! ceiling from the latency of those that left. [`permits`] is what a store keeps of a ceiling for which
//! every request asks it.
//!
//! Guarantees: never more in flight than the limit at the moment of admission; waiters leave the
//! queue in the order they came; a permit is given back once. Nothing grows without a bound: slots
//! by the limit, waiters by the queue's size, tombstones by their source.
//! Leaves out: which request asks which ceiling, who waits, and the fleet's part of a ceiling,
//! which arrives here as a number.

mod deadlines;
mod in_flight;
pub mod limiter;
pub mod permits;
pub mod policy;
mod queue;
pub mod register;

pub use in_flight::Permit;
pub use limiter::Limiter;
pub use policy::Policy;
pub use queue::Ticket;
pub use register::Register;

/// How a request ended, as far as its latency tells of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The backend served it: its latency is a measurement.
    Success,
    /// It tells nothing: a client that left, a denial by another limit, an answer from a cache.
    Ignored,
    /// The backend refused it, or did not answer: it tells of overload, and its latency of nothing.
    Dropped,
}
