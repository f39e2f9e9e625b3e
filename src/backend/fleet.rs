//! The live replicas that share a store, with one record each.
//!
//! Guarantees:
//! - The list is the store's last reply; ages are measured by the store's clock.
//!
//! Not covered:
//! - The content of a record and its readers (`engine::membership`).

use crate::kernel::units::Nanos;

/// The time after which a silent replica is dropped: long enough to lose several heartbeats.
pub const SILENT_AT_MOST: Nanos = Nanos::from_secs(5);

/// A replica's heartbeat for the list of live replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The replica's name, not empty.
    pub node: Box<str>,
    /// The replica's record, not empty. `None` if the replica leaves.
    pub record: Option<Box<str>>,
}

/// A live replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The replica's name, the same at every other replica.
    pub node: Box<str>,
    /// The time since its last heartbeat by the store's clock, in whole milliseconds.
    pub silent: Nanos,
    /// The replica's record.
    pub record: Box<str>,
}

/// The store's reply to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// The live replicas in any order, with the sender unless it left.
    pub members: Vec<Member>,
    /// The sender's previous record, if it had not expired.
    pub before: Option<Box<str>>,
}

impl Beat {
    /// Returns the list of a replica without a shared store.
    #[must_use]
    pub fn alone(&self) -> Fleet {
        let member = |record| Member { node: self.node.clone(), silent: Nanos(0), record };
        Fleet {
            members: self.record.clone().into_iter().map(member).collect(),
            before: self.record.clone(),
        }
    }
}
