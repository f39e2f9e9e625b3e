//! The replicas that share a store, as the store knows them: one record each.
//!
//! Guarantees: what is known is what the store last said, by its own clock.
//! Leaves out: what a record says and who reads it, which is `engine::membership`'s.

use crate::kernel::units::Nanos;

/// How long a replica that is silent is still one of the fleet: some lost beats, not a slow one.
pub const SILENT_AT_MOST: Nanos = Nanos::from_secs(5);

/// What a replica says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Who speaks: the name of its record, never empty.
    pub node: Box<str>,
    /// Its record, not empty; nothing when it leaves.
    pub record: Option<Box<str>>,
}

/// One of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name, which all others know it by.
    pub node: Box<str>,
    /// For how long it had been silent, by the store's clock, in whole milliseconds.
    pub silent: Nanos,
    /// Its record.
    pub record: Box<str>,
}

/// What the store answers to a beat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// Those that live, the one that spoke among them unless it left; in no order.
    pub members: Vec<Member>,
    /// What this name's record said before, if it was there and alive.
    pub before: Option<Box<str>>,
}

impl Beat {
    /// The fleet of a replica that shares nothing.
    #[must_use]
    pub fn alone(&self) -> Fleet {
        let member = |record| Member { node: self.node.clone(), silent: Nanos(0), record };
        Fleet {
            members: self.record.clone().into_iter().map(member).collect(),
            before: self.record.clone(),
        }
    }
}
