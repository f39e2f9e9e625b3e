//! The AIMD algorithm: additive increase, multiplicative decrease of a concurrency limit.
//!
//! Once a round trip, the limit changes:
//! - × 0.9 after a drop, or if mean latency exceeds twice the minimum of the last 100 round trips.
//! - + 1 otherwise, if at least half of the limit was in use.
//!
//! Not covered: fast growth. From 1 to 100 takes 99 round trips.

use super::fixed_point::{FixedPoint, Fraction};
use super::round_trip::{RoundSummary, RoundTrip};
use super::sample::{LatencySample, is_limit_used};
use super::windowed_min::WindowedMin;
use crate::units::Nanos;

/// The number of round trips over which the minimum latency is taken.
const WINDOW: u16 = 100;
/// Latency up to this multiple of the minimum latency is no sign of a queue.
const TOLERANCE: u64 = 2;
const BACK_OFF: Fraction = Fraction::percent(90);

/// The state of the AIMD algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Aimd {
    round: RoundTrip,
    min_rtt: WindowedMin,
}

impl Default for Aimd {
    fn default() -> Self {
        Self { round: RoundTrip::default(), min_rtt: WindowedMin::over(WINDOW) }
    }
}

impl Aimd {
    pub(super) fn min_rtt(&self) -> Option<Nanos> {
        self.min_rtt.get()
    }

    pub(super) fn step(
        &mut self,
        estimate: FixedPoint,
        sample: &LatencySample,
        share: u32,
    ) -> FixedPoint {
        let allowed = estimate.floor().min(share);
        let Some(round) = self.round.push(sample, allowed) else { return estimate };
        if self.is_slow(&round) {
            return estimate.times(BACK_OFF);
        }
        let peak = LatencySample { in_flight: round.in_flight, ..*sample };
        if is_limit_used(&peak, estimate, share) {
            estimate.plus(FixedPoint::from_whole(1))
        } else {
            estimate
        }
    }

    fn is_slow(&mut self, round: &RoundSummary) -> bool {
        let Some(mean) = round.mean else { return true };
        let min_rtt = self.min_rtt.push(mean);
        0 < round.dropped || min_rtt.0.saturating_mul(TOLERANCE) < mean.0
    }
}
