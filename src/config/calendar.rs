//! When a calendar's windows start.
//!
//! Guarantees: windows tile time: each starts where the one before ends, and none is empty. A
//! window starts with the first instant of its local day: where clocks jump over midnight that is
//! the instant after the jump, and where midnight comes twice it is the first. A day of the month
//! that a month does not have means its last day: 31 is the last day of every month, and a year
//! that starts on 02-29 starts on 02-28 where there is no leap day. A window whose whole day the
//! zone left out (Samoa had no 30 December 2011) is none.
//! Leaves out: counting, which is for [`crate::kernel::rate::fixed_window`].

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::civil::{Date, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp};

use smallvec::SmallVec;

use super::Calendar;
use crate::kernel::units::Nanos;

/// The day that a window starts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starts {
    /// Every day.
    Day,
    /// This day of every week.
    Week(Weekday),
    /// This day of every month, 1 to 31, or the month's last where it is shorter.
    Month(i8),
    /// This day of every year, or the month's last where it is shorter.
    Year {
        /// 1 to 12.
        month: i8,
        /// 1 to 31.
        day: i8,
    },
}

/// Candidates before and after the window that the local date falls into. One zone change moves an
/// instant by a day at most, and leaves out at most one window.
const AROUND: std::ops::RangeInclusive<i64> = -3..=4;

/// The windows last asked for: nearly every question falls into the same one as the last. Not part
/// of what a calendar is, so calendars compare without it.
#[derive(Debug, Default)]
pub(crate) struct Latest(ArcSwapOption<[Nanos; 4]>);

impl Clone for Latest {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Latest {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Latest {}

impl Calendar {
    /// A calendar whose windows start on these days, local to `time_zone`.
    #[must_use]
    pub fn new(time_zone: TimeZone, starts: Starts) -> Self {
        Self { time_zone, starts, latest: Latest::default() }
    }

    /// [`Calendar::starts_around`], remembered. Cost: a comparison, and the conversions once a
    /// window.
    #[must_use]
    pub fn around(&self, now: Nanos) -> [Nanos; 4] {
        if let Some(starts) = self.latest.0.load().as_deref()
            && (starts[1]..starts[2]).contains(&now)
        {
            return *starts;
        }
        let starts = self.starts_around(now);
        self.latest.0.store(Some(Arc::new(starts)));
        starts
    }

    /// The starts of the previous window, the current one, the next and the one after.
    ///
    /// Rising; whole seconds. Cost: eight conversions of local time. Exact from 1970 (where the
    /// previous start, being earlier, saturates at 0) to 2550.
    #[must_use]
    pub fn starts_around(&self, now: Nanos) -> [Nanos; 4] {
        let today = timestamp(now).to_zoned(self.time_zone.clone()).date();
        let mut starts: SmallVec<[Nanos; 8]> = AROUND
            .map(|step| first_instant(self.starts.window(today, step), &self.time_zone))
            .collect();
        starts.dedup();
        let current = starts.partition_point(|&start| start <= now).saturating_sub(1);
        let at = |index: usize| starts.get(index).copied().unwrap_or(Nanos(u64::MAX));
        let previous = current.checked_sub(1).map_or(Nanos(0), at);
        [previous, at(current), at(current + 1), at(current + 2)]
    }

    /// Windows of the year 2000: rising, and over.
    pub(crate) fn long_ago(&self) -> [Nanos; 4] {
        self.starts_around(Nanos::from_secs(946_684_800))
    }
}

impl Starts {
    /// The first day of the window that `today` is in, or of the one `step` windows later.
    fn window(self, today: Date, step: i64) -> Date {
        let (first, length) = match self {
            Self::Day => (today, Span::new().days(1)),
            Self::Week(start) => {
                let into = start.until(today.weekday());
                (shift(today, Span::new().days(-i64::from(into))), Span::new().weeks(1))
            }
            // A first of the month is in every month, so that stepping never drifts; the day is
            // chosen after it.
            Self::Month(_) => (today.first_of_month(), Span::new().months(1)),
            Self::Year { .. } => (today.first_of_year(), Span::new().years(1)),
        };
        let moved = shift(first, length.checked_mul(step).unwrap_or_default());
        match self {
            Self::Day | Self::Week(_) => moved,
            Self::Month(day) => on_day(moved, day),
            Self::Year { month, day } => {
                on_day(Date::new(moved.year(), month, 1).unwrap_or(moved), day)
            }
        }
    }
}

/// This day of `month`, or its last.
fn on_day(month: Date, day: i8) -> Date {
    let day = day.min(month.days_in_month());
    Date::new(month.year(), month.month(), day).unwrap_or(month)
}

/// Saturates at the ends of the calendar, the years -9999 and 9999.
fn shift(date: Date, by: Span) -> Date {
    date.saturating_add(by)
}

fn first_instant(date: Date, zone: &TimeZone) -> Nanos {
    let midnight = date.at(0, 0, 0, 0);
    let ambiguous = zone.to_ambiguous_timestamp(midnight);
    let start = match ambiguous.offset() {
        // Read by the rule that comes after, midnight is an instant before the jump.
        AmbiguousOffset::Gap { after, .. } => after
            .to_timestamp(midnight)
            .ok()
            .and_then(|before| zone.following(before).next())
            .map(|jump| jump.timestamp()),
        _ => ambiguous.compatible().ok(),
    };
    let seconds = start.map_or(i64::MAX, Timestamp::as_second);
    Nanos::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn timestamp(at: Nanos) -> Timestamp {
    let nanos = i128::from(at.0);
    Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX)
}
