//! Every recorded file is accepted or refused as the base language accepts or refuses it.
//!
//! Guarantees: no file of the groups is left out, but for one word that is ours.
//! Leaves out: what is refused for the meaning of its words, which reading letter for letter takes.

use std::fmt::Write as _;

use serde_json::Value;
use sluicegate::config::raw;

/// Kinds of refusal that reading finds; the others need the meaning of the words.
const READING: [&str; 6] = [
    "yaml_syntax",
    "type_mismatch",
    "unknown_key",
    "non_string_key",
    "list_of_non_maps",
    "leaf_type",
];

/// Holds `burst`, which the base language does not have and we do.
const OURS: &str = "bad_configs-059";

#[test]
fn every_refused_file_is_refused_and_the_message_mentions_what_is_wrong() {
    for scenario in scenarios(include_str!("../compat/vectors/bad_configs.json")) {
        let kind = scenario["load"]["kind"].as_str().unwrap();
        if !READING.contains(&kind) || scenario["id"] == OURS {
            continue;
        }
        for (name, bytes) in files(&scenario) {
            let diagnostics = raw::read(&name, &bytes).expect_err(&scenario.to_string());
            mentions_are_made(&scenario, &diagnostics);
        }
    }
}

fn mentions_are_made(scenario: &Value, diagnostics: &[sluicegate::config::diagnostic::Diagnostic]) {
    let mut said = String::new();
    for found in diagnostics {
        let (line, help) = (found.place.line, found.help.as_deref().unwrap_or_default());
        writeln!(said, "line {line} {} {help}", found.message).unwrap();
    }
    for piece in scenario["load"]["mentions"].as_array().into_iter().flatten() {
        assert!(said.contains(piece.as_str().unwrap()), "{piece} in {said} for {scenario}");
    }
    if scenario["load"]["kind"] == "type_mismatch" {
        let line = scenario["load"]["line"].as_u64().map(|line| format!("line {line} "));
        assert!(said.contains(&line.unwrap()), "{said} for {scenario}");
    }
}

#[test]
fn every_accepted_file_is_accepted() {
    for scenario in scenarios(include_str!("../compat/vectors/odd_configs.json")) {
        assert_eq!(scenario["load"], "ok", "{scenario}");
        for (name, bytes) in files(&scenario) {
            let read = raw::read(&name, &bytes);
            assert!(read.is_ok(), "{} {read:#?}", scenario["id"]);
        }
    }
}

fn scenarios(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap()
}

fn files(scenario: &Value) -> Vec<(String, Vec<u8>)> {
    let group = |name: &str| scenario[name].as_object().cloned().unwrap_or_default();
    let text = |value: Value| value.as_str().unwrap().to_owned();
    let plain = group("files").into_iter().map(|(name, value)| (name, text(value).into_bytes()));
    let coded = group("files_base64").into_iter().map(|(name, value)| (name, base64(&text(value))));
    plain.chain(coded).collect()
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut held) = (0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let digit = DIGITS.iter().position(|digit| *digit == byte).unwrap();
        bits = bits << 6 | u32::try_from(digit).unwrap();
        held += 6;
        if 8 <= held {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 0xFF).unwrap());
        }
    }
    bytes
}
