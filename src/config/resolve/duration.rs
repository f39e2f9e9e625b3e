//! Parses durations such as `250ms`, `30s`, `5m`, `36h`, `7d` or `1h30m`, of up to 584 years.

use crate::kernel::units::Nanos;

/// The units of a duration, each with its length in nanoseconds.
const UNITS: &[(&str, u64)] = &[
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// The regular expression of all texts that [`parse`] accepts, for the JSON Schema.
pub(crate) const PATTERN: &str = "^([0-9]+(ms|s|m|h|d))+$";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DurationError {
    NotADuration,
    /// Longer than 584 years, the largest number of nanoseconds in 64 bits.
    TooLong,
}

pub(crate) fn parse(text: &str) -> Result<Nanos, DurationError> {
    let mut rest = text;
    let mut sum = Some(0u64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or(DurationError::NotADuration)?;
        let (number, after_number) = rest.split_at(digits);
        let letters =
            after_number.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(after_number.len());
        let (suffix, after_unit) = after_number.split_at(letters);
        let unit = UNITS.iter().find(|(name, _)| *name == suffix);
        let (_, length) = unit.filter(|_| !number.is_empty()).ok_or(DurationError::NotADuration)?;
        let nanos = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*length));
        sum = sum.and_then(|sum| sum.checked_add(nanos?));
        rest = after_unit;
    }
    match sum {
        _ if text.is_empty() => Err(DurationError::NotADuration),
        sum => sum.map(Nanos).ok_or(DurationError::TooLong),
    }
}

impl DurationError {
    /// Returns the error message for the value `text` of `field`, and the suggested fix.
    pub(crate) fn message_and_fix(
        self,
        field: &str,
        text: &str,
        example: &'static str,
    ) -> (String, &'static str) {
        match self {
            Self::NotADuration => (format!("`{field}: {text}` is no duration"), example),
            Self::TooLong => {
                (format!("`{field}: {text}` is longer than 584 years"), "a shorter one")
            }
        }
    }
}
