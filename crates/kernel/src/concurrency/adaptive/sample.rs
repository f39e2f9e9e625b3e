//! The input of the algorithms: finished requests, and the share of a fleet-wide limit.
//!
//! Guarantees:
//! - Replicas with similar latencies get the same interval between min RTT probes.
//!
//! Not covered:
//! - The limit (see [`super::AdaptiveLimit`]).

use super::fixed_point::{FixedPoint, Fraction};
use crate::concurrency::RequestOutcome;
use crate::coordinator::ClockReading;
use crate::units::Nanos;

/// The measurement of one finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LatencySample {
    /// The instant at which the request ended.
    pub ended_at: Nanos,
    /// The latency of the request.
    pub rtt: Nanos,
    /// The number of requests in flight at its admission, including itself.
    pub in_flight: u32,
    /// The result of the request: success, ignored or dropped.
    pub outcome: RequestOutcome,
}

/// This replica's share of a limit that all replicas of the fleet adapt together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FleetShare {
    /// The permits that this replica may use.
    pub share: u32,
    /// The fleet's whole limit, in permits.
    pub limit: u32,
    /// The schedule of the fleet's min RTT probes.
    pub probes: ProbeSchedule,
}

/// The schedule of min RTT probes, which all replicas start at the same time.
///
/// The times are multiples of a few heartbeat intervals on the coordinator's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProbeSchedule {
    /// A reading of the coordinator's clock.
    pub clock: ClockReading,
    /// The heartbeat interval.
    pub heartbeat: Nanos,
}

impl ProbeSchedule {
    /// The shortest interval between two probes, in heartbeat intervals.
    const MIN_HEARTBEATS: u64 = 4;
    /// The shortest interval between two probes, in round trips of a request.
    const MIN_ROUND_TRIPS: u64 = 64;
    /// The longest interval between two probes, as a multiple of the shortest.
    const MAX_MULTIPLE: u64 = 64;

    /// The schedule of a limit of one replica alone. A different `jitter` keeps probes apart.
    pub(super) const fn of_one_replica(jitter: u64) -> Self {
        // The high bits of the product depend on all bits of the jitter.
        let offset = jitter.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
        let clock = ClockReading { local_time: Nanos(0), coordinator_time: Nanos(offset) };
        Self { clock, heartbeat: Nanos::SECOND }
    }

    /// The interval between two probes if requests take `rtt`.
    ///
    /// It is the shortest interval times a power of two, so that replicas with similar latencies
    /// get the same.
    #[must_use]
    pub fn interval(&self, rtt: Nanos) -> Nanos {
        let least = self.heartbeat.0.saturating_mul(Self::MIN_HEARTBEATS).max(1);
        let times = rtt.0.saturating_mul(Self::MIN_ROUND_TRIPS).div_ceil(least);
        let times =
            times.checked_next_power_of_two().unwrap_or(Self::MAX_MULTIPLE).min(Self::MAX_MULTIPLE);
        Nanos(least.saturating_mul(times))
    }

    /// The coordinator's clock for heartbeats, set forward by half a heartbeat interval.
    ///
    /// So heartbeats and probes do not coincide: a share that changes would disturb a probe.
    #[must_use]
    pub const fn heartbeat_clock(&self) -> ClockReading {
        self.clock.advanced_by(Nanos(self.heartbeat.0 / 2))
    }
}

/// Scales `in_flight` from this replica's share to the whole limit.
pub(super) fn scale_to_limit(in_flight: FixedPoint, limit: FixedPoint, share: u32) -> FixedPoint {
    let allowed = u64::from(limit.floor().min(share)).max(1);
    let whole = u64::from(limit.floor()).max(1);
    in_flight.times(Fraction { numerator: whole, denominator: allowed })
}
