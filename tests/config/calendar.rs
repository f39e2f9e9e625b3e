//! Tests of calendar windows against instants calculated by hand from the time zone database.

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;
use proptest::prelude::*;
use sluicegate::config::Calendar;
use sluicegate::config::calendar::WindowStartDay;
use sluicegate::kernel::units::Nanos;

fn calendar(zone: &str, starts: WindowStartDay) -> Calendar {
    Calendar::new(TimeZone::get(zone).unwrap(), starts)
}

fn at(instant: &str) -> Nanos {
    let instant: jiff::Timestamp = instant.parse().unwrap();
    Nanos::from_secs(u64::try_from(instant.as_second()).unwrap())
}

fn assert_starts(calendar: &Calendar, now: &str, expected: [&str; 4]) {
    assert_eq!(calendar.starts_around(at(now)), expected.map(at), "{calendar:?} at {now}");
}

#[test]
fn a_new_start_time_applies_to_a_used_calendar() {
    let midnight = calendar("UTC", WindowStartDay::Day);
    let now = at("2026-06-15T09:00:00Z");
    assert_eq!(midnight.cached_starts_around(now)[1], at("2026-06-15T00:00:00Z"));
    let noon = midnight.starting_at(Time::constant(12, 0, 0, 0));
    assert_eq!(noon.cached_starts_around(now)[1], at("2026-06-14T12:00:00Z"));
}

#[test]
fn days_of_daylight_saving_changes_have_23_or_25_hours() {
    let berlin = calendar("Europe/Berlin", WindowStartDay::Day);
    // Berlin changes from +01 to +02 at 02:00 on 2026-03-29, and back at 03:00 on 2026-10-25.
    assert_starts(
        &berlin,
        "2026-03-29T12:00:00Z",
        [
            "2026-03-27T23:00:00Z",
            "2026-03-28T23:00:00Z",
            "2026-03-29T22:00:00Z",
            "2026-03-30T22:00:00Z",
        ],
    );
    assert_starts(
        &berlin,
        "2026-10-25T22:59:59Z",
        [
            "2026-10-23T22:00:00Z",
            "2026-10-24T22:00:00Z",
            "2026-10-25T23:00:00Z",
            "2026-10-26T23:00:00Z",
        ],
    );
}

#[test]
fn day_whose_midnight_is_skipped_starts_after_the_skipped_hour() {
    // São Paulo changed from -03 to -02 at 00:00 on 2018-11-04: that day began at 01:00.
    let sao_paulo = calendar("America/Sao_Paulo", WindowStartDay::Day);
    assert_starts(
        &sao_paulo,
        "2018-11-04T03:00:00Z",
        [
            "2018-11-03T03:00:00Z",
            "2018-11-04T03:00:00Z",
            "2018-11-05T02:00:00Z",
            "2018-11-06T02:00:00Z",
        ],
    );
}

#[test]
fn midnight_inside_skipped_time_moves_to_its_end() {
    // This zone changes from -03 to -02 at 23:30 on 10 April, which skips 23:30 to 00:30.
    let zone = TimeZone::posix("AAA3BBB,J100/23:30,J300").unwrap();
    assert_starts(
        &Calendar::new(zone, WindowStartDay::Day),
        "2026-04-11T02:30:00Z",
        [
            "2026-04-10T03:00:00Z",
            "2026-04-11T02:30:00Z",
            "2026-04-12T02:00:00Z",
            "2026-04-13T02:00:00Z",
        ],
    );
}

#[test]
fn day_with_two_midnights_starts_at_the_first() {
    // Havana changed from -04 to -05 at 01:00 on 2025-11-02: 00:00 to 01:00 happened twice.
    let havana = calendar("America/Havana", WindowStartDay::Day);
    let expected = [
        "2025-11-01T04:00:00Z",
        "2025-11-02T04:00:00Z",
        "2025-11-03T05:00:00Z",
        "2025-11-04T05:00:00Z",
    ];
    assert_starts(&havana, "2025-11-02T04:30:00Z", expected);
    assert_starts(&havana, "2025-11-02T05:30:00Z", expected);
}

#[test]
fn repeated_hour_before_midnight_belongs_to_the_earlier_day() {
    // São Paulo changed from -02 to -03 at 24:00 on 2018-02-17: 23:00 to 24:00 happened twice.
    let sao_paulo = calendar("America/Sao_Paulo", WindowStartDay::Day);
    assert_starts(
        &sao_paulo,
        "2018-02-18T02:30:00Z",
        [
            "2018-02-16T02:00:00Z",
            "2018-02-17T02:00:00Z",
            "2018-02-18T03:00:00Z",
            "2018-02-19T03:00:00Z",
        ],
    );
}

