//! What goes wrong, by name.

use crate::simulation::bad::Bad;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One replica's messages are lost, both ways, for a while.
    Partition,
    /// Replicas are cut off one after the other and let back in another order; what was sent
    /// meanwhile arrives then.
    Swizzle,
    /// A replica stands still, its clock and its requests in the proxy do not.
    Pause,
    /// A replica dies; its requests go on in the proxy. It comes back in a new life.
    Crash,
    /// The store loses all it knew of ceilings, and every other time of the fleet too.
    Amnesia,
    /// Clocks show different times, and the store's steps back.
    Skew,
    /// Clocks run at different speeds.
    Drift,
    /// The ceiling is set lower, or higher again.
    Move,
    /// A replica leaves in order, and another comes.
    Roll,
}

impl Fault {
    pub const ALL: [Self; 9] = [
        Self::Partition,
        Self::Swizzle,
        Self::Pause,
        Self::Crash,
        Self::Amnesia,
        Self::Skew,
        Self::Drift,
        Self::Move,
        Self::Roll,
    ];

    /// Those under which a rule's lack shows: the narrower ones only for speed.
    pub const fn that_show(bad: Bad) -> &'static [Self] {
        match bad {
            Bad::ShortMargin => &[Self::Partition, Self::Drift],
            _ => &Self::ALL,
        }
    }
}
