//! The list `rate_limits` of a descriptor.

use sluicegate::config::LimitMode;
use sluicegate::kernel::units::Nanos;

use crate::config::{find, findings, limit, load, load_clean};

fn list_findings(list: &str) -> Vec<String> {
    findings(&format!("- {{key: k, rate_limits: {list}}}\n"))
}

fn assert_error(list: &str, expected: &str) {
    let found = list_findings(list);
    assert!(found.iter().any(|line| line.contains(expected)), "{list}: {found:?}");
}

#[test]
fn each_limit_of_a_list_has_a_name_and_a_path() {
    let config = load_clean(
        "- key: k\n  rate_limits:\n  - {unit: Second, requests_per_unit: 10, strategy: gcra}\n  \
         - {per: 90s, requests_per_unit: 100}\n  \
         - {name: daily, unit: day, requests_per_unit: 1000}\n",
    );
    let found = find(&config, "k=v").unwrap();
    let paths: Vec<_> = found.rule.limits.iter().map(|one| found.rule.path_of(one)).collect();
    assert_eq!(paths, ["d.k.per-second", "d.k.per-90s", "d.k.daily"]);
    let periods: Vec<_> = found.rule.limits.iter().map(|one| one.window.length()).collect();
    assert_eq!(periods, [1, 90, 86_400].map(Nanos::from_secs));
    let single = limit("name: n, unit: day, requests_per_unit: 1");
    assert_eq!(single.name, None, "the counter of `rate_limit` keeps its key");
}

#[test]
fn domain_defaults_apply_to_each_limit_of_a_list() {
    let text = "domain: d\ndefaults: {strategy: gcra, mode: cached_deny}\ndescriptors:\n\
                - key: k\n  rate_limits:\n  - {unit: second, requests_per_unit: 10}\n  \
                - {unit: hour, requests_per_unit: 100, mode: exact}\n";
    let (config, _) = load(&[("a.yaml", text)], false).unwrap();
    let limits = &find(&config, "k=v").unwrap().rule.limits;
    let text: Vec<_> = limits.iter().map(ToString::to_string).collect();
    assert!(text.iter().all(|text| text.contains("gcra")), "{text:?}");
    assert_eq!([limits[0].mode, limits[1].mode], [LimitMode::CachedDeny, LimitMode::Strict]);
}

#[test]
fn lists_of_the_wrong_size_are_refused() {
    assert_error("[]", "E38 `rate_limits` is empty");
    let nine = (1..=9).map(|secs| format!("{{per: {secs}s, requests_per_unit: 1}}"));
    let nine = nine.collect::<Vec<_>>().join(", ");
    assert_error(&format!("[{nine}]"), "E38 `rate_limits` has 9 limits");
    assert_error("{unit: day, requests_per_unit: 1}", "E13 `rate_limits` must be a list");
    assert_error("[5]", "E11 an item of `rate_limits`");
    assert!(findings("- {key: k, rate_limits: null}\n").is_empty(), "null is no list");
}

#[test]
fn limits_that_cannot_be_told_apart_are_refused() {
    let second = "{unit: second, requests_per_unit: 1}";
    for (other, expected) in [
        ("{unit: second, requests_per_unit: 2, name: n}", "have the period 1s"),
        ("{per: 1000ms, requests_per_unit: 2}", "have the period 1s"),
        ("{unit: day, requests_per_unit: 2, name: per-second}", "are named `per-second`"),
    ] {
        assert_error(
            &format!("[{second}, {other}]"),
            &format!("E32 two limits of `rate_limits` {expected}"),
        );
    }
    // A default name has no place in the file, so the error is at the period.
    let named = "{name: per-second, unit: day, requests_per_unit: 1}";
    let found = list_findings(&format!("[{named}, {second}]"));
    assert!(found.iter().all(|line| !line.contains("1:1 ")), "{found:?}");
}

#[test]
fn a_list_cannot_be_combined_with_one_limit_or_unlimited() {
    let second = "{unit: second, requests_per_unit: 1}";
    let both = findings(&format!("- {{key: k, rate_limit: {second}, rate_limits: [{second}]}}\n"));
    assert!(both[0].contains("E32 `rate_limit` cannot be combined with `rate_limits`"), "{both:?}");
    assert_error(
        &format!("[{second}, {{unlimited: true}}]"),
        "E25 `unlimited` cannot be combined with other limits of `rate_limits`",
    );
    assert_error(&format!("[{second}, {{unit: fortnight}}]"), "E24 invalid unit `fortnight`");
    let twins =
        format!("- {{key: k, rate_limits: [{second}]}}\n- {{key: k, rate_limit: {second}}}\n");
    assert!(findings(&twins)[0].contains("E23 duplicate descriptor"), "{twins}");
}

#[test]
fn a_quota_list_cannot_be_charged_all_or_nothing() {
    let with = |charge: &str| {
        let text = format!(
            "domain: d\ncharge: {charge}\ndescriptors:\n- {{key: k, quota_mode: true, rate_limits: \
             [{{unit: second, requests_per_unit: 1}}, {{unit: day, requests_per_unit: 9}}]}}\n"
        );
        load(&[("a.yaml", &text)], false).map_err(|errors| errors.to_string())
    };
    assert!(with("each").is_ok());
    let error = with("all_or_nothing").unwrap_err();
    assert!(error.contains("`rate_limits` with `quota_mode` cannot be combined"), "{error}");
}

#[test]
fn replaces_knows_the_names_of_a_list() {
    let list = "- {key: k, rate_limits: [{unit: second, requests_per_unit: 1}, \
                {unit: day, requests_per_unit: 9}]}\n";
    let other = |name: &str| {
        format!(
            "{list}- {{key: o, rate_limit: {{unit: day, requests_per_unit: 1, \
             replaces: [{{name: {name}}}]}}}}\n"
        )
    };
    assert_eq!(findings(&other("per-day")), [""; 0]);
    assert!(findings(&other("per-week"))[0].contains("W27"), "an unknown name");
    assert_error(
        "[{unit: second, requests_per_unit: 1}, {unit: day, requests_per_unit: 1, replaces: \
         [{name: per-second}]}]",
        "E27 `replaces` contains the rule's own name `per-second`",
    );
}
