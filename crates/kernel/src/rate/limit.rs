//! The numbers of a limit, and the bounds within which they are exact.
//!
//! Each limit has its own tick. In ticks, a period is a whole number P. The N requests and P are
//! divided by their greatest common divisor. All products of a strategy stay below 2^53, so that
//! the Redis scripts compute the same numbers: Lua only has doubles.
//!
//! | limit | tick | N | P | (burst + 1)·P |
//! |---|---|---|---|---|
//! | 600 per minute, burst 50 | 1 µs | 1 | 100,000 | 5,100,000 |
//! | 1,000,000,007 per day, same burst | 1 s | 1,000,000,007 | 86,400 | 8.6·10^13 |
//! | 4,294,967,291 per year, same burst | none | | 31,536,000 | rejected: at most 285,616,413 |
//!
//! Guarantees:
//! - The finest tick that fits is chosen.
//! - A limit that does not fit is rejected with the largest burst that does.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// 2^53, the bound of every product: a double represents all integers up to here.
pub const EXACT_BOUND: u64 = 9_007_199_254_740_992;

/// The time unit of one limit; instants are rounded down to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tick {
    /// 1 µs.
    Micro,
    /// 1 ms.
    Milli,
    /// 1 s.
    Second,
}

impl Tick {
    /// All ticks, finest first.
    pub const ALL: [Self; 3] = [Self::Micro, Self::Milli, Self::Second];

    /// The length of one tick.
    #[must_use]
    pub const fn size(self) -> Nanos {
        match self {
            Self::Micro => Nanos::MICRO,
            Self::Milli => Nanos::MILLI,
            Self::Second => Nanos::SECOND,
        }
    }

    /// Converts to whole ticks, rounded down.
    // Each arm divides by a constant, which compiles to
    // a multiplication; `size` would need a division.
    #[must_use]
    pub const fn floor(self, instant: Nanos) -> u64 {
        match self {
            Self::Micro => instant.0 / 1_000,
            Self::Milli => instant.0 / 1_000_000,
            Self::Second => instant.0 / 1_000_000_000,
        }
    }

    /// Converts `ticks` to nanoseconds; saturates after 584 years.
    #[must_use]
    pub const fn nanos(self, ticks: u64) -> Nanos {
        Nanos(ticks.saturating_mul(self.size().0))
    }

    /// Converts `period` to ticks. Returns `None` if it is not a whole number or is 0.
    fn to_whole_ticks(self, period: Nanos) -> Option<NonZeroU64> {
        let ticks = self.floor(period);
        if self.nanos(ticks) == period { NonZeroU64::new(ticks) } else { None }
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.size().fmt(f)
    }
}

/// The rate at which hits are freed: `hits` per `ticks`, in lowest terms for GCRA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefillRate {
    /// The hits freed in `ticks` ticks.
    pub hits: u32,
    /// The ticks in which `hits` are freed; at least 1.
    pub ticks: NonZeroU64,
}

impl RefillRate {
    /// Returns `true` if one tick frees more than 1 % of `burst`. The decisions of such a limit are
    /// visibly coarser than its numbers.
    ///
    /// ```
    /// # use std::num::NonZeroU64;
    /// # use sluicegate_kernel::rate::limit::RefillRate;
    /// let rate = RefillRate { hits: 3, ticks: NonZeroU64::new(2).unwrap() }; // 1.5 hits a tick
    /// assert!(rate.is_coarse(149));
    /// assert!(!rate.is_coarse(150));
    /// ```
    #[must_use]
    pub fn is_coarse(self, burst: u32) -> bool {
        let hundredfold = u64::from(self.hits).saturating_mul(100);
        u64::from(burst).saturating_mul(self.ticks.get()) < hundredfold
    }
}

/// Displays `hits/ticks`, for example `1/100000`.
impl fmt::Display for RefillRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.hits, self.ticks)
    }
}

