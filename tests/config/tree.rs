//! Tests of rule lookup for a descriptor, against examples from envoyproxy/ratelimit and a simple
//! model.

mod long_values;
mod networks;

use std::collections::HashMap;

use proptest::prelude::*;
use sluicegate::config::diagnostic::Spanned;
use sluicegate::config::explain::explain;
use sluicegate::config::raw::{Descriptor, RateLimit};
use sluicegate::config::tree::trace::{CandidateStatus, LookupOutcome};
use sluicegate::kernel::units::{Hits, Nanos};

use super::{find, load_clean, requests, resolve_descriptors};

fn rules(rules: &[(&str, &str, u32)]) -> String {
    let rule = |&(key, value, requests): &(&str, &str, u32)| {
        format!(
            "- {{key: '{key}', value: '{value}', rate_limit: {{unit: day, requests_per_unit: {requests}}}}}\n"
        )
    };
    rules.iter().map(rule).collect()
}

fn assert_requests(config: &sluicegate::config::Config, table: &[(&str, Option<u32>)]) {
    for &(descriptor, expected) in table {
        assert_eq!(requests(config, descriptor), expected, "{descriptor}");
    }
}

#[test]
fn lookup_prefers_exact_value_then_first_pattern_then_bare_key() {
    let text = rules(&[("p", "a*", 11), ("p", "a*b", 22), ("p", "abc", 33), ("p", "", 44)]);
    let (config, _) =
        super::load(&[("a.yaml", &format!("domain: d\ndescriptors:\n{text}"))], false).unwrap();
    assert_requests(
        &config,
        &[("p=ab", Some(11)), ("p=abc", Some(33)), ("p=zz", Some(44)), ("p=", Some(44))],
    );
}

#[test]
fn value_of_one_star_matches_every_value_including_empty() {
    let text = rules(&[("w", "*", 4), ("w", "", 5)]);
    let (config, _) =
        super::load(&[("a.yaml", &format!("domain: d\ndescriptors:\n{text}"))], false).unwrap();
    assert_requests(&config, &[("w=x", Some(4)), ("w=", Some(4))]);
}

#[test]
fn stars_in_a_pattern_match_anywhere_in_a_value() {
    let config = load_clean(&rules(&[("k", "a*c", 1), ("k", "bar*b", 2), ("k", "foo*bar*baz", 3)]));
    assert_requests(
        &config,
        &[
            ("k=ac", Some(1)),
            ("k=abc", Some(1)),
            ("k=barb", Some(2)),
            ("k=foobarbaz", Some(3)),
            ("k=foo1bar2baz", Some(3)),
            ("k=ac!", None),
            ("k=a", None),
            ("k=bara", None),
            ("k=xbarb", None),
            ("k=bab", None),
            ("k=foobaz", None),
            ("k=bar1baz", None),
            ("k=foobarXbazY", None),
            // The texts before and after the star do not overlap: `bar*b` needs at least `barb`.
            ("k=bar", None),
        ],
    );
}

#[test]
fn texts_around_a_star_do_not_overlap_in_the_value() {
    let config = load_clean(&rules(&[("k", "aba*aba", 1)]));
    assert_requests(
        &config,
        &[("k=aba", None), ("k=ababa", None), ("k=abaaba", Some(1)), ("k=abaXaba", Some(1))],
    );
}

#[test]
fn lookup_does_not_try_a_pattern_after_an_exact_match() {
    let config = load_clean(
        "- key: n\n  value: x\n  descriptors:\n  - {key: c, value: '1', rate_limit: {unit: day, requests_per_unit: 5}}\n\
         - key: n\n  descriptors:\n  - {key: c, rate_limit: {unit: day, requests_per_unit: 6}}\n\
        \x20 - {key: e, rate_limit: {unit: day, requests_per_unit: 7}}\n",
    );
    assert_requests(
        &config,
        &[
            ("n=x,c=1", Some(5)),
            ("n=x,c=2", None),
            ("n=x,e=1", None),
            ("n=y,c=2", Some(6)),
            ("n=y,e=", Some(7)),
        ],
    );
}

