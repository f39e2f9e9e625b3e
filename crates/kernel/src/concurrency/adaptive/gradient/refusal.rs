//! The response of the limit to dropped requests.
//!
//! A backend that refuses requests above its capacity has no queue, so only refusals show its
//! capacity: a refusal at n in flight shows that it serves n - 1 now. This number is the *level*.
//!
//! | event, with a request refused at 41 in flight | limit |
//! |---|---|
//! | a refusal, if the level was 40 at the last refusals, too | 40 |
//! | a refusal, if the level usually changes by a tenth | 40, less 4.5 %: 38 |
//! | the next 40 successes | no growth |
//! | each later success | + 0.05 requests; + 0.15 after 32 more, + 0.25 after 64 |
//! | the window that ends 184 successes after the refusal, or later | grows as without a refusal |
//! | another refusal within about 12 successes: a *series* | the fall doubles, at most to one half |
//!
//! So each probe is one more request. At a steady capacity, 32 to 54 requests succeed between two
//! refusals, so at most 3 % are refused. A refusal is *quick* if it takes at most a quarter of the
//! min RTT. Growth continues until the first refusal returns. So after a slow refusal it is at most
//! 0.15 for each success, and slowed until 5.75 times the level have succeeded.
//!
//! Guarantees:
//! - An overload counts once: refusals of requests admitted before the fall change nothing.
//! - Growth after a refusal needs a window without a queue, and a limit in use.
//! - If everything is refused, the limit falls to 1 in falls logarithmic in the limit.
//! - After a series, the limit grows as without refusals, up to half of the level before it.
//!
//! Not covered:
//! - Failures with less than half of the limit in flight: only a window with more than a tenth of
//!   them lowers the limit.
//! - A fleet's limit, which falls by votes (`fleet.rs`).

use super::super::fixed_point::{FixedPoint, Fraction};
use super::super::sample::LatencySample;
use super::constants::HALF;
use crate::units::Nanos;

/// The part of the usual change of the level by which the limit stays below the level.
const FALL: Fraction = Fraction::percent(45);
/// The usual change of the level before two refusals are known, in millionths.
const UNKNOWN_CHANGE: u64 = 100_000;
/// The largest change that counts, because a single jump is not usual.
const MAX_CHANGE: u64 = 500_000;
/// The largest fall below the level, in millionths, unless refusals follow each other.
const MAX_FALL: u64 = 100_000;
/// The smallest first fall of a series, in millionths.
const MIN_SERIES_FALL: u64 = 10_000;
/// The part of the level that must succeed to end a series of refusals, and its least number.
const SERIES_END: Fraction = Fraction::percent(25);
const MIN_SERIES_END: u32 = 8;
/// The fewest and the most successes that count as a round trip, so that the refused part is similar
/// at every capacity.
const MIN_ROUND_TRIP: u64 = 16;
const MAX_ROUND_TRIP: u64 = 32;
/// The part of the min RTT that a quick refusal takes at most.
const QUICK: Fraction = Fraction::percent(25);
/// The number of round trips without growth after a refusal.
const HOLD: Fraction = Fraction::percent(125);
/// The growth for each success after that, in millionths of a request.
const FIRST_GROWTH: u64 = 50_000;
/// The increase of this growth after each round trip.
const MORE_GROWTH: u64 = 100_000;
/// The largest growth for each success after a slow refusal.
const MAX_SLOW_GROWTH: u64 = 150_000;
/// The number of round trips after which a refusal no longer slows growth.
const END: Fraction = Fraction::percent(575);
const MILLION: u64 = 1_000_000;

/// The last refusal that lowered the limit, and the successes since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Refusal {
    /// The requests in flight that the backend served at the refusal.
    level: FixedPoint,
    at: Nanos,
    successes: u64,
    /// The successes that count as a round trip.
    round_trip: u64,
    /// Set if the refusal returned long before a served request.
    is_quick: bool,
    /// The moving average of the changes of the level between two refusals, in millionths.
    usual_change: u64,
    /// The number of earlier refusals in this series.
    earlier: u32,
    /// The level at the first refusal of this series.
    first_level: FixedPoint,
    /// The limit up to which the last window permits growth.
    ceiling: FixedPoint,
}

