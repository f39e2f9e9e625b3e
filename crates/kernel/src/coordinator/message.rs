//! The messages between a replica and the coordinator.
//!
//! Guarantees:
//! - Messages contain only numbers that mean the same on all machines: counts, incarnations,
//!   generations.
//! - Messages contain no instants, because clocks differ.
//!
//! Not covered:
//! - Serialization.

use super::aggregate::LimitFactor;
use super::demand_curve::DemandCurve;
use crate::units::{Generation, Incarnation, ReplicaId, Share};

/// A replica's periodic message to the coordinator, measured at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Heartbeat {
    /// The replica that sends this heartbeat.
    pub replica: ReplicaId,
    /// The replica's incarnation.
    pub incarnation: Incarnation,
    /// The number of this heartbeat, which increases within the replica's incarnation.
    pub number: u64,
    /// The grant in use; `None` before the first grant and after the share expired.
    pub grant_in_use: Option<GrantInUse>,
    /// The number of requests in flight.
    pub in_flight: Share,
    /// The permits that the replica would use without a limit, see [`super::split::demand`].
    pub demand: Share,
    /// The demand of its classes and customers; empty without these.
    pub curve: DemandCurve,
    /// The factor by which the replica would change its share, if it has enough samples.
    pub vote: Option<LimitFactor>,
    /// Set if the replica leaves the fleet: from now on it admits nothing and applies no grant.
    pub is_leaving: bool,
    /// Set if the sender is a proxy whose history the serving replica does not know: the
    /// coordinator believes its grant and its requests in flight only as far as the share state
    /// confirms them.
    pub is_claimed: bool,
}

impl Heartbeat {
    /// The key by which share states are sorted.
    #[must_use]
    pub const fn sort_key(&self) -> (ReplicaId, Incarnation) {
        (self.replica, self.incarnation)
    }
}

/// A grant that a replica has applied and uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantInUse {
    /// The coordinator incarnation that made the grant.
    pub coordinator_incarnation: Incarnation,
    /// The number of the grant within that coordinator incarnation.
    pub generation: Generation,
    /// The share in permits. Only a coordinator that lost its own record of the grant reads it.
    pub share: Share,
    /// The whole limit in that grant, to validate the replica's vote and to recover a lost limit.
    pub limit: Share,
}

/// The coordinator's reply to one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// The replica that receives the grant.
    pub replica: ReplicaId,
    /// The replica's incarnation.
    pub incarnation: Incarnation,
    /// The number of the heartbeat to which this grant replies.
    pub heartbeat_number: u64,
    /// The coordinator incarnation that makes the grant.
    pub coordinator_incarnation: Incarnation,
    /// The number of the grant within that coordinator incarnation; an unchanged share keeps it.
    pub generation: Generation,
    /// The share in permits. Its lifetime counts from sending the heartbeat.
    pub share: Share,
    /// The share of this replica once the other replicas gave up their excess, in permits.
    pub fair_share: Share,
    /// The whole limit, in permits.
    pub limit: Share,
    /// The number of live replicas that share the limit.
    pub replicas: u64,
    /// Set if the coordinator lost its state, so it grants no more than the replica's reported
    /// share.
    pub is_recovering: bool,
}