#[test]
fn rules_match_entries_only_at_their_depth_and_in_order() {
    let config = load_clean(
        "- key: par\n  rate_limit: {unit: day, requests_per_unit: 8}\n  descriptors:\n\
        \x20 - {key: kid, rate_limit: {unit: day, requests_per_unit: 9}}\n",
    );
    assert_requests(
        &config,
        &[
            ("", None),
            ("par=", Some(8)),
            ("par=,kid=", Some(9)),
            ("par=,other=", None),
            ("par=,kid=,x=", None),
            ("kid=,par=", None),
        ],
    );
}

#[test]
fn rule_without_a_limit_exempts_its_value() {
    let config = load_clean(&format!("- {{key: k, value: w}}\n{}", rules(&[("k", "", 2)])));
    assert_requests(&config, &[("k=w", None), ("k=v", Some(2))]);
}

#[test]
fn keys_and_values_are_case_sensitive() {
    let config = load_clean(&rules(&[("Case", "Val", 1)]));
    assert_requests(&config, &[("Case=Val", Some(1)), ("case=Val", None), ("Case=val", None)]);
}

#[test]
fn key_and_value_match_as_one_joined_string() {
    let config = load_clean(&rules(&[("a", "b_c", 9)]));
    assert_requests(
        &config,
        &[("a=b_c", Some(9)), ("a_b=c", Some(9)), ("a_b_c=zzz", Some(9)), ("a=b", None)],
    );
}

#[test]
fn key_ending_in_underscore_matches_an_empty_value() {
    let config = load_clean(&rules(&[("k_", "", 1), ("k", "", 2)]));
    assert_requests(&config, &[("k=", Some(1)), ("k=v", Some(2)), ("k_=v", Some(1))]);
}

#[test]
fn patterns_match_across_the_key_value_boundary() {
    let config = load_clean(&rules(&[("path", "*", 1), ("a", "b_*", 2), ("k", "foo*", 3)]));
    assert_requests(
        &config,
        &[
            ("path_info=y", Some(1)),
            ("a_b=c", Some(2)),
            ("a_b_c=d", Some(2)),
            ("k_foo=x", Some(3)),
            ("k_fo=x", None),
        ],
    );
}

#[test]
fn names_differing_in_one_character_are_distinguished() {
    // Names of one-byte and two-byte letters, so that any byte index at which the lookup splits a
    // name may fall inside a letter.
    let text = |letter: char, odd: usize, len: usize| -> String {
        (0..len).map(|at| if at == odd { 'x' } else { letter }).collect()
    };
    let letters =
        || ['a', 'é'].into_iter().flat_map(|letter| (1..40).map(move |len| (letter, len)));
    // Every value has a rule at the top level; every second one also has a rule below the rule `p`.
    let values: Vec<String> = letters().map(|(letter, len)| text(letter, len, len)).collect();
    let named =
        |value: &String| node("k", value, Some(u32::try_from(value.len()).unwrap()), Vec::new());
    let mut top: Vec<Descriptor> = values.iter().map(named).collect();
    top.push(node("p", "", None, values.iter().step_by(2).map(named).collect()));
    let config = resolve_descriptors(top.clone()).unwrap();
    let tree = &config.domains["d"].tree;
    for (letter, len) in letters() {
        for odd in 0..=len {
            let entry = ("k".to_owned(), text(letter, odd, len));
            for entries in [vec![entry.clone()], vec![("p".to_owned(), "v".to_owned()), entry]] {
                let found = tree.lookup(entries.iter().map(|(key, value)| (&**key, &**value)));
                let found = found.map(|found| found.rule.limits[0].requests);
                assert_eq!(found, model_lookup(&top, &entries), "{entries:?}");
            }
        }
    }
}

fn shared(descriptor: &str, rule: &str) -> Vec<(usize, String)> {
    let text = format!("domain: d\ndescriptors:\n{rule}");
    let (config, _) = super::load(&[("a.yaml", &text)], false).unwrap();
    let found = find(&config, descriptor).unwrap();
    found.shared.iter().map(|(at, text)| (*at, text.clone().into_owned())).collect()
}

