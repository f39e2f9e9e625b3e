//! `mode: leased` and its `max_overshoot`: what they come to, and what they cannot be.
//!
//! | written, for 600 requests | at most out |
//! |---|---|
//! | `12` | 12 hits |
//! | `2%` | ⌊600·2/100⌋ = 12 hits |
//! | `0`, `fixed_window` | what the window has left; leases end with it |
//!
//! Guarantees: a percentage is rounded down, and one that comes to nothing is refused, as is a bound
//! that binds nothing.
//! Leaves out: what is lent ([`crate::kernel::lease`]).

use super::words::{ModeWord, StrategyWord};
use crate::config::diagnostic::Code;
use crate::config::{Limit, Mode};
use crate::kernel::lease::sizer::{self, Size, Sizer};
use crate::kernel::lease::{Overshoot, Terms};
use crate::kernel::units::{Hits, Nanos};

/// What [`parse`] reads, as a regular expression.
pub(crate) const PATTERN: &str = "^(0|[1-9][0-9]*)(([.][0-9]{1,2})?%)?$";

/// No lease is good for longer: what a replica that died held may be lent again after as much. A key in steady
/// demand takes a message a term at least.
const LONGEST_TERM: Nanos = Nanos::from_secs(30);

/// A lease that may outlive its window is good for so many periods: a key that is asked for some hits in each
/// is not lent them anew in each.
const PERIODS: u64 = 30;

/// Hundredths of a percent in the whole.
const WHOLE: u64 = 10_000;

/// The fleets that are forecast.
const FLEETS: [u64; 3] = [2, 8, 64];

/// `max_overshoot` as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Hits(u64),
    /// In hundredths of a percent.
    Part(u64),
}

/// Why an amount is none.
pub(super) enum Wrong {
    /// 0, and the strategy has no windows.
    NoWindows,
    /// Less than one hit.
    Nothing,
    /// More than the limit itself.
    AboveLimit,
}

/// The amount that `text` says.
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
    /// Whether it is above every limit that there can be.
    pub(super) const fn is_above_any(self) -> bool {
        match self {
            Self::Hits(hits) => (u32::MAX as u64) < hits,
            Self::Part(part) => WHOLE < part,
        }
    }

    /// What may be out for a limit of so many `requests`.
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

/// What is said of an amount that is none, and what would cure it.
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

/// The mode that a word means; `overshoot` is there where the word is `leased`.
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

/// What asking the store is expected to come to: the sentence, and what bounds it.
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

/// Decisions of one hit for each call, where a fleet of this many is asked evenly for all that the
/// limit admits. By the rules that leases are sized and divided by.
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
