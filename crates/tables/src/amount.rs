//! The value of one column in a row or plan.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// The value of one column in a row or plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Amount {
    /// This number of requests.
    Number(NonZeroU32),
    /// No limit applies.
    Unlimited,
    /// Every request is denied.
    Blocked,
}

/// The text is not an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a whole number below 4294967296, `unlimited` or `blocked`")]
pub struct InvalidAmount;

impl Amount {
    /// Returns the amount of a number. 0 is [`Amount::Blocked`].
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match NonZeroU32::new(number) {
            Some(number) => Self::Number(number),
            None => Self::Blocked,
        }
    }
}

impl FromStr for Amount {
    type Err = InvalidAmount;

    fn from_str(text: &str) -> Result<Self, InvalidAmount> {
        match text {
            "unlimited" => Ok(Self::Unlimited),
            "blocked" => Ok(Self::Blocked),
            // `u32` would also accept `+5`.
            number if number.starts_with(|first: char| first.is_ascii_digit()) => {
                number.parse().map(Self::from_number).map_err(|_| InvalidAmount)
            }
            _ => Err(InvalidAmount),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
            Self::Blocked => f.write_str("blocked"),
        }
    }
}
