//! The penalty of a limit: the ban of a key that the limit denies repeatedly.
//!
//! Guarantees:
//! - Strikes are counted exactly: a log of the last `after` denials.
//!
//! Not covered:
//! - Counting strikes, and the list of bans (see `engine::bans`).

use std::fmt;
use std::ops::RangeInclusive;

use crate::kernel::rate::Strategy;
use crate::kernel::rate::limit::LimitError;
use crate::kernel::rate::on_excess::OnExcess;
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::units::Nanos;

/// The permitted values of `after`. A key with strikes needs at most 12 bytes for each.
pub const STRIKES: RangeInclusive<u32> = 1..=10_000;

/// The permitted values of `within` and `for`.
pub const PENALTY_TIMES: RangeInclusive<Nanos> = Nanos::SECOND..=Nanos::from_secs(30 * 86_400);

/// The default of `status`: that of a rate limit without a penalty.
pub const DEFAULT_BAN_STATUS: u16 = 429;

/// The ban of a key that a limit denies repeatedly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// Counts strikes: `after` of them `within` a time begin a ban.
    strikes: SlidingLog,
    /// Has one hit during a ban.
    ban: SlidingLog,
    /// The HTTP status of requests that a ban denies, 400 to 599.
    pub status: u16,
}

impl Penalty {
    /// Creates the penalty of `after` denials `within` a time: a ban of this `length`.
    ///
    /// # Errors
    /// A duration is 0, is no multiple of a microsecond, or has 2^53 of them.
    pub fn new(
        (after, within): (u32, Nanos),
        length: Nanos,
        status: u16,
    ) -> Result<Self, LimitError> {
        let (strikes, ban) = (SlidingLog::new(after, within)?, SlidingLog::new(1, length)?);
        Ok(Self { strikes, ban, status })
    }

    /// Returns the strategy of the counter of strikes.
    #[must_use]
    pub const fn strikes(&self) -> Strategy {
        Strategy::SlidingLog(self.strikes)
    }

    /// Returns the strategy of the counter that begins a ban with one hit, and denies a second one.
    #[must_use]
    pub const fn ban(&self) -> Strategy {
        Strategy::SlidingLog(self.ban)
    }

    /// Returns the strategy with which 0 hits are denied during a ban.
    #[must_use]
    pub const fn ban_peek(&self) -> Strategy {
        Strategy::SlidingLog(self.ban.with_on_excess(OnExcess::Charge))
    }

    /// Returns the length of a ban.
    #[must_use]
    pub const fn length(&self) -> Nanos {
        self.ban.period()
    }
}

/// Formats the penalty as `banned for 600s after 100 denials within 60s with status 403`.
impl fmt::Display for Penalty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (after, within) = (self.strikes.limit(), self.strikes.period());
        let denials = if after == 1 { "denial" } else { "denials" };
        write!(f, "banned for {} after {after} {denials} within {within}", self.length())?;
        match self.status {
            DEFAULT_BAN_STATUS => Ok(()),
            status => write!(f, " with status {status}"),
        }
    }
}
