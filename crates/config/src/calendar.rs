//! Computes the start times of calendar windows.
//!
//! Guarantees:
//! - Windows cover all time: each starts where the previous one ends, and none is empty.
//! - A window starts on its local day at midnight, or at the configured time of day.
//! - If a clock change skips that time, the window starts right after the change.
//! - If a clock change repeats that time, the window starts at the first of the two.
//! - A configured day beyond the end of a month means the month's last day.
//! - Windows that start on 02-29 start on 02-28 in years without a leap day.
//! - A whole day that a time zone change skips has no window (Samoa, 30 December 2011). A day from
//!   noon is only half skipped, and has one.
//!
//! Not covered:
//! - Counting of hits (see [`crate::kernel::rate::fixed_window`]).

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::civil::{Date, Time, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp};

use smallvec::SmallVec;

use crate::kernel::units::Nanos;

/// A calendar whose windows start on a configured local day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// The time zone of the days.
    pub time_zone: TimeZone,
    /// The day on which each window starts.
    pub start_day: WindowStartDay,
    /// The local time of that day at which the window starts.
    pub start_time: Time,
    pub(crate) cached_starts: CachedStarts,
}

/// The local day on which a window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowStartDay {
    /// Every day.
    Day,
    /// This day of every week.
    Week(Weekday),
    /// This day of every month, 1 to 31, or the last day of a shorter month.
    Month(i8),
    /// This day of every year, or the last day of a shorter month.
    Year {
        /// The month, 1 to 12.
        month: i8,
        /// The day of the month, 1 to 31.
        day: i8,
    },
}

/// The windows whose starts are computed, relative to the window of the current local date (0).
/// Three before and four after suffice: a time zone transition shifts an instant by at most one day
/// and skips at most one window.
const CANDIDATE_STEPS: std::ops::RangeInclusive<i64> = -3..=4;

/// The window starts that [`Calendar::cached_starts_around`] returned last. Nearly every check
/// falls into the same window as the previous check. Two calendars are equal even if this cache
/// differs.
#[derive(Debug, Default)]
pub(crate) struct CachedStarts(ArcSwapOption<[Nanos; 4]>);

impl Clone for CachedStarts {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for CachedStarts {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for CachedStarts {}

impl Calendar {
    /// Creates a calendar whose windows start at midnight on the days `start_day`, local to
    /// `time_zone`.
    #[must_use]
    pub fn new(time_zone: TimeZone, start_day: WindowStartDay) -> Self {
        let cached_starts = CachedStarts::default();
        Self { time_zone, start_day, start_time: Time::midnight(), cached_starts }
    }

    /// Returns the calendar with windows that start at this time of day.
    #[must_use]
    pub fn starting_at(self, start_time: Time) -> Self {
        Self { start_time, cached_starts: CachedStarts::default(), ..self }
    }

    /// Returns the result of [`Calendar::starts_around`], cached while `now` stays in the same
    /// window. Cost: one comparison; once per window, eight conversions of local dates to instants.
    #[must_use]
    pub fn cached_starts_around(&self, now: Nanos) -> [Nanos; 4] {
        if let Some(starts) = self.cached_starts.0.load().as_deref()
            && (starts[1]..starts[2]).contains(&now)
        {
            return *starts;
        }
        let starts = self.starts_around(now);
        self.cached_starts.0.store(Some(Arc::new(starts)));
        starts
    }

    /// Returns the start instants of four windows: the previous one, the one that contains `now`,
    /// and the next two.
    ///
    /// The starts are ascending whole seconds. Cost: eight conversions of local dates to instants.
    /// The result is exact from 1970 to 2550. A previous start before 1970 is returned as 0.
    #[must_use]
    pub fn starts_around(&self, now: Nanos) -> [Nanos; 4] {
        let today = timestamp(now).to_zoned(self.time_zone.clone()).date();
        let mut starts: SmallVec<[Nanos; 8]> = CANDIDATE_STEPS
            .map(|step| self.first_instant(self.start_day.window_start(today, step)))
            .collect();
        starts.dedup();
        let current = starts.partition_point(|&start| start <= now).saturating_sub(1);
        let at = |index: usize| starts.get(index).copied().unwrap_or(Nanos(u64::MAX));
        let previous = current.checked_sub(1).map_or(Nanos(0), at);
        [previous, at(current), at(current + 1), at(current + 2)]
    }

    /// Returns the instant at which the window of a local day starts.
    fn first_instant(&self, day: Date) -> Nanos {
        let local = day.to_datetime(self.start_time);
        let ambiguous = self.time_zone.to_ambiguous_timestamp(local);
        let start = match ambiguous.offset() {
            // The offset after the clock change converts a skipped time to an instant before the
            // change, so the next transition of the time zone is the change itself.
            AmbiguousOffset::Gap { after, .. } => after
                .to_timestamp(local)
                .ok()
                .and_then(|before| self.time_zone.following(before).next())
                .map(|jump| jump.timestamp()),
            _ => ambiguous.compatible().ok(),
        };
        let seconds = start.map_or(i64::MAX, Timestamp::as_second);
        Nanos::from_secs(u64::try_from(seconds).unwrap_or(0))
    }

    /// Returns four window starts of about the year 2000. They fill a limit's strategy until a
    /// check replaces them with the windows around its own time.
    pub(crate) fn past_starts(&self) -> [Nanos; 4] {
        self.starts_around(Nanos::from_secs(946_684_800))
    }
}

impl WindowStartDay {
    /// Returns the start day of one window near `today`. With `step` 0: of the day or week that
    /// contains `today`, or in the month or year of `today`. With another `step`: that many units
    /// later.
    fn window_start(self, today: Date, step: i64) -> Date {
        let (first, length) = match self {
            Self::Day => (today, Span::new().days(1)),
            Self::Week(start) => {
                let into = start.until(today.weekday());
                (saturating_shift(today, Span::new().days(-i64::from(into))), Span::new().weeks(1))
            }
            // Steps are made from the first day, which every month has, so that short months do not
            // shift later steps. The configured day is applied afterwards.
            Self::Month(_) => (today.first_of_month(), Span::new().months(1)),
            Self::Year { .. } => (today.first_of_year(), Span::new().years(1)),
        };
        let moved = saturating_shift(first, length.checked_mul(step).unwrap_or_default());
        match self {
            Self::Day | Self::Week(_) => moved,
            Self::Month(day) => with_day_of_month(moved, day),
            Self::Year { month, day } => {
                with_day_of_month(Date::new(moved.year(), month, 1).unwrap_or(moved), day)
            }
        }
    }
}

/// Returns day `day` of `month`, or the last day of a shorter month.
fn with_day_of_month(month: Date, day: i8) -> Date {
    let day = day.min(month.days_in_month());
    Date::new(month.year(), month.month(), day).unwrap_or(month)
}

/// Adds `by` to a date. The result stays between the years -9999 and 9999.
fn saturating_shift(date: Date, by: Span) -> Date {
    date.saturating_add(by)
}

fn timestamp(at: Nanos) -> Timestamp {
    let nanos = i128::from(at.0);
    Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX)
}
