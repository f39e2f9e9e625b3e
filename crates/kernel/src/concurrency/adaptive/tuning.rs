//! The optional parameters of an adaptive limit.
//!
//! Guarantees:
//! - Without parameters, each algorithm uses its own constants.
//! - Above the target latency the limit falls; above nine tenths of it the limit does not grow.
//!
//! Not covered:
//! - Parameters without effect, which the configuration refuses.

use std::fmt;

use super::fixed_point::{FixedPoint, Fraction};
use super::sample::LatencySample;
use crate::units::Nanos;

/// The part of the target latency above which a limit does not grow, so that noise stays below the
/// target.
const HEADROOM: Fraction = Fraction::percent(90);
/// The largest fall of a limit in one update above the target latency.
const MAX_FALL: Fraction = Fraction::percent(50);
/// The part of the capacity that a min RTT probe leaves unused.
const PROBE_DEPTH: Hundredths = Hundredths(30);

/// A decimal number in hundredths: 150 is 1.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hundredths(pub u32);

/// The optional parameters of an adaptive limit; `None` uses the algorithm's own constant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AdaptiveTuning {
    /// The mean latency above which the limit falls.
    pub target: Option<Nanos>,
    /// The multiple of the min RTT above which the limit falls.
    pub tolerance: Option<Hundredths>,
    /// The requests that one update adds to the limit; not for `gradient`.
    pub increase: Option<u32>,
    /// The factor by which an overload lowers the limit; not for `gradient`.
    pub decrease: Option<Hundredths>,
    /// The duration of one window of samples.
    pub window: Option<Nanos>,
    /// The weight of the newest limit in the smoothed limit; only for `gradient2`.
    pub smoothing: Option<Hundredths>,
    /// The time between two min RTT probes.
    pub probe_interval: Option<Nanos>,
    /// The part of the capacity that a min RTT probe leaves unused.
    pub probe_depth: Option<Hundredths>,
}

/// Formats the number as `1.5`, without trailing zeros.
impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, hundredths) = (self.0 / 100, self.0 % 100);
        match (hundredths, hundredths.is_multiple_of(10)) {
            (0, _) => write!(f, "{whole}"),
            (_, true) => write!(f, "{whole}.{}", hundredths / 10),
            (_, false) => write!(f, "{whole}.{hundredths:02}"),
        }
    }
}

impl Hundredths {
    pub(super) fn to_fraction(self) -> Fraction {
        Fraction::percent(self.0.into())
    }
}

impl AdaptiveTuning {
    pub(super) fn tolerance_or(&self, default: Fraction) -> Fraction {
        self.tolerance.map_or(default, Hundredths::to_fraction)
    }

    pub(super) fn decrease_or(&self, default: Fraction) -> Fraction {
        self.decrease.map_or(default, Hundredths::to_fraction)
    }

    pub(super) fn smoothing_or(&self, default: Fraction) -> Fraction {
        self.smoothing.map_or(default, Hundredths::to_fraction)
    }

    /// The part of the capacity that a min RTT probe uses.
    pub(super) fn probe_part(&self) -> Fraction {
        let unused = self.probe_depth.unwrap_or(PROBE_DEPTH).0;
        Fraction::percent(100_u64.saturating_sub(unused.into()))
    }

    pub(super) fn is_above_target(&self, rtt: Nanos) -> bool {
        self.target.is_some_and(|target| target < rtt)
    }

    /// Bounds the `next` limit by the target latency, if `in_flight` requests took `rtt`. With a
    /// queue, latency is proportional to the requests in flight.
    pub(super) fn bound(
        &self,
        limit: FixedPoint,
        next: FixedPoint,
        in_flight: FixedPoint,
        rtt: Nanos,
    ) -> FixedPoint {
        let Some(target) = self.target else { return next };
        let ratio = Fraction { numerator: HEADROOM.of(target.0), denominator: rtt.0.max(1) };
        if target < rtt {
            next.min(limit.times(ratio).max(limit.times(MAX_FALL)))
        } else {
            next.min(limit.max(in_flight.times(ratio)))
        }
    }

    /// The smaller of `factor` and the multiple of the capacity at which latency meets the target.
    pub(super) fn capacity_factor(&self, factor: Fraction, min_rtt: Option<Nanos>) -> Fraction {
        let (Some(target), Some(min_rtt)) = (self.target, min_rtt) else { return factor };
        let ratio = Fraction { numerator: HEADROOM.of(target.0), denominator: min_rtt.0.max(1) };
        if ratio.is_below(factor) { ratio } else { factor }
    }

    /// The end of a window: after `samples`, or after the configured duration.
    pub(super) fn window_end(&self, samples: u64) -> WindowEnd {
        self.window.map_or(WindowEnd::Samples(samples), WindowEnd::Duration)
    }
}

/// The condition that ends a window of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowEnd {
    Samples(u64),
    Duration(Nanos),
}

/// The start of a window with a duration: the end of its first request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct WindowStart(Option<Nanos>);

impl WindowStart {
    /// Returns `true` if `duration` has passed. Then the next window starts.
    pub(super) fn has_passed(&mut self, sample: &LatencySample, duration: Nanos) -> bool {
        let started_at = *self.0.get_or_insert(sample.ended_at);
        let is_over = duration <= sample.ended_at.since(started_at);
        if is_over {
            self.0 = Some(sample.ended_at);
        }
        is_over
    }
}
