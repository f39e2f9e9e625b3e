//! The input events of a limiter, and the effects that its caller carries out.

use smallvec::SmallVec;

use super::config::LimiterConfig;
use crate::concurrency::adaptive::FleetShare;
use crate::concurrency::{Permit, QueueTicket, RequestOutcome, Requester};
use crate::units::Nanos;

/// An input event of a [`Limiter`](super::Limiter).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimiterEvent {
    /// A request needs a permit. Exactly one of `Admit`, `Queue` and `Deny` is among the effects.
    Acquire {
        /// The permit's lifetime; `None` if the request's end is always observed, as for a stream.
        lifetime: Option<Nanos>,
        /// The caller's own timeout; the shorter of this and the queue timeout applies.
        timeout: Nanos,
        /// Its class and customer.
        by: Requester,
    },
    /// A permit is released.
    Release {
        /// The permit to release.
        permit: Permit,
        /// The result of the request.
        outcome: RequestOutcome,
        /// A measured latency, if the caller has a better one than the time since admission.
        rtt: Option<Nanos>,
    },
    /// The request of a permit with a deadline is still in flight: the permit's lifetime restarts.
    Renew {
        /// The permit to renew.
        permit: Permit,
        /// The permit's new lifetime.
        lifetime: Nanos,
    },
    /// The request of a permit in flight never started. If its turn is the newest one, the next request
    /// may take it. The caller releases the permit afterwards. No effect without a pace.
    GiveBack(Permit),
    /// The caller cancels a waiting request.
    Cancel(QueueTicket),
    /// Time has passed. Every event expires overdue permits and tickets, and admits waiting requests whose
    /// turn has come; this event does only that.
    Expire,
    /// The configuration was reloaded. The adaptive limit keeps its state.
    Reload(LimiterConfig),
    /// A new share of this replica in a fleet-wide limit, in permits; `u32::MAX` without a fleet.
    Share(u32),
    /// A new share of this replica in a limit that all replicas of the fleet adapt together.
    FleetShare(FleetShare),
    /// The backend asks clients to wait. The limit does not grow for this time, at most
    /// [`MAX_GROWTH_PAUSE`](super::MAX_GROWTH_PAUSE).
    PauseGrowth(Nanos),
    /// This replica's share expired: admit no request and time out every waiting request.
    Fence,
}

/// An output of a [`Limiter`](super::Limiter), which the caller must carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimiterEffect {
    /// The arriving request is admitted.
    Admit(Permit),
    /// The arriving request waits.
    Queue(QueueTicket),
    /// The arriving request is denied.
    Deny(AcquireDenial),
    /// A waiting request is admitted.
    Wake(QueueTicket, Permit),
    /// A waiting request timed out, or this replica's share expired.
    TimedOut(QueueTicket),
    /// A waiting request left the full queue for the arriving one.
    Displaced(QueueTicket),
    /// A permit reached its deadline and was released.
    Expired(Permit),
    /// The permit or ticket of the event is unknown, so nothing changed.
    Unknown,
}

/// The reason for the denial of a request that does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcquireDenial {
    /// The limit is reached, or no turn is due; and there is no queue or the caller's timeout is zero.
    LimitReached,
    /// The limit is reached and the queue is full.
    QueueFull,
}

/// The effects in the order in which to carry them out. Two fit without an allocation.
pub type LimiterEffects = SmallVec<[LimiterEffect; 2]>;
