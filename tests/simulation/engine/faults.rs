//! The faults of a schedule.

use crate::simulation::bad::Flaw;

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
    /// The store loses the state of its limits and, in half of the cases, the fleet table.
    Amnesia,
    /// Clocks differ from the start.
    Skew,
    /// Clocks run at different speeds.
    Drift,
    /// A replica leaves in order, and another joins. Requests in flight continue.
    Roll,
    /// A wall clock is set forward.
    Step,
    /// The limits decrease or increase. Each replica learns of it at another time.
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

    /// The faults that reveal a flaw. A shorter list only saves time.
    pub const fn revealing(flaw: Flaw) -> &'static [Self] {
        match flaw {
            Flaw::ShortMargin => &[Self::Partition],
            _ => &Self::ALL,
        }
    }
}
