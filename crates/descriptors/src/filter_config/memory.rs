//! The memory of a filter, as a size with its unit.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

const EXPECTED: &str = "invalid size, expected 4MiB to 64GiB, such as 64MiB";

pub(super) const fn default() -> usize {
    64 << 20
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let text = String::deserialize(deserializer).map_err(|_| D::Error::custom(EXPECTED))?;
    let range = 4 << 20..=64 << 30;
    parse(&text).filter(|bytes| range.contains(bytes)).ok_or_else(|| D::Error::custom(EXPECTED))
}

fn parse(text: &str) -> Option<usize> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: usize = number.parse().ok()?;
    let bytes = match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(bytes)
}
