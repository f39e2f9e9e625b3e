//! The timing of share reports, and of permits of strict limits.
//!
//! Guarantees:
//! - All replicas with the same heartbeat interval use the same timing.

use crate::kernel::coordinator::ShareTiming;
use crate::kernel::coordinator::config::CoordinatorConfigError;
use crate::kernel::units::{CLOCK_DRIFT_PPM, Nanos};
use crate::store::permits::PermitTiming;

/// The number of heartbeat intervals after which the store releases an unreported permit.
const PERMIT_HEARTBEATS: u64 = 3;
/// The number of heartbeat intervals without any report after which the store stops granting
/// permits. One less than [`PERMIT_HEARTBEATS`], because replicas report at different times in an
/// interval.
const SILENT_HEARTBEATS: u64 = 2;
/// The longest time in which a replica reconnects to a store that is available again. The store's
/// grace period is longer by this time.
const RECONNECT_TIME: Nanos = Nanos::SECOND;

/// The timing of share reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharePace {
    /// The heartbeat interval: the time between two share reports when nothing is urgent.
    pub heartbeat: Nanos,
    /// The share lifetime, counted from the report that requested the share.
    pub share_duration: Nanos,
}

impl Default for SharePace {
    fn default() -> Self {
        Self { heartbeat: Nanos::SECOND, share_duration: Nanos::from_secs(5) }
    }
}

impl SharePace {
    /// Returns the timing of a shared limit. A long `max_duration` needs a longer share lifetime,
    /// because the safety margin for clock drift grows with it.
    #[must_use]
    pub fn timing(self, max_duration: Nanos) -> ShareTiming {
        let Self { heartbeat, share_duration } = self;
        let mut share_lifetime = share_duration;
        loop {
            match ShareTiming::new(heartbeat, share_lifetime, max_duration, CLOCK_DRIFT_PPM) {
                Ok(timing) => return timing,
                Err(CoordinatorConfigError::LifetimeTooShort { least, .. })
                    if share_lifetime < least =>
                {
                    share_lifetime = least.plus(Nanos(least.0 / 100));
                }
                // With a margin as long as the lifetime, a share is never usable, which is safe.
                Err(_) => {
                    let (share_lifetime, margin) = (share_duration, share_duration);
                    return ShareTiming { heartbeat, share_lifetime, margin, max_duration };
                }
            }
        }
    }

    /// Returns the time for which the store keeps a permit of a strict limit without a report.
    #[must_use]
    pub const fn permit_lifetime(self) -> Nanos {
        Nanos(self.heartbeat.0.saturating_mul(PERMIT_HEARTBEATS))
    }

    /// Returns the timing of permits of a strict limit with this `max_duration`. All replicas with
    /// the same heartbeat interval get the same timing.
    #[must_use]
    pub fn permit_timing(self, max_duration: Nanos) -> PermitTiming {
        PermitTiming {
            grace: self.permit_lifetime().plus(RECONNECT_TIME),
            max_silence: Nanos(self.heartbeat.0.saturating_mul(SILENT_HEARTBEATS)),
            max_lifetime: max_duration.plus(self.heartbeat).max(self.permit_lifetime()),
        }
    }
}
