//! Tests of warnings about valid but suspicious limits files, and of cases without a warning.

mod never_matches;

use super::{findings, limit_findings, line, load};

fn assert_findings(descriptors: &str, expected: &[&str]) {
    let findings = findings(descriptors);
    assert_eq!(findings.len(), expected.len(), "{findings:#?}");
    for (finding, expected) in findings.iter().zip(expected) {
        assert!(finding.contains(expected), "{finding}\nwanted {expected}");
    }
}

fn keys(keys: &[(&str, &str)]) -> String {
    let rule = |(key, value): &(&str, &str)| {
        format!(
            "- {{key: '{key}', value: '{value}', rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"
        )
    };
    keys.iter().map(rule).collect()
}

#[test]
fn pattern_shadowed_by_an_earlier_one_warns() {
    assert_findings(
        &keys(&[("p", "a*"), ("p", "ab*")]),
        &["4:9 W20 `p_ab*` never matches: `p_a*` (a.yaml:3) comes first and matches the same \
             entries"],
    );
    assert_findings(&keys(&[("p", "a*c"), ("p", "ab*bc")]), &["W20"]);
    // In the reverse order, each pattern matches values that the other does not take.
    assert_findings(&keys(&[("p", "ab*"), ("p", "a*")]), &[]);
    assert_findings(&keys(&[("p", "a*c"), ("p", "a*d"), ("p", "*a"), ("q", "a*")]), &[]);
    // `a*a` needs two characters, so the value `a` matches only `a*`.
    assert_findings(&keys(&[("p", "a*a"), ("p", "a*")]), &[]);
}

#[test]
fn bare_key_shadowed_by_a_pattern_warns() {
    assert_findings(
        &keys(&[("w", "*"), ("w", "")]),
        &["4:9 W21 this rule for key `w` never matches: `w_*` (a.yaml:3) matches all its entries"],
    );
    assert_findings(&keys(&[("path_info", ""), ("path", "*")]), &["3:9 W21"]);
    assert_findings(&keys(&[("w", "a*"), ("w", "")]), &[]);
    assert_findings(&keys(&[("path", "x*"), ("path_info", "")]), &[]);
}

#[test]
fn joined_key_and_value_equal_to_another_key_warns() {
    assert_findings(
        &keys(&[("a", "b_c"), ("a_b", "")]),
        &["3:9 W22 the entry `a_b=c` matches this rule with key `a`, not `a_b` (a.yaml:4)"],
    );
    assert_findings(&keys(&[("a", "b_c"), ("a", ""), ("b", "")]), &[]);
    assert_findings(&keys(&[("user", ""), ("user_id", "")]), &[]);
}

#[test]
fn star_in_a_key_warns() {
    assert_findings(&keys(&[("q*", "")]), &["3:9 W23 the `*` in the key `q*`"]);
}

#[test]
fn burst_above_ten_units_warns() {
    let burst = |burst: u32| {
        limit_findings(&format!(
            "unit: second, requests_per_unit: 5, strategy: gcra, burst: {burst}"
        ))
    };
    assert_eq!(burst(50), Vec::<String>::new());
    assert_eq!(burst(51).len(), 1);
    assert!(burst(51)[0].contains("W24 `burst: 51` allows 10 times"), "{:?}", burst(51));
}

#[test]
fn more_than_one_percent_of_burst_per_tick_warns() {
    // 3,000,001 hits per second are 3.000001 per microsecond, the shortest tick. 1 % of a burst of
    // 300 is 3.
    let burst = |burst: u32| {
        limit_findings(&format!(
            "unit: second, requests_per_unit: 3000001, strategy: gcra, burst: {burst}"
        ))
    };
    assert!(
        burst(300)[0].contains("W25 up to 4 hits return at once every 1us"),
        "{:?}",
        burst(300)
    );
    assert_eq!(burst(301), Vec::<String>::new());
}