#[test]
fn share_threshold_counts_all_values_under_the_pattern() {
    let rule = |key: &str, value: &str| {
        format!(
            "- {{key: '{key}', value: '{value}', share_threshold: true, rate_limit: {{unit: day, requests_per_unit: 3}}}}\n"
        )
    };
    assert_eq!(shared("f=f/1", &rule("f", "f/*")), [(0, "f/*".to_owned())]);
    // The pattern does not start with the request's key, so the counter key has the whole pattern.
    assert_eq!(shared("qqq=x", &rule("q*", "")), [(0, "q*".to_owned())]);
    assert_eq!(shared("f_y=z", &rule("f", "*")), [(0, "f_*".to_owned())]);
    // The request's value equals the text of the pattern: an exact match, whose counter is not
    // shared.
    assert_eq!(shared("f=f/*", &rule("f", "f/*")), []);
}

#[test]
fn share_threshold_applies_to_each_level_separately() {
    let rule = "- key: n\n  value: x*\n  share_threshold: true\n  descriptors:\n\
                \x20 - {key: l, value: 'y*z', rate_limit: {unit: day, requests_per_unit: 1}}\n";
    assert_eq!(shared("n=xx,l=y1z", rule), [(0, "x*".to_owned())]);
    let rule = "- key: n\n  value: x*\n  descriptors:\n\
                \x20 - {key: l, value: 'y*z', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}\n";
    assert_eq!(shared("n=xx,l=y1z", rule), [(1, "y*z".to_owned())]);
}

#[test]
fn lookup_handles_ten_thousand_levels() {
    let mut node = node("k", "", Some(7), Vec::new());
    for _ in 1..10_000 {
        node = self::node("k", "", None, vec![node]);
    }
    // Never drops the parsed tree: dropping it is recursive and would overflow the stack.
    let file = std::mem::ManuallyDrop::new(vec![node]);
    let config = resolve_descriptors(std::mem::ManuallyDrop::into_inner(file)).unwrap();
    let tree = &config.domains["d"].tree;
    assert!(tree.lookup(vec![("k", "v"); 10_000]).is_some());
    assert!(tree.lookup(vec![("k", "v"); 9_999]).is_none());
    assert!(tree.lookup(vec![("k", "v"); 10_001]).is_none());
}

#[test]
fn match_trace_lists_every_candidate_rule_with_its_result() {
    let config = load_clean(&rules(&[("p", "b*", 1), ("p", "a*", 2), ("p", "", 3)]));
    let trace = config.domains["d"].tree.trace_lookup(&[("p", "abc")]);
    let tried: Vec<_> =
        trace.steps[0].candidates.iter().map(|one| (&*one.name, one.status)).collect();
    assert_eq!(
        tried,
        [
            ("p_abc", CandidateStatus::Absent),
            ("p_b*", CandidateStatus::Absent),
            ("p_a*", CandidateStatus::Taken),
            ("p", CandidateStatus::Outranked),
        ]
    );
    assert!(matches!(trace.outcome, LookupOutcome::Found(_)));
}

/// A rule without a limit charges no hits, so the field `replaces` has no effect on it.
#[test]
fn unlimited_rule_is_never_replaced_but_replaces_others() {
    let config = load_clean(
        "- {key: a, rate_limit: {unlimited: true, name: free}}\n\
         - {key: b, rate_limit: {unit: day, requests_per_unit: 1, name: paid, replaces: [{name: free}]}}\n\
         - {key: c, rate_limit: {unlimited: true, replaces: [{name: paid}]}}\n",
    );
    let replacements = |keys: &[&'static str]| {
        let descriptors: Vec<_> = keys.iter().map(|key| vec![(*key, "v")]).collect();
        let explained = explain(&config, "d", &descriptors, Hits(1), Nanos(0));
        let replaced = explained.descriptors.into_iter().map(|one| one.rule.unwrap().replaced_by);
        replaced.collect::<Vec<_>>()
    };
    assert_eq!(replacements(&["a", "b"]), [None, None]);
    assert_eq!(replacements(&["b", "c"]), [Some("d.c".to_owned()), None]);
}

// ---- the model: one map for each level, with keys `key_value`, as envoyproxy/ratelimit documents
// ----

fn spanned<T>(value: T) -> Spanned<T> {
    Spanned { value, span: sluicegate::config::diagnostic::Span { start: 0, end: 1 } }
}