/// The reason why the numbers of a limit are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// GCRA with a burst of 0.
    #[error("a burst of 0 denies everything; use at least 1")]
    ZeroBurst,
    /// GCRA with 0 requests.
    #[error("a limit of 0 requests needs strategy fixed_window; use at least 1")]
    ZeroRequests,
    /// A period of 0.
    #[error("the period is 0; use at least 1us")]
    ZeroPeriod,
    /// A period that is not a whole number of microseconds.
    #[error("the period {period} is not a whole number of microseconds")]
    UnevenPeriod {
        /// The invalid period.
        period: Nanos,
    },
    /// A window shorter than [`super::fixed_window::MIN_WINDOW`].
    #[error("the window {window} is shorter than {shortest}")]
    ShortWindow {
        /// The invalid window.
        window: Nanos,
        /// The shortest valid window.
        shortest: Nanos,
    },
    /// A period that is too long even for a limit of 1.
    #[error("the period {} is too long to count exactly", .period.for_people())]
    LongPeriod {
        /// The invalid period.
        period: Nanos,
    },
    /// A burst, or a request limit without burst, that is too large to count exactly.
    #[error(
        "{asked} hits in {} cannot be counted exactly; the maximum is {largest}",
        .period.for_people()
    )]
    TooLarge {
        /// The invalid burst or number of requests.
        asked: u32,
        /// The period of the limit.
        period: Nanos,
        /// The largest burst or number of requests for this period; at least 1.
        largest: u32,
    },
    /// Calendar windows that are not in ascending order.
    #[error("calendar windows must start one after the other")]
    UnorderedWindows,
}

/// A rate in lowest terms, and its tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FittedRate {
    pub(super) tick: Tick,
    pub(super) requests: NonZeroU32,
    pub(super) period: NonZeroU64,
}

/// Returns the rate in the finest tick with (`wanted` + 1)·P < 2^53, where P is the period in
/// ticks. If there is none, returns the rate in the coarsest tick that fits `burst`.
pub(super) fn fit_rate(
    requests: NonZeroU32,
    period: Nanos,
    burst: u32,
    wanted: u32,
) -> Result<FittedRate, LimitError> {
    if period == Nanos(0) {
        return Err(LimitError::ZeroPeriod);
    }
    if Tick::Micro.to_whole_ticks(period).is_none() {
        return Err(LimitError::UnevenPeriod { period });
    }
    let fits = Tick::ALL.iter().filter_map(|tick| FittedRate::new(*tick, requests, period));
    let (mut largest, mut coarsest) = (0, None);
    for fit in fits {
        // A coarser tick has a smaller P, so the last tick allows the largest burst.
        largest = fit.largest_burst();
        if wanted <= largest && 0 < largest {
            return Ok(fit);
        }
        coarsest = Some(fit).filter(|_| burst <= largest && 0 < largest).or(coarsest);
    }
    if let Some(fit) = coarsest {
        return Ok(fit);
    }
    if largest == 0 {
        return Err(LimitError::LongPeriod { period });
    }
    Err(LimitError::TooLarge { asked: burst, period, largest })
}

impl FittedRate {
    fn new(tick: Tick, requests: NonZeroU32, period: Nanos) -> Option<Self> {
        let ticks = tick.to_whole_ticks(period)?;
        let divisor = gcd(u64::from(requests.get()), ticks);
        let requests = u32::try_from(u64::from(requests.get()) / divisor).ok()?;
        Some(Self {
            tick,
            requests: NonZeroU32::new(requests)?,
            period: NonZeroU64::new(ticks.get() / divisor)?,
        })
    }

    /// Returns the largest burst with (burst + 1)·P < 2^53, where P is the period in ticks; 0 if
    /// there is none.
    fn largest_burst(self) -> u32 {
        let below = EXACT_BOUND.saturating_sub(1);
        let burst = (below / self.period).saturating_sub(1);
        u32::try_from(burst).unwrap_or(u32::MAX)
    }
}

fn gcd(a: u64, b: NonZeroU64) -> NonZeroU64 {
    let (mut a, mut b) = (a, b);
    while let Some(rest) = NonZeroU64::new(a % b) {
        (a, b) = (b.get(), rest);
    }
    b
}
