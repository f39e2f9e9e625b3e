//! The mode `leased` and its fields.

use sluicegate::config::LimitMode;
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::{LeaseTerms, Overshoot};
use sluicegate::kernel::units::{Hits, Nanos};

use super::assert_findings;
use crate::config::{find, limit, line, load};

#[test]
fn mode_must_be_known_and_leased_needs_max_overshoot() {
    assert_findings("unit: day, requests_per_unit: 1, mode: exact", &[]);
    assert_findings("unit: day, requests_per_unit: 1, mode: cached_deny", &[]);
    assert_findings("unit: day, requests_per_unit: 1, mode: lased", &["E29 `mode: lased`"]);
    let without = "E38 `mode: leased` needs a `max_overshoot`";
    assert_findings("unit: day, requests_per_unit: 600, mode: leased", &[without]);
    let beside = "E32 `max_overshoot` cannot be combined with `mode: exact`";
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
fn without_windows_zero_overshoot_leases_a_tenth_of_the_limit() {
    let occupying = |hits| Overshoot::Occupying(Hits(hits));
    for strategy in ["gcra", "sliding_window", "sliding_log"] {
        assert_eq!(leased_overshoot(strategy, "0"), occupying(60));
        assert_eq!(leased_overshoot(strategy, "0.0%"), occupying(60));
    }
    assert_eq!(leased_overshoot("gcra, burst: 50", "0"), occupying(5));
    assert_eq!(leased_overshoot("gcra, burst: 3", "0"), occupying(1), "at least one hit");
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
    for strategy in ["fixed_window", "gcra"] {
        with(strategy, "0.1%", &["E38 this percentage of 600 hits is less than one hit"]);
        with(strategy, "601", &["E38 `max_overshoot` is larger than the limit of 600"]);
        with(strategy, "100.01%", &["E38 `max_overshoot` is larger than the limit of 600"]);
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
                - {key: b, rate_limit: {unit: day, requests_per_unit: 50, mode: exact}}\n\
                - {key: c, rate_limit: {unit: day, requests_per_unit: 50, max_overshoot: 0}}\n\
                - {key: e, rate_limit: {unit: second, requests_per_unit: 50, max_overshoot: 0}}\n\
                - {key: f, rate_limit: {per: 100ms, requests_per_unit: 50}}\n";
    let (config, _) = load(&[("a.yaml", text)], false).unwrap();
    let limit = |descriptor| find(&config, descriptor).unwrap().rule.limits[0].clone();
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
                let expected =
                    format!("2:27 E38 `max_overshoot: {amount}` is larger than any limit");
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
        found.map(|(config, _)| find(&config, "a=").unwrap().rule.limits[0].clone())
    };
    let leased = limit("mode: leased, max_overshoot: 20%, lease_hits: 50").unwrap();
    let LimitMode::Leased(terms) = leased.mode else { panic!("{leased:?}") };
    assert_eq!(terms.sizing, LeaseSizing::Fixed(Hits(50)), "a tenth of 500 at most");
    assert!(
        leased.to_string().ends_with("mode leased, max_overshoot 100, lease_hits 50"),
        "{leased}"
    );
    for (fields, code, message) in [
        (
            "mode: leased, max_overshoot: 20%, lease_hits: 51",
            "E38",
            "`lease_hits: 51` is too large",
        ),
        ("mode: leased, max_overshoot: 20%, lease_hits: 0", "E38", "`lease_hits: 0` is too small"),
        ("lease_hits: 5", "E32", "`lease_hits` cannot be combined with `mode: exact`"),
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
            "at the full rate, these checks call the store: 1 in {two} with 2 replicas, 1 in {eight} \
             with 8 replicas, 1 in {many} with 64 replicas"
        )
    };
    assert_eq!(note("0"), all(6000, 3750, 468));
    assert_eq!(note("1%"), all(300, 75, 9));
    assert_eq!(note("1"), all(1, 1, 1));
}
