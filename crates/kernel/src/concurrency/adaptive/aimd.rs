//! The AIMD algorithm: additive increase, multiplicative decrease of a concurrency limit.
//!
//! Once a round trip, or once a `window`, the limit changes:
//! - × `decrease` (0.9) after a drop, if mean latency exceeds `tolerance` (2) times the minimum of
//!   the last 100 round trips, or if mean latency exceeds `target`.
//! - + `increase` (1) otherwise, if at least half of the limit was in use.
//!
//! Not covered: fast growth. With the default, from 1 to 100 takes 99 round trips.

use super::fixed_point::{FixedPoint, Fraction};
use super::round_trip::{RoundSummary, RoundTrip};
use super::sample::{LatencySample, is_limit_used, scale_to_limit};
use super::tuning::AdaptiveTuning;
use super::windowed_min::WindowedMin;
use crate::units::Nanos;

/// The number of round trips over which the minimum latency is taken.
const WINDOW: u16 = 100;
/// Latency up to this multiple of the minimum latency is no sign of a queue.
const TOLERANCE: Fraction = Fraction::percent(200);
const BACK_OFF: Fraction = Fraction::percent(90);
const INCREASE: u32 = 1;

/// The state of the AIMD algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Aimd {
    tuning: AdaptiveTuning,
    round: RoundTrip,
    min_rtt: WindowedMin,
}

impl Aimd {
    pub(super) fn new(tuning: AdaptiveTuning) -> Self {
        Self { tuning, round: RoundTrip::default(), min_rtt: WindowedMin::over(WINDOW) }
    }

    pub(super) const fn set_tuning(&mut self, tuning: AdaptiveTuning) {
        self.tuning = tuning;
    }

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
        let end = self.tuning.window_end(allowed.div_ceil(2).into());
        let Some(round) = self.round.push(sample, end) else { return estimate };
        let Some(mean) = round.mean.filter(|mean| !self.is_slow(&round, *mean)) else {
            return estimate.times(self.tuning.decrease_or(BACK_OFF));
        };
        let peak = LatencySample { in_flight: round.in_flight, ..*sample };
        if !is_limit_used(&peak, estimate, share) {
            return estimate;
        }
        let increase = FixedPoint::from_whole(self.tuning.increase.unwrap_or(INCREASE));
        let in_flight = scale_to_limit(FixedPoint::from_whole(round.in_flight), estimate, share);
        self.tuning.bound(estimate, estimate.plus(increase), in_flight, mean)
    }

    fn is_slow(&mut self, round: &RoundSummary, mean: Nanos) -> bool {
        let min_rtt = self.min_rtt.push(mean);
        let tolerated = self.tuning.tolerance_or(TOLERANCE).of(min_rtt.0);
        0 < round.dropped || tolerated < mean.0 || self.tuning.is_above_target(mean)
    }
}
