//! The kinds of faults in a random schedule.

use crate::simulation::flaws::Flaw;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One replica's messages are lost, both ways, for a while.
    Partition,
    /// Replicas are disconnected one by one and reconnected in another order. Their messages arrive
    /// late.
    Swizzle,
    /// A replica pauses. Its clock and its requests in the proxy continue.
    Pause,
    /// A replica crashes and returns in a new incarnation. Its requests in the proxy continue.
    Crash,
    /// The store loses the coordinator's state and, in half of the cases, the list of replicas.
    Amnesia,
    /// Clocks differ, and the store's clock steps back.
    Skew,
    /// Clocks run at different speeds.
    Drift,
    /// The concurrency limit decreases or increases.
    Move,
    /// A replica leaves the fleet with a leave message, and another joins.
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

    /// The faults that reveal a flaw. Other faults are omitted to save time.
    pub const fn revealing(flaw: Flaw) -> &'static [Self] {
        match flaw {
            Flaw::ShortMargin => &[Self::Partition, Self::Drift],
            _ => &Self::ALL,
        }
    }
}
