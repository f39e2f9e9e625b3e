//! The amounts of budgets as text: a number and a unit, such as `500 usd` or `2M tokens`.
//!
//! | text | amount |
//! |---|---|
//! | `500 usd`, `500 USD` | 500,000,000 millionths of a dollar |
//! | `0.25 usd` | 250,000 millionths of a dollar |
//! | `32k tokens` | 32,000 tokens |
//! | `1.5M input_tokens` | 1,500,000 input tokens |
//! | `2G output_tokens` | 2,000,000,000 output tokens |
//!
//! Guarantees:
//! - An amount is exact: whole tokens, or whole millionths of a currency.
//! - An amount is above 0 and below 2^53.
//! - Printing an amount and parsing the text gives the same amount.
//!
//! Not covered:
//! - Exchange rates, and lists of currencies: a currency is any three letters.

use std::fmt;

use super::budget::BudgetUnit;
use crate::kernel::budget::Amount;

/// The regular expression of the amounts that the JSON Schema accepts.
pub(crate) const PATTERN: &str =
    "^[0-9]+([.][0-9]+)?[kMG]? +(tokens|input_tokens|output_tokens|[A-Za-z]{3})$";

/// The regular expression of the units that the JSON Schema accepts.
pub(crate) const UNIT_PATTERN: &str = "^(tokens|input_tokens|output_tokens|[A-Za-z]{3})$";

/// The first amount that cannot be counted exactly.
const BOUND: u128 = 1 << 53;

/// The most digits before the point, and after it. More digits are no amount below [`BOUND`], or no
/// whole millionths.
const MAX_DIGITS: (usize, usize) = (16, 15);

/// The letters behind a number, and their factors.
const FACTORS: [(&str, u64); 3] = [("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];

/// The units of tokens.
const TOKEN_UNITS: [(&str, BudgetUnit); 3] = [
    ("tokens", BudgetUnit::Tokens),
    ("input_tokens", BudgetUnit::InputTokens),
    ("output_tokens", BudgetUnit::OutputTokens),
];

/// Abbreviations of three letters that are no currencies.
const NO_CURRENCIES: [&str; 4] = ["tok", "req", "rpm", "tpm"];

/// The reason why a text is not an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmountError {
    /// The text is not a number with a unit.
    NotAnAmount,
    /// The number has no unit.
    NoUnit,
    /// The unit is neither one of tokens nor a currency.
    UnknownUnit,
    /// The amount is 0.
    Zero,
    /// The amount has a fraction of a token, or of a millionth.
    TooFine,
    /// The amount is 2^53 tokens or millionths, or more.
    TooLarge,
}

/// Parses an amount such as `500 usd` or `1.5M tokens`.
///
/// # Errors
/// The text is not an amount, or the amount cannot be counted exactly.
pub fn parse(text: &str) -> Result<(Amount, BudgetUnit), AmountError> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let factor = FACTORS.iter().find(|(letter, _)| number.ends_with(letter));
    let (letter, factor) = factor.copied().unwrap_or(("", 1));
    let number = number.strip_suffix(letter).unwrap_or(number);
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    if !is_digits(whole) || !is_digits(decimals) || (1 < whole.len() && whole.starts_with('0')) {
        return Err(AmountError::NotAnAmount);
    }
    let unit = match unit.trim_start_matches(' ') {
        "" => Err(AmountError::NoUnit),
        unit => parse_unit(unit).ok_or(AmountError::UnknownUnit),
    }?;
    scaled((whole, decimals), u128::from(factor) * u128::from(unit.scale()))
        .map(|amount| (amount, unit))
}

/// Parses a unit: `tokens`, `input_tokens`, `output_tokens`, or a currency of three letters in any
/// case.
#[must_use]
pub fn parse_unit(text: &str) -> Option<BudgetUnit> {
    if let Some((_, unit)) = TOKEN_UNITS.iter().find(|(known, _)| *known == text) {
        return Some(*unit);
    }
    let code = text.to_ascii_lowercase();
    let is_currency = code.bytes().all(|byte| byte.is_ascii_lowercase())
        && !NO_CURRENCIES.contains(&code.as_str());
    code.as_bytes().try_into().ok().filter(|_| is_currency).map(BudgetUnit::Money)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns a decimal number times `factor`, if that is a whole number of the smallest unit.
fn scaled((whole, decimals): (&str, &str), factor: u128) -> Result<Amount, AmountError> {
    let decimals = decimals.trim_end_matches('0');
    if MAX_DIGITS.0 < whole.len() {
        return Err(AmountError::TooLarge);
    }
    if MAX_DIGITS.1 < decimals.len() {
        return Err(AmountError::TooFine);
    }
    let number = format!("{whole}{decimals}").parse::<u128>().ok();
    // The number has at most 31 digits, so an overflow is far above the bound.
    let product = number.and_then(|number| number.checked_mul(factor));
    let product = product.ok_or(AmountError::TooLarge)?;
    let divisor = decimals.bytes().fold(1_u128, |divisor, _| divisor * 10);
    match product / divisor {
        amount if BOUND <= amount => Err(AmountError::TooLarge),
        _ if !product.is_multiple_of(divisor) => Err(AmountError::TooFine),
        0 => Err(AmountError::Zero),
        amount => u64::try_from(amount).map(Amount).map_err(|_| AmountError::TooLarge),
    }
}

/// An amount with its unit, as a limits file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmountText(pub Amount, pub BudgetUnit);

/// Formats money with all its decimals, and tokens with the largest factor that needs at most one
/// decimal: `0.50 usd`, `1.5M tokens`, `1234567 tokens`.
impl fmt::Display for AmountText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Amount(amount), unit) = *self;
        let scale = unit.scale();
        match (amount / scale, amount % scale) {
            (whole, 0) if scale == 1 => write_short(f, whole)?,
            (whole, 0) => write!(f, "{whole}")?,
            (whole, millionths) => {
                let decimals = format!("{millionths:06}");
                let (cents, rest) = decimals.split_at(2);
                write!(f, "{whole}.{cents}{}", rest.trim_end_matches('0'))?;
            }
        }
        write!(f, " {unit}")
    }
}

fn write_short(f: &mut fmt::Formatter<'_>, number: u64) -> fmt::Result {
    let is_short =
        |(_, factor): &&(&str, u64)| *factor <= number && number.is_multiple_of(factor / 10);
    let Some((letter, factor)) = FACTORS.iter().rev().find(is_short) else {
        return write!(f, "{number}");
    };
    match number % factor / (factor / 10) {
        0 => write!(f, "{}{letter}", number / factor),
        tenth => write!(f, "{}.{tenth}{letter}", number / factor),
    }
}

/// Formats the unit as in a limits file, and a currency in lower case.
impl fmt::Display for BudgetUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Money(code) => f.write_str(str::from_utf8(code).unwrap_or("???")),
            tokens => {
                let word = TOKEN_UNITS.iter().find(|(_, unit)| unit == tokens);
                f.write_str(word.map_or("", |(word, _)| word))
            }
        }
    }
}
