//! Shares of checks, in parts per million.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A share of checks or keys, from 0 % to 100 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Percent {
    ppm: u32,
}

/// 100 %, in parts per million.
const WHOLE: u32 = 1_000_000;

impl Percent {
    /// All checks or keys.
    pub const ALL: Self = Self { ppm: WHOLE };

    /// Parses `0.3%`, with at most four decimals. `None` for any other text, and above 100 %.
    ///
    /// ```
    /// # use sluicegate_engine::recording::percent::Percent;
    /// assert_eq!(Percent::parse("0.25%").unwrap().to_string(), "0.25%");
    /// assert_eq!(Percent::parse("100%"), Some(Percent::ALL));
    /// assert_eq!(Percent::parse("100.1%"), None);
    /// assert_eq!(Percent::parse("5"), None);
    /// ```
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let is_number =
            |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        if !is_number(whole) || !is_number(decimals) || 4 < decimals.len() {
            return None;
        }
        let ppm = format!("{whole}{decimals:0<4}").parse().ok()?;
        (ppm <= WHOLE).then_some(Self { ppm })
    }

    /// Returns `true` if a key with this hash belongs to the share. Hashes must be uniform.
    #[must_use]
    pub const fn contains_hash(self, hash: u64) -> bool {
        ((hash >> 32) * (WHOLE as u64)) >> 32 < self.ppm as u64
    }

    /// Returns `true` if `part` of `whole` is a larger share than this one.
    #[must_use]
    pub fn is_exceeded_by(self, part: u64, whole: u64) -> bool {
        u128::from(self.ppm) * u128::from(whole) < u128::from(part) * u128::from(WHOLE)
    }

    /// Returns the position, from 1, of this percentile in a sorted list of `count` numbers: the
    /// smallest position with at least this share of the list at or before it.
    #[must_use]
    pub fn rank_of(self, count: usize) -> usize {
        let rank = (u128::from(self.ppm) * count as u128).div_ceil(WHOLE.into());
        usize::try_from(rank).unwrap_or(count).max(1)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:04}", self.ppm % 10_000);
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{}%", self.ppm / 10_000),
            decimals => write!(f, "{}.{decimals}%", self.ppm / 10_000),
        }
    }
}

/// Formats `part` of `whole` as a percentage with two decimals, such as `0.31 %`. A share above zero
/// is at least `0.01 %`, and a share below one is at most `99.99 %`.
#[must_use]
pub fn format_share(part: u64, whole: u64) -> String {
    let scaled = u128::from(part) * 10_000;
    let hundredths = match scaled.checked_div(u128::from(whole)).unwrap_or(0) {
        0 if part != 0 => 1,
        rounded_down => rounded_down,
    };
    format!("{}.{:02} %", hundredths / 100, hundredths % 100)
}
