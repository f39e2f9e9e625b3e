//! The deadline of a check, as a duration with its unit.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

const EXPECTED: &str = "invalid duration, expected 1ms to 1s, such as 20ms";

pub(super) const fn default() -> Duration {
    Duration::from_millis(20)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer).map_err(|_| D::Error::custom(EXPECTED))?;
    let range = Duration::from_millis(1)..=Duration::from_secs(1);
    parse(&text)
        .filter(|deadline| range.contains(deadline))
        .ok_or_else(|| D::Error::custom(EXPECTED))
}

fn parse(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number = number.parse().ok()?;
    match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}
