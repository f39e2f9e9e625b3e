//! Number types that carry their unit. Their arithmetic never wraps around.

use serde::{Deserialize, Serialize};

use std::fmt::{self, Write as _};

/// The largest assumed difference between the rates of two clocks, in parts per million. NTP changes
/// the rate of a clock by at most 500 ppm, and two clocks may change in opposite directions.
pub const CLOCK_DRIFT_PPM: u64 = 1_000;

/// An instant or a duration in nanoseconds. Instants count from the Unix epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Nanos(pub u64);

impl Nanos {
    /// One microsecond.
    pub const MICRO: Self = Self(1_000);
    /// One millisecond.
    pub const MILLI: Self = Self(1_000_000);
    /// One second.
    pub const SECOND: Self = Self(1_000_000_000);

    /// Converts seconds to nanoseconds; saturates at 584 years.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(Self::SECOND.0))
    }

    /// Converts to whole seconds, rounded up, so that no client retries too early.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(Self::SECOND.0)
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Adds a duration; saturates at the largest value.
    #[must_use]
    pub const fn plus(self, duration: Self) -> Self {
        Self(self.0.saturating_add(duration.0))
    }

    /// Returns the duration as text for people, with units from days to nanoseconds.
    ///
    /// ```
    /// # use sluicegate_kernel::units::Nanos;
    /// assert_eq!(Nanos::from_secs(630).for_people(), "10m30s");
    /// assert_eq!(Nanos::from_secs(93_600).for_people(), "1d2h");
    /// assert_eq!(Nanos(1_500_000_000).for_people(), "1s500ms");
    /// assert_eq!(Nanos(0).for_people(), "0s");
    /// ```
    #[must_use]
    pub fn for_people(self) -> String {
        let (mut text, mut rest) = (String::new(), self.0);
        for (unit, length) in UNITS_FOR_PEOPLE {
            if let Some(count @ 1..) = rest.checked_div(length) {
                let _infallible = write!(text, "{count}{unit}");
                rest = rest.checked_rem(length).unwrap_or(0);
            }
        }
        if text.is_empty() { "0s".to_owned() } else { text }
    }
}

/// The units of [`Nanos::for_people`], with their lengths in nanoseconds.
const UNITS_FOR_PEOPLE: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n.is_multiple_of(1_000_000_000) => write!(f, "{}s", n / 1_000_000_000),
            n if n.is_multiple_of(1_000_000) => write!(f, "{}ms", n / 1_000_000),
            n if n.is_multiple_of(1_000) => write!(f, "{}us", n / 1_000),
            n => write!(f, "{n}ns"),
        }
    }
}

/// A number of hits: the cost of a check, or the size of a limit.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Hits(pub u64);

/// The version number of a configuration; each configuration that is accepted gets the next number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// A number of requests in flight: a concurrency limit, a share of it, or its use.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Share(pub u64);

/// The number of one grant of a share; unique within one incarnation of the coordinator.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Generation(pub u64);

impl Generation {
    /// The next generation.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// The number of one start of a replica, or of the coordinator's state. Later starts have larger
/// numbers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Incarnation(pub u64);

/// A replica, as a number derived from its node id.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ReplicaId(pub u64);

macro_rules! counts {
    ($($type:ident),*) => { $(
        impl $type {
            /// Subtracts `other`; never below zero.
            #[must_use]
            pub const fn less(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// Adds `other`; saturates, so a huge count stays huge.
            #[must_use]
            pub const fn plus(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }
    )* };
}

macro_rules! numbers {
    ($($type:ident),*) => { $(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )* };
}

counts!(Hits, Share);
numbers!(Hits, Revision, Share, Generation, Incarnation, ReplicaId);

/// The time units of limits in envoyproxy/ratelimit. A month has 30 days and a year 365.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 3,600 s.
    Hour,
    /// 86,400 s.
    Day,
    /// 7 days, starting on a Thursday like the Unix epoch.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// The unit's length.
    #[must_use]
    pub const fn length(self) -> Nanos {
        Nanos::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 604_800,
            Self::Month => 2_592_000,
            Self::Year => 31_536_000,
        })
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        })
    }
}

impl From<Nanos> for core::time::Duration {
    fn from(nanos: Nanos) -> Self {
        Self::from_nanos(nanos.0)
    }
}
