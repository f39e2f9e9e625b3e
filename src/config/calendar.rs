//! Computes the start times of calendar windows.
//!
//! Guarantees:
//! - Windows cover all time: each starts where the previous one ends, and none is empty.
//! - A window starts at the first instant of its local day.
//! - If a clock change skips midnight, the window starts right after the change.
//! - If a clock change repeats midnight, the window starts at the first midnight.
//! - A start day beyond the end of a month means the month's last day.
//! - A day that a time zone change skips has no window (Samoa, 30 December 2011).

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::civil::{Date, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp};

use smallvec::SmallVec;

use super::Calendar;
use crate::kernel::units::Nanos;

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

/// The windows whose starts are computed, relative to the window of the local date. They suffice
/// because a clock change moves an instant by at most a day and skips at most one window.
const CANDIDATE_STEPS: std::ops::RangeInclusive<i64> = -3..=4;

/// A cache of the last window starts, because nearly every check is in the same window as the last
/// check. Caches are always equal, so that only settings distinguish calendars.
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
    /// Creates a calendar whose windows start on `start_day` in `time_zone`.
    #[must_use]
    pub fn new(time_zone: TimeZone, start_day: WindowStartDay) -> Self {
        Self { time_zone, start_day, cached_starts: CachedStarts::default() }
    }

    /// Returns the cached [`Calendar::starts_around`]. Cost: one comparison.
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

    /// Returns the start instants of the previous window, of the window that contains `now`, and of
    /// the next two windows.
    ///
    /// The starts are ascending whole seconds, exact from 1970 to 2550. Cost: eight time zone
    /// conversions.
    #[must_use]
    pub fn starts_around(&self, now: Nanos) -> [Nanos; 4] {
        let today = timestamp(now).to_zoned(self.time_zone.clone()).date();
        let mut starts: SmallVec<[Nanos; 8]> = CANDIDATE_STEPS
            .map(|step| {
                first_instant_of_day(self.start_day.window_start(today, step), &self.time_zone)
            })
            .collect();
        starts.dedup();
        let current = starts.partition_point(|&start| start <= now).saturating_sub(1);
        let start = |index: usize| starts.get(index).copied().unwrap_or(Nanos(u64::MAX));
        let previous = current.checked_sub(1).map_or(Nanos(0), start);
        [previous, start(current), start(current + 1), start(current + 2)]
    }

    /// Returns placeholders for the windows in a limit's strategy, which each check replaces.
    pub(crate) fn past_starts(&self) -> [Nanos; 4] {
        self.starts_around(Nanos::from_secs(946_684_800))
    }
}

impl WindowStartDay {
    /// Returns the first day of the window in the unit of `today`, or `step` units later.
    fn window_start(self, today: Date, step: i64) -> Date {
        let (unit_start, unit_length) = match self {
            Self::Day => (today, Span::new().days(1)),
            Self::Week(weekday) => {
                let days_since_start = i64::from(weekday.until(today.weekday()));
                let week_start = today.saturating_add(Span::new().days(-days_since_start));
                (week_start, Span::new().weeks(1))
            }
            // Step from the first day, which every month has, and apply the configured day
            // afterwards. Otherwise short months would shift later windows.
            Self::Month(_) => (today.first_of_month(), Span::new().months(1)),
            Self::Year { .. } => (today.first_of_year(), Span::new().years(1)),
        };
        let date = unit_start.saturating_add(unit_length.checked_mul(step).unwrap_or_default());
        match self {
            Self::Day | Self::Week(_) => date,
            Self::Month(day) => with_day_of_month(date, day),
            Self::Year { month, day } => {
                with_day_of_month(Date::new(date.year(), month, 1).unwrap_or(date), day)
            }
        }
    }
}

fn with_day_of_month(month: Date, day: i8) -> Date {
    let day = day.min(month.days_in_month());
    Date::new(month.year(), month.month(), day).unwrap_or(month)
}

fn first_instant_of_day(date: Date, zone: &TimeZone) -> Nanos {
    let midnight = date.at(0, 0, 0, 0);
    let ambiguous = zone.to_ambiguous_timestamp(midnight);
    let start = match ambiguous.offset() {
        // With the offset after the clock change, the skipped midnight is an instant before the
        // change, so the next transition of the time zone is the change.
        AmbiguousOffset::Gap { after, .. } => after
            .to_timestamp(midnight)
            .ok()
            .and_then(|before| zone.following(before).next())
            .map(|change| change.timestamp()),
        _ => ambiguous.compatible().ok(),
    };
    let seconds = start.map_or(i64::MAX, Timestamp::as_second);
    Nanos::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn timestamp(instant: Nanos) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(instant.0)).unwrap_or(Timestamp::MAX)
}
