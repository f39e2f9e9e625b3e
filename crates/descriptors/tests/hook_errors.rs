//! Errors of hooks have no words that only the program knows.

use proptest::prelude::*;
use sluicegate_descriptors::Hooks;

fn error(descriptors: &str) -> String {
    let json = format!(r#"[{{"name": "edge", "domain": "d", "descriptors": {descriptors}}}]"#);
    Hooks::parse(&json).map_or_else(|error| error.to_string(), |_| "no error".to_owned())
}

#[test]
fn errors_of_actions_name_the_field_and_the_fix() {
    let action = "[0].descriptors[0][0]";
    for (descriptors, expected) in [
        (
            r#"[[{"remote_address": null}]]"#,
            format!(
                "`{action}.remote_address` has no value; write `remote_address: {{}}`, with the fields of this action"
            ),
        ),
        (
            r#"[["remote_address"]]"#,
            format!(
                "`{action}.remote_address` has no fields; write `remote_address: {{}}`, with the fields of this action"
            ),
        ),
        (
            r#"[[{"remote_address": true}]]"#,
            format!(
                "`{action}.remote_address` is `true`; write `remote_address: {{}}`, with the fields of this action"
            ),
        ),
        (
            r#"[[{"remote_address": {"v4": 1}}]]"#,
            format!(
                "`{action}.remote_address.v4` is an unknown field; remove it: this block has no fields"
            ),
        ),
        (
            r#"[[{"masked_remote_address": {"v4_prefix_mask_len": 33}}]]"#,
            format!(
                "`{action}.masked_remote_address.v4_prefix_mask_len` has an invalid length; write a whole number from 0 to 32"
            ),
        ),
        (
            r#"[[{"masked_remote_address": {"v6_prefix_mask_len": "64"}}]]"#,
            format!(
                "`{action}.masked_remote_address.v6_prefix_mask_len` has an invalid length; write a whole number from 0 to 128"
            ),
        ),
        (
            r#"[[{"generic_key": {}, "remote_address": {}}]]"#,
            format!(
                "`{action}` is a block of fields; write one action, such as `remote_address: {{}}`"
            ),
        ),
        (
            r#"[[{"request_headers": {"header_name": "x"}}]]"#,
            format!("`{action}.request_headers.descriptor_key` is missing; add it"),
        ),
        (
            r#"{"remote_address": {}}"#,
            "`[0].descriptors` is a block of fields; write a list".to_owned(),
        ),
        (
            r#"[{"remote_address": {}}]"#,
            "`[0].descriptors[0]` is a block of fields; write a list".to_owned(),
        ),
        ("[[7]]", format!("`{action}` is `7`; write one action, such as `remote_address: {{}}`")),
    ] {
        assert_eq!(error(descriptors), expected, "{descriptors}");
    }
    assert!(
        error(r#"[[{"remote_adress": {}}]]"#)
            .contains("`remote_adress`; write one of `generic_key`")
    );
}

const VALID: &str = r#"[{"name": "edge", "domain": "d", "path": "raw", "descriptors": [[
    {"masked_remote_address": {"v4_prefix_mask_len": 24}},
    {"header_value_match": {"descriptor_value": "v", "expect_match": true, "headers": [
        {"name": "h", "range_match": {"start": 1, "end": 2}}]}},
    {"metadata": {"descriptor_key": "k", "metadata_key": {"key": "n", "path": [{"key": "a"}]}}}]]}]"#;

const VALUES: [&str; 8] = ["null", "true", "7", "1.5", "-1", r#""x""#, "[]", "{}"];

/// Words of the program or of its library. "expected" starts serde's own texts.
const INNER_WORDS: [&str; 11] = [
    "variant",
    "struct",
    "enum",
    "Action",
    "sequence",
    "tuple",
    "a map",
    "expected",
    "u8",
    "i64",
    "invalid type",
];

/// Returns `json` with the `at`-th of its values replaced.
fn replace(json: &str, at: usize, by: &str) -> String {
    let starts: Vec<_> = json.match_indices([':', '[', ',']).map(|(start, _)| start + 1).collect();
    let start = starts[at % starts.len()];
    let value = serde_json::Deserializer::from_str(&json[start..]).into_iter::<serde_json::Value>();
    let mut value = value;
    let length = value.next().map_or(0, |_| value.byte_offset());
    format!("{} {by} {}", &json[..start], &json[start + length..])
}

proptest! {
    #[test]
    fn errors_have_no_words_of_the_program(at in 0..60_usize, by in proptest::sample::select(&VALUES)) {
        let json = replace(VALID, at, by);
        if let Err(error) = Hooks::parse(&json) {
            let text = error.to_string();
            for word in INNER_WORDS {
                prop_assert!(!text.contains(word), "{}: {}", json, text);
            }
        }
    }
}
