//! Converts the fields `mode` and `max_overshoot` of a rate limit to a [`LimitMode`].
//!
//! | `max_overshoot`, for 600 requests | most outstanding hits |
//! |---|---|
//! | `12` | 12 hits |
//! | `2%` | ⌊600·2/100⌋ = 12 hits |
//! | `0`, `fixed_window` | the hits left in the window; leases end with it |
//! | `0`, other strategies | ⌊600/10⌋ = 60 hits, which occupy the limit |
//!
//! Guarantees:
//! - The hits of a percentage are rounded down.
//! - A `max_overshoot` of less than one hit (other than 0), or above the limit, is an error.
//!
//! Not covered:
//! - Granting of leases (see [`crate::kernel::lease`]).

use super::keywords::{ModeKeyword, StrategyKeyword};
use crate::diagnostic::Code;
use crate::kernel::lease::sizer::{self, LeaseSizer, LeaseSizing};
use crate::kernel::lease::{LeaseTerms, Overshoot};
use crate::kernel::units::{Hits, Nanos};
use crate::{Limit, LimitMode};

/// The regular expression of all texts that [`parse`] accepts, for the JSON Schema.
pub(crate) const PATTERN: &str = "^(0|[1-9][0-9]*)(([.][0-9]{1,2})?%)?$";

/// The longest duration of a lease. After it, the unspent hits of a crashed replica are available
/// again. A counter in steady use needs at least one store call for each duration.
const MAX_LEASE_DURATION: Nanos = Nanos::from_secs(30);

/// The duration of a lease in periods of its limit, if leases may outlive a window. Longer than one
/// period, so that a replica with few hits does not borrow anew in every period.
const LEASE_PERIODS: u64 = 30;

/// 100 %, in basis points (hundredths of a percent).
const WHOLE_IN_BASIS_POINTS: u64 = 10_000;

const FORECAST_FLEETS: [u64; 3] = [2, 8, 64];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OvershootAmount {
    Hits(u64),
    /// A percentage of the limit, in hundredths of a percent.
    BasisPoints(u64),
}

/// The reason why a `max_overshoot` is invalid for a limit.
pub(super) enum OvershootError {
    /// The percentage of the limit is less than one hit.
    BelowOneHit,
    AboveLimit,
}

pub(super) fn parse(text: &str) -> Option<OvershootAmount> {
    let natural = |digits: &str| {
        let is_canonical = digits == "0" || !digits.starts_with('0');
        let plain = is_canonical && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<u64>().ok()).flatten()
    };
    let Some(percent) = text.strip_suffix('%') else {
        return natural(text).map(OvershootAmount::Hits);
    };
    let (whole, decimals) = percent.split_once('.').unwrap_or((percent, "0"));
    let is_decimal = |byte: u8| byte.is_ascii_digit();
    if decimals.is_empty() || 2 < decimals.len() || !decimals.bytes().all(is_decimal) {
        return None;
    }
    let hundredths = format!("{decimals:0<2}").parse::<u64>().ok()?;
    Some(OvershootAmount::BasisPoints(natural(whole)?.checked_mul(100)?.checked_add(hundredths)?))
}

impl OvershootAmount {
    /// Returns `true` if no limit is large enough for this amount.
    pub(super) const fn is_above_any(self) -> bool {
        match self {
            Self::Hits(hits) => (u32::MAX as u64) < hits,
            Self::BasisPoints(part) => WHOLE_IN_BASIS_POINTS < part,
        }
    }

    /// Returns the most hits that may be outstanding for a limit of `requests` hits, `burst` of them at
    /// one instant.
    pub(super) fn for_limit(
        self,
        requests: u32,
        burst: u32,
        strategy: StrategyKeyword,
    ) -> Result<Overshoot, OvershootError> {
        let limit = u64::from(requests);
        let hits = match self {
            Self::Hits(0) | Self::BasisPoints(0) if strategy == StrategyKeyword::FixedWindow => {
                return Ok(Overshoot::InWindow);
            }
            Self::Hits(0) | Self::BasisPoints(0) => {
                return Ok(Overshoot::Occupying(sizer::max_lease(burst)));
            }
            Self::Hits(hits) => hits,
            Self::BasisPoints(part) => {
                limit.saturating_mul(part.min(WHOLE_IN_BASIS_POINTS + 1)) / WHOLE_IN_BASIS_POINTS
            }
        };
        let is_above_limit = limit < hits
            || matches!(self, Self::BasisPoints(WHOLE_IN_BASIS_POINTS..) if self != Self::BasisPoints(WHOLE_IN_BASIS_POINTS));
        match hits {
            _ if is_above_limit => Err(OvershootError::AboveLimit),
            0 => Err(OvershootError::BelowOneHit),
            hits => Ok(Overshoot::AtMost(Hits(hits))),
        }
    }
}

