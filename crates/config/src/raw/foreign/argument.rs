//! Converts values of other rate limiters to values of our fields.
//!
//! Guarantees:
//! - Each text is a valid value of its field, with an example if the user's value does not fit.

use crate::resolve::duration;
use crate::resolve::keywords::{self, StrategyKeyword};

/// The value of a field in a fix.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    /// A number from 1, such as 100.
    Count,
    /// A duration; a number without unit is seconds.
    Seconds,
    /// A duration; a number without unit is milliseconds.
    Millis,
    /// A strategy.
    Strategy,
    /// `allow` for a true value, otherwise `error`.
    FailOpen,
    /// `allow` for a false value, otherwise `error`.
    FailClosed,
    /// A name without special characters.
    Name(&'static str),
    /// A prefix of values, with `*` behind it.
    Prefix,
    /// Always this text.
    Text(&'static str),
}

impl Argument {
    /// Returns the text of the field for the user's value.
    pub(super) fn text(self, value: Option<&str>) -> String {
        let value = value.map(str::trim).filter(|value| value.len() <= 64);
        match self {
            Self::Count => value
                .and_then(|text| text.replace('_', "").parse::<u32>().ok())
                .filter(|count| (1..=1_000_000_000).contains(count))
                .map_or_else(|| "100".to_owned(), |count| count.to_string()),
            Self::Seconds => period(value, 1000).unwrap_or_else(|| "60s".to_owned()),
            Self::Millis => period(value, 1).unwrap_or_else(|| "60s".to_owned()),
            Self::Strategy => {
                let known = value.and_then(strategy_of).unwrap_or(StrategyKeyword::Gcra);
                keywords::keyword_of(keywords::STRATEGIES, known).to_owned()
            }
            Self::FailOpen => fallback(!is_false(value)),
            Self::FailClosed => fallback(is_false(value)),
            Self::Name(example) => {
                let is_plain = |text: &&str| {
                    text.starts_with(|letter: char| letter.is_ascii_alphabetic())
                        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                };
                value.filter(is_plain).unwrap_or(example).to_owned()
            }
            Self::Prefix => "\"/api/*\"".to_owned(),
            Self::Text(text) => text.to_owned(),
        }
    }
}

/// Returns a count and a unit for a rate such as `10r/s`, or an example for another value.
pub(super) fn parse_rate(value: Option<&str>) -> (String, String) {
    let text = value.unwrap_or_default();
    let parts = || {
        let (count, unit) = text.split_once('/')?;
        let digits = count.trim().trim_end_matches(|letter: char| !letter.is_ascii_digit());
        let count: u32 = digits.parse().ok().filter(|count| (1..=1_000_000_000).contains(count))?;
        let unit = keywords::unit_of(unit.trim())?;
        Some((count.to_string(), unit.to_owned()))
    };
    parts().unwrap_or_else(|| ("100".to_owned(), "second".to_owned()))
}

fn strategy_of(text: &str) -> Option<StrategyKeyword> {
    let word = text.to_lowercase().replace(['-', ' '], "_");
    let ours = keywords::synonym(keywords::STRATEGIES, &word).unwrap_or(&word).to_owned();
    keywords::parse_keyword(keywords::STRATEGIES, &ours)
}

/// Returns a duration of 1 ms to a year. A number without unit has `unit_ms` milliseconds.
fn period(value: Option<&str>, unit_ms: u64) -> Option<String> {
    let text = value?;
    if let Ok(number) = text.parse::<u64>() {
        let ms = number.checked_mul(unit_ms).filter(|ms| (1..=31_536_000_000).contains(ms))?;
        let is_seconds = ms.is_multiple_of(1000);
        return Some(if is_seconds { format!("{}s", ms / 1000) } else { format!("{ms}ms") });
    }
    let nanos = duration::parse(text).ok()?.0;
    (1_000_000..=31_536_000_000_000_000).contains(&nanos).then(|| text.to_owned())
}

fn is_false(value: Option<&str>) -> bool {
    value.is_some_and(|text| {
        ["false", "no", "off", "closed", "deny", "block"].contains(&text.to_lowercase().as_str())
    })
}

fn fallback(allows: bool) -> String {
    if allows { "allow" } else { "error" }.to_owned()
}
