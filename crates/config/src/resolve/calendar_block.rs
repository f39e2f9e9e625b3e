//! Validates the `calendar` block of a rate limit and converts it to a [`Calendar`].
//!
//! Guarantees:
//! - The time zone and the time of day exist, and the start day exists in windows of the unit.
//!
//! Not covered:
//! - Computing the starts of windows (see [`crate::calendar`]).

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;

use super::findings::{FileFindings, FileSpan};
use super::{keywords, time_zone_name};
use crate::calendar::WindowStartDay;
use crate::diagnostic::{Code, Span, Spanned};
use crate::{Calendar, Unit, raw};

/// Returns the calendar for windows of one `unit`. If the unit is invalid, only the time zone is
/// validated.
pub(super) fn read(
    raw: &raw::Calendar,
    unit: Option<Unit>,
    file: usize,
    findings: &mut FileFindings<'_>,
) -> Option<Calendar> {
    let mut reader = CalendarReader { file, findings };
    let time_zone = reader.time_zone(raw);
    let start_day = unit.and_then(|unit| reader.start_day(raw, unit));
    let start_time = reader.start_time(raw);
    Some(Calendar::new(time_zone?, start_day?).starting_at(start_time?))
}

struct CalendarReader<'f, 'a> {
    file: usize,
    findings: &'f mut FileFindings<'a>,
}

impl CalendarReader<'_, '_> {
    fn time_zone(&mut self, raw: &raw::Calendar) -> Option<TimeZone> {
        let Some(name) = &raw.time_zone else {
            if raw.is_incomplete {
                return None;
            }
            let fix = "add a time zone, such as `time_zone: Europe/Berlin` or `time_zone: UTC`";
            self.error(raw.span, "`calendar` needs a `time_zone`".to_owned(), fix);
            return None;
        };
        let time_zone = TimeZone::get(&name.value).ok();
        if time_zone.is_none() {
            let fix = time_zone_name::fix_for(&name.value);
            self.error(name.span, format!("unknown time zone `{}`", name.value), &fix);
        }
        time_zone
    }

    fn start_day(&mut self, raw: &raw::Calendar, unit: Unit) -> Option<WindowStartDay> {
        let (default, wanted) = match unit {
            Unit::Day => (
                WindowStartDay::Day,
                "remove it; to start days at noon, write `starts_at: 12:00` instead",
            ),
            Unit::Week => (
                WindowStartDay::Week(Weekday::Monday),
                "use 1 (Monday) to 7 (Sunday), or a name such as `monday`",
            ),
            Unit::Month => {
                (WindowStartDay::Month(1), "use 1 to 31; 31 is the last day of every month")
            }
            Unit::Year => {
                (WindowStartDay::Year { month: 1, day: 1 }, "use month and day, such as `04-01`")
            }
            Unit::Second | Unit::Minute | Unit::Hour => {
                let message = "`calendar` needs a unit of at least a day".to_owned();
                self.error(raw.span, message, "remove it, or use day, week, month or year");
                return None;
            }
        };
        let Some(day) = &raw.starts_on else { return Some(default) };
        let start_day = parse_start_day(unit, day);
        if start_day.is_none() {
            let message = format!("`starts_on: {}` is not valid for `unit: {unit}`", day.value);
            let time = parse_time(&day.value);
            let fix = time.map(|_| format!("write `starts_at: {}` instead", day.value));
            self.error(day.span, message, fix.as_deref().unwrap_or(wanted));
        }
        start_day
    }

    fn start_time(&mut self, raw: &raw::Calendar) -> Option<Time> {
        let Some(time) = &raw.starts_at else { return Some(Time::midnight()) };
        let start_time = parse_time(&time.value);
        if start_time.is_none() {
            let message = format!("`starts_at: {}` is not a time of day", time.value);
            let fix = "use hours and minutes from 00:00 to 23:59, such as `starts_at: 12:00`";
            self.error(time.span, message, fix);
        }
        start_time
    }

    fn error(&mut self, span: Span, message: String, help: &str) {
        let at = FileSpan { file: self.file, span };
        self.findings.add(Code::BadCalendar, at, message, help.to_owned());
    }
}

fn parse_start_day(unit: Unit, day: &Spanned<String>) -> Option<WindowStartDay> {
    let text = day.value.as_str();
    match unit {
        Unit::Week => match keywords::parse_keyword(keywords::WEEKDAYS, &text.to_lowercase()) {
            Some(weekday) => Some(WindowStartDay::Week(weekday)),
            None => Weekday::from_monday_one_offset(parse_two_digits(text)?)
                .ok()
                .map(WindowStartDay::Week),
        },
        Unit::Month => {
            parse_two_digits(text).filter(|day| (1..=31).contains(day)).map(WindowStartDay::Month)
        }
        Unit::Year => parse_month_and_day(text),
        Unit::Second | Unit::Minute | Unit::Hour | Unit::Day => None,
    }
}

fn parse_two_digits(text: &str) -> Option<i8> {
    let digits = text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn parse_time(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':').filter(|(_, minute)| minute.len() == 2)?;
    Time::new(parse_two_digits(hour)?, parse_two_digits(minute)?, 0, 0).ok()
}

fn parse_month_and_day(text: &str) -> Option<WindowStartDay> {
    let (month, day) = text.split_once('-')?;
    let (month, day) = (parse_two_digits(month)?, parse_two_digits(day)?);
    // 2024 is a leap year, so 02-29 is valid.
    Date::new(2024, month, day).ok().map(|_| WindowStartDay::Year { month, day })
}
