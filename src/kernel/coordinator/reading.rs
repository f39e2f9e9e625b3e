//! Common instants of a fleet: multiples of a period on the coordinator's clock.
//!
//! Guarantees:
//! - The next common instant is at most one period away.
//! - Safety does not depend on a reading: its error moves the instants by as much.
//!
//! Not covered:
//! - Reading the clock.

use crate::kernel::units::Nanos;

/// A reading of the coordinator's clock, with the local time of the reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reading {
    /// The instant on this replica's clock.
    pub here: Nanos,
    /// The coordinator's clock at that instant.
    pub there: Nanos,
}

impl Reading {
    /// The first multiple of `period` after `now`, on this replica's clock.
    #[must_use]
    pub fn after(&self, now: Nanos, period: Nanos) -> Nanos {
        let there = self.there.plus(now.since(self.here)).since(self.here.since(now));
        let into = there.0.checked_rem(period.0).unwrap_or(0);
        now.plus(period).since(Nanos(into))
    }

    /// The same clock, set forward by `by`.
    #[must_use]
    pub const fn ahead(self, by: Nanos) -> Self {
        Self { there: self.there.plus(by), ..self }
    }
}
