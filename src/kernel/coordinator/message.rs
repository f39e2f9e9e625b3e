//! What a member and the coordinator say to each other.
//!
//! Guarantees: flat numbers only, each durable or comparable across machines: counts, numbers of
//! lives and grants, and no instant.
//! Leaves out: how they are written down.

use super::aggregate::Ratio;
use crate::kernel::units::{Generation, Incarnation, MemberId, Share};

/// A member speaks: all of it taken in one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Heartbeat {
    /// Who.
    pub member: MemberId,
    /// In which of its lives.
    pub life: Incarnation,
    /// Which heartbeat of that life; each is larger than the one before.
    pub number: u64,
    /// The share in force, by the grant it came from. None before the first and after a fence.
    pub holds: Option<Holding>,
    /// Requests admitted and not ended.
    pub in_flight: Share,
    /// Permits it would use, see [`super::split::wanted`].
    pub wanted: Share,
    /// What it infers, if it has enough to infer from.
    pub vote: Option<Ratio>,
    /// It admits nothing any more and applies no further grant.
    pub leaves: bool,
}

impl Heartbeat {
    /// What seats are ordered by.
    #[must_use]
    pub const fn name(&self) -> (MemberId, Incarnation) {
        (self.member, self.life)
    }
}

/// A share in force, and the grant that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holding {
    /// The life of the coordinator that granted it.
    pub coordinator: Incarnation,
    /// The grant's number in that life.
    pub generation: Generation,
    /// How much. Read only by a coordinator that has lost its own knowledge of it.
    pub share: Share,
    /// The whole ceiling, as far as the member was told. Read as `share` is.
    pub ceiling: Share,
}

/// The coordinator answers one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// Whose.
    pub member: MemberId,
    /// For which of its lives.
    pub life: Incarnation,
    /// The heartbeat it answers.
    pub number: u64,
    /// The life of the coordinator.
    pub coordinator: Incarnation,
    /// Its number in that life; the same as before where the share is.
    pub generation: Generation,
    /// The share, good for a term from when the heartbeat was sent.
    pub share: Share,
    /// What it would be once others have let go.
    pub fair: Share,
    /// The whole ceiling.
    pub ceiling: Share,
    /// How many members share it.
    pub members: u64,
    /// The coordinator has lost its state and grants nobody more than it proves to hold.
    pub recovering: bool,
}