/// Returns the code, the message and the suggested fix for an invalid `max_overshoot`.
pub(super) fn error_message_and_fix(
    error: &OvershootError,
    requests: u32,
) -> (Code, String, String) {
    match error {
        OvershootError::BelowOneHit => (
            Code::OutOfRange,
            format!("this percentage of {requests} hits is less than one hit"),
            "use a larger percentage, or `mode: exact`".to_owned(),
        ),
        OvershootError::AboveLimit => (
            Code::OutOfRange,
            format!("`max_overshoot` is larger than the limit of {requests} hits"),
            format!("use at most {requests} or `100%`"),
        ),
    }
}

/// Returns the mode for a keyword. `leased` needs an `overshoot`; without one, the mode is
/// `exact`.
pub(super) fn resolve_mode(
    word: ModeKeyword,
    overshoot: Option<Overshoot>,
    period: Nanos,
    size: LeaseSizing,
) -> LimitMode {
    match (word, overshoot) {
        (ModeKeyword::Leased, Some(overshoot)) => {
            let periods = if overshoot == Overshoot::InWindow { 1 } else { LEASE_PERIODS };
            let lease_duration = Nanos(period.0.saturating_mul(periods)).min(MAX_LEASE_DURATION);
            LimitMode::Leased(LeaseTerms { overshoot, duration: lease_duration, sizing: size })
        }
        (ModeKeyword::CachedDeny, _) => LimitMode::CachedDeny,
        (ModeKeyword::Exact | ModeKeyword::Leased, _) => LimitMode::Strict,
    }
}

/// Returns two sentences about a leased limit: its expected store calls per decision, and the bound
/// on its leases.
pub(super) fn forecast(limit: &Limit) -> Option<(String, String)> {
    let LimitMode::Leased(terms) = limit.mode else { return None };
    let fleets = FORECAST_FLEETS.map(|fleet| {
        format!("1 in {} with {fleet} replicas", decisions_per_call(limit, terms, fleet))
    });
    let expected_calls =
        format!("at the full rate, these checks call the store: {}", fleets.join(", "));
    let bound = match terms.overshoot {
        Overshoot::AtMost(Hits(hits)) => format!("at most {hits} hits are leased at one time"),
        Overshoot::InWindow => "leases end with their window".to_owned(),
        Overshoot::Occupying(Hits(hits)) => {
            format!(
                "at most {hits} hits are leased at one time, and none is allowed above the limit"
            )
        }
    };
    Some((expected_calls, format!("a lease expires after {}; {bound}", terms.duration)))
}

/// Returns how many decisions about one hit are expected for each store call of a leased limit.
///
/// Assumes that requests use the whole limit, spread evenly over `fleet` replicas. The size of a
/// lease is computed as for real leases.
fn decisions_per_call(limit: &Limit, terms: LeaseTerms, fleet: u64) -> u64 {
    let requests = u64::from(limit.requests);
    let mut sizer = LeaseSizer::new(
        terms.sizing,
        terms.duration,
        sizer::max_lease(limit.strategy.max_at_once()),
    );
    let product = u128::from(requests).saturating_mul(u128::from(sizer.span().0));
    let hits_per_span = product.checked_div(u128::from(limit.window.length().0)).unwrap_or(0);
    let demand = u64::try_from(hits_per_span).unwrap_or(u64::MAX) / fleet;
    sizer.record_check(Nanos(0), Hits(demand));
    let hits_per_replica = match terms.overshoot {
        Overshoot::AtMost(Hits(hits)) | Overshoot::Occupying(Hits(hits)) => hits / fleet,
        // In the middle of a window, half of its hits are left to borrow.
        Overshoot::InWindow => requests / 2 / fleet,
    };
    sizer.next_lease(Nanos(0), Hits(0)).hits.0.min(hits_per_replica).max(1)
}
