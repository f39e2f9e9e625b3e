//! The messages between a replica and the coordinator.
//!
//! Guarantees:
//! - Messages contain only numbers that are valid on every machine: counts, incarnations, grants.
//! - Messages contain no instants.
//!
//! Not covered:
//! - Serialization.

use super::aggregate::Ratio;
use crate::kernel::units::{Generation, Incarnation, MemberId, Share};

/// A replica's periodic report, measured at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Heartbeat {
    /// The replica.
    pub member: MemberId,
    /// The replica's incarnation.
    pub life: Incarnation,
    /// The heartbeat's number, which increases within an incarnation.
    pub number: u64,
    /// The share in use, with its grant; `None` before the first grant and after a fence.
    pub holds: Option<Holding>,
    /// The requests in flight.
    pub in_flight: Share,
    /// The permits that the replica would use, see [`super::split::wanted`].
    pub wanted: Share,
    /// The vote on the limit, if the replica has enough samples.
    pub vote: Option<Ratio>,
    /// Set if the replica admits nothing from now on and applies no grant.
    pub leaves: bool,
}

impl Heartbeat {
    /// The sort key of share states.
    #[must_use]
    pub const fn name(&self) -> (MemberId, Incarnation) {
        (self.member, self.life)
    }
}

/// A share in use, with its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holding {
    /// The coordinator incarnation that granted it.
    pub coordinator: Incarnation,
    /// The number of the grant in that incarnation.
    pub generation: Generation,
    /// The share in permits. Only a coordinator without its own record reads it.
    pub share: Share,
    /// The whole limit as the replica knows it. Only a coordinator without its own record reads it.
    pub ceiling: Share,
}

/// The coordinator's reply to one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// The replica.
    pub member: MemberId,
    /// The replica's incarnation.
    pub life: Incarnation,
    /// The number of the heartbeat.
    pub number: u64,
    /// The coordinator's incarnation.
    pub coordinator: Incarnation,
    /// The number of the grant in that incarnation; an unchanged share keeps it.
    pub generation: Generation,
    /// The share in permits. Its lifetime counts from sending the heartbeat.
    pub share: Share,
    /// The share after the other replicas gave up theirs.
    pub fair: Share,
    /// The whole limit.
    pub ceiling: Share,
    /// The number of replicas that share the limit.
    pub members: u64,
    /// Set if the coordinator lost its state and grants no more than the proven share.
    pub recovering: bool,
}
