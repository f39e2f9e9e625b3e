//! Tests that files with errors report every error, within and across files.

use super::{findings, line, load};

fn assert_findings(descriptors: &str, expected: &[&str]) {
    let findings = findings(descriptors);
    assert_eq!(findings.len(), expected.len(), "{findings:#?}");
    for (finding, expected) in findings.iter().zip(expected) {
        assert!(finding.starts_with(expected), "{finding}\nwanted {expected}");
    }
}

#[test]
fn descriptor_without_a_key_is_refused() {
    assert_findings("- value: x\n", &["3:3 E22 the descriptor has no key"]);
    assert_findings("- key:\n  value: x\n", &["3:"]);
}

#[test]
fn equal_key_and_value_twice_in_one_level_are_refused() {
    assert_findings(
        "- {key: a, value: b}\n- {key: a, value: b}\n",
        &["4:9 E23 duplicate descriptor composite key `d.a_b`, first in a.yaml:3:9"],
    );
    assert_findings(
        "- key: x\n  descriptors:\n  - key: a\n  - key: a\n",
        &["6:10 E23 duplicate descriptor composite key `d.x.a`, first in a.yaml:5:10"],
    );
    // The joined strings `key_value` are equal, although key and value are split differently.
    assert_findings(
        "- {key: a, value: b_c}\n- {key: a_b, value: c}\n",
        &["4:9 E23 duplicate descriptor composite key `d.a_b_c`"],
    );
    assert_findings(
        "- {key: a_b}\n- {key: a, value: b}\n",
        &["4:9 E23 duplicate descriptor composite key `d.a_b`"],
    );
}

#[test]
fn fix_of_two_limits_on_one_key_is_a_list() {
    let help = |descriptors: &str| {
        let text = format!("domain: d\ndescriptors:\n{descriptors}");
        load(&[("a.yaml", &text)], false).unwrap_err()[0].help.clone().unwrap()
    };
    let second = "- {key: a, rate_limit: {unit: second, requests_per_unit: 1}}\n";
    let day = "- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n";
    let list = "- key: a\n  rate_limit:\n  - {unit: second, requests_per_unit: 1}\n";
    for two_limits in [&format!("{second}{day}"), list] {
        assert_eq!(help(two_limits), "for several limits, use the list `rate_limits`");
    }
    for one_limit in [format!("{second}- {{key: a}}\n"), format!("- {{key: a}}\n{day}")] {
        assert_eq!(help(&one_limit), "merge the two descriptors");
    }
}

#[test]
fn key_and_value_may_repeat_across_levels_and_parents() {
    assert_findings(
        "- key: a\n  descriptors:\n  - key: a\n- key: b\n  descriptors:\n  - key: a\n",
        &[],
    );
}

#[test]
fn children_of_a_refused_descriptor_are_validated() {
    assert_findings(
        "- {key: a}\n- key: a\n  descriptors:\n  - {value: x}\n",
        &["4:8 E23", "6:6 E22"],
    );
}

#[test]
fn limit_needs_a_known_unit() {
    for unit in ["foo", "unknown", "'second '", "5", "''", "seconds"] {
        let findings =
            findings(&format!("- key: k\n  rate_limit: {{unit: {unit}, requests_per_unit: 1}}\n"));
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains(" E24 "), "{findings:?}");
    }
    assert_findings("- key: k\n  rate_limit: {}\n", &["4:"]);
    assert_findings("- key: k\n  rate_limit: {unit: null}\n", &["4:"]);
}

#[test]
fn unit_names_are_case_insensitive() {
    for unit in ["Second", "MINUTE", "hOUR", "day", "Week", "MONTH", "year"] {
        assert_findings(
            &format!("- key: k\n  rate_limit: {{unit: {unit}, requests_per_unit: 1}}\n"),
            &[],
        );
    }
}

#[test]
fn unlimited_excludes_other_fields() {
    assert_findings("- key: k\n  rate_limit: {unlimited: true}\n", &[]);
    assert_findings(
        "- key: k\n  rate_limit: {unlimited: true, unit: Day}\n",
        &["4:39 E25 `unit: Day` cannot be combined with `unlimited: true`"],
    );
    // envoyproxy/ratelimit ignores these fields beside `unlimited`; Sluicegate reports them.
    assert_findings(
        "- key: k\n  rate_limit: {unlimited: true, unit: foo, requests_per_unit: 3}\n",
        &["4:", "4:"],
    );
    // Fields that only Sluicegate has are refused beside `unlimited`, too.
    assert_findings(
        "- key: k\n  rate_limit: {unlimited: true, burst: 3, per: 5s}\n",
        &["4:40 E25 `burst`", "4:48 E25 `per`"],
    );
}

#[test]
fn replaces_must_name_another_rule() {
    let rule = |replaces: &str| {
        format!(
            "- key: a\n  rate_limit: {{unit: day, requests_per_unit: 1, name: one}}\n\
             - key: b\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    name: two\n    replaces: [{replaces}]\n"
        )
    };
    assert_findings(&rule("{name: one}"), &[]);
    assert_findings(
        &rule("{name: two}"),
        &["10:23 E27 `replaces` contains the rule's own name `two`"],
    );
    assert_findings(&rule("{name: ''}"), &["10:23 E26 an item of `replaces` has no name"]);
    assert_findings(&rule("{name: one}, {name:}"), &["10:"]);
}

