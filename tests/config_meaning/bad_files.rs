//! Files that do not load: every reason, in and across files, all at once.

use super::{line, load, said};

/// What was said of one descriptor list begins so, line for line.
fn refused(descriptors: &str, expected: &[&str]) {
    let said = said(descriptors);
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.starts_with(expected), "{said}\nwanted {expected}");
    }
}

#[test]
fn a_descriptor_needs_a_key() {
    refused("- value: x\n", &["3:3 E22 descriptor has an empty key"]);
    refused("- key:\n  value: x\n", &["3:"]);
}

#[test]
fn one_composite_key_stands_once_in_a_level() {
    refused(
        "- {key: a, value: b}\n- {key: a, value: b}\n",
        &["4:9 E23 duplicate descriptor composite key `d.a_b`, first in a.yaml:3:9"],
    );
    refused(
        "- key: x\n  descriptors:\n  - key: a\n  - key: a\n",
        &["6:10 E23 duplicate descriptor composite key `d.x.a`, first in a.yaml:5:10"],
    );
    // The same string, cut elsewhere.
    refused(
        "- {key: a, value: b_c}\n- {key: a_b, value: c}\n",
        &["4:9 E23 duplicate descriptor composite key `d.a_b_c`"],
    );
    refused(
        "- {key: a_b}\n- {key: a, value: b}\n",
        &["4:9 E23 duplicate descriptor composite key `d.a_b`"],
    );
}

#[test]
fn one_string_may_stand_in_two_levels_and_under_two_parents() {
    refused("- key: a\n  descriptors:\n  - key: a\n- key: b\n  descriptors:\n  - key: a\n", &[]);
}

#[test]
fn what_is_below_a_refused_descriptor_is_checked_as_well() {
    refused("- {key: a}\n- key: a\n  descriptors:\n  - {value: x}\n", &["4:8 E23", "6:6 E22"]);
}

#[test]
fn a_limit_needs_one_of_the_seven_units() {
    for unit in ["foo", "unknown", "'second '", "5", "''", "seconds"] {
        let said =
            said(&format!("- key: k\n  rate_limit: {{unit: {unit}, requests_per_unit: 1}}\n"));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains(" E24 "), "{said:?}");
    }
    refused("- key: k\n  rate_limit: {}\n", &["4:"]);
    refused("- key: k\n  rate_limit: {unit: null}\n", &["4:"]);
}

#[test]
fn units_are_read_in_any_case() {
    for unit in ["Second", "MINUTE", "hOUR", "day", "Week", "MONTH", "year"] {
        refused(&format!("- key: k\n  rate_limit: {{unit: {unit}, requests_per_unit: 1}}\n"), &[]);
    }
}

#[test]
fn unlimited_stands_alone() {
    refused("- key: k\n  rate_limit: {unlimited: true}\n", &[]);
    refused(
        "- key: k\n  rate_limit: {unlimited: true, unit: Day}\n",
        &["4:39 E25 `unit: Day` beside `unlimited: true`"],
    );
    // Accepted and ignored by the base language; said here.
    refused(
        "- key: k\n  rate_limit: {unlimited: true, unit: foo, requests_per_unit: 3}\n",
        &["4:", "4:"],
    );
    // Our own words are never ignored.
    refused(
        "- key: k\n  rate_limit: {unlimited: true, burst: 3, per: 5s}\n",
        &["4:40 E25 `burst`", "4:48 E25 `per`"],
    );
}

#[test]
fn a_rule_replaces_others_by_their_names() {
    let rule = |replaces: &str| {
        format!(
            "- key: a\n  rate_limit: {{unit: day, requests_per_unit: 1, name: one}}\n\
             - key: b\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    name: two\n    replaces: [{replaces}]\n"
        )
    };
    refused(&rule("{name: one}"), &[]);
    refused(&rule("{name: two}"), &["10:23 E27 `replaces` holds the rule's own name `two`"]);
    refused(&rule("{name: ''}"), &["10:23 E26 `replaces` has an empty entry"]);
    refused(&rule("{name: one}, {name:}"), &["10:"]);
}

#[test]
fn share_threshold_needs_a_star() {
    refused(
        "- {key: k, value: v, share_threshold: true}\n",
        &["3:39 E28 `share_threshold` is only for wildcard values, and `k_v` has no `*`"],
    );
    refused("- {key: k, value: 'v*', share_threshold: true}\n", &[]);
    refused("- {key: k, value: v, share_threshold: false}\n", &[]);
    // A star in the key will do, with a warning of its own.
    refused("- {key: 'k*', share_threshold: true}\n", &["3:9 W23"]);
}

