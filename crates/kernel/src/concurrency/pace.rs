//! The pace of a limit: one request a turn, and a time between turns that follows overload answers.
//!
//! | event | effect, for 10 requests a second, `increase` 1 and `decrease` 0.8 |
//! |---|---|
//! | an admission | the next turn is one interval later: 100 ms |
//! | a success | rate + increase / rate: 10.1, so about + 1 in a second of full use |
//! | an overload answer | rate × decrease: 8, an interval of 125 ms |
//!
//! Guarantees:
//! - In any time T there are at most 1 + T / interval turns at a constant rate.
//! - Idle time gives no credit: two turns are never closer than one interval.
//! - A waiting request that is woken up to [`WAKE_DELAY`] late delays no later turn. Then T is that much
//!   longer.
//! - Answers to requests from before the last decrease do not decrease the rate again.
//! - The rate grows only by requests whose turn came within two intervals of the one before.
//! - All numbers are integers: the interval is rounded up, the rate down to 2^-32 requests per unit.
//!
//! Not covered:
//! - Several turns that are given back: only the newest turn can be.

use super::adaptive::{Hundredths, LatencySample};
use super::{Permit, RequestOutcome};
use crate::units::Nanos;

/// The delay of a timer that does not lower the rate. Timers have a resolution of 1 ms.
pub const WAKE_DELAY: Nanos = Nanos(2 * Nanos::MILLI.0);

/// One request in the fixed-point numbers of a rate.
const ONE: u64 = 1 << 32;

/// The configuration of a pace. The initial rate is the `limit` of the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PaceConfig {
    /// The time in which the limit's number of requests may start.
    pub unit: Nanos,
    /// The adaptation to overload answers; `None` keeps the rate.
    pub adaptive: Option<AdaptivePace>,
}

/// The adaptation of a pace. All rates are in requests per unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptivePace {
    /// The lower bound; 0 counts as 1.
    pub min: u32,
    /// The upper bound.
    pub max: u32,
    /// The growth in one unit of time, while the rate is used.
    pub increase: u32,
    /// An overload answer multiplies the rate by this factor, at most 1.
    pub decrease: Hundredths,
}

/// The turns of one limit, and its current rate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pace {
    config: PaceConfig,
    /// In 2^-32 requests per unit.
    rate: u64,
    /// The instant of the newest turn; `None` before the first one.
    last_turn: Option<Nanos>,
    /// The permit of the newest turn, and the turn before it.
    newest: Option<(Permit, Option<Nanos>)>,
    decreased_at: Option<Nanos>,
    growth_paused_until: Nanos,
}

impl Pace {
    /// A pace that starts at `rate` requests per unit, with a turn at once.
    #[must_use]
    pub fn new(rate: u32, config: PaceConfig) -> Self {
        let mut pace = Self {
            config,
            rate: fixed_point(rate),
            last_turn: None,
            newest: None,
            decreased_at: None,
            growth_paused_until: Nanos(0),
        };
        pace.set_rate(pace.rate);
        pace
    }

    /// The rate in whole requests per unit, rounded to the nearest number.
    #[must_use]
    pub fn rate(&self) -> u32 {
        u32::try_from(self.rate.saturating_add(ONE / 2) / ONE).unwrap_or(u32::MAX)
    }

    /// The rate in thousandths of a request per second.
    #[must_use]
    pub fn millis_per_second(&self) -> u64 {
        let per_second = u128::from(self.rate).saturating_mul(1_000 * u128::from(Nanos::SECOND.0));
        let unit = u128::from(self.config.unit.0.max(1)).saturating_mul(ONE.into());
        let rounded = per_second.saturating_add(unit / 2).checked_div(unit).unwrap_or(0);
        u64::try_from(rounded).unwrap_or(u64::MAX)
    }

    /// The time between two turns.
    #[must_use]
    pub fn interval(&self) -> Nanos {
        let unit = u128::from(self.config.unit.0).saturating_mul(ONE.into());
        Nanos(u64::try_from(unit.div_ceil(self.rate.max(1).into())).unwrap_or(u64::MAX))
    }

    /// The instant from which a request may take the next turn.
    #[must_use]
    pub fn next_turn(&self) -> Nanos {
        self.last_turn.map_or(Nanos(0), |last| last.plus(self.interval()))
    }

    /// Takes the turn that is due at `now` for `permit`.
    ///
    /// The turn is dated at the instant at which it was due, or at `earliest` if that is later: so a late
    /// timer does not lower the rate. Returns `true` if requests use at least half of the rate.
    pub(super) fn take_turn(&mut self, permit: Permit, earliest: Nanos, now: Nanos) -> bool {
        let interval = self.interval();
        let is_used = self.last_turn.is_some_and(|last| now <= last.plus(interval).plus(interval));
        self.newest = Some((permit, self.last_turn));
        self.last_turn = Some(self.next_turn().max(earliest).min(now));
        is_used
    }

    /// Gives back the turn of `permit` if it is the newest one.
    pub(super) fn give_back(&mut self, permit: Permit) {
        if let Some((newest, before)) = self.newest
            && newest == permit
        {
            self.last_turn = before;
        }
    }

    /// Prevents growth until `ends_at`. A second pause never shortens the first one.
    pub(super) fn pause_growth(&mut self, ends_at: Nanos) {
        self.growth_paused_until = self.growth_paused_until.max(ends_at);
    }

    /// Updates the rate after a request that was admitted at `admitted_at`. `is_used` is the result of its
    /// [`Self::take_turn`].
    pub(super) fn record(&mut self, admitted_at: Nanos, is_used: bool, sample: &LatencySample) {
        let Some(AdaptivePace { increase, decrease, .. }) = self.config.adaptive else { return };
        let now = sample.ended_at;
        match sample.outcome {
            RequestOutcome::Dropped if self.decreased_at.is_none_or(|last| last < admitted_at) => {
                self.decreased_at = Some(now);
                self.set_rate(times(self.rate, decrease));
            }
            RequestOutcome::Success if is_used && self.growth_paused_until <= now => {
                let growth = (u128::from(increase) << 64).checked_div(self.rate.into());
                let growth = growth.map_or(0, |growth| u64::try_from(growth).unwrap_or(u64::MAX));
                self.set_rate(self.rate.saturating_add(growth));
            }
            _ => {}
        }
    }

    /// Applies another configuration. An adaptive rate is kept within the new bounds, unless the unit
    /// changes. Turns are kept.
    pub(super) fn reload(&mut self, rate: u32, config: PaceConfig) {
        let is_kept = self.config.adaptive.is_some() && self.config.unit == config.unit;
        let rate = if is_kept && config.adaptive.is_some() { self.rate } else { fixed_point(rate) };
        self.config = config;
        self.set_rate(rate);
    }

    fn set_rate(&mut self, rate: u64) {
        self.rate = match self.config.adaptive {
            Some(AdaptivePace { min, max, .. }) => {
                rate.min(fixed_point(max)).max(fixed_point(min.max(1)))
            }
            None => rate,
        };
    }
}

fn fixed_point(rate: u32) -> u64 {
    u64::from(rate).saturating_mul(ONE)
}

fn times(rate: u64, factor: Hundredths) -> u64 {
    let product = u128::from(rate).saturating_mul(factor.0.into()) / 100;
    u64::try_from(product).unwrap_or(u64::MAX)
}
