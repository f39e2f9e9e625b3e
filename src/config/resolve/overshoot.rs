//! Converts the fields `mode` and `max_overshoot` of a rate limit to a [`LimitMode`].
//!
//! | `max_overshoot`, for 600 requests | most outstanding hits |
//! |---|---|
//! | `12` | 12 hits |
//! | `2%` | ⌊600·2/100⌋ = 12 hits |
//! | `0`, `fixed_window` | the hits left in the window; leases end with it |
//!
//! Guarantees:
//! - The hits of a percentage are rounded down.
//! - A `max_overshoot` of less than one hit (other than 0), or above the limit, is an error.

use super::keywords::{ModeKeyword, StrategyKeyword};
use crate::config::diagnostic::Code;
use crate::config::{Limit, LimitMode};
use crate::kernel::lease::sizer::{self, LeaseSizer, LeaseSizing};
use crate::kernel::lease::{LeaseTerms, Overshoot};
use crate::kernel::units::{Hits, Nanos};

/// The regular expression of all texts that [`parse`] accepts, for the JSON Schema.
pub(crate) const PATTERN: &str = "^(0|[1-9][0-9]*)(([.][0-9]{1,2})?%)?$";

/// The longest duration of a lease, after which the store regains a crashed replica's unspent hits.
const MAX_LEASE_DURATION: Nanos = Nanos::from_secs(30);

/// The duration of a lease that may outlive a window, in periods of its limit. More than one
/// period, so that a replica with few hits borrows rarely.
const LEASE_PERIODS: u64 = 30;

const WHOLE_IN_BASIS_POINTS: u64 = 10_000;

/// The numbers of replicas for which the expected store calls are reported.
const FORECAST_FLEETS: [u64; 3] = [2, 8, 64];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OvershootAmount {
    Hits(u64),
    /// A part of the limit, in hundredths of a percent.
    BasisPoints(u64),
}

pub(super) enum OvershootError {
    /// The amount is 0, but the strategy has no windows at whose end leases could expire.
    NoWindows,
    BelowOneHit,
    AboveLimit,
}

pub(super) fn parse(text: &str) -> Option<OvershootAmount> {
    let parse_integer = |digits: &str| {
        let is_canonical = digits == "0" || !digits.starts_with('0');
        let is_integer = is_canonical && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_integer.then(|| digits.parse::<u64>().ok()).flatten()
    };
    let Some(percent) = text.strip_suffix('%') else {
        return parse_integer(text).map(OvershootAmount::Hits);
    };
    let (whole, decimals) = percent.split_once('.').unwrap_or((percent, "0"));
    let is_digit = |byte: u8| byte.is_ascii_digit();
    if decimals.is_empty() || 2 < decimals.len() || !decimals.bytes().all(is_digit) {
        return None;
    }
    let hundredths = format!("{decimals:0<2}").parse::<u64>().ok()?;
    let basis_points = parse_integer(whole)?.checked_mul(100)?.checked_add(hundredths)?;
    Some(OvershootAmount::BasisPoints(basis_points))
}

impl OvershootAmount {
    pub(super) const fn exceeds_any_limit(self) -> bool {
        match self {
            Self::Hits(hits) => (u32::MAX as u64) < hits,
            Self::BasisPoints(points) => WHOLE_IN_BASIS_POINTS < points,
        }
    }

    /// Returns the most hits that may be outstanding for a limit of `requests` hits.
    pub(super) fn to_overshoot(
        self,
        requests: u32,
        strategy: StrategyKeyword,
    ) -> Result<Overshoot, OvershootError> {
        let limit = u64::from(requests);
        let hits = match self {
            Self::Hits(0) | Self::BasisPoints(0) if strategy == StrategyKeyword::FixedWindow => {
                return Ok(Overshoot::InWindow);
            }
            Self::Hits(0) | Self::BasisPoints(0) => return Err(OvershootError::NoWindows),
            Self::Hits(hits) => hits,
            Self::BasisPoints(points) => {
                limit.saturating_mul(points.min(WHOLE_IN_BASIS_POINTS + 1)) / WHOLE_IN_BASIS_POINTS
            }
        };
        let is_above_limit = limit < hits || self.exceeds_any_limit();
        match hits {
            _ if is_above_limit => Err(OvershootError::AboveLimit),
            0 => Err(OvershootError::BelowOneHit),
            hits => Ok(Overshoot::AtMost(Hits(hits))),
        }
    }
}