#[test]
fn a_domain_is_not_empty_and_in_one_file() {
    let (a, b) = (("a.yaml", "domain: d\n"), ("b.yaml", "\n domain: d\n"));
    let lines = |files: &[(&str, &str)], merge| {
        let said = load(files, merge).map_or_else(|said| said, |(_, said)| said);
        said.iter().map(|one| format!("{}:{}", one.place.file, line(one))).collect::<Vec<_>>()
    };
    assert_eq!(
        lines(&[a, b], false),
        ["b.yaml:2:10 E21 duplicate domain `d`, first in a.yaml:1:9"]
    );
    assert_eq!(lines(&[a, b], true), Vec::<String>::new());
    assert!(
        lines(&[("a.yaml", "# nothing\n")], false)[0]
            .contains("E20 a file may not have an empty domain")
    );
}

/// What one file lacks, another may have.
#[test]
fn of_a_merged_domain_nothing_is_missed_while_a_file_of_it_cannot_be_read() {
    let sound = |defaults: &str, words: &str| {
        format!(
            "domain: d\ncolocate: tenant\n{defaults}descriptors:\n- key: k\n  \
             rate_limit: {{unit: day, requests_per_unit: 600, replaces: [{{name: other}}]{words}}}\n"
        )
    };
    let unread = "domain: d\n\tx: [\n";
    for (defaults, words) in [
        ("defaults: {max_overshoot: 2%}\n", ""),
        // What the defaults are is not known.
        ("", ", burst: 50"),
        ("", ", mode: leased"),
        ("", ", calendar: {time_zone: UTC}"),
    ] {
        let files = [("a.yaml", &*sound(defaults, words)), ("b.yaml", unread)];
        let said = load(&files, true).unwrap_err();
        let said: Vec<_> = said.iter().map(|one| (&*one.place.file, one.code.name())).collect();
        assert_eq!(said, [("b.yaml", "E01")], "{defaults} {words}");
    }
    // Each file a domain, so that nothing is missing.
    let alone = sound("", "");
    let said = load(&[("a.yaml", &alone), ("b.yaml", unread)], false).unwrap_err();
    let said: Vec<_> = said.iter().map(|one| one.code.name()).collect();
    assert_eq!(said, ["W29", "W27", "E01"]);
}

#[test]
fn merged_files_are_one_first_level() {
    let file = |rules: &str| format!("domain: d\ndescriptors:\n{rules}");
    let (one, two) = (
        file("- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n"),
        file("- {key: b, rate_limit: {unit: day, requests_per_unit: 2}}\n"),
    );
    let (config, _) = load(&[("a.yaml", &one), ("b.yaml", &two)], true).unwrap();
    assert_eq!(super::requests(&config, "a="), Some(1));
    assert_eq!(super::requests(&config, "b="), Some(2));
    // One composite key in both is one too many, even where only the children differ.
    let (one, two) = (
        file("- key: a\n  descriptors: [{key: x}]\n"),
        file("- key: a\n  descriptors: [{key: y}]\n"),
    );
    let said = load(&[("a.yaml", &one), ("b.yaml", &two)], true).unwrap_err();
    assert_eq!(said.len(), 1);
    assert!(said[0].message.ends_with("`d.a`, first in a.yaml:3:8"), "{}", said[0]);
    assert_eq!(&*said[0].place.file, "b.yaml");
}

#[test]
fn merged_files_agree_on_what_is_said_of_the_domain() {
    let one = "domain: d\ncharge: each\ncolocate: a\ndefaults: {strategy: gcra}\n";
    let other =
        "domain: d\ncharge: all_or_nothing\ncolocate: b\ndefaults: {strategy: sliding_log}\n";
    let said = load(&[("a.yaml", one), ("b.yaml", other)], true).unwrap_err();
    let said: Vec<String> = said.iter().map(line).collect();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said.iter().all(|said| said.contains(" E32 ")), "{said:?}");
    assert!(load(&[("a.yaml", one), ("b.yaml", one), ("c.yaml", "domain: d\n")], true).is_ok());
}

#[test]
fn all_problems_of_all_files_come_at_once_by_file_and_place() {
    let a = "domain: d\ndescriptors:\n- {value: x}\n- {key: k, rate_limit: {unit: foo, burst: 3, mode: leased}}\n";
    let b = "descriptors:\n- key: k\n  rate_limit: {unit: minit, requests_per_unit: 1}\n";
    let said = load(&[("a.yaml", a), ("b.yaml", b)], false).unwrap_err();
    let found: Vec<_> =
        said.iter().map(|one| (&*one.place.file, one.place.line, one.code.name())).collect();
    assert_eq!(
        found,
        [
            ("a.yaml", 3, "E22"),
            ("a.yaml", 4, "E24"),
            ("a.yaml", 4, "E32"),
            ("a.yaml", 4, "E38"),
            ("b.yaml", 1, "E20"),
            ("b.yaml", 3, "E24"),
        ]
    );
    assert_eq!(said[5].help.as_deref(), Some("did you mean `minute`?"));
}
