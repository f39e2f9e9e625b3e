//! Tests of the fields that Sluicegate adds to the file format of envoyproxy/ratelimit.

use sluicegate::config::calendar::WindowStartDay;
use sluicegate::config::{ChargePolicy, FallbackMode, LimitMode, LimitWindow, Unit};
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::{LeaseTerms, Overshoot};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::units::{Hits, Nanos};

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
    assert_eq!(limit.on_backend_failure, FallbackMode::Error);
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
        &["E32 `unit: minute` and `per: 90s`"],
    );
    assert_findings("per: 0s, requests_per_unit: 5", &["E31 `per: 0s` is shorter than 1ms"]);
    // Durations must be below 2^64 nanoseconds, which are 213,503.98 days.
    for long in ["213504d", "99999999999999999999s", "213503d24h"] {
        let expected = format!("E31 `per: {long}` is longer than 584 years");
        assert_findings(&format!("per: {long}, requests_per_unit: 5"), &[&expected]);
    }
    for none in ["'5'", "5 s", "s", "1d99999999999999999999x", "''", "5sd"] {
        let expected = format!("E31 `per: {}` is no duration", none.trim_matches('\''));
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
        &["E29 `strategy: grca` is not known"],
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
        &["E33 burst 0 would deny everything"],
    );
    assert_findings(
        "unit: minute, requests_per_unit: 60, burst: 7",
        &["E32 `burst` with `strategy: fixed_window`"],
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
        &[
            "4294967291 cannot be counted exactly over 31536000s; the largest that fits is 285616413",
        ],
    );
    let fields = "unit: year, requests_per_unit: 4294967291, strategy: gcra, burst: 285616413";
    assert!(
        limit_findings(fields).iter().all(|finding| finding.contains(" W")),
        "{:?}",
        limit_findings(fields)
    );
}

#[test]
fn on_backend_failure_accepts_four_values() {
    let failure = |word: &str| {
        limit(&format!("unit: day, requests_per_unit: 1, on_backend_failure: {word}"))
            .on_backend_failure
    };
    assert_eq!(failure("error"), FallbackMode::Error);
    assert_eq!(failure("allow"), FallbackMode::Allow);
    assert_eq!(failure("deny"), FallbackMode::Deny);
    assert_eq!(failure("local"), FallbackMode::Local);
    assert_findings("unit: day, requests_per_unit: 1, on_backend_failure: open", &["E29"]);
}

#[test]
fn fields_of_a_limit_override_domain_defaults() {
    let text = "domain: d\ncharge: all_or_nothing\ndefaults: {strategy: gcra, on_backend_failure: local, mode: cached_deny}\ndescriptors:\n\
                - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n\
                - {key: b, rate_limit: {unit: day, requests_per_unit: 1, strategy: sliding_log, on_backend_failure: deny, mode: strict}}\n";
    let (config, findings) = load(&[("a.yaml", text)], false).unwrap();
    assert!(findings.iter().all(|one| one.code.name() == "N40"), "{findings:?}");
    let limit = |descriptor| find(&config, descriptor).unwrap().rule.limit.clone().unwrap();
    assert!(matches!(limit("a=").strategy, Strategy::Gcra(_)));
    assert_eq!(limit("a=").on_backend_failure, FallbackMode::Local);
    assert!(matches!(limit("b=").strategy, Strategy::SlidingLog(_)));
    assert_eq!(limit("b=").on_backend_failure, FallbackMode::Deny);
    assert_eq!((limit("a=").mode, limit("b=").mode), (LimitMode::CachedDeny, LimitMode::Strict));
    let text = limit("a=").to_string();
    assert_eq!(text, "1 per day, gcra, burst 1, mode cached_deny, on backend failure local");
    assert_eq!(config.domains["d"].charge, ChargePolicy::AllOrNothing);
}

#[test]
fn mode_must_be_known_and_leased_needs_max_overshoot() {
    assert_findings("unit: day, requests_per_unit: 1, mode: strict", &[]);
    assert_findings("unit: day, requests_per_unit: 1, mode: cached_deny", &[]);
    assert_findings("unit: day, requests_per_unit: 1, mode: lased", &["E29 `mode: lased`"]);
    let without = "E38 `mode: leased` without a `max_overshoot`";
    assert_findings("unit: day, requests_per_unit: 600, mode: leased", &[without]);
    let beside = "E32 `max_overshoot` with `mode: strict`";
    assert_findings("unit: day, requests_per_unit: 600, max_overshoot: 2%", &[beside]);
}