pub(super) fn error_message_and_fix(
    error: &OvershootError,
    requests: u32,
    strategy: StrategyKeyword,
) -> (Code, String, String) {
    match error {
        OvershootError::NoWindows => (
            Code::Contradiction,
            format!(
                "`max_overshoot: 0` with `strategy: {strategy}`, which has no windows that leases end with"
            ),
            "at least 1 hit, or `strategy: fixed_window`, or `mode: strict`".to_owned(),
        ),
        OvershootError::BelowOneHit => (
            Code::OutOfRange,
            format!("this part of {requests} is less than one hit"),
            "a larger part, or `mode: strict`; 0 is for `fixed_window`".to_owned(),
        ),
        OvershootError::AboveLimit => (
            Code::OutOfRange,
            "a `max_overshoot` above the limit itself".to_owned(),
            format!("at most {requests}, or `100%`"),
        ),
    }
}

/// Returns the mode for a keyword. `leased` without an `overshoot` becomes `strict`.
pub(super) fn resolve_mode(
    keyword: ModeKeyword,
    overshoot: Option<Overshoot>,
    period: Nanos,
    sizing: LeaseSizing,
) -> LimitMode {
    match (keyword, overshoot) {
        (ModeKeyword::Leased, Some(overshoot)) => {
            let periods = if overshoot == Overshoot::InWindow { 1 } else { LEASE_PERIODS };
            let duration = Nanos(period.0.saturating_mul(periods)).min(MAX_LEASE_DURATION);
            LimitMode::Leased(LeaseTerms { overshoot, duration, sizing })
        }
        (ModeKeyword::CachedDeny, _) => LimitMode::CachedDeny,
        (ModeKeyword::Strict | ModeKeyword::Leased, _) => LimitMode::Strict,
    }
}

/// Describes the expected store calls per decision of a leased limit, and the bounds of its leases.
pub(super) fn lease_forecast(limit: &Limit) -> Option<(String, String)> {
    let LimitMode::Leased(terms) = limit.mode else { return None };
    let forecasts = FORECAST_FLEETS.map(|replicas| {
        format!("1 in {} on {replicas} replicas", decisions_per_call(limit, terms, replicas))
    });
    let expected_calls =
        format!("expected calls per decision at its full rate: {}", forecasts.join(", "));
    let bound = match terms.overshoot {
        Overshoot::AtMost(Hits(hits)) => format!("at most {hits} hits are lent at one time"),
        Overshoot::InWindow => "leases end with their window".to_owned(),
    };
    Some((expected_calls, format!("a lease is good for {}; {bound}", terms.duration)))
}

/// Returns the expected number of one-hit decisions per store call, if checks use the whole limit
/// and are spread evenly over `replicas`.
fn decisions_per_call(limit: &Limit, terms: LeaseTerms, replicas: u64) -> u64 {
    let requests = u64::from(limit.requests);
    let mut sizer = LeaseSizer::new(
        terms.sizing,
        terms.duration,
        sizer::max_lease(limit.strategy.max_at_once()),
    );
    let hits_times_span = u128::from(requests).saturating_mul(u128::from(sizer.span().0));
    let hits_per_span =
        hits_times_span.checked_div(u128::from(limit.window.length().0)).unwrap_or(0);
    let demand = u64::try_from(hits_per_span).unwrap_or(u64::MAX) / replicas;
    sizer.record_check(Nanos(0), Hits(demand));
    let hits_per_replica = match terms.overshoot {
        Overshoot::AtMost(Hits(hits)) => hits / replicas,
        // In the middle of a window, half of its hits are left to borrow.
        Overshoot::InWindow => requests / 2 / replicas,
    };
    sizer.next_lease(Nanos(0), Hits(0)).0.min(hits_per_replica).max(1)
}