#[test]
fn field_without_effect_warns() {
    assert_findings(
        "- {key: k, shadow_mode: true, quota_mode: true, detailed_metric: true, metadata: {a: 1}}\n",
        &["W26 `detailed_metric`", "W26 `metadata`", "W26 `quota_mode`", "W26 `shadow_mode`"],
    );
    assert_findings(
        "- {key: k, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}\n",
        &[],
    );
    assert_findings(
        "- key: k\n  rate_limit: {unlimited: true, requests_per_unit: 3}\n",
        &["W26 `requests_per_unit`"],
    );
}

#[test]
fn unknown_name_in_replaces_warns() {
    let rules = |name: &str| {
        format!(
            "- {{key: a, rate_limit: {{unit: day, requests_per_unit: 1, name: per-key}}}}\n\
             - {{key: b, rate_limit: {{unit: day, requests_per_unit: 1, replaces: [{{name: {name}}}]}}}}\n"
        )
    };
    assert_findings(&rules("per-key"), &[]);
    assert_findings(&rules("per-kye"), &["4:76 W27 no rule of this domain is named `per-kye`"]);
}

#[test]
fn limit_without_requests_per_unit_warns() {
    assert!(
        limit_findings("unit: day")[0].contains("W28 `requests_per_unit` is missing"),
        "{:?}",
        limit_findings("unit: day")
    );
    assert_eq!(limit_findings("unit: day, requests_per_unit: 0"), Vec::<String>::new());
}

fn file_findings(text: &str) -> Vec<String> {
    let (_, findings) = load(&[("a.yaml", text)], false).unwrap();
    findings.iter().map(line).collect()
}

#[test]
fn default_max_overshoot_without_leased_limits_warns() {
    let findings = |defaults: &str, fields: &str| {
        file_findings(&format!(
            "domain: d\ndefaults: {{{defaults}}}\ndescriptors:\n\
             - {{key: a, rate_limit: {{unit: day, requests_per_unit: 600{fields}}}}}\n\
             - {{key: b, rate_limit: {{unlimited: true}}}}\n"
        ))
    };
    let vain = "2:27 W26 `max_overshoot` has no effect";
    for (defaults, fields) in [
        ("max_overshoot: 2%", ""),
        ("max_overshoot: 2%, mode: exact", ", mode: cached_deny"),
        ("max_overshoot: 2%, mode: leased", ", mode: exact"),
    ] {
        let found = findings(defaults, fields);
        assert!(found.len() == 1 && found[0].starts_with(vain), "{defaults}: {found:?}");
    }
    for (defaults, fields) in [
        ("max_overshoot: 2%, mode: leased", ""),
        ("max_overshoot: 2%", ", mode: leased"),
        ("mode: leased", ", mode: exact"),
    ] {
        let found = findings(defaults, fields);
        assert!(found.iter().all(|line| !line.contains("W26")), "{defaults}: {found:?}");
    }
}

#[test]
fn all_or_nothing_limits_need_one_slot() {
    let rules = "descriptors:\n\
                 - key: tenant\n  rate_limit: {unit: day, requests_per_unit: 1}\n  \
                 descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n\
                 - key: user\n  rate_limit: {unit: day, requests_per_unit: 1}\n";
    let text = |head: &str| format!("domain: d\n{head}{rules}");
    let findings = |head: &str| file_findings(&text(head));
    assert_eq!(findings(""), [] as [&str; 0]);
    assert_eq!(findings("charge: each\ncolocate: user\n"), [] as [&str; 0]);
    let found = findings("charge: all_or_nothing\n");
    assert!(found.len() == 1 && found[0].contains("2:9 N40"), "{found:?}");
    let found = findings("colocate: tenent\n");
    assert!(found.len() == 1 && found[0].contains("2:11 W29"), "{found:?}");
    // The limit `user` is not in the slot of a tenant, because it has no entry `tenant`.
    let errors = |head: &str| {
        let found = load(&[("a.yaml", &text(head))], false).unwrap_err();
        found.iter().map(line).collect::<Vec<_>>()
    };
    let found = errors("charge: all_or_nothing\ncolocate: tenant\n");
    let expected = "8:8 E32 this limit has no entry `tenant` (`colocate`)";
    assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    let found = errors("charge: all_or_nothing\ncolocate: user\n");
    assert!(found.len() == 1 && found[0].starts_with("5:8 E32"), "{found:?}");
}