fn leased_overshoot(strategy: &str, overshoot: &str) -> Overshoot {
    let text = format!(
        "unit: minute, requests_per_unit: 600, strategy: {strategy}, mode: leased, max_overshoot: {overshoot}"
    );
    match limit(&text).mode {
        LimitMode::Leased(LeaseTerms { overshoot, duration: term, .. }) => {
            assert_eq!(term, Nanos::from_secs(30));
            overshoot
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn max_overshoot_is_hits_or_a_percentage_rounded_down() {
    for strategy in ["fixed_window", "gcra", "sliding_window", "sliding_log"] {
        let at_most = |hits| Overshoot::AtMost(Hits(hits));
        assert_eq!(leased_overshoot(strategy, "1"), at_most(1));
        assert_eq!(leased_overshoot(strategy, "600"), at_most(600));
        assert_eq!(leased_overshoot(strategy, "2%"), at_most(12));
        assert_eq!(leased_overshoot(strategy, "0.5%"), at_most(3));
        assert_eq!(leased_overshoot(strategy, "0.33%"), at_most(1), "1.98 rounded down");
        assert_eq!(leased_overshoot(strategy, "100%"), at_most(600));
    }
    assert_eq!(leased_overshoot("fixed_window", "0"), Overshoot::InWindow);
    assert_eq!(leased_overshoot("fixed_window", "0%"), Overshoot::InWindow);
}

#[test]
fn impossible_or_ineffective_max_overshoot_is_refused() {
    let with = |strategy: &str, overshoot: &str, expected: &[&str]| {
        let text = "unit: minute, requests_per_unit: 600, mode: leased";
        assert_findings(
            &format!("{text}, strategy: {strategy}, max_overshoot: {overshoot}"),
            expected,
        );
    };
    for strategy in ["gcra", "sliding_window", "sliding_log"] {
        with(strategy, "0", &["E32 `max_overshoot: 0` with `strategy:"]);
        with(strategy, "0.0%", &["E32 `max_overshoot: 0` with `strategy:"]);
    }
    for strategy in ["fixed_window", "gcra"] {
        with(strategy, "0.1%", &["E38 this part of 600 is less than one hit"]);
        with(strategy, "601", &["E38 a `max_overshoot` above the limit"]);
        with(strategy, "100.01%", &["E38 a `max_overshoot` above the limit"]);
        for amount in ["-1", "2 %", "'%'", "1.%", "1.234%", "010", "many", "'1.5'"] {
            with(strategy, amount, &["E38 `max_overshoot: "]);
        }
    }
    with("gcra", "99999999999999999999%", &["E38 `max_overshoot: "]);
}

#[test]
fn leased_defaults_apply_unless_a_limit_overrides_them() {
    let text = "domain: d\ndefaults: {mode: leased, max_overshoot: 10%}\ndescriptors:\n\
                - {key: a, rate_limit: {unit: second, requests_per_unit: 50}}\n\
                - {key: b, rate_limit: {unit: day, requests_per_unit: 50, mode: strict}}\n\
                - {key: c, rate_limit: {unit: day, requests_per_unit: 50, max_overshoot: 0}}\n\
                - {key: e, rate_limit: {unit: second, requests_per_unit: 50, max_overshoot: 0}}\n\
                - {key: f, rate_limit: {per: 100ms, requests_per_unit: 50}}\n";
    let (config, _) = load(&[("a.yaml", text)], false).unwrap();
    let limit = |descriptor| find(&config, descriptor).unwrap().rule.limit.clone().unwrap();
    let leased = |overshoot, secs| {
        LimitMode::Leased(LeaseTerms {
            overshoot,
            duration: Nanos::from_secs(secs),
            sizing: LeaseSizing::Learned,
        })
    };
    assert_eq!(limit("a=").mode, leased(Overshoot::AtMost(Hits(5)), 30), "thirty periods");
    assert_eq!(limit("e=").mode, leased(Overshoot::InWindow, 1), "no longer than its window");
    assert_eq!(limit("f=").mode, leased(Overshoot::AtMost(Hits(5)), 3), "thirty periods");
    assert_eq!(limit("b=").mode, LimitMode::Strict);
    assert_eq!(limit("c=").mode, leased(Overshoot::InWindow, 30));
    assert_eq!(
        limit("a=").to_string(),
        "50 per second, fixed_window, mode leased, max_overshoot 5"
    );
    assert_eq!(limit("c=").to_string(), "50 per day, fixed_window, mode leased, max_overshoot 0");
}

#[test]
fn default_max_overshoot_above_any_limit_is_refused() {
    for (amount, is_any) in [
        ("900%", false),
        ("100.01%", false),
        ("4294967296", false),
        ("100%", true),
        ("4294967295", true),
    ] {
        let text = format!(
            "domain: d\ndefaults: {{max_overshoot: {amount}}}\ndescriptors:\n\
             - {{key: a, rate_limit: {{unit: second, requests_per_unit: 50}}}}\n"
        );
        match load(&[("a.yaml", &text)], false) {
            Ok(_) => assert!(is_any, "{amount} is accepted"),
            Err(findings) => {
                let findings: Vec<String> = findings.iter().map(line).collect();
                let expected = format!("2:27 E38 `max_overshoot: {amount}` is above any limit");
                assert!(
                    !is_any && findings.len() == 1 && findings[0].starts_with(&expected),
                    "{findings:?}"
                );
            }
        }
    }
}

#[test]
fn lease_hits_sets_a_fixed_lease_size() {
    let limit = |fields: &str| {
        let text = format!(
            "domain: d\ndescriptors:\n- {{key: a, rate_limit: {{unit: day, requests_per_unit: 500, {fields}}}}}\n"
        );
        let found = load(&[("a.yaml", &text)], false);
        found.map(|(config, _)| find(&config, "a=").unwrap().rule.limit.clone().unwrap())
    };
    let leased = limit("mode: leased, max_overshoot: 20%, lease_hits: 50").unwrap();
    let LimitMode::Leased(terms) = leased.mode else { panic!("{leased:?}") };
    assert_eq!(terms.sizing, LeaseSizing::Fixed(Hits(50)), "a tenth of 500 at most");
    assert!(
        leased.to_string().ends_with("mode leased, max_overshoot 100, lease_hits 50"),
        "{leased}"
    );
    for (fields, code, message) in [
        ("mode: leased, max_overshoot: 20%, lease_hits: 51", "E38", "leases of 51 hits"),
        ("mode: leased, max_overshoot: 20%, lease_hits: 0", "E38", "leases of 0 hits"),
        ("lease_hits: 5", "E32", "`lease_hits` with `mode: strict`"),
    ] {
        let refused = limit(fields).unwrap_err();
        let [one] = &refused[..] else { panic!("{refused:?}") };
        assert_eq!(one.code.name(), code);
        assert!(one.message.contains(message), "{}", one.message);
    }
}

/// Worked numbers: 60,000 hits per minute are a demand of 10,000 in the 10 s over which a replica
/// measures its demand. A lease lasts 30 s, so a replica borrows three times that demand, up to a
/// tenth of the limit.
///
/// | replicas | demand of each | hits of a lease | part of `max_overshoot` = 600 |
/// |---|---|---|---|
/// | 2 | 5,000 | min(6,000, 15,000) = 6,000 | 300 |
/// | 8 | 1,250 | min(6,000, 3,750) = 3,750 | 75 |
/// | 64 | ⌊10,000 / 64⌋ = 156 | min(6,000, 468) = 468 | 9 |
#[test]
fn expected_lease_calls_match_the_worked_numbers() {
    let note = |overshoot: &str| {
        let text = format!(
            "domain: d\ndescriptors:\n- {{key: a, rate_limit: {{unit: minute, requests_per_unit: 60000, \
             mode: leased, max_overshoot: {overshoot}}}}}\n"
        );
        let (_, findings) = load(&[("a.yaml", &text)], false).unwrap();
        let [note] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(note.code.name(), "N41");
        note.message.clone()
    };
    let all = |two, eight, many| {
        format!(
            "expected calls per decision at its full rate: 1 in {two} on 2 replicas, 1 in {eight} on \
             8 replicas, 1 in {many} on 64 replicas"
        )
    };
    assert_eq!(note("0"), all(6000, 3750, 468));
    assert_eq!(note("1%"), all(300, 75, 9));
    assert_eq!(note("1"), all(1, 1, 1));
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
        &["E32 `calendar` with `per`"],
    );
    assert_findings(
        "unit: day, requests_per_unit: 1, strategy: gcra, calendar: {time_zone: UTC}",
        &["E32 `calendar` with `strategy: gcra`"],
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