#[test]
fn skipped_calendar_day_has_no_window() {
    // Samoa went from -10 to +14 at the end of 2011-12-29; there was no 30 December.
    let apia = calendar("Pacific/Apia", WindowStartDay::Day);
    assert_starts(
        &apia,
        "2011-12-30T09:59:59Z",
        [
            "2011-12-28T10:00:00Z",
            "2011-12-29T10:00:00Z",
            "2011-12-30T10:00:00Z",
            "2011-12-31T10:00:00Z",
        ],
    );
}

#[test]
fn utc_offset_of_5_hours_45_minutes_is_applied() {
    let kathmandu = calendar("Asia/Kathmandu", WindowStartDay::Day);
    assert_starts(
        &kathmandu,
        "2026-05-05T18:15:00Z",
        [
            "2026-05-04T18:15:00Z",
            "2026-05-05T18:15:00Z",
            "2026-05-06T18:15:00Z",
            "2026-05-07T18:15:00Z",
        ],
    );
}

#[test]
fn month_window_from_day_31_starts_on_the_last_day() {
    let berlin = calendar("Europe/Berlin", WindowStartDay::Month(31));
    assert_starts(
        &berlin,
        "2026-03-01T00:00:00Z",
        [
            "2026-01-30T23:00:00Z",
            "2026-02-27T23:00:00Z",
            "2026-03-30T22:00:00Z",
            "2026-04-29T22:00:00Z",
        ],
    );
}

#[test]
fn month_window_starts_on_the_configured_day() {
    let utc = calendar("UTC", WindowStartDay::Month(15));
    let until =
        |next| ["2026-01-15T00:00:00Z", "2026-02-15T00:00:00Z", "2026-03-15T00:00:00Z", next];
    assert_starts(&utc, "2026-03-14T23:59:59Z", until("2026-04-15T00:00:00Z"));
    assert_starts(
        &utc,
        "2026-03-15T00:00:00Z",
        [
            "2026-02-15T00:00:00Z",
            "2026-03-15T00:00:00Z",
            "2026-04-15T00:00:00Z",
            "2026-05-15T00:00:00Z",
        ],
    );
}

#[test]
fn week_window_starts_on_the_configured_day() {
    // 2026-01-01 is a Thursday.
    let utc = calendar("UTC", WindowStartDay::Week(Weekday::Sunday));
    assert_starts(
        &utc,
        "2026-01-01T08:00:00Z",
        [
            "2025-12-21T00:00:00Z",
            "2025-12-28T00:00:00Z",
            "2026-01-04T00:00:00Z",
            "2026-01-11T00:00:00Z",
        ],
    );
}

#[test]
fn year_window_from_29_february_starts_on_28_in_common_years() {
    let utc = calendar("UTC", WindowStartDay::Year { month: 2, day: 29 });
    assert_starts(
        &utc,
        "2024-02-29T00:00:00Z",
        [
            "2023-02-28T00:00:00Z",
            "2024-02-29T00:00:00Z",
            "2025-02-28T00:00:00Z",
            "2026-02-28T00:00:00Z",
        ],
    );
    assert_starts(
        &utc,
        "2024-02-28T23:59:59Z",
        [
            "2022-02-28T00:00:00Z",
            "2023-02-28T00:00:00Z",
            "2024-02-29T00:00:00Z",
            "2025-02-28T00:00:00Z",
        ],
    );
}

fn berlin_from(hour: i8, minute: i8) -> Calendar {
    let time = Time::new(hour, minute, 0, 0).unwrap();
    calendar("Europe/Berlin", WindowStartDay::Day).starting_at(time)
}

#[test]
fn days_from_noon_have_23_or_25_hours_at_daylight_saving_changes() {
    assert_starts(
        &berlin_from(12, 0),
        "2026-03-29T09:59:59Z",
        [
            "2026-03-27T11:00:00Z",
            "2026-03-28T11:00:00Z",
            "2026-03-29T10:00:00Z",
            "2026-03-30T10:00:00Z",
        ],
    );
    assert_starts(
        &berlin_from(12, 0),
        "2026-10-25T11:00:00Z",
        [
            "2026-10-24T10:00:00Z",
            "2026-10-25T11:00:00Z",
            "2026-10-26T11:00:00Z",
            "2026-10-27T11:00:00Z",
        ],
    );
}

