//! The live replicas that share a store, with one record each.
//!
//! Guarantees:
//! - The list is the store's last reply; ages are measured by the store's clock.
//!
//! Not covered:
//! - The content of a record and its readers (`engine::fleet::membership`).

use crate::kernel::units::Nanos;

/// The time after which a silent replica is dropped: long enough to lose several heartbeats.
pub const REPLICA_TIMEOUT: Nanos = Nanos::from_secs(5);

/// A replica's heartbeat for the list of live replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipHeartbeat {
    /// The replica's name, not empty.
    pub node: Box<str>,
    /// The replica's record, not empty. `None` if the replica leaves.
    pub record: Option<Box<str>>,
}

/// A live replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveReplica {
    /// The replica's name, the same at every other replica.
    pub node: Box<str>,
    /// The time since its last heartbeat by the store's clock, in whole milliseconds.
    pub silent_for: Nanos,
    /// The replica's record.
    pub record: Box<str>,
}

/// The store's reply to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipReply {
    /// The live replicas in any order, with the sender unless it left.
    pub replicas: Vec<LiveReplica>,
    /// The sender's previous record, if it had not expired.
    pub previous_record: Option<Box<str>>,
}

impl MembershipHeartbeat {
    /// Returns the list of a replica without a shared store.
    #[must_use]
    pub fn reply_without_store(&self) -> MembershipReply {
        let member = |record| LiveReplica { node: self.node.clone(), silent_for: Nanos(0), record };
        MembershipReply {
            replicas: self.record.clone().into_iter().map(member).collect(),
            previous_record: self.record.clone(),
        }
    }
}
