//! What goes wrong, by name.

use crate::simulation::bad::Bad;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One replica's messages are lost, both ways, for a while.
    Partition,
    /// What replicas say arrives late, in another order, after they gave the answer up.
    Swizzle,
    /// A replica stands still; its clock and its requests in the proxy do not.
    Pause,
    /// A replica dies; its requests go on in the proxy. It comes back in a new life.
    Crash,
    /// The store loses all it knew of ceilings, and every other time of the fleet too.
    Amnesia,
    /// Clocks show different times from the start.
    Skew,
    /// Clocks run at different speeds.
    Drift,
    /// A replica leaves in order, and another comes; what is in flight then goes on.
    Roll,
    /// A wall clock is set forward.
    Step,
    /// The ceilings are set lower, or higher again; each replica hears of it when it does.
    Move,
}

impl Fault {
    pub const ALL: [Self; 10] = [
        Self::Partition,
        Self::Swizzle,
        Self::Pause,
        Self::Crash,
        Self::Amnesia,
        Self::Skew,
        Self::Drift,
        Self::Roll,
        Self::Step,
        Self::Move,
    ];

    /// Those under which a rule's lack shows: the narrower ones only for speed.
    pub const fn that_show(bad: Bad) -> &'static [Self] {
        match bad {
            Bad::ShortMargin => &[Self::Partition],
            _ => &Self::ALL,
        }
    }
}