fn node(key: &str, value: &str, limit: Option<u32>, descriptors: Vec<Descriptor>) -> Descriptor {
    let rate_limit = limit.map(|requests| RateLimit {
        requests_per_unit: spanned(requests),
        unit: spanned("day".to_owned()),
        ..RateLimit::default()
    });
    let (key, value) = (spanned(key.to_owned()), spanned(value.to_owned()));
    Descriptor { key, value, rate_limit, descriptors, ..Descriptor::default() }
}

fn composite(node: &Descriptor) -> String {
    match node.value.value.as_str() {
        "" => node.key.value.clone(),
        value => format!("{}_{value}", node.key.value),
    }
}

/// Returns `true` if `pattern` matches `subject`. Tries every split, because `*` matches any text.
fn model_matches(pattern: &str, subject: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == subject,
        Some((literal, rest)) => subject.strip_prefix(literal).is_some_and(|subject| {
            let ends = (0..=subject.len()).filter(|&at| subject.is_char_boundary(at));
            ends.into_iter().any(|at| model_matches(rest, &subject[at..]))
        }),
    }
}

fn model_lookup(level: &[Descriptor], entries: &[(String, String)]) -> Option<u32> {
    let ((key, value), rest) = entries.split_first()?;
    let joined = format!("{key}_{value}");
    let nodes: HashMap<String, &Descriptor> =
        level.iter().map(|node| (composite(node), node)).collect();
    let wildcard = || {
        let mut patterns = level.iter().filter(|node| composite(node).contains('*'));
        patterns.find(|node| model_matches(&composite(node), &joined))
    };
    let node = nodes.get(&joined).copied().or_else(wildcard).or_else(|| nodes.get(key).copied())?;
    match rest {
        [] => node.rate_limit.as_ref().map(|limit| limit.requests_per_unit.value),
        _ => model_lookup(&node.descriptors, rest),
    }
}

/// Removes descriptors with an equal `key_value` from each level, and numbers the limits.
fn sound_level(level: Vec<Descriptor>, next: &mut u32) -> Vec<Descriptor> {
    let mut seen = std::collections::HashSet::new();
    let level = level.into_iter().filter(|node| seen.insert(composite(node)));
    level
        .map(|mut node| {
            if let Some(limit) = &mut node.rate_limit {
                *next += 1;
                limit.requests_per_unit.value = *next;
            }
            node.descriptors = sound_level(node.descriptors, next);
            node
        })
        .collect()
}

/// Pattern of random keys, with shared prefixes and suffixes. Some are longer than the suffix that
/// a slot of the lookup table stores.
const KEY: &str = "(long-key)?[ab_*]{1,3}";
const VALUE: &str = "[ab_*]{0,3}(-of-customer)?[ab*]{0,1}";

fn any_level() -> impl Strategy<Value = Vec<Descriptor>> {
    let limit = prop::option::of(Just(0));
    let leaf = (KEY, VALUE, limit.clone())
        .prop_map(|(key, value, limit)| node(&key, &value, limit, Vec::new()));
    let any_node = leaf.prop_recursive(3, 24, 4, move |below| {
        (KEY, VALUE, limit.clone(), prop::collection::vec(below, 0..4))
            .prop_map(|(key, value, limit, below)| node(&key, &value, limit, below))
    });
    prop::collection::vec(any_node, 0..8)
}

fn any_entries() -> impl Strategy<Value = Vec<(String, String)>> {
    let entry = prop_oneof![(KEY, VALUE), ("[ab_*]{0,3}", "[ab_*]{0,4}")];
    prop::collection::vec(entry, 0..4)
}

proptest! {
    // proptest prints a failing input in full, so no seed file is written.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn rule_lookup_and_match_trace_agree_with_the_model(
        level in any_level(),
        lookups in prop::collection::vec(any_entries(), 64),
    ) {
        let level = sound_level(level, &mut 0);
        let config = resolve_descriptors(level.clone()).unwrap();
        let tree = &config.domains["d"].tree;
        for entries in lookups {
            let borrowed: Vec<_> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
            let found = tree.lookup(borrowed.iter().copied());
            let found = found.map(|found| found.rule.limits[0].requests);
            prop_assert_eq!(found, model_lookup(&level, &entries), "{:?}", entries);
            let traced = match tree.trace_lookup(&borrowed).outcome {
                LookupOutcome::Found(found) => Some(found.rule.limits[0].requests),
                _ => None,
            };
            prop_assert_eq!(found, traced);
        }
    }
}
