//! The errors of amounts, and the amounts that invalid texts probably mean.
//!
//! | text | fix |
//! |---|---|
//! | `$500`, `500$`, `usd 500`, `500 dollars` | `500 usd` |
//! | `1,000 usd`, `1_000 usd` | `1000 usd` |
//! | `2m tokens`, `2 million tokens` | `2M tokens` |
//!
//! Guarantees:
//! - Each suggested amount is valid.

use crate::budget::BudgetUnit;
use crate::budget_amount::{self, AmountError};
use crate::kernel::budget::Amount;

/// The longest text that is examined.
const MAX_LEN: usize = 64;

/// The signs of currencies.
const SIGNS: [(char, &str); 4] = [('$', "usd"), ('€', "eur"), ('£', "gbp"), ('¥', "jpy")];

/// Other words for the factors.
const FACTOR_WORDS: [(&[&str], &str); 3] = [
    (&["k", "thousand"], "k"),
    (&["m", "mm", "mio", "mn", "million"], "M"),
    (&["g", "b", "bn", "billion"], "G"),
];

/// Other words for the units.
const UNIT_WORDS: [(&[&str], &str); 6] = [
    (&["token", "tok", "toks"], "tokens"),
    (&["input_token", "prompt_tokens", "prompt_token"], "input_tokens"),
    (&["output_token", "completion_tokens", "completion_token"], "output_tokens"),
    (&["dollar", "dollars", "us_dollars"], "usd"),
    (&["euro", "euros"], "eur"),
    (&["pound", "pounds"], "gbp"),
];

/// A field with an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AmountField {
    Amount,
    AtMost,
    Estimate,
}

impl AmountField {
    /// Parses the amount of this field. On failure, returns the message and the suggested fix.
    pub(super) fn parse(self, text: &str) -> Result<(Amount, BudgetUnit), (String, String)> {
        match budget_amount::parse(text) {
            Ok((_, unit)) if !self.has_unit(unit) => {
                let message = format!("`{}: {text}` is not a number of tokens", self.name());
                Err((message, self.example()))
            }
            parsed => parsed.map_err(|error| self.message_and_fix(error, text)),
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Amount => "amount",
            Self::AtMost => "at_most",
            Self::Estimate => "estimate",
        }
    }

    fn has_unit(self, unit: BudgetUnit) -> bool {
        self == Self::Amount || unit == BudgetUnit::Tokens
    }

    fn example(self) -> String {
        let example = match self {
            Self::Amount => "500 usd",
            Self::AtMost => "32k tokens",
            Self::Estimate => "4k tokens",
        };
        format!("write a number and a unit, such as `{}: {example}`", self.name())
    }

    fn message_and_fix(self, error: AmountError, text: &str) -> (String, String) {
        let (problem, fix) = match error {
            AmountError::NotAnAmount if text.starts_with('-') => ("is negative", self.example()),
            AmountError::NotAnAmount => ("is not an amount", self.meant_or_example(text)),
            AmountError::NoUnit => ("has no unit", self.meant_or_example(text)),
            AmountError::UnknownUnit => ("has an unknown unit", self.meant_or_example(text)),
            AmountError::Zero => {
                let fix = "use more than 0; to deny everything, use a `rate_limit` of 0 requests";
                ("is nothing", fix.to_owned())
            }
            AmountError::TooFine => {
                let fix = "use whole tokens, and at most six decimals of a currency";
                ("has too many decimals", fix.to_owned())
            }
            AmountError::TooLarge => {
                let fix = "use at most `9000M usd` or `9000000G tokens`";
                ("is too large to count exactly", fix.to_owned())
            }
        };
        (format!("`{}: {text}` {problem}", self.name()), fix)
    }

    fn meant_or_example(self, text: &str) -> String {
        let meant = repaired(text).filter(|(_, unit)| self.has_unit(*unit));
        let fix = meant.map(|(meant, _)| format!("write `{}: {meant}`", self.name()));
        fix.unwrap_or_else(|| self.example())
    }
}

/// Returns the amount that an invalid text probably means, and its unit.
fn repaired(text: &str) -> Option<(String, BudgetUnit)> {
    let text = text.trim();
    if MAX_LEN < text.len() {
        return None;
    }
    let sign = SIGNS.iter().find(|(sign, _)| text.contains(*sign));
    let text = sign.map_or(text.to_owned(), |(sign, _)| text.replace(*sign, " "));
    let (first, second) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    let is_word = first.starts_with(|letter: char| letter.is_ascii_alphabetic());
    let text = if is_word { format!("{second} {first}") } else { text.trim().to_owned() };
    let is_number = |letter: char| letter.is_ascii_digit() || ".,_' ".contains(letter);
    let end = text.find(|letter| !is_number(letter)).unwrap_or(text.len());
    let (number, words) = text.split_at(end);
    let mut words: Vec<_> = words.split_whitespace().map(str::to_lowercase).collect();
    let factor = words.first().and_then(|word| ours(&FACTOR_WORDS, word));
    if factor.is_some() {
        words.remove(0);
    }
    words.extend(sign.map(|(_, code)| (*code).to_owned()));
    let unit = words.join("_");
    let unit = ours(&UNIT_WORDS, &unit).unwrap_or(&unit);
    let meant = format!("{}{} {unit}", plain_number(number), factor.unwrap_or_default());
    let (_, unit) = budget_amount::parse(&meant).ok()?;
    Some((meant, unit))
}

fn ours(words: &[(&[&str], &'static str)], word: &str) -> Option<&'static str> {
    words.iter().find(|(others, _)| others.contains(&word)).map(|(_, ours)| *ours)
}

/// Returns a number without marks between its digits. A comma before three digits is such a mark;
/// another comma is a decimal point.
fn plain_number(text: &str) -> String {
    let text = text.trim().replace(['_', '\'', ' '], "");
    let is_group = |digits: &str| digits.split('.').next().is_some_and(|whole| whole.len() == 3);
    let is_grouped = text.split(',').skip(1).all(is_group);
    let text = text.replace(',', if is_grouped { "" } else { "." });
    let text = text.trim_end_matches('.').trim_start_matches('0');
    let has_whole = text.starts_with(|letter: char| letter.is_ascii_digit());
    if has_whole { text.to_owned() } else { format!("0{text}") }
}