#[test]
fn share_threshold_needs_a_star_in_the_value() {
    assert_findings(
        "- {key: k, value: v, share_threshold: true}\n",
        &["3:39 E28 `share_threshold` needs a `*` in the value, but `k_v` has none"],
    );
    assert_findings("- {key: k, value: 'v*', share_threshold: true}\n", &[]);
    assert_findings("- {key: k, value: v, share_threshold: false}\n", &[]);
    // A star in the key is accepted, with warning W23.
    assert_findings("- {key: 'k*', share_threshold: true}\n", &["3:9 W23"]);
}

#[test]
fn domain_is_required_and_unique_across_files() {
    let (a, b) = (("a.yaml", "domain: d\n"), ("b.yaml", "\n domain: d\n"));
    let lines = |files: &[(&str, &str)], merge| {
        let findings =
            load(files, merge).map_or_else(|findings| findings, |(_, findings)| findings);
        findings
            .iter()
            .map(|one| format!("{}:{}", one.location.file, line(one)))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        lines(&[a, b], false),
        ["b.yaml:2:10 E21 duplicate domain `d`, first in a.yaml:1:9"]
    );
    assert_eq!(lines(&[a, b], true), Vec::<String>::new());
    assert!(lines(&[("a.yaml", "# nothing\n")], false)[0].contains("E20 the file has no domain"));
}

/// Files are merged, so the unreadable file may define names and defaults that the other file
/// lacks.
#[test]
fn unreadable_merged_file_suppresses_findings_that_depend_on_it() {
    let readable = |defaults: &str, fields: &str| {
        format!(
            "domain: d\ncolocate: tenant\n{defaults}descriptors:\n- key: k\n  \
             rate_limit: {{unit: day, requests_per_unit: 600, replaces: [{{name: other}}]{fields}}}\n"
        )
    };
    let unread = "domain: d\n\tx: [\n";
    for (defaults, fields) in [
        ("defaults: {max_overshoot: 2%}\n", ""),
        // The unreadable file may set the defaults that these fields need.
        ("", ", burst: 50"),
        ("", ", mode: leased"),
        ("", ", calendar: {time_zone: UTC}"),
    ] {
        let files = [("a.yaml", &*readable(defaults, fields)), ("b.yaml", unread)];
        let findings = load(&files, true).unwrap_err();
        let findings: Vec<_> =
            findings.iter().map(|one| (&*one.location.file, one.code.name())).collect();
        assert_eq!(findings, [("b.yaml", "E01")], "{defaults} {fields}");
    }
    // Without merging, an unreadable file cannot define the missing names, so they are reported.
    let alone = readable("", "");
    let findings = load(&[("a.yaml", &alone), ("b.yaml", unread)], false).unwrap_err();
    let findings: Vec<_> = findings.iter().map(|one| one.code.name()).collect();
    assert_eq!(findings, ["W29", "W27", "E01"]);
}

#[test]
fn descriptors_of_merged_files_share_one_top_level() {
    let file = |rules: &str| format!("domain: d\ndescriptors:\n{rules}");
    let (one, two) = (
        file("- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n"),
        file("- {key: b, rate_limit: {unit: day, requests_per_unit: 2}}\n"),
    );
    let (config, _) = load(&[("a.yaml", &one), ("b.yaml", &two)], true).unwrap();
    assert_eq!(super::requests(&config, "a="), Some(1));
    assert_eq!(super::requests(&config, "b="), Some(2));
    // The same key and value in both files is a duplicate, even if only the children differ.
    let (one, two) = (
        file("- key: a\n  descriptors: [{key: x}]\n"),
        file("- key: a\n  descriptors: [{key: y}]\n"),
    );
    let findings = load(&[("a.yaml", &one), ("b.yaml", &two)], true).unwrap_err();
    assert_eq!(findings.len(), 1);
    assert!(findings[0].message.ends_with("`d.a`, first in a.yaml:3:8"), "{}", findings[0]);
    assert_eq!(&*findings[0].location.file, "b.yaml");
}

#[test]
fn conflicting_domain_fields_of_merged_files_are_refused() {
    let one = "domain: d\ncharge: each\ncolocate: a\ndefaults: {strategy: gcra}\n";
    let other =
        "domain: d\ncharge: all_or_nothing\ncolocate: b\ndefaults: {strategy: sliding_log}\n";
    let findings = load(&[("a.yaml", one), ("b.yaml", other)], true).unwrap_err();
    let findings: Vec<String> = findings.iter().map(line).collect();
    assert_eq!(findings.len(), 3, "{findings:?}");
    assert!(findings.iter().all(|finding| finding.contains(" E32 ")), "{findings:?}");
    assert!(load(&[("a.yaml", one), ("b.yaml", one), ("c.yaml", "domain: d\n")], true).is_ok());
}

#[test]
fn errors_of_all_files_are_reported_in_order() {
    let a = "domain: d\ndescriptors:\n- {value: x}\n- {key: k, rate_limit: {unit: foo, burst: 3, mode: leased}}\n";
    let b = "descriptors:\n- key: k\n  rate_limit: {unit: minit, requests_per_unit: 1}\n";
    let findings = load(&[("a.yaml", a), ("b.yaml", b)], false).unwrap_err();
    let found: Vec<_> = findings
        .iter()
        .map(|one| (&*one.location.file, one.location.line, one.code.name()))
        .collect();
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
    assert_eq!(findings[5].help.as_deref(), Some("did you mean `minute`?"));
}