#[test]
fn skipped_or_repeated_start_time_counts_once() {
    // 02:00 to 03:00 is skipped on 2026-03-29, and happens twice on 2026-10-25.
    assert_starts(
        &berlin_from(2, 30),
        "2026-03-29T01:00:00Z",
        [
            "2026-03-28T01:30:00Z",
            "2026-03-29T01:00:00Z",
            "2026-03-30T00:30:00Z",
            "2026-03-31T00:30:00Z",
        ],
    );
    assert_starts(
        &berlin_from(2, 30),
        "2026-10-25T01:30:00Z",
        [
            "2026-10-24T00:30:00Z",
            "2026-10-25T00:30:00Z",
            "2026-10-26T01:30:00Z",
            "2026-10-27T01:30:00Z",
        ],
    );
}

#[test]
fn half_skipped_day_from_noon_keeps_its_other_half() {
    let apia = calendar("Pacific/Apia", WindowStartDay::Day);
    assert_starts(
        &apia.starting_at(Time::new(12, 0, 0, 0).unwrap()),
        "2011-12-30T10:00:00Z",
        [
            "2011-12-29T22:00:00Z",
            "2011-12-30T10:00:00Z",
            "2011-12-30T22:00:00Z",
            "2011-12-31T22:00:00Z",
        ],
    );
}

#[test]
fn month_window_starts_at_the_configured_time() {
    let utc = calendar("UTC", WindowStartDay::Month(15));
    assert_starts(
        &utc.starting_at(Time::new(17, 45, 0, 0).unwrap()),
        "2026-03-15T17:44:59Z",
        [
            "2026-01-15T17:45:00Z",
            "2026-02-15T17:45:00Z",
            "2026-03-15T17:45:00Z",
            "2026-04-15T17:45:00Z",
        ],
    );
}

#[test]
fn bundled_time_zone_database_has_the_tested_zones() {
    let bundled = jiff::tz::TimeZoneDatabase::bundled();
    for zone in ["Europe/Berlin", "America/Sao_Paulo", "Asia/Kathmandu", "Pacific/Apia", "UTC"] {
        assert!(bundled.get(zone).is_ok(), "{zone}");
    }
}

fn any_calendar() -> impl Strategy<Value = Calendar> {
    let zones = [
        "UTC",
        "Europe/Berlin",
        "America/Sao_Paulo",
        "America/Havana",
        "Asia/Kathmandu",
        "Pacific/Apia",
        "Pacific/Kiritimati",
        "Australia/Lord_Howe",
        "Asia/Tehran",
        "Africa/Casablanca",
        "Antarctica/Troll",
    ];
    let starts = prop_oneof![
        Just(WindowStartDay::Day),
        (1i8..=7)
            .prop_map(|day| WindowStartDay::Week(Weekday::from_monday_one_offset(day).unwrap())),
        (1i8..=31).prop_map(WindowStartDay::Month),
        (1i8..=12, 1i8..=28).prop_map(|(month, day)| WindowStartDay::Year { month, day }),
    ];
    let minutes = prop_oneof![Just(0), Just(12 * 60), 0i16..24 * 60];
    (prop::sample::select(zones.to_vec()), starts, minutes).prop_map(|(zone, starts, minute)| {
        let (hour, minute) =
            (i8::try_from(minute / 60).unwrap(), i8::try_from(minute % 60).unwrap());
        calendar(zone, starts).starting_at(Time::new(hour, minute, 0, 0).unwrap())
    })
}

proptest! {
    // proptest prints a failing input in full, so no seed file is written.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn calendar_windows_are_contiguous_and_contain_now(
        calendar in any_calendar(), second in 86_400 * 800..4_000_000_000u64,
    ) {
        let now = Nanos::from_secs(second);
        let [previous, current, next, after] = calendar.starts_around(now);
        prop_assert!(previous < current && current <= now && now < next && next < after);
        // The calendar gives the same four windows at the first and the last instant of a window.
        prop_assert_eq!(calendar.starts_around(current), [previous, current, next, after]);
        let end = Nanos(next.0 - 1);
        prop_assert_eq!(calendar.starts_around(end), [previous, current, next, after]);
        prop_assert_eq!(&calendar.starts_around(next)[..3], [current, next, after]);
    }
}
