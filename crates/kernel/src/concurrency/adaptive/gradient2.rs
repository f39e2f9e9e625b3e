//! The `gradient2` algorithm of Netflix' concurrency-limits library, as published.
//!
//! | formula | worked row: estimate 64, min RTT 10 ms, RTT 40 ms |
//! |---|---|
//! | gradient = tolerance · min RTT / RTT, from 0.5 to 1; 0.5 after a drop | 2 · 10 / 40 = 0.5 |
//! | new = estimate · gradient + √estimate | 64 · 0.5 + 8 = 40 |
//! | estimate = 0.8 · estimate + 0.2 · new | 51.2 + 8 = 59.2 |
//!
//! A sample with less than half of the estimate in flight changes nothing, unless it was dropped.
//! The min RTT is the smallest latency of the last 100 successes. Unlike in the publication, a
//! dropped request does not count there: a fast refusal would look like a low latency.
//!
//! Not covered: shares of a fleet-wide limit, which the published algorithm does not have.
//!
//! Source: Netflix concurrency-limits, `Gradient2Limit`, in the variant with a windowed minimum.

use super::RequestOutcome;
use super::fixed_point::{FixedPoint, Fraction};
use super::sample::{LatencySample, is_limit_used};
use super::windowed_min::WindowedMin;
use crate::units::Nanos;

/// The number of samples over which the minimum latency is taken.
const WINDOW: u16 = 100;
/// Latency up to this multiple of the minimum latency is no sign of a queue.
const TOLERANCE: u64 = 2;
const MIN_GRADIENT: Fraction = Fraction::percent(50);
const MAX_GRADIENT: Fraction = Fraction::percent(100);
/// The weight of the new estimate at each sample.
const NEW_WEIGHT: Fraction = Fraction::percent(20);
const OLD_WEIGHT: Fraction = Fraction::percent(80);

/// The state of the `gradient2` algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gradient2 {
    min_rtt: WindowedMin,
}

impl Default for Gradient2 {
    fn default() -> Self {
        Self { min_rtt: WindowedMin::over(WINDOW) }
    }
}

impl Gradient2 {
    pub(super) fn min_rtt(&self) -> Option<Nanos> {
        self.min_rtt.get()
    }

    pub(super) fn step(&mut self, estimate: FixedPoint, sample: &LatencySample) -> FixedPoint {
        let gradient = self.gradient(sample);
        if sample.outcome != RequestOutcome::Dropped && !is_limit_used(sample, estimate, u32::MAX) {
            return estimate;
        }
        let new = estimate.times(gradient).plus(estimate.sqrt());
        estimate.times(OLD_WEIGHT).plus(new.times(NEW_WEIGHT))
    }

    fn gradient(&mut self, sample: &LatencySample) -> Fraction {
        if sample.outcome == RequestOutcome::Dropped {
            return MIN_GRADIENT;
        }
        let min_rtt = self.min_rtt.push(sample.rtt);
        let (numerator, denominator) = (min_rtt.0.saturating_mul(TOLERANCE), sample.rtt.0.max(1));
        Fraction { numerator, denominator }.within(MIN_GRADIENT, MAX_GRADIENT)
    }
}
