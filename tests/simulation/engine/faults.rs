//! The kinds of faults in a random schedule.

use crate::simulation::flaws::Flaw;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One replica's messages are lost, both ways, for a while.
    Partition,
    /// Messages of replicas arrive late and in another order, after their timeouts.
    Swizzle,
    /// A replica pauses. Its clock and its requests in the proxy continue.
    Pause,
    /// A replica crashes and returns in a new incarnation. Its requests in the proxy continue.
    Crash,
    /// The store loses the coordinators' state and, in half of the cases, the list of replicas.
    Amnesia,
    /// Clocks differ from the start.
    Skew,
    /// Clocks run at different speeds.
    Drift,
    /// A replica leaves the fleet with a leave message, and another joins. Requests in flight
    /// continue.
    Roll,
    /// The wall clock of a replica is set forward.
    Step,
    /// The limits decrease or increase. Each replica loads the change at another time.
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

    /// The faults that reveal a flaw. Other faults are omitted to save time.
    pub const fn revealing(flaw: Flaw) -> &'static [Self] {
        match flaw {
            Flaw::ShortMargin => &[Self::Partition],
            _ => &Self::ALL,
        }
    }
}
