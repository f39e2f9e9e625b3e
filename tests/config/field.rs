//! Tests of suggested fixes in files from the field.
//!
//! Not covered:
//! - Every word of another product: the unit tests of `crates/config/src/raw/foreign/` apply each fix.

use std::fs;
use std::path::Path;

use sluicegate::config::load;
use sluicegate::kernel::units::Revision;

/// The findings of a file below `field/`, as `LINE CODE FIX`.
fn fixes(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/field").join(name);
    fixes_of(name, &fs::read_to_string(path).unwrap())
}

fn fixes_of(name: &str, text: &str) -> Vec<String> {
    let found = load([(name, text.as_bytes())], Revision::default(), false).unwrap_err();
    let errors = found.iter().filter(|one| one.code.name().starts_with('E'));
    let shown = errors.map(|one| {
        let help = one.help.as_deref().unwrap_or_else(|| panic!("no fix: {}", one.message));
        format!("{} {} {help}", one.location.line, one.code.name())
    });
    shown.collect()
}

#[test]
fn words_of_other_rate_limiters_get_the_fields_of_a_rate_limit() {
    assert_eq!(
        fixes("other_words.yaml"),
        [
            "4 E10 write `requests_per_unit: 5`",
            "4 E10 write `per: 60s`",
            "6 E10 write `strategy: fixed_window` in `rate_limit`",
            "9 E10 write `strategy: gcra`",
            "11 E10 use the setting `answers.retry_after` of the service",
        ]
    );
    assert_eq!(fixes("limit.yaml"), ["4 E10 write `requests_per_unit: 5`"]);
    let whole = "descriptors: [{key: api_key, rate_limit: {unit: minute, requests_per_unit: 100}}]";
    assert_eq!(fixes("top.yaml"), [format!("1 E09 write `{whole}`")]);
}

#[test]
fn a_descriptor_with_only_a_concurrency_limit_gets_its_fields() {
    let text = "{domain: d, descriptors: [{key: k, concurrency: {limit: 5}, window: 1s}]}";
    assert_eq!(fixes_of("a.yaml", text), ["1 E10 move it to `adaptive`"]);
}

#[test]
fn a_list_of_values_is_one_error() {
    let fix = "write a descriptor for each value: `value: x`, `value: y`";
    assert_eq!(fixes("value_list.yaml"), [format!("4 E13 {fix}")]);
}

#[test]
fn a_count_in_words_gets_a_count_or_unlimited() {
    for (count, fix) in [
        ("unlimited", "write `unlimited: true` instead of `requests_per_unit` and `unit`"),
        ("-1", "write `unlimited: true` instead of `requests_per_unit` and `unit`"),
        ("10/min", "write `requests_per_unit: 10` and `unit: minute`"),
        ("1k", "write `requests_per_unit: 1000`"),
        ("5000000000", "write at most `requests_per_unit: 4294967295`"),
        ("many", "write a whole number, such as `requests_per_unit: 100`"),
        ("[5, 6]", "for several limits, use the list `rate_limits`"),
    ] {
        let limit = format!("rate_limit: {{unit: hour, requests_per_unit: {count}}}");
        let text = format!("{{domain: d, descriptors: [{{key: k, {limit}}}]}}");
        assert_eq!(fixes_of("a.yaml", &text), [format!("1 E13 {fix}")]);
    }
}

#[test]
fn time_zones_get_no_zone_of_another_continent() {
    let found = fixes("time_zones.yaml");
    for (at, wanted) in [
        "America/Chicago` or `Asia/Shanghai",
        "Asia/Kolkata",
        "Asia/Tokyo",
        "Europe/London",
        "Australia/Sydney",
        "Etc/GMT-2",
        "Etc/GMT-8",
    ]
    .into_iter()
    .enumerate()
    {
        assert!(found[at].contains(wanted), "{wanted}: {}", found[at]);
        assert!(!found[at].contains("did you mean"), "{}", found[at]);
    }
}

#[test]
fn a_readme_beside_limits_files_is_one_error() {
    let fix = "1 E20 move it out of the directory of limits, where every file is read";
    for (name, text) in [
        ("limits/README.md", "# Limits\n\n* [shop](shop.yaml): `domain: shop`\n\t- {a\n"),
        ("limits/LICENSE", "Apache License\n"),
        ("limits/logo.png", "\u{1}PNG"),
    ] {
        assert_eq!(fixes_of(name, text), [fix], "{name}");
    }
    // A limits file may have any name.
    let text = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day}}]\n";
    assert!(load([("limits.txt", text.as_bytes())], Revision::default(), false).is_ok());
}
