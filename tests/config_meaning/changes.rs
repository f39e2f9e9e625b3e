//! What a new configuration changes.

use sluicegate::config::diff::{Diff, diff};

use super::load;

fn changes(old: &str, new: &str) -> Diff {
    let config = |rules: &str| {
        load(&[("a.yaml", &format!("domain: d\ndescriptors:\n{rules}"))], false).unwrap().0
    };
    diff(&config(old), &config(new))
}

fn rule(key: &str, words: &str) -> String {
    format!("- {{key: '{key}', rate_limit: {{{words}}}}}\n")
}

#[test]
fn a_rule_is_added_removed_or_changed() {
    let ten = "unit: minute, requests_per_unit: 10";
    let old = rule("kept", ten) + &rule("gone", ten) + &rule("other", ten);
    let new = rule("new", "unlimited: true")
        + &rule("other", "unit: minute, requests_per_unit: 10, strategy: gcra, burst: 3")
        + &rule("kept", ten);
    let diff = changes(&old, &new);
    assert_eq!(diff.to_string(), "1 added, 1 removed, 1 changed");
    assert_eq!((&*diff.added[0].path, diff.added[0].new.as_deref()), ("d.new", Some("unlimited")));
    assert_eq!(
        (&*diff.removed[0].path, diff.removed[0].old.as_deref()),
        ("d.gone", Some("10 per minute, fixed_window"))
    );
    assert_eq!(&*diff.changed[0].path, "d.other");
    assert_eq!(diff.changed[0].old.as_deref(), Some("10 per minute, fixed_window"));
    assert_eq!(diff.changed[0].new.as_deref(), Some("10 per minute, gcra, burst 3"));
}

#[test]
fn moving_a_rule_within_a_file_changes_nothing() {
    let (a, b) = (
        rule("a", "unit: day, requests_per_unit: 1"),
        rule("b", "unit: day, requests_per_unit: 2"),
    );
    assert!(changes(&(a.clone() + &b), &format!("# moved\n{b}{a}")).is_empty());
}

#[test]
fn names_with_dots_that_make_one_path_are_paired_in_order() {
    let limit = |requests: u32| format!("rate_limit: {{unit: day, requests_per_unit: {requests}}}");
    let first = format!("- {{key: a.b, {}}}\n", limit(1));
    let both = first.clone() + &format!("- {{key: a, descriptors: [{{key: b, {}}}]}}\n", limit(2));
    assert_eq!(changes(&both, &both), Diff::default());
    assert_eq!(changes(&both, &first).to_string(), "0 added, 1 removed, 0 changed");
}

#[test]
fn every_word_of_a_rule_counts() {
    let base = "unit: day, requests_per_unit: 1";
    for other in [
        "unit: day, requests_per_unit: 2",
        "unit: hour, requests_per_unit: 1",
        "per: 1d, requests_per_unit: 1",
        "unit: day, requests_per_unit: 1, name: x",
        "unit: day, requests_per_unit: 1, on_backend_failure: allow",
        "unit: day, requests_per_unit: 1, calendar: {time_zone: UTC}",
    ] {
        let diff = changes(&rule("k", base), &rule("k", other));
        assert_eq!(diff.changed.len(), 1, "{other}");
        assert_ne!(diff.changed[0].old, diff.changed[0].new, "{other}");
    }
    let marked = |mark: &str| format!("- {{key: k, {mark}: true, rate_limit: {{{base}}}}}\n");
    for mark in ["shadow_mode", "quota_mode", "detailed_metric"] {
        assert_eq!(changes(&rule("k", base), &marked(mark)).changed.len(), 1, "{mark}");
    }
}
