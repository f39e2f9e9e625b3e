//! The time that is saved with each batch, and the store's time after a restart.

use crate::kernel::units::Nanos;

/// The store's time and the wall clock at one instant.
///
/// They differ after the wall clock was set back: the store's time never steps back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedTime {
    /// The store's time, which the checks use.
    pub store: Nanos,
    /// The wall clock.
    pub wall: Nanos,
}

impl SavedTime {
    /// Returns the store's time when the wall clock is at `wall`, in a later process.
    ///
    /// | saved store time | saved wall clock | wall clock now | store time now |
    /// |---|---|---|---|
    /// | 12:00 | 12:00 | 12:05 | 12:05 |
    /// | 12:00 | 12:00 | 11:00 | 12:00 |
    /// | 12:00 | 11:00 | 11:05 | 12:05 |
    #[must_use]
    pub fn store_time_at(self, wall: Nanos) -> Nanos {
        self.store.plus(wall.since(self.wall))
    }
}
