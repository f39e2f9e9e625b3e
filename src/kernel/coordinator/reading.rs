//! Instants that all members of a fleet know: multiples of a period on the coordinator's clock.
//!
//! Guarantees: no instant is more than a period after the one that is asked about.
//! Assumes: nothing that anybody's safety hangs on. A reading that is off moves instants by as much.
//! Leaves out: how the clock is read.

use crate::kernel::units::Nanos;

/// The coordinator's clock, read at an instant of this member's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reading {
    /// The instant, on this member's clock.
    pub here: Nanos,
    /// What the coordinator's clock showed then.
    pub there: Nanos,
}

impl Reading {
    /// The first multiple of `period` after the instant `now`, on this member's clock.
    #[must_use]
    pub fn after(&self, now: Nanos, period: Nanos) -> Nanos {
        let there = self.there.plus(now.since(self.here)).since(self.here.since(now));
        let into = there.0.checked_rem(period.0).unwrap_or(0);
        now.plus(period).since(Nanos(into))
    }

    /// The same clock, had it been set forward by so much.
    #[must_use]
    pub const fn ahead(self, by: Nanos) -> Self {
        Self { there: self.there.plus(by), ..self }
    }
}
