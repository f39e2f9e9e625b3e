//! Tests of long values in counter keys.

use proptest::prelude::*;
use sluicegate::config::Config;

use super::super::load_clean;

/// `printf 'a%.0s' {1..300} | sha256sum`
const HASH_OF_300_A: &str = "9835fa6bf4e20a9b9ea812506302e98982721a6cf8d2cae67af57129bf21ae90";

const LIMIT: &str = "rate_limit: {unit: day, requests_per_unit: 3}";

fn bare() -> Config {
    load_clean(&format!("- {{key: k, {LIMIT}}}\n"))
}

/// The path of the rule of `key=value`, and the value in its counter key.
fn matched(config: &Config, key: &str, value: &str) -> Option<(String, String)> {
    let (rule, entries) = config.domains["d"].tree.rule_and_key([(key, value)].into_iter())?;
    Some((rule.path.to_string(), entries[0].1.to_string()))
}

fn counted(config: &Config, value: &str) -> String {
    matched(config, "k", value).unwrap().1
}

#[test]
fn a_long_value_counts_under_its_sha256() {
    assert_eq!(counted(&bare(), &"a".repeat(300)), format!("#{HASH_OF_300_A}"));
    for length in [0, 1, 256] {
        let short = "a".repeat(length);
        assert_eq!(counted(&bare(), &short), short);
    }
}

#[test]
fn long_values_that_differ_at_the_end_have_two_counters() {
    for length in [256, 65_535, 65_536, 1 << 20] {
        let value = "v".repeat(length);
        let (one, other) =
            (counted(&bare(), &(value.clone() + "1")), counted(&bare(), &(value + "2")));
        assert!(one != other && one.len() == 65, "{one} {other}");
    }
}

#[test]
fn a_long_value_matches_exact_values_and_patterns_as_a_whole() {
    let (exact, path) = ("e".repeat(300), "p".repeat(70_000));
    let config = load_clean(&format!(
        "- {{key: k, value: {exact}, {LIMIT}}}\n- {{key: k, value: '/pay/*/end', {LIMIT}}}\n\
         - {{key: k, value: '#{HASH_OF_300_A}', {LIMIT}}}\n- {{key: k, {LIMIT}}}\n"
    ));
    let found = |value: &str| matched(&config, "k", value).unwrap();
    assert_eq!(found(&exact), (format!("d.k_{exact}"), exact.clone()));
    // The text of a hash is an exact value here, which the hashed value does not match.
    assert_eq!(found(&"a".repeat(300)), ("d.k".to_owned(), format!("#{HASH_OF_300_A}")));
    let (rule, text) = found(&format!("/pay/{path}/end"));
    assert_eq!(rule, "d.k_/pay/*/end");
    assert!(text.starts_with("/pay/#") && text.ends_with("/end"), "{text}");
    assert_eq!(found(&format!("/pay/{path}/End")).0, "d.k");
}

#[test]
fn values_of_a_shared_pattern_keep_their_counter() {
    let config =
        load_clean(&format!("- {{key: k, value: /a/*, share_threshold: true, {LIMIT}}}\n"));
    assert_eq!(counted(&config, &format!("/a/{}", "x".repeat(70_000))), "/a/*");
}

proptest! {
    /// Proxies send the texts of counter keys, which must name the same counters.
    #[test]
    fn the_text_of_a_long_value_matches_the_same_rule_and_stays(
        // A pattern of stars alone would match all values, and the second rule none.
        pattern in "[a-c]{1,3}\\*[x-z]{0,200}\\*?[a-c]{0,3}",
        middle in "[a-z]{0,3}", repeat in 1..300_usize,
    ) {
        let config = load_clean(&format!(
            "- {{key: k, value: '{pattern}', {LIMIT}}}\n- {{key: k, {LIMIT}}}\n"
        ));
        let value = pattern.replacen('*', &middle.repeat(repeat), 1).replace('*', &middle);
        let (rule, text) = matched(&config, "k", &value).unwrap();
        prop_assert!(text.len() <= 256 + pattern.len() + 2, "{}", text.len());
        prop_assert_eq!(matched(&config, "k", &text), Some((rule, text.clone())));
    }
}
