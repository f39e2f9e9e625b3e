//! Files meant to break their reader.
//!
//! Guarantees: any bytes give an answer, never a panic, in time and memory bounded by their length.
//! Random tests print their input when they fail.

use std::fmt::Write as _;

use proptest::prelude::*;
use sluicegate::config::diagnostic::{Code, Counts};
use sluicegate::config::raw;

fn codes(text: &str) -> Vec<Code> {
    match raw::read("a.yaml", text.as_bytes()) {
        Ok((_, _, warnings)) => warnings.iter().map(|one| one.code).collect(),
        Err(found) => found.iter().map(|one| one.code).collect(),
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
fn trees_of_255_levels_are_read_and_deeper_ones_refused() {
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
fn nesting_through_aliases_is_counted_too() {
    let mut text = "domain: d\nmetadata:\n  a0: &a0 [x]\n".to_owned();
    let (open, close) = ("[".repeat(50), "]".repeat(50));
    for level in 1..12 {
        writeln!(text, "  a{level}: &a{level} {open}*a{}{close}", level - 1).unwrap();
    }
    assert_eq!(codes(&text), [Code::TooDeep]);
}

#[test]
fn aliases_that_multiply_are_refused_before_they_do() {
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
fn aliases_within_measure_in_the_file_but_not_in_what_is_read_are_refused() {
    let mut text = "domain: d\nmetadata: [&a {key: k, descriptors: [".to_owned();
    text += &"{key: x, value: y}, ".repeat(200);
    text += "]}]\ndescriptors: [";
    text += &"*a, ".repeat(10);
    text += "]\n";
    assert_eq!(codes(&text), [Code::EndlessAlias]);
}

#[test]
fn a_merge_key_cannot_contain_itself() {
    let text = "domain: d\ndescriptors:\n- &a\n  key: k\n  <<: *a\n";
    assert_eq!(codes(text), [Code::EndlessAlias]);
}

#[test]
fn a_file_beyond_64_mebibytes_is_refused_unread() {
    let found = raw::read("a.yaml", &vec![b'#'; 64 * 1024 * 1024 + 1]).unwrap_err();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].code, Code::TooLarge);
}

#[test]
fn of_a_hundred_thousand_faults_the_first_two_hundred_are_told_errors_before_warnings() {
    let repeated = "- {key: a, key: b}\n".repeat(100_000);
    let text = format!("domain: d\ndescriptors:\n{repeated}- {{bogus: 1}}\n");
    let found = raw::read("a.yaml", text.as_bytes()).unwrap_err();
    assert_eq!(found.len(), 200);
    assert_eq!(found.last().unwrap().code, Code::UnknownKey);
    // The error and 199 of the warnings are shown.
    let (all, more) = (Counts { errors: 1, warnings: 100_000, notes: 0 }, 100_000 - 199);
    assert_eq!((found.counts(), found.more()), (all, Counts { warnings: more, ..all_of(0) }));
    assert!(found.to_string().ends_with("\nand 99801 more warnings, not shown"));
}

#[test]
fn what_is_cut_is_counted_however_much_it_is() {
    for errors in [199, 200, 201, 999, 1_000, 1_001, 5_000] {
        let text = format!("domain: d\ndescriptors:\n{}", "- {bogus: 1}\n".repeat(errors));
        let found = raw::read("a.yaml", text.as_bytes()).unwrap_err();
        assert_eq!(found.len(), errors.min(200));
        assert_eq!(found.counts(), all_of(errors));
        assert_eq!(found.more(), all_of(errors.saturating_sub(200)));
    }
}

fn all_of(errors: usize) -> Counts {
    Counts { errors, ..Counts::default() }
}

/// Pieces that meet in ways nobody would write.
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
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        drop(raw::read("a.yaml", &bytes));
    }

    #[test]
    fn any_words_are_answered(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60)) {
        drop(raw::read("a.yaml", pieces.concat().as_bytes()));
    }

    #[test]
    fn a_sound_file_with_a_piece_out_of_place_is_answered(
        at in 0..SOUND.len(), end in 0..20_usize, piece in prop::sample::select(PIECES),
    ) {
        let (head, tail) = (&SOUND[..at], &SOUND[(at + end).min(SOUND.len())..]);
        drop(raw::read("a.yaml", format!("{head}{piece}{tail}").as_bytes()));
    }
}

/// ASCII only, so that it can be cut anywhere.
const SOUND: &str = "domain: d
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
