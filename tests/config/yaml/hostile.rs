//! Tests of limits files that are meant to crash or exhaust the YAML reader.
//!
//! Guarantees:
//! - Any bytes give a configuration or findings, never a panic.
//! - Time and memory are bounded by the length of the file.
//! - A failing random test prints its input.

use std::fmt::Write as _;

use proptest::prelude::*;
use sluicegate::config::diagnostic::{Code, SeverityCounts};
use sluicegate::config::raw;

fn codes(text: &str) -> Vec<Code> {
    match raw::read("a.yaml", text.as_bytes()) {
        Ok((_, _, warnings)) => warnings.iter().map(|one| one.code).collect(),
        Err(found) => found.diagnostics.iter().map(|one| one.code).collect(),
    }
}

fn descriptors(depth: usize) -> String {
    let mut text = "domain: d".to_owned();
    for _ in 0..depth {
        text += ", descriptors: [{key: k";
    }
    format!("{{{text}{}}}", "}]".repeat(depth))
}

#[test]
fn trees_deeper_than_255_levels_are_refused() {
    assert_eq!(codes(&descriptors(255)), []);
    assert_eq!(codes(&descriptors(256)), [Code::TooDeep]);
}

#[test]
fn a_hundred_thousand_open_brackets_are_refused() {
    for open in ["[", "{a: ", "- ", "[[{a: ", "? ", "- - ? "] {
        assert_eq!(codes(&format!("metadata: {}", open.repeat(100_000))).len(), 1, "{open}");
        assert_eq!(codes(&open.repeat(100_000)).len(), 1, "{open}");
    }
}

#[test]
fn nesting_through_yaml_aliases_counts_as_depth() {
    let mut text = "domain: d\nmetadata:\n  a0: &a0 [x]\n".to_owned();
    let (open, close) = ("[".repeat(50), "]".repeat(50));
    for level in 1..12 {
        writeln!(text, "  a{level}: &a{level} {open}*a{}{close}", level - 1).unwrap();
    }
    assert_eq!(codes(&text), [Code::TooDeep]);
}

#[test]
fn exponentially_expanding_aliases_are_refused() {
    for (open, close) in [("[", "]"), ("{<<: [", "]}")] {
        let mut text = "domain: d\nmetadata:\n  a0: &a0 {x: y}\n".to_owned();
        for level in 1..60 {
            let aliases = format!("*a{0}, *a{0}, *a{0}, *a{0}", level - 1);
            writeln!(text, "  a{level}: &a{level} {open}{aliases}{close}").unwrap();
        }
        assert_eq!(codes(&text), [Code::EndlessAlias], "{open}");
    }
}

#[test]
fn alias_expansion_limit_also_applies_to_the_converted_file() {
    let mut text = "domain: d\nmetadata: [&a {key: k, descriptors: [".to_owned();
    text += &"{key: x, value: y}, ".repeat(200);
    text += "]}]\ndescriptors: [";
    text += &"*a, ".repeat(10);
    text += "]\n";
    assert_eq!(codes(&text), [Code::EndlessAlias]);
}

#[test]
fn self_referencing_merge_key_is_refused() {
    let text = "domain: d\ndescriptors:\n- &a\n  key: k\n  <<: *a\n";
    assert_eq!(codes(text), [Code::EndlessAlias]);
}

#[test]
fn files_above_64_mib_are_refused() {
    let found = raw::read("a.yaml", &vec![b'#'; 64 * 1024 * 1024 + 1]).unwrap_err().diagnostics;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].code, Code::TooLarge);
}

#[test]
fn findings_are_capped_at_200_with_errors_first() {
    let repeated = "- {key: a, key: b}\n".repeat(100_000);
    let text = format!("domain: d\ndescriptors:\n{repeated}- {{bogus: 1}}\n");
    let found = raw::read("a.yaml", text.as_bytes()).unwrap_err().diagnostics;
    assert_eq!(found.len(), 200);
    assert_eq!(found.last().unwrap().code, Code::UnknownKey);
    // Of one error and 100,000 warnings, the error and 199 warnings are reported.
    let (all, more) = (SeverityCounts { errors: 1, warnings: 100_000, notes: 0 }, 100_000 - 199);
    assert_eq!(
        (found.counts(), found.not_shown()),
        (all, SeverityCounts { warnings: more, ..error_counts(0) })
    );
    assert!(found.to_string().ends_with("\nand 99801 more warnings, not shown"));
}

#[test]
fn findings_beyond_200_are_only_counted() {
    for errors in [199, 200, 201, 999, 1_000, 1_001, 5_000] {
        let text = format!("domain: d\ndescriptors:\n{}", "- {bogus: 1}\n".repeat(errors));
        let found = raw::read("a.yaml", text.as_bytes()).unwrap_err().diagnostics;
        assert_eq!(found.len(), errors.min(200));
        assert_eq!(found.counts(), error_counts(errors));
        assert_eq!(found.not_shown(), error_counts(errors.saturating_sub(200)));
    }
}

fn error_counts(errors: usize) -> SeverityCounts {
    SeverityCounts { errors, ..SeverityCounts::default() }
}

/// YAML fragments that the random tests concatenate.
const PIECES: &[&str] = &[
    "domain",
    "descriptors",
    "key",
    "value",
    "rate_limit",
    "unit",
    "replaces",
    "name",
    "metadata",
    "shadow_mode",
    "defaults",
    "calendar",
    "burst",
    "bogus",
    ": ",
    ":",
    "\n",
    "\n  ",
    "\n- ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "&a ",
    "*a",
    "&b ",
    "*b",
    "<<",
    "<<: *a",
    "? ",
    "| ",
    "> ",
    "'",
    "\"",
    "#",
    " # x\n",
    "!!binary ",
    "!!int ",
    "!x ",
    "! ",
    "!!str ",
    "%YAML 1.1\n",
    "---\n",
    "...\n",
    "~",
    "1.5",
    "08",
    "0x1F",
    "-.inf",
    "yes",
    "\t",
    "\r",
    "\r\n",
    "\u{85}",
    "\u{2028}",
    "é",
    "\u{FEFF}",
    "\\x41",
    "day",
    "5",
    "=",
    "*",
    "@",
    "`",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        drop(raw::read("a.yaml", &bytes));
    }

    #[test]
    fn random_fragments_never_panic(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60),
    ) {
        drop(raw::read("a.yaml", pieces.concat().as_bytes()));
    }

    #[test]
    fn mutated_valid_file_never_panics(
        at in 0..VALID_FILE.len(), end in 0..20_usize, piece in prop::sample::select(PIECES),
    ) {
        let (head, tail) = (&VALID_FILE[..at], &VALID_FILE[(at + end).min(VALID_FILE.len())..]);
        drop(raw::read("a.yaml", format!("{head}{piece}{tail}").as_bytes()));
    }
}

/// A valid limits file. It is ASCII, so that the random tests may split it at every byte index.
const VALID_FILE: &str = "domain: d
metadata: {parked: &rl {unit: day, requests_per_unit: 3}}
descriptors:
- &base
  key: a
  value: 'x*'
  share_threshold: true
  rate_limit: *rl
  metadata: {tier: gold, list: [1, {y: 2}], 0x10: !!binary aGk=}
  descriptors:
  - key: b
    rate_limit: {<<: *rl, name: n, replaces: [{name: m}]}
- <<: *base
  key: c
";
