//! Resolves `mode: leased` and `max_overshoot`.
//!
//! | `max_overshoot`, for 600 requests | most outstanding hits |
//! |---|---|
//! | `12` | 12 hits |
//! | `2%` | ⌊600·2/100⌋ = 12 hits |
//! | `0`, `fixed_window` | the hits left in the window; leases end with it |
//!
//! Guarantees:
//! - Percentages are rounded down.
//! - An overshoot of less than one hit, or above the limit, is an error.
//!
//! Not covered:
//! - Lending (see [`crate::kernel::lease`]).

use super::words::{ModeWord, StrategyWord};
use crate::config::diagnostic::Code;
use crate::config::{Limit, Mode};
use crate::kernel::lease::sizer::{self, Size, Sizer};
use crate::kernel::lease::{Overshoot, Terms};
use crate::kernel::units::{Hits, Nanos};

/// The regular expression that [`parse`] accepts.
pub(crate) const PATTERN: &str = "^(0|[1-9][0-9]*)(([.][0-9]{1,2})?%)?$";

/// The longest lease duration. The hits of a crashed replica can be lent again after
/// this time. A key in steady demand needs at least one store call per duration.
const LONGEST_TERM: Nanos = Nanos::from_secs(30);

/// The lease duration in periods of the limit, for leases that may outlive a window. A key
/// with a few hits per period then keeps its lease, instead of borrowing in every period.
const PERIODS: u64 = 30;

/// 100 % in hundredths of a percent.
const WHOLE: u64 = 10_000;

const FLEETS: [u64; 3] = [2, 8, 64];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Hits(u64),
    /// In hundredths of a percent.
    Part(u64),
}

/// The reason why an amount is invalid for a limit.
pub(super) enum Wrong {
    /// The amount is 0, and the strategy has no windows.
    NoWindows,
    /// The amount is less than one hit.
    Nothing,
    AboveLimit,
}

pub(super) fn parse(text: &str) -> Option<Amount> {
    let natural = |digits: &str| {
        let plain = digits == "0" || !digits.starts_with('0');
        let plain = plain && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<u64>().ok()).flatten()
    };
    let Some(percent) = text.strip_suffix('%') else { return natural(text).map(Amount::Hits) };
    let (whole, decimals) = percent.split_once('.').unwrap_or((percent, "0"));
    let is_decimal = |byte: u8| byte.is_ascii_digit();
    if decimals.is_empty() || 2 < decimals.len() || !decimals.bytes().all(is_decimal) {
        return None;
    }
    let hundredths = format!("{decimals:0<2}").parse::<u64>().ok()?;
    Some(Amount::Part(natural(whole)?.checked_mul(100)?.checked_add(hundredths)?))
}

impl Amount {
    /// Returns `true` if the amount is above every possible limit.
    pub(super) const fn is_above_any(self) -> bool {
        match self {
            Self::Hits(hits) => (u32::MAX as u64) < hits,
            Self::Part(part) => WHOLE < part,
        }
    }

    /// Returns the maximum of outstanding hits for a limit of `requests`.
    pub(super) fn of(self, requests: u32, strategy: StrategyWord) -> Result<Overshoot, Wrong> {
        let limit = u64::from(requests);
        let hits = match self {
            Self::Hits(0) | Self::Part(0) if strategy == StrategyWord::FixedWindow => {
                return Ok(Overshoot::InWindow);
            }
            Self::Hits(0) | Self::Part(0) => return Err(Wrong::NoWindows),
            Self::Hits(hits) => hits,
            Self::Part(part) => limit.saturating_mul(part.min(WHOLE + 1)) / WHOLE,
        };
        let above =
            limit < hits || matches!(self, Self::Part(WHOLE..) if self != Self::Part(WHOLE));
        match hits {
            _ if above => Err(Wrong::AboveLimit),
            0 => Err(Wrong::Nothing),
            hits => Ok(Overshoot::AtMost(Hits(hits))),
        }
    }
}

/// Returns the code, the message and the suggested fix of an invalid amount.
pub(super) fn refusal(
    wrong: &Wrong,
    requests: u32,
    strategy: StrategyWord,
) -> (Code, String, String) {
    match wrong {
        Wrong::NoWindows => (
            Code::Contradiction,
            format!(
                "`max_overshoot: 0` with `strategy: {strategy}`, which has no windows that leases end with"
            ),
            "at least 1 hit, or `strategy: fixed_window`, or `mode: strict`".to_owned(),
        ),
        Wrong::Nothing => (
            Code::OutOfRange,
            format!("this part of {requests} is less than one hit"),
            "a larger part, or `mode: strict`; 0 is for `fixed_window`".to_owned(),
        ),
        Wrong::AboveLimit => (
            Code::OutOfRange,
            "a `max_overshoot` above the limit itself".to_owned(),
            format!("at most {requests}, or `100%`"),
        ),
    }
}

/// Returns the mode of a keyword. `leased` requires `overshoot`.
pub(super) fn mode(
    word: ModeWord,
    overshoot: Option<Overshoot>,
    period: Nanos,
    size: Size,
) -> Mode {
    match (word, overshoot) {
        (ModeWord::Leased, Some(overshoot)) => {
            let periods = if overshoot == Overshoot::InWindow { 1 } else { PERIODS };
            let term = Nanos(period.0.saturating_mul(periods)).min(LONGEST_TERM);
            Mode::Leased(Terms { overshoot, term, size })
        }
        (ModeWord::CachedDeny, _) => Mode::CachedDeny,
        (ModeWord::Strict | ModeWord::Leased, _) => Mode::Strict,
    }
}

/// Returns the expected store calls per decision and the bound on leases, as sentences.
pub(super) fn forecast(limit: &Limit) -> Option<(String, String)> {
    let Mode::Leased(terms) = limit.mode else { return None };
    let fleets = FLEETS
        .map(|fleet| format!("1 in {} on {fleet} replicas", decisions_a_call(limit, terms, fleet)));
    let said = format!("expected calls per decision at its full rate: {}", fleets.join(", "));
    let out = match terms.overshoot {
        Overshoot::AtMost(Hits(hits)) => format!("at most {hits} hits are lent at one time"),
        Overshoot::InWindow => "leases end with their window".to_owned(),
    };
    Some((said, format!("a lease is good for {}; {out}", terms.term)))
}

/// Returns the expected number of one-hit decisions per store call.
///
/// Assumes that the limit's full rate is spread evenly over `fleet`
/// replicas. Uses the same sizing and division rules as leases.
fn decisions_a_call(limit: &Limit, terms: Terms, fleet: u64) -> u64 {
    let requests = u64::from(limit.requests);
    let mut sizer = Sizer::new(terms.size, terms.term, sizer::most(limit.strategy.most()));
    let product = u128::from(requests).saturating_mul(u128::from(sizer.span().0));
    let a_span = product.checked_div(u128::from(limit.window.length().0)).unwrap_or(0);
    let asked = u64::try_from(a_span).unwrap_or(u64::MAX) / fleet;
    sizer.asked(Nanos(0), Hits(asked));
    let share = match terms.overshoot {
        Overshoot::AtMost(Hits(hits)) => hits / fleet,
        // The middle of the window.
        Overshoot::InWindow => requests / 2 / fleet,
    };
    sizer.want(Nanos(0), Hits(0)).0.min(share).max(1)
}
