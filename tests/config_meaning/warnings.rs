//! What loads and is probably not what was meant; and what must not be warned of.

use super::{line, load, said, said_of};

fn warned(descriptors: &str, expected: &[&str]) {
    let said = said(descriptors);
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.contains(expected), "{said}\nwanted {expected}");
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
fn a_pattern_that_an_earlier_one_leaves_nothing_to() {
    warned(
        &keys(&[("p", "a*"), ("p", "ab*")]),
        &[
            "4:9 W20 nothing is left for `p_ab*`: `p_a*` (a.yaml:3) comes first and matches all of it",
        ],
    );
    warned(&keys(&[("p", "a*c"), ("p", "ab*bc")]), &["W20"]);
    // The other way round each has its own.
    warned(&keys(&[("p", "ab*"), ("p", "a*")]), &[]);
    warned(&keys(&[("p", "a*c"), ("p", "a*d"), ("p", "*a"), ("q", "a*")]), &[]);
    // Whoever matches `a*a` by its two ends does not match `a`.
    warned(&keys(&[("p", "a*a"), ("p", "a*")]), &[]);
}

#[test]
fn a_bare_key_whose_every_entry_a_pattern_takes() {
    warned(
        &keys(&[("w", "*"), ("w", "")]),
        &["4:9 W21 no entry with key `w` gets here: `w_*` (a.yaml:3) matches them all"],
    );
    warned(&keys(&[("path_info", ""), ("path", "*")]), &["3:9 W21"]);
    warned(&keys(&[("w", "a*"), ("w", "")]), &[]);
    warned(&keys(&[("path", "x*"), ("path_info", "")]), &[]);
}

#[test]
fn a_value_that_answers_for_another_key() {
    warned(
        &keys(&[("a", "b_c"), ("a_b", "")]),
        &["3:9 W22 an entry `a_b`: `c` finds this rule of key `a`, not `a_b` (a.yaml:4)"],
    );
    warned(&keys(&[("a", "b_c"), ("a", ""), ("b", "")]), &[]);
    warned(&keys(&[("user", ""), ("user_id", "")]), &[]);
}

#[test]
fn a_star_in_a_key() {
    warned(&keys(&[("q*", "")]), &["3:9 W23 the `*` in the key `q*`"]);
}

#[test]
fn a_burst_of_more_than_ten_units() {
    let burst = |burst: u32| {
        said_of(&format!("unit: second, requests_per_unit: 5, strategy: gcra, burst: {burst}"))
    };
    assert_eq!(burst(50), Vec::<String>::new());
    assert_eq!(burst(51).len(), 1);
    assert!(burst(51)[0].contains("W24 a burst of 51 admits 10 units' worth"), "{:?}", burst(51));
}

#[test]
fn a_tick_that_is_worth_more_than_a_hundredth_of_the_burst() {
    // 3,000,001 per second is 3.000001 hits per microsecond, the finest tick; 1 % of 300 is 3.
    let burst = |burst: u32| {
        said_of(&format!(
            "unit: second, requests_per_unit: 3000001, strategy: gcra, burst: {burst}"
        ))
    };
    assert!(burst(300)[0].contains("W25 one tick of 1us is worth"), "{:?}", burst(300));
    assert_eq!(burst(301), Vec::<String>::new());
}

#[test]
fn a_word_without_effect_where_it_stands() {
    warned(
        "- {key: k, shadow_mode: true, quota_mode: true, detailed_metric: true, metadata: {a: 1}}\n",
        &["W26 `detailed_metric`", "W26 `metadata`", "W26 `quota_mode`", "W26 `shadow_mode`"],
    );
    warned("- {key: k, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}\n", &[]);
    warned(
        "- key: k\n  rate_limit: {unlimited: true, requests_per_unit: 3}\n",
        &["W26 `requests_per_unit`"],
    );
}

#[test]
fn a_name_in_replaces_that_no_rule_has() {
    let rules = |name: &str| {
        format!(
            "- {{key: a, rate_limit: {{unit: day, requests_per_unit: 1, name: per-key}}}}\n\
             - {{key: b, rate_limit: {{unit: day, requests_per_unit: 1, replaces: [{{name: {name}}}]}}}}\n"
        )
    };
    warned(&rules("per-key"), &[]);
    warned(&rules("per-kye"), &["4:76 W27 no rule of this domain is named `per-kye`"]);
}

#[test]
fn a_limit_without_a_number() {
    assert!(
        said_of("unit: day")[0].contains("W28 no `requests_per_unit`"),
        "{:?}",
        said_of("unit: day")
    );
    assert_eq!(said_of("unit: day, requests_per_unit: 0"), Vec::<String>::new());
}

fn said_of_domain(text: &str) -> Vec<String> {
    let (_, said) = load(&[("a.yaml", text)], false).unwrap();
    said.iter().map(line).collect()
}

#[test]
fn a_bound_of_leases_where_none_is_leased() {
    let said = |defaults: &str, words: &str| {
        said_of_domain(&format!(
            "domain: d\ndefaults: {{{defaults}}}\ndescriptors:\n\
             - {{key: a, rate_limit: {{unit: day, requests_per_unit: 600{words}}}}}\n\
             - {{key: b, rate_limit: {{unlimited: true}}}}\n"
        ))
    };
    let vain = "2:27 W26 `max_overshoot` has no effect";
    for (defaults, words) in [
        ("max_overshoot: 2%", ""),
        ("max_overshoot: 2%, mode: strict", ", mode: cached_deny"),
        ("max_overshoot: 2%, mode: leased", ", mode: strict"),
    ] {
        let found = said(defaults, words);
        assert!(found.len() == 1 && found[0].starts_with(vain), "{defaults}: {found:?}");
    }
    for (defaults, words) in [
        ("max_overshoot: 2%, mode: leased", ""),
        ("max_overshoot: 2%", ", mode: leased"),
        ("mode: leased", ", mode: strict"),
    ] {
        let found = said(defaults, words);
        assert!(found.iter().all(|line| !line.contains("W26")), "{defaults}: {found:?}");
    }
}

#[test]
fn how_a_cluster_charges_what_is_charged_as_one_is_noted() {
    let rules = "descriptors:\n\
                 - key: tenant\n  rate_limit: {unit: day, requests_per_unit: 1}\n  \
                 descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n\
                 - key: user\n  rate_limit: {unit: day, requests_per_unit: 1}\n";
    let said = |head: &str| said_of_domain(&format!("domain: d\n{head}{rules}"));
    assert_eq!(said(""), [] as [&str; 0]);
    assert_eq!(said("charge: each\ncolocate: user\n"), [] as [&str; 0]);
    let found = said("charge: all_or_nothing\n");
    assert!(found.len() == 1 && found[0].contains("2:9 N40"), "{found:?}");
    // `user` alone has no tenant, and lives by itself.
    let found = said("charge: all_or_nothing\ncolocate: tenant\n");
    assert!(found.len() == 1 && found[0].contains("8:8 N40"), "{found:?}");
    assert_eq!(said("charge: all_or_nothing\ncolocate: user\n").len(), 1, "tenant has no user");
    let found = said("colocate: tenent\n");
    assert!(found.len() == 1 && found[0].contains("2:11 W29"), "{found:?}");
}
