//! Tests of the fields that Sluicegate adds to the file format of envoyproxy/ratelimit.

mod adaptive_block;
mod leased;
mod on_excess;
mod rate_limit_list;

use sluicegate::config::calendar::WindowStartDay;
use sluicegate::config::{ChargePolicy, FallbackMode, LimitMode, LimitWindow, Unit};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::units::Nanos;

use super::{find, limit, limit_findings, line, load, load_clean};

fn assert_findings(fields: &str, expected: &[&str]) {
    let findings = limit_findings(fields);
    assert_eq!(findings.len(), expected.len(), "{fields}: {findings:#?}");
    for (finding, expected) in findings.iter().zip(expected) {
        assert!(finding.contains(expected), "{fields}: {finding}\nwanted {expected}");
    }
}

#[test]
fn limits_default_to_strict_fixed_windows() {
    let limit = limit("unit: minute, requests_per_unit: 5");
    assert!(matches!(limit.strategy, Strategy::FixedWindow(_)));
    assert_eq!((limit.requests, limit.window), (5, LimitWindow::Unit(Unit::Minute)));
    assert_eq!(limit.on_store_failure, FallbackMode::Error);
    assert_eq!(limit.mode, LimitMode::Strict);
    let config = load_clean("- key: k\n");
    assert_eq!(config.domains["d"].charge, ChargePolicy::Each);
}

#[test]
fn field_per_accepts_whole_durations_instead_of_unit() {
    let per = |text: &str| limit(&format!("per: {text}, requests_per_unit: 5")).window;
    assert_eq!(per("250ms"), LimitWindow::Per(Nanos(250_000_000)));
    assert_eq!(per("30s"), LimitWindow::Per(Nanos::from_secs(30)));
    assert_eq!(per("5m"), LimitWindow::Per(Nanos::from_secs(300)));
    assert_eq!(per("36h"), LimitWindow::Per(Nanos::from_secs(129_600)));
    assert_eq!(per("7d"), LimitWindow::Per(Nanos::from_secs(604_800)));
    assert_eq!(per("1h30m"), LimitWindow::Per(Nanos::from_secs(5_400)));
    assert_eq!(per("1ms"), LimitWindow::Per(Nanos::MILLI));
    assert_findings(
        "per: 90s, unit: minute, requests_per_unit: 5",
        &["E32 `per: 90s` cannot be combined with `unit: minute`"],
    );
    assert_findings("per: 0s, requests_per_unit: 5", &["E31 `per: 0s` is shorter than 1ms"]);
    // Durations must be below 2^64 nanoseconds, which are 213,503.98 days.
    for long in ["213504d", "99999999999999999999s", "213503d24h"] {
        let expected = format!("E31 `per: {long}` is longer than 584 years");
        assert_findings(&format!("per: {long}, requests_per_unit: 5"), &[&expected]);
    }
    for none in ["'5'", "5 s", "s", "1d99999999999999999999x", "''", "5sd"] {
        let expected = format!("E31 `per: {}` is not a duration", none.trim_matches('\''));
        assert_findings(&format!("per: {none}, requests_per_unit: 5"), &[&expected]);
    }
    for bad in
        ["'90'", "1.5s", "-5s", "5 s", "1y", "s", "''", "99999999999999999999d", "300000d", "5ms7"]
    {
        assert_findings(&format!("per: {bad}, requests_per_unit: 5"), &["E31"]);
    }
}

#[test]
fn strategy_field_accepts_the_four_strategies() {
    let strategy = |word: &str| {
        limit(&format!("unit: minute, requests_per_unit: 60, strategy: {word}")).strategy
    };
    assert!(matches!(strategy("gcra"), Strategy::Gcra(_)));
    assert!(matches!(strategy("fixed_window"), Strategy::FixedWindow(_)));
    assert!(matches!(strategy("sliding_window"), Strategy::SlidingWindow(_)));
    assert!(matches!(strategy("sliding_log"), Strategy::SlidingLog(_)));
    assert_findings(
        "unit: minute, requests_per_unit: 6, strategy: grca",
        &["E29 `strategy: grca` is not a valid value"],
    );
}

