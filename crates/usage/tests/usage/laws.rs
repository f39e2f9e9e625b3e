//! The reader finds the same usage as a parser of the whole text.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::oracle::Found;
use crate::{EVENTS, JSON, read_chunks};

const KEYS: &[&str] = &[
    "usage",
    "usage",
    "usage",
    "message",
    "response",
    "usageMetadata",
    "model",
    "modelVersion",
    "prompt_tokens",
    "completion_tokens",
    "input_tokens",
    "output_tokens",
    "prompt_tokens_details",
    "input_tokens_details",
    "cached_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "promptTokenCount",
    "toolUsePromptTokenCount",
    "cachedContentTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "choices",
    "delta",
];

const SCALARS: &[&str] = &[
    "0",
    "7",
    "12",
    "345",
    "9007199254740991",
    "9007199254740992",
    "18446744073709551616",
    "-1",
    "-0",
    "1.0",
    "1e2",
    "1e400",
    "null",
    "true",
    "false",
    "\"\"",
    "\"m\"",
    r#""a\"b""#,
    r#""\u006d\n""#,
    r#""\ud83d\ude00""#,
    r#""{\"usage\":{\"prompt_tokens\":1}}""#,
    r#""\\""#,
    r#""\\\"},""#,
];

/// A quoted key, sometimes with escapes.
fn key() -> impl Strategy<Value = String> {
    let escape_first = |key: &str| {
        let (first, rest) = key.split_at(1);
        format!("\"\\u{:04x}{rest}\"", u32::from(first.chars().next().unwrap()))
    };
    prop_oneof![
        8 => select(KEYS).prop_map(|key| format!("\"{key}\"")),
        1 => select(KEYS).prop_map(escape_first),
        1 => any::<String>().prop_map(|key| serde_json::to_string(&key).unwrap()),
    ]
}

fn space() -> impl Strategy<Value = &'static str> {
    prop_oneof![4 => Just(""), 1 => select(&[" ", "\t", "\n", "\r\n "][..])]
}

/// The text of any JSON value; objects mostly have known keys, and duplicates.
fn json() -> impl Strategy<Value = String> {
    let text = any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap());
    let long = (250_usize..260).prop_map(|length| format!("\"{}\"", "x".repeat(length)));
    let leaf = prop_oneof![12 => select(SCALARS).prop_map(str::to_owned), 1 => text, 1 => long];
    leaf.prop_recursive(6, 80, 8, |inner| {
        let member = (space(), key(), space(), inner.clone(), space())
            .prop_map(|(a, key, b, value, c)| format!("{a}{key}{b}:{a}{value}{c}"));
        prop_oneof![
            5 => vec(member, 0..8).prop_map(|members| format!("{{{}}}", members.join(","))),
            1 => (vec(inner, 0..4), space()).prop_map(|(items, a)| format!("[{a}{}]", items.join(","))),
        ]
    })
}

/// The text of an object with these members.
fn object(member: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    vec(member, 0..6).prop_map(|members| format!("{{{}}}", members.join(",")))
}

fn member(
    keys: &'static [&'static str],
    value: impl Strategy<Value = String>,
) -> impl Strategy<Value = String> {
    (select(keys), value).prop_map(|(key, value)| format!("\"{key}\":{value}"))
}

/// The text of a reply with counts at known paths, from several providers at once.
fn reply() -> impl Strategy<Value = String> {
    let count =
        || prop_oneof![3 => select(&SCALARS[..4]), 1 => select(SCALARS)].prop_map(str::to_owned);
    let details = member(&KEYS[12..14], object(member(&["cached_tokens"], count())));
    let usage = object(prop_oneof![3 => member(&KEYS[8..], count()), 1 => details]).boxed();
    let inner = object(member(&["usage", "model"], usage.clone()));
    object(member(&KEYS[2..8], prop_oneof![3 => usage, 1 => inner, 1 => count()]))
}

/// Splits a body into chunks of the given sizes, in turn.
fn chunks<'b>(mut body: &'b [u8], sizes: &[usize]) -> Vec<&'b [u8]> {
    let mut chunks = Vec::new();
    for &size in sizes.iter().cycle() {
        let (chunk, rest) = body.split_at(size.min(body.len()));
        chunks.push(chunk);
        body = rest;
        if body.is_empty() {
            break;
        }
    }
    chunks
}

/// One event with the text in several lines, after other lines.
fn event(text: &str, line_end: &str) -> String {
    let lines = text.split(['\r', '\n']).map(|line| format!("data: {line}{line_end}"));
    format!(": comment{line_end}event: x{line_end}{}{line_end}", lines.collect::<String>())
}

proptest! {
    #[test]
    fn a_body_has_the_usage_that_a_parser_finds(
        body in prop_oneof![json(), reply()], sizes in vec(1_usize..20, 1..5),
    ) {
        let mut found = Found::default();
        prop_assert!(found.read(body.as_bytes()).is_some(), "{body}");
        prop_assert_eq!(read_chunks(JSON, chunks(body.as_bytes(), &sizes)), found.usage(), "{}", body);
    }

    #[test]
    fn events_have_the_usage_that_a_parser_finds(
        texts in vec(prop_oneof![json(), reply()], 0..5),
        line_end in select(&["\n", "\r\n", "\r"][..]),
        sizes in vec(1_usize..20, 1..5),
    ) {
        let mut found = Found::default();
        for text in &texts {
            prop_assert!(found.read(text.as_bytes()).is_some(), "{text}");
        }
        let body: String = texts.iter().map(|text| event(text, line_end)).collect();
        prop_assert_eq!(read_chunks(EVENTS, chunks(body.as_bytes(), &sizes)), found.usage(), "{}", body);
    }
}
