//! Parses durations such as `250ms`, `30s`, `5m`, `36h`, `7d` or `1h30m`.
//!
//! Guarantees:
//! - Only whole numbers are accepted, so nothing is rounded.
//! - A duration of more than 584 years is an error.
//!
//! Not covered:
//! - Months and years, whose lengths vary (see the units and calendars of limits).

use crate::kernel::units::Nanos;

/// The units of a duration, with their length in nanoseconds.
const SUFFIXES: &[(&str, u64)] = &[
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// The regular expression of all texts that [`parse`] accepts, for the JSON Schema.
pub(crate) const PATTERN: &str = "^([0-9]+(ms|s|m|h|d))+$";

/// The reason why a text is not a valid duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationError {
    /// The text is not a series of whole numbers with units.
    NotADuration,
    /// The duration is longer than 584 years, the largest number of nanoseconds in 64 bits.
    TooLong,
}

/// Parses a duration such as `1h30m`.
///
/// # Errors
/// The text is not a duration, or the duration is longer than 584 years.
pub fn parse(text: &str) -> Result<Nanos, DurationError> {
    let mut rest = text;
    let mut sum = Some(0u64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or(DurationError::NotADuration)?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(after.len());
        let (suffix, after) = after.split_at(letters);
        let unit = SUFFIXES.iter().find(|(known, _)| *known == suffix);
        let (_, worth) = unit.filter(|_| !number.is_empty()).ok_or(DurationError::NotADuration)?;
        let nanos = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*worth));
        sum = sum.and_then(|sum| sum.checked_add(nanos?));
        rest = after;
    }
    match sum {
        _ if text.is_empty() => Err(DurationError::NotADuration),
        sum => sum.map(Nanos).ok_or(DurationError::TooLong),
    }
}

impl DurationError {
    /// Returns the error message about `text` as the value of field `word`, and the suggested fix.
    pub(crate) fn message_and_fix(
        self,
        word: &str,
        text: &str,
        example: &'static str,
    ) -> (String, &'static str) {
        match self {
            Self::NotADuration => (format!("`{word}: {text}` is not a duration"), example),
            Self::TooLong => {
                (format!("`{word}: {text}` is longer than 584 years"), "use a shorter duration")
            }
        }
    }
}