#[test]
fn burst_requires_gcra_and_defaults_to_requests() {
    let most = |fields: &str| {
        limit(&format!("unit: minute, requests_per_unit: 60, {fields}")).strategy.max_at_once()
    };
    assert_eq!(most("strategy: gcra"), 60);
    assert_eq!(most("strategy: gcra, burst: 7"), 7);
    assert_findings(
        "unit: minute, requests_per_unit: 60, strategy: gcra, burst: 0",
        &["E33 `burst: 0` denies everything"],
    );
    assert_findings(
        "unit: minute, requests_per_unit: 60, burst: 7",
        &["E32 `burst` cannot be combined with `strategy: fixed_window`"],
    );
}

#[test]
fn limit_of_zero_requests_requires_fixed_window() {
    assert_eq!(limit("unit: minute, requests_per_unit: 0").strategy.max_at_once(), 0);
    for strategy in ["gcra", "sliding_window", "sliding_log"] {
        assert_findings(
            &format!("unit: minute, requests_per_unit: 0, strategy: {strategy}"),
            &["E34"],
        );
    }
}

#[test]
fn burst_too_large_for_exact_gcra_names_the_largest_valid_one() {
    // GCRA is exact if (burst + 1) · P < 2^53, with the period P in the coarsest ticks, here
    // seconds. 4,294,967,291 is prime, so the rate cannot be reduced and P stays one year,
    // 31,536,000 s. 2^53 / 31,536,000 = 285,616,414.7, minus one for the hit itself.
    assert_findings(
        "unit: year, requests_per_unit: 4294967291, strategy: gcra",
        &["4294967291 hits in 365d cannot be counted exactly; the maximum is 285616413"],
    );
    let fields = "unit: year, requests_per_unit: 4294967291, strategy: gcra, burst: 285616413";
    assert!(
        limit_findings(fields).iter().all(|finding| finding.contains(" W")),
        "{:?}",
        limit_findings(fields)
    );
}

#[test]
fn on_store_failure_accepts_four_values() {
    let failure = |word: &str| {
        limit(&format!("unit: day, requests_per_unit: 1, on_store_failure: {word}"))
            .on_store_failure
    };
    assert_eq!(failure("error"), FallbackMode::Error);
    assert_eq!(failure("allow"), FallbackMode::Allow);
    assert_eq!(failure("deny"), FallbackMode::Deny);
    assert_eq!(failure("local"), FallbackMode::Local);
    assert_findings("unit: day, requests_per_unit: 1, on_store_failure: open", &["E29"]);
}

#[test]
fn fields_of_a_limit_override_domain_defaults() {
    let text = "domain: d\ncharge: all_or_nothing\ndefaults: {strategy: gcra, on_store_failure: local, mode: cached_deny}\ndescriptors:\n\
                - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n\
                - {key: b, rate_limit: {unit: day, requests_per_unit: 1, strategy: sliding_log, on_store_failure: deny, mode: exact}}\n";
    let (config, findings) = load(&[("a.yaml", text)], false).unwrap();
    assert!(findings.iter().all(|one| one.code.name() == "N40"), "{findings:?}");
    let limit = |descriptor| find(&config, descriptor).unwrap().rule.limits[0].clone();
    assert!(matches!(limit("a=").strategy, Strategy::Gcra(_)));
    assert_eq!(limit("a=").on_store_failure, FallbackMode::Local);
    assert!(matches!(limit("b=").strategy, Strategy::SlidingLog(_)));
    assert_eq!(limit("b=").on_store_failure, FallbackMode::Deny);
    assert_eq!((limit("a=").mode, limit("b=").mode), (LimitMode::CachedDeny, LimitMode::Strict));
    let text = limit("a=").to_string();
    assert_eq!(text, "1 per day, gcra, burst 1, mode cached_deny, on store failure local");
    assert_eq!(config.domains["d"].charge, ChargePolicy::AllOrNothing);
}

