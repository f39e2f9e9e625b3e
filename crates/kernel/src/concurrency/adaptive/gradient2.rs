//! The `gradient2` algorithm of Netflix' concurrency-limits library, as published.
//!
//! | formula | worked row: estimate 64, min RTT 10 ms, RTT 40 ms |
//! |---|---|
//! | gradient = tolerance · min RTT / RTT, from 0.5 to 1; 0.5 after a drop | 2 · 10 / 40 = 0.5 |
//! | new = estimate · gradient + √estimate | 64 · 0.5 + 8 = 40 |
//! | estimate = 0.8 · estimate + 0.2 · new | 51.2 + 8 = 59.2 |
//!
//! Parameters: `decrease` replaces 0.5, and `increase` replaces √estimate (the publication's queue
//! size). With a `window`, one update uses the mean of the window, like the library's
//! `WindowedLimit`.
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
use super::round_trip::RoundTrip;
use super::sample::{LatencySample, is_limit_used};
use super::tuning::{AdaptiveTuning, WindowEnd};
use super::windowed_min::WindowedMin;
use crate::units::Nanos;

/// The number of samples over which the minimum latency is taken.
const WINDOW: u16 = 100;
/// Latency up to this multiple of the minimum latency is no sign of a queue.
const TOLERANCE: Fraction = Fraction::percent(200);
const MIN_GRADIENT: Fraction = Fraction::percent(50);
const MAX_GRADIENT: Fraction = Fraction::percent(100);
/// The weight of the new estimate at each sample.
const NEW_WEIGHT: Fraction = Fraction::percent(20);
const OLD_WEIGHT: Fraction = Fraction::percent(80);

/// The state of the `gradient2` algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gradient2 {
    tuning: AdaptiveTuning,
    window: RoundTrip,
    min_rtt: WindowedMin,
}

impl Gradient2 {
    pub(super) fn new(tuning: AdaptiveTuning) -> Self {
        Self { tuning, window: RoundTrip::default(), min_rtt: WindowedMin::over(WINDOW) }
    }

    pub(super) const fn set_tuning(&mut self, tuning: AdaptiveTuning) {
        self.tuning = tuning;
    }

    pub(super) fn min_rtt(&self) -> Option<Nanos> {
        self.min_rtt.get()
    }

    pub(super) fn step(&mut self, estimate: FixedPoint, sample: &LatencySample) -> FixedPoint {
        let Some(duration) = self.tuning.window else { return self.update(estimate, sample) };
        self.end_window(sample, duration).map_or(estimate, |mean| self.update(estimate, &mean))
    }

    /// Returns a complete window as one sample: dropped if any request was, otherwise the mean.
    fn end_window(&mut self, sample: &LatencySample, duration: Nanos) -> Option<LatencySample> {
        let window = self.window.push(sample, WindowEnd::Duration(duration))?;
        let outcome = if window.dropped == 0 { sample.outcome } else { RequestOutcome::Dropped };
        let rtt = window.mean.unwrap_or(sample.rtt);
        Some(LatencySample { rtt, in_flight: window.in_flight, outcome, ..*sample })
    }

    fn update(&mut self, estimate: FixedPoint, sample: &LatencySample) -> FixedPoint {
        let is_dropped = sample.outcome == RequestOutcome::Dropped;
        let gradient = self.gradient(sample);
        if !is_dropped && !is_limit_used(sample, estimate, u32::MAX) {
            return estimate;
        }
        let queue = self.tuning.increase.map_or(estimate.sqrt(), FixedPoint::from_whole);
        let new = estimate.times(gradient).plus(queue);
        let new = if is_dropped { new } else { self.bound(estimate, new, sample) };
        estimate.times(OLD_WEIGHT).plus(new.times(NEW_WEIGHT))
    }

    fn bound(&self, estimate: FixedPoint, new: FixedPoint, sample: &LatencySample) -> FixedPoint {
        self.tuning.bound(estimate, new, FixedPoint::from_whole(sample.in_flight), sample.rtt)
    }

    fn gradient(&mut self, sample: &LatencySample) -> Fraction {
        let min_gradient = self.tuning.decrease_or(MIN_GRADIENT);
        if sample.outcome == RequestOutcome::Dropped {
            return min_gradient;
        }
        let min_rtt = self.min_rtt.push(sample.rtt);
        let tolerated = self.tuning.tolerance_or(TOLERANCE).of(min_rtt.0);
        Fraction { numerator: tolerated, denominator: sample.rtt.0.max(1) }
            .within(min_gradient, MAX_GRADIENT)
    }
}
