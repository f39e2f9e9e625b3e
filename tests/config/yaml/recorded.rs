//! Tests that the YAML reader accepts and refuses recorded files as envoyproxy/ratelimit does.
//!
//! Guarantees:
//! - All files of the groups `bad_configs` and `odd_configs` are read, except one with a field of
//!   Sluicegate.
//!
//! Not covered:
//! - Refusals that depend on the meaning of a field.

use std::fmt::Write as _;

use serde_json::Value;
use sluicegate::config::raw;

/// Kinds of refusal that the YAML reader finds. The other kinds depend on the meaning of fields.
const READER_KINDS: [&str; 6] = [
    "yaml_syntax",
    "type_mismatch",
    "unknown_key",
    "non_string_key",
    "list_of_non_maps",
    "leaf_type",
];

/// A recorded file with `burst`, a field that only Sluicegate has.
const SLUICEGATE_ONLY: &str = "bad_configs-059";

#[test]
fn recorded_bad_files_are_refused_with_recorded_details() {
    for scenario in scenarios(include_str!("../../../spec/conformance/vectors/bad_configs.json")) {
        let kind = scenario["load"]["kind"].as_str().unwrap();
        if !READER_KINDS.contains(&kind) || scenario["id"] == SLUICEGATE_ONLY {
            continue;
        }
        for (name, bytes) in files(&scenario) {
            let diagnostics = raw::read(&name, &bytes).expect_err(&scenario.to_string());
            assert_mentions(&scenario, &diagnostics.diagnostics);
        }
    }
}

fn assert_mentions(scenario: &Value, diagnostics: &[sluicegate::config::diagnostic::Diagnostic]) {
    let mut shown = String::new();
    for found in diagnostics {
        let (line, help) = (found.location.line, found.help.as_deref().unwrap_or_default());
        writeln!(shown, "line {line} {} {help}", found.message).unwrap();
    }
    for piece in scenario["load"]["mentions"].as_array().into_iter().flatten() {
        assert!(shown.contains(piece.as_str().unwrap()), "{piece} in {shown} for {scenario}");
    }
    if scenario["load"]["kind"] == "type_mismatch" {
        let line = scenario["load"]["line"].as_u64().map(|line| format!("line {line} "));
        assert!(shown.contains(&line.unwrap()), "{shown} for {scenario}");
    }
}

#[test]
fn unusual_files_accepted_by_envoyproxy_ratelimit_are_accepted() {
    for scenario in scenarios(include_str!("../../../spec/conformance/vectors/odd_configs.json")) {
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
    let (mut bits, mut bit_count) = (0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let digit = DIGITS.iter().position(|digit| *digit == byte).unwrap();
        bits = bits << 6 | u32::try_from(digit).unwrap();
        bit_count += 6;
        if 8 <= bit_count {
            bit_count -= 8;
            bytes.push(u8::try_from(bits >> bit_count & 0xFF).unwrap());
        }
    }
    bytes
}