impl Refusal {
    /// The refusal `sample` with `level` requests being served, after the one of `previous`.
    pub(super) fn new(
        sample: &LatencySample,
        level: FixedPoint,
        min_rtt: Option<Nanos>,
        previous: Option<Self>,
    ) -> Self {
        let series = previous.filter(Self::is_in_series);
        let is_quick = min_rtt.is_some_and(|it| sample.rtt.0 <= QUICK.of(it.0));
        Self {
            level,
            at: sample.ended_at,
            successes: 0,
            round_trip: u64::from(level.floor()).clamp(MIN_ROUND_TRIP, MAX_ROUND_TRIP),
            is_quick,
            usual_change: previous.map_or(UNKNOWN_CHANGE, |it| it.usual_change_until(level)),
            earlier: series.map_or(0, |it| it.earlier.saturating_add(1)),
            first_level: series.map_or(level, |it| it.first_level),
            ceiling: FixedPoint::ZERO,
        }
    }

    pub(super) const fn record_success(&mut self) {
        self.successes = self.successes.saturating_add(1);
    }

    /// Returns `true` if the request was admitted before this refusal lowered the limit.
    pub(super) fn covers(&self, sample: &LatencySample) -> bool {
        sample.ended_at.since(sample.rtt) < self.at
    }

    /// The limit after this refusal.
    pub(super) fn lowered_limit(&self) -> FixedPoint {
        let fall = FALL.of(self.usual_change).min(MAX_FALL);
        if self.earlier == 0 {
            return self.below_level(fall).rounded();
        }
        let factor = 2_u64.saturating_pow(self.earlier);
        let lowered = self.below_level(fall.max(MIN_SERIES_FALL).saturating_mul(factor));
        lowered.min(self.level.minus(FixedPoint::from_whole(1))).max(self.level.times(HALF))
    }

    /// Permits growth from `limit` to `next` by the successes of the next window. Returns the limit
    /// until then: `next` if it is lower, or if this refusal has ended.
    pub(super) fn permit_growth(&mut self, limit: FixedPoint, next: FixedPoint) -> FixedPoint {
        self.ceiling = next;
        if self.has_ended() {
            return next;
        }
        next.min(limit.max(self.first_level.times(HALF)))
    }

    /// Prevents growth until the next window permits it.
    pub(super) const fn forbid_growth(&mut self) {
        self.ceiling = FixedPoint::ZERO;
    }

    /// The limit after a success under `limit`.
    pub(super) fn grown_limit(&self, limit: FixedPoint) -> FixedPoint {
        let growth = Fraction { numerator: self.growth(), denominator: MILLION };
        limit.plus(FixedPoint::from_whole(1).times(growth)).min(self.ceiling.max(limit))
    }

    /// The growth for each success, in millionths of a request.
    fn growth(&self) -> u64 {
        let hold = HOLD.of(self.round_trip);
        let Some(successes) = self.successes.checked_sub(hold) else { return 0 };
        let more = Fraction { numerator: successes, denominator: self.round_trip }.of(MORE_GROWTH);
        let growth = FIRST_GROWTH.saturating_add(more);
        if self.is_quick { growth } else { growth.min(MAX_SLOW_GROWTH) }
    }

    /// Returns `true` after so many successes that the refusal no longer slows growth.
    fn has_ended(&self) -> bool {
        let whole = if self.is_quick { 0 } else { u64::from(self.level.floor()) };
        END.of(self.round_trip.max(whole)) <= self.successes
    }

    /// Returns `true` if a refusal now follows so soon that the limit is still far too high.
    /// Requests above the lowered limit end first; no others are admitted before.
    fn is_in_series(&self) -> bool {
        let above_limit = self.level.minus(self.lowered_limit());
        let more = self.level.times(SERIES_END).max(FixedPoint::from_whole(MIN_SERIES_END));
        self.successes < above_limit.plus(more).floor().into()
    }

    fn usual_change_until(&self, level: FixedPoint) -> u64 {
        let change = self.level.relative_difference(level).min(MAX_CHANGE);
        self.usual_change.saturating_mul(7).saturating_add(change) / 8
    }

    fn below_level(&self, millionths: u64) -> FixedPoint {
        let numerator = MILLION.saturating_sub(millionths);
        self.level.times(Fraction { numerator, denominator: MILLION })
    }
}