fn calendar(unit: &str, starts_on: &str) -> WindowStartDay {
    let text = format!(
        "unit: {unit}, requests_per_unit: 1, calendar: {{time_zone: Europe/Berlin{starts_on}}}"
    );
    match limit(&text).window {
        LimitWindow::Calendar(_, calendar) => {
            assert_eq!(calendar.time_zone.iana_name(), Some("Europe/Berlin"));
            calendar.start_day
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn valid_values_of_starts_on_depend_on_the_unit() {
    use jiff::civil::Weekday;
    assert_eq!(calendar("day", ""), WindowStartDay::Day);
    assert_eq!(calendar("week", ""), WindowStartDay::Week(Weekday::Monday));
    assert_eq!(calendar("week", ", starts_on: 7"), WindowStartDay::Week(Weekday::Sunday));
    assert_eq!(calendar("week", ", starts_on: Saturday"), WindowStartDay::Week(Weekday::Saturday));
    assert_eq!(calendar("month", ""), WindowStartDay::Month(1));
    assert_eq!(calendar("month", ", starts_on: 31"), WindowStartDay::Month(31));
    assert_eq!(calendar("year", ""), WindowStartDay::Year { month: 1, day: 1 });
    assert_eq!(calendar("year", ", starts_on: 02-29"), WindowStartDay::Year { month: 2, day: 29 });
}

#[test]
fn windows_start_at_the_configured_time() {
    let day = "unit: day, requests_per_unit: 5, calendar: {time_zone: Europe/Berlin, starts_at: ";
    for (written, shown) in [("12:00", "12:00"), ("'9:05'", "09:05"), ("23:59", "23:59")] {
        let text = limit(&format!("{day}{written}}}")).to_string();
        assert_eq!(text, format!("5 per day from {shown} in Europe/Berlin, fixed_window"));
    }
    let midnight = limit(&format!("{day}00:00}}"));
    assert_eq!(midnight.to_string(), "5 per day from midnight in Europe/Berlin, fixed_window");
    let month = "unit: month, requests_per_unit: 5, calendar: {time_zone: UTC, starts_at: 12:00}";
    assert_eq!(limit(month).to_string(), "5 per month from day 1 at 12:00 in UTC, fixed_window");
    for wrong in ["24:00", "12", "noon", "12:60", "12:0", "12:00:00", "-1:00", "12:00pm", "''"] {
        let finding = format!("E36 `starts_at: {}` is not a time of day", wrong.trim_matches('\''));
        assert_findings(&format!("{day}{wrong}}}"), &[&finding]);
    }
}

#[test]
fn invalid_calendars_are_refused() {
    let with = |unit: &str, block: &str| {
        format!("unit: {unit}, requests_per_unit: 1, calendar: {{{block}}}")
    };
    assert_findings(&with("day", "time_zone: Europe/Berlin, starts_on: 1"), &["E36"]);
    assert_findings(&with("week", "time_zone: UTC, starts_on: 0"), &["E36"]);
    assert_findings(&with("week", "time_zone: UTC, starts_on: 8"), &["E36"]);
    assert_findings(&with("month", "time_zone: UTC, starts_on: 32"), &["E36"]);
    assert_findings(&with("year", "time_zone: UTC, starts_on: 02-30"), &["E36"]);
    assert_findings(&with("year", "time_zone: UTC, starts_on: 15"), &["E36"]);
    assert_findings(&with("hour", "time_zone: UTC"), &["E36"]);
    assert_findings(
        &with("day", "time_zone: Europe/Berlim"),
        &["E36 unknown time zone `Europe/Berlim`"],
    );
    assert_findings(&with("day", "starts_on: 1"), &["E36", "E36"]);
    assert_findings(
        "per: 1d, requests_per_unit: 1, calendar: {time_zone: UTC}",
        &["E32 `calendar` cannot be combined with `per`"],
    );
    assert_findings(
        "unit: day, requests_per_unit: 1, strategy: gcra, calendar: {time_zone: UTC}",
        &["E32 `calendar` cannot be combined with `strategy: gcra`"],
    );
}

fn codes(findings: &[String]) -> Vec<&str> {
    findings.iter().map(|line| line.split(' ').nth(1).unwrap()).collect()
}

/// The intended value is unknown, so fields that depend on it are not validated.
#[test]
fn misspelt_value_suppresses_errors_that_depend_on_it() {
    for fields in [
        "unit: minute, requests_per_unit: 60, strategy: gcraa, burst: 50",
        "unit: day, requests_per_unit: 0, strategy: gcraa",
        "unit: day, requests_per_unit: 1, strategy: fixd_window, calendar: {time_zone: UTC}",
        "unit: day, requests_per_unit: 600, mode: leasd, max_overshoot: 2%",
        "unit: day, requests_per_unit: 600, mode: leasd, lease_hits: 5",
        "unit: day, requests_per_unit: 600, strategy: gcraa, mode: leased, max_overshoot: 0",
    ] {
        assert_eq!(codes(&limit_findings(fields)), ["E29"], "{fields}");
    }
}

#[test]
fn errors_in_defaults_are_reported_once() {
    for (defaults, fields, code) in [
        ("strategy: gcraa", "burst: 50", "E29"),
        ("strategy: sliding_windo", "calendar: {time_zone: UTC}", "E29"),
        ("mode: leasd, max_overshoot: 2%", "lease_hits: 5", "E29"),
        ("mode: leasd", "max_overshoot: 2%", "E29"),
        ("mode: leased, max_overshoot: many", "burst: 50, strategy: gcra", "E38"),
        ("mode: leased, max_overshoot: 900%", "burst: 50, strategy: gcra", "E38"),
    ] {
        let rule = |key| {
            format!(
                "- {{key: {key}, rate_limit: {{unit: day, requests_per_unit: 600, {fields}}}}}\n"
            )
        };
        let text = format!(
            "domain: d\ndefaults: {{{defaults}}}\ndescriptors:\n{}{}",
            rule("a"),
            rule("b")
        );
        let findings: Vec<_> =
            load(&[("a.yaml", &text)], false).unwrap_err().iter().map(line).collect();
        assert_eq!(codes(&findings), [code], "{defaults} {fields}");
    }
}

#[test]
fn all_errors_of_a_block_are_reported() {
    for (fields, all) in [
        (
            "unit: minit, requests_per_unit: 0, strategy: gcra, lease_hits: 5",
            &["E24", "E34", "E32"][..],
        ),
        ("unit: minit, requests_per_unit: 5, strategy: gcra, burst: 0", &["E24", "E33"]),
        ("unit: day, requests_per_unit: 5, strategy: gcraa, burst: 0", &["E29", "E33"]),
        ("unit: minit, requests_per_unit: 5, calendar: {time_zone: Mars}", &["E24", "E36"]),
        ("per: 5s, requests_per_unit: 5, calendar: {time_zone: Mars}", &["E32", "E36"]),
        (
            "unit: day, requests_per_unit: 5, strategy: gcraa, calendar: {time_zone: Mars}",
            &["E29", "E36"],
        ),
        ("unit: day, requests_per_unit: 5, mode: leasd, max_overshoot: many", &["E29", "E38"]),
        (
            "unit: minit, requests_per_unit: 600, mode: leased, max_overshoot: 2%, lease_hits: 0",
            &["E24", "E38"],
        ),
        ("unlimited: true, unit: day, burst: 3", &["E25", "E25"]),
        ("unlimited: true, unit: day, requests_per_unit: 3", &["E25", "W26"]),
    ] {
        assert_eq!(codes(&limit_findings(fields)), all, "{fields}");
    }
}
