//! Parses settings that are a part of a whole: fractions and percentages.
//!
//! Guarantees:
//! - A percentage is exact to 1/10,000 of a percent.

use std::fmt;

use serde_json::{Value as Json, json};

use super::value::Value;

/// A fraction from 0 to 1. It is an `f32`, as in envoyproxy/ratelimit, so that both round alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitFraction(f32);

impl UnitFraction {
    /// The default of envoyproxy/ratelimit's `NEAR_LIMIT_RATIO`.
    pub const NEAR_LIMIT_DEFAULT: Self = Self(0.8);
    /// The fraction 1.
    pub const WHOLE: Self = Self(1.0);

    /// Returns the fraction, or `None` if `fraction` is not from 0 to 1.
    #[must_use]
    pub fn new(fraction: f32) -> Option<Self> {
        (0.0..=1.0).contains(&fraction).then_some(Self(fraction))
    }

    /// Returns the fraction, from 0 to 1.
    #[must_use]
    pub const fn get(self) -> f32 {
        self.0
    }

    /// Returns the fraction in millionths, rounded: 0.8 is 800,000.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to 1,000,000"
    )]
    pub fn millionths(self) -> u32 {
        (f64::from(self.0) * 1_000_000.0).round() as u32
    }
}

impl Value for UnitFraction {
    const IS_SCALAR: bool = true;
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [text] if text.ends_with('%') => {
                Percentage::new(text).and_then(|percentage| Self::new(percentage.fraction()))
            }
            [text] => text.parse().ok().and_then(Self::new),
            _ => None,
        }
    }
    fn accepts() -> String {
        "a percentage such as 80%, or a number from 0 to 1".to_owned()
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
    fn schema() -> Json {
        json!({
            "type": ["number", "string"],
            "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, Percentage::schema()]
        })
    }
}

/// A percentage above 0 and up to 100, with at most four decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentage(u32);

impl Percentage {
    /// 1 %.
    pub const ONE: Self = Self(10_000);

    /// Returns the percentage of a text such as `80%` or `0.5%`; `None` if it is not above 0 % and
    /// at most 100 %.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let is_valid = !whole.is_empty() && decimals.len() <= 4 && !number.ends_with('.');
        if !is_valid || !is_number(whole) || !is_number(decimals) {
            return None;
        }
        let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
        let millionths = whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(decimals)?;
        (1..=1_000_000).contains(&millionths).then_some(Self(millionths))
    }

    /// Returns the percentage as a fraction: 80 % is the nearest number to 0.8.
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest number")]
    pub(super) fn fraction(self) -> f32 {
        (f64::from(self.0) / 1_000_000.0) as f32
    }

    /// Returns the percentage in millionths, from 1 to 1,000,000: 80 % is 800,000.
    #[must_use]
    pub const fn millionths(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Percentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:04}", self.0 % 10_000);
        let decimals = decimals.trim_end_matches('0');
        let point = if decimals.is_empty() { "" } else { "." };
        write!(f, "{}{point}{decimals}%", self.0 / 10_000)
    }
}

impl Value for Percentage {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [text] => Self::new(text),
            _ => None,
        }
    }
    fn accepts() -> String {
        "a percentage above 0% and up to 100%, such as 80% or 0.5%".to_owned()
    }
    fn show(&self) -> String {
        self.to_string()
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": r"^[0-9]{1,3}(\.[0-9]{1,4})?%$"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read_exactly_and_shown_as_written() {
        for (text, millionths) in
            [("80%", 800_000), ("1%", 10_000), ("0.5%", 5_000), ("0.0001%", 1), ("100%", 1_000_000)]
        {
            let read = Percentage::new(text).unwrap();
            assert_eq!((read.millionths(), read.to_string()), (millionths, text.to_owned()));
        }
        for text in ["", "%", "80", "0%", "100.0001%", "-1%", "1.%", ".5%", "1.00001%", "+1%"] {
            assert_eq!(Percentage::new(text), None, "{text}");
        }
    }
}
