//! The report of a replica to the store, and its membership part: the live replicas that share a
//! store, with one record for each replica.

use super::StoreFailure;
use super::heartbeat::{ShareRound, ShareRoundReply};
use super::permits::{PermitReport, PermitReportReply};
use crate::kernel::units::Nanos;

/// The time after which the store drops a replica without heartbeats; a few may be missed.
pub const REPLICA_TIMEOUT: Nanos = Nanos::from_secs(5);

/// A replica's heartbeat for the list of live replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipHeartbeat {
    /// The replica's name, not empty.
    pub node: Box<str>,
    /// The replica's record, not empty. `None` if the replica shuts down.
    pub record: Option<Box<str>>,
}

/// A live replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveReplica {
    /// The replica's name, the same at every other replica.
    pub node: Box<str>,
    /// The time since the replica's last heartbeat, by the store's clock, in whole milliseconds.
    pub silent_for: Nanos,
    /// The replica's record.
    pub record: Box<str>,
}

/// The store's reply to a [`MembershipHeartbeat`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipReply {
    /// The live replicas in any order, with the sender unless it shuts down.
    pub replicas: Vec<LiveReplica>,
    /// The record in the sender's previous heartbeat, if it had not expired.
    pub previous_record: Option<Box<str>>,
}

impl MembershipHeartbeat {
    /// Returns the reply for a replica without a shared store: this replica alone.
    #[must_use]
    pub fn reply_without_store(&self) -> MembershipReply {
        let replica =
            |record| LiveReplica { node: self.node.clone(), silent_for: Nanos(0), record };
        MembershipReply {
            replicas: self.record.clone().into_iter().map(replica).collect(),
            previous_record: self.record.clone(),
        }
    }
}

/// All that a replica reports to the store at one instant. Each part is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetReport {
    /// The heartbeat for the list of live replicas.
    pub membership: Option<MembershipHeartbeat>,
    /// Reports of shared concurrency limits.
    pub shares: Option<ShareRound>,
    /// Reports of strict concurrency limits.
    pub permits: Option<PermitReport>,
}

impl FleetReport {
    /// Returns `true` if the report has no part.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.membership.is_none() && self.shares.is_none() && self.permits.is_none()
    }
}

/// The store's reply to a [`FleetReport`]: one result for each part of the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetReply {
    /// The reply to the heartbeat.
    pub membership: Option<Result<MembershipReply, StoreFailure>>,
    /// The reply to the share reports.
    pub shares: Option<Result<ShareRoundReply, StoreFailure>>,
    /// The replies to the permit reports, one for each limit.
    pub permits: Option<PermitReportReply>,
}
