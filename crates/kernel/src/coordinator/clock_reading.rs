//! Instants that all replicas of a fleet compute alike: multiples of a period on the coordinator's
//! clock.
//!
//! Replicas send regular heartbeats and start min RTT probes at such common instants.
//!
//! Guarantees:
//! - The next common instant is at most one period away.
//! - An inaccurate reading only shifts the common instants, by as much as its error.
//!
//! Not covered:
//! - Reading the coordinator's clock, which the caller does.

use crate::units::Nanos;

/// A reading of the coordinator's clock, with this replica's time at the same instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClockReading {
    /// The instant of the reading, on this replica's clock.
    pub local_time: Nanos,
    /// The same instant on the coordinator's clock.
    pub coordinator_time: Nanos,
}

impl ClockReading {
    /// The first multiple of `period` on the coordinator's clock after `now`.
    ///
    /// Both `now` and the result are instants on this replica's clock.
    #[must_use]
    pub fn next_multiple_after(&self, now: Nanos, period: Nanos) -> Nanos {
        let coordinator_time = self
            .coordinator_time
            .plus(now.since(self.local_time))
            .since(self.local_time.since(now));
        let elapsed_in_period = coordinator_time.0.checked_rem(period.0).unwrap_or(0);
        now.plus(period).since(Nanos(elapsed_in_period))
    }

    /// The same reading, with the coordinator's clock set forward by `by`.
    #[must_use]
    pub const fn advanced_by(self, by: Nanos) -> Self {
        Self { coordinator_time: self.coordinator_time.plus(by), ..self }
    }
}
