//! The AIMD algorithm: additive increase, multiplicative decrease of a concurrency limit.
//!
//! Once a round trip, or once a `window`, the limit changes:
//! - × `decrease` (0.9) after a drop, if mean latency exceeds `tolerance` (2) times the min RTT, or
//!   if mean latency exceeds `target`.
//! - + `increase` (1) otherwise, if at least half of the limit was in use.
//!
//! Not covered: fast growth. With the default, from 1 to 100 takes 99 round trips.

use super::fixed_point::{FixedPoint, Fraction};
use super::round_trip::Step;
use crate::units::Nanos;

/// Latency up to this multiple of the min RTT is no sign of a queue.
const TOLERANCE: Fraction = Fraction::percent(200);
const BACK_OFF: Fraction = Fraction::percent(90);
const INCREASE: u32 = 1;

pub(super) fn next_limit(step: &Step<'_>) -> FixedPoint {
    let Step { tuning, limit, round, .. } = *step;
    let is_calm = |mean: &Nanos| round.dropped == 0 && !is_slow(step, *mean);
    let Some(mean) = round.mean.filter(is_calm) else {
        return limit.times(tuning.decrease_or(BACK_OFF));
    };
    if !step.is_used {
        return limit;
    }
    let increase = FixedPoint::from_whole(tuning.increase.unwrap_or(INCREASE));
    tuning.bound(limit, limit.plus(increase), step.in_flight, mean)
}

fn is_slow(step: &Step<'_>, mean: Nanos) -> bool {
    let tolerated = step.tuning.tolerance_or(TOLERANCE).of(step.min_rtt.0);
    tolerated < mean.0 || step.tuning.is_above_target(mean)
}
