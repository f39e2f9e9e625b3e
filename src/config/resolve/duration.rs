//! Durations as a person writes them: `250ms`, `30s`, `5m`, `36h`, `7d`, `1h30m`.
//!
//! Guarantees: whole numbers only, so nothing is rounded; what overflows is refused.
//! Leaves out: months and years, which have no one length; those are units, or calendars.

use crate::kernel::units::Nanos;

/// The suffixes and what each is worth.
const SUFFIXES: &[(&str, u64)] = &[
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// What [`parse`] reads, as a regular expression.
pub(crate) const PATTERN: &str = "^([0-9]+(ms|s|m|h|d))+$";

/// Why a text is no duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It says none.
    Text,
    /// It says one above 584 years.
    TooLong,
}

/// The duration that `text` says.
pub(crate) fn parse(text: &str) -> Result<Nanos, Wrong> {
    let mut rest = text;
    let mut sum = Some(0u64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or(Wrong::Text)?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(after.len());
        let (suffix, after) = after.split_at(letters);
        let worth = SUFFIXES.iter().find(|(known, _)| *known == suffix);
        let (_, worth) = worth.filter(|_| !number.is_empty()).ok_or(Wrong::Text)?;
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*worth));
        sum = sum.and_then(|sum| sum.checked_add(part?));
        rest = after;
    }
    match sum {
        _ if text.is_empty() => Err(Wrong::Text),
        sum => sum.map(Nanos).ok_or(Wrong::TooLong),
    }
}

impl Wrong {
    /// What to say of `text` after `word`, and its cure.
    pub(crate) fn told(
        self,
        word: &str,
        text: &str,
        example: &'static str,
    ) -> (String, &'static str) {
        match self {
            Self::Text => (format!("`{word}: {text}` is no duration"), example),
            Self::TooLong => {
                (format!("`{word}: {text}` is longer than 584 years"), "a shorter one")
            }
        }
    }
}
