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

/// The duration that `text` says; `None` where it says none, or one above 584 years.
pub(crate) fn parse(text: &str) -> Option<Nanos> {
    let mut rest = text;
    let mut sum = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(after.len());
        let (suffix, after) = after.split_at(letters);
        let (_, worth) = SUFFIXES.iter().find(|(known, _)| *known == suffix)?;
        sum = number.parse::<u64>().ok()?.checked_mul(*worth)?.checked_add(sum)?;
        rest = after;
    }
    (!text.is_empty()).then_some(Nanos(sum))
}
