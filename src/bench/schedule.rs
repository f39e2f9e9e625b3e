//! The send times of a step: constant intervals.
//!
//! Constant, not random: the number of checks is exact, and a wait in the results is the server's,
//! not that of a random burst.
//!
//! Guarantees:
//! - A step of `rate` and `duration` has exactly `rate` × `duration` checks, rounded up.
//! - No float is used, so that send times never drift.

use crate::kernel::units::Nanos;

/// The send times of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendSchedule {
    /// Checks per second.
    pub rate: u32,
    /// The duration of the step.
    pub duration: Nanos,
}

impl SendSchedule {
    /// Returns the number of checks of the step.
    #[must_use]
    pub fn count(&self) -> u64 {
        let checks = u128::from(self.duration.0) * u128::from(self.rate);
        u64::try_from(checks.div_ceil(u128::from(Nanos::SECOND.0))).unwrap_or(u64::MAX)
    }

    /// Returns the send time of check `index`, from 0, since the start of the step.
    #[must_use]
    pub fn send_time(&self, index: u64) -> Nanos {
        let time = u128::from(index) * u128::from(Nanos::SECOND.0) / u128::from(self.rate.max(1));
        Nanos(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// Returns the number of checks whose send time is `elapsed` or earlier.
    #[must_use]
    pub fn due(&self, elapsed: Nanos) -> u64 {
        let through = Self { duration: elapsed.plus(Nanos(1)), ..*self };
        through.count().min(self.count())
    }
}
