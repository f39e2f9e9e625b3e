//! The `gradient2` algorithm of Netflix' concurrency-limits library, once a round trip.
//!
//! | formula | worked row: limit 64, min RTT 10 ms, RTT 40 ms |
//! |---|---|
//! | gradient = tolerance · min RTT / RTT, from 0.5 to 1; 0.5 for a drop | 2 · 10 / 40 = 0.5 |
//! | new = limit · gradient + √limit | 64 · 0.5 + 8 = 40 |
//! | limit = 0.8 · limit + 0.2 · new | 51.2 + 8 = 59.2 |
//!
//! Parameters: `decrease` replaces 0.5, `increase` replaces √limit (the publication's queue size),
//! and `smoothing` replaces 0.2. With a `window`, one update uses the mean of the window, like the
//! library's `WindowedLimit`; one drop in it counts as a window of drops.
//!
//! A round trip with less than half of the limit in flight changes nothing, unless a request was
//! dropped. Unlike in the publication:
//! - An update uses the mean of a round trip. An update at every sample reacts to one latency many
//!   times before the next one shows the effect, so the limit never settles.
//! - Probes measure the min RTT. Otherwise a queue that stays becomes the min RTT.
//! - A drop counts as the smallest gradient, not as a latency: a fast refusal would look fast.
//!
//! Source: Netflix concurrency-limits, `Gradient2Limit`.

use super::fixed_point::{FixedPoint, Fraction};
use super::round_trip::Step;
use crate::units::Nanos;

/// Latency up to this multiple of the min RTT is no sign of a queue.
const TOLERANCE: Fraction = Fraction::percent(200);
const MIN_GRADIENT: Fraction = Fraction::percent(50);
const MAX_GRADIENT: Fraction = Fraction::percent(100);
/// The weight of the new limit in one update.
const SMOOTHING: Fraction = Fraction::percent(20);
const MILLION: u64 = 1_000_000;

pub(super) fn next_limit(step: &Step<'_>) -> FixedPoint {
    let Step { tuning, limit, round, .. } = *step;
    if round.dropped == 0 && !step.is_used {
        return limit;
    }
    let queue = tuning.increase.map_or(limit.sqrt(), FixedPoint::from_whole);
    let new = limit.times(gradient(step)).plus(queue);
    let new = round.mean.map_or(new, |mean| tuning.bound(limit, new, step.in_flight, mean));
    let weight = tuning.smoothing_or(SMOOTHING).of(MILLION).min(MILLION);
    let part = |numerator| Fraction { numerator, denominator: MILLION };
    limit.times(part(MILLION.saturating_sub(weight))).plus(new.times(part(weight)))
}

/// The mean gradient of the round trip's requests.
fn gradient(step: &Step<'_>) -> Fraction {
    let (round, min_gradient) = (step.round, step.tuning.decrease_or(MIN_GRADIENT));
    let total = round.successes.saturating_add(round.dropped);
    let has_window = step.tuning.window.is_some() && 0 < round.dropped;
    let dropped = if has_window { total } else { round.dropped };
    let of_success = round.mean.map_or(min_gradient, |mean| of_latency(step, mean, min_gradient));
    let sum = of_success
        .of(MILLION)
        .saturating_mul(total.saturating_sub(dropped))
        .saturating_add(min_gradient.of(MILLION).saturating_mul(dropped));
    Fraction { numerator: sum, denominator: total.saturating_mul(MILLION) }
}

fn of_latency(step: &Step<'_>, mean: Nanos, min_gradient: Fraction) -> Fraction {
    let tolerated = step.tuning.tolerance_or(TOLERANCE).of(step.min_rtt.0);
    Fraction { numerator: tolerated, denominator: mean.0.max(1) }.within(min_gradient, MAX_GRADIENT)
}
