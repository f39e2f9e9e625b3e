//! Common instants of a fleet: multiples of a period on the coordinator's clock.
//!
//! Guarantees:
//! - The next common instant is at most one period away.
//! - Safety does not depend on a reading: its error moves the instants by as much.
//!
//! Not covered:
//! - Reading the clock.

use crate::units::Nanos;

/// A reading of the coordinator's clock, with the local time of the reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClockReading {
    /// The instant on this replica's clock.
    pub local_time: Nanos,
    /// The coordinator's clock at that instant.
    pub coordinator_time: Nanos,
}

impl ClockReading {
    /// The first multiple of `period` after `now`, on this replica's clock.
    #[must_use]
    pub fn next_multiple_after(&self, now: Nanos, period: Nanos) -> Nanos {
        let coordinator_time = self
            .coordinator_time
            .plus(now.since(self.local_time))
            .since(self.local_time.since(now));
        let into = coordinator_time.0.checked_rem(period.0).unwrap_or(0);
        now.plus(period).since(Nanos(into))
    }

    /// The same clock, set forward by `by`.
    #[must_use]
    pub const fn advanced_by(self, by: Nanos) -> Self {
        Self { coordinator_time: self.coordinator_time.plus(by), ..self }
    }
}
