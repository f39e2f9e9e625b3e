//! Tests of `docs/reference/limits.md`, the list of all fields of a limits file, generated from the
//! JSON Schema.
//!
//! Guarantees:
//! - The page lists every field of the schema.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;
use sluicegate::config::schema::limits_schema;

use super::assert_page;

/// Definitions of the JSON Schema in the order of the page. Each has the field that contains it and
/// the page with details.
const BLOCKS: [(&str, &str, &str); 16] = [
    ("", "A file", "limits.md"),
    ("Defaults", "`defaults`", "limits.md"),
    ("Descriptor", "`descriptors`", "limits.md"),
    ("RateLimit", "`rate_limit`", "limits.md"),
    ("Penalty", "`penalty`", "guides/ban-repeat-offenders.md"),
    ("AdaptiveRate", "`adaptive` of a rate limit", "limits.md"),
    ("Wait", "`wait`", "limits.md"),
    ("Calendar", "`calendar`", "limits.md"),
    ("Concurrency", "`concurrency`", "guides/limit-requests-in-flight.md"),
    ("Adaptive", "`adaptive`", "guides/adapt-a-limit.md"),
    ("Queue", "`queue`", "limits.md"),
    ("Classes", "`classes`", "limits.md"),
    ("Fair", "`fair`", "limits.md"),
    ("Reject", "`reject`", "limits.md"),
    ("Budget", "`budget`", "limits.md"),
    ("Usage", "`usage`", "limits.md"),
];

const HEAD: &str = "\
# Fields of a limits file

A limits file holds one domain. A field with `*` is required. `sluicegate schema limits` prints the same as JSON Schema.
[Limits](../limits.md), [leases](../guides/lease-limits.md) and [stores](../guides/share-limits-through-redis.md) explain the strategies and modes.
[Counters](../limits.md#counters) says which changes of a field start a new counter.
";

fn generated_page() -> String {
    let schema = limits_schema();
    let mut page = HEAD.to_owned();
    for (name, title, more) in BLOCKS {
        let block = if name.is_empty() { &schema } else { &schema["$defs"][name] };
        let what = block["description"].as_str().unwrap();
        let label = more.rsplit('/').next().unwrap().split('.').next().unwrap();
        let table = "| field | values | meaning |\n|---|---|---|";
        write!(page, "\n## {title}\n\n{what} Guide: [{label}](../{more}).\n\n{table}\n").unwrap();
        let must = required(block);
        for (word, property) in block["properties"].as_object().unwrap() {
            let mark = if must.contains(word.as_str()) { "*" } else { "" };
            let what = property["description"].as_str().unwrap().replace('\n', " ");
            writeln!(page, "| `{word}`{mark} | {} | {what} |", describe_values(property)).unwrap();
        }
    }
    page
}

fn required(block: &Value) -> BTreeSet<&str> {
    block["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Describes the accepted values of a field.
fn describe_values(property: &Value) -> String {
    if let Some(words) = property["enum"].as_array() {
        let words: Vec<_> =
            words.iter().map(|word| format!("`{}`", word.as_str().unwrap())).collect();
        return words.join(", ");
    }
    if let Some(examples) = property["examples"].as_array() {
        let examples: Vec<_> =
            examples.iter().map(|one| format!("`{}`", one.as_str().unwrap())).collect();
        return format!("such as {}", examples.join(", "));
    }
    if let Some(name) = property["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        return BLOCKS.iter().find(|(block, ..)| *block == name).unwrap().1.to_owned();
    }
    if let Some(any) = property["anyOf"].as_array() {
        let all: Vec<_> = any
            .iter()
            .filter(|one| one["type"] != "null" && !is_spelling(one))
            .map(describe_values)
            .collect();
        return all.join("; or ");
    }
    let kinds = kinds(&property["type"]);
    if kinds.contains("number") {
        return format!("number from {} to {}", property["minimum"], property["maximum"]);
    }
    match (property["minimum"].as_u64(), property["maximum"].as_u64()) {
        (Some(least), Some(most)) if most == u64::from(u32::MAX) => {
            format!("whole number from {least}")
        }
        (Some(least), Some(most)) => format!("whole number from {least} to {most}"),
        _ if kinds.contains("array") => "list".to_owned(),
        _ if kinds.contains("object") => "mapping".to_owned(),
        _ if kinds.contains("string") => "text".to_owned(),
        _ if kinds.contains("boolean") => "`true`, `false`".to_owned(),
        _ if kinds.is_empty() => "anything".to_owned(),
        _ => panic!("{property}"),
    }
}

/// Returns `true` for a pattern that only accepts keywords in other letter cases.
fn is_spelling(one: &Value) -> bool {
    one["pattern"].as_str().is_some_and(|pattern| pattern.starts_with("^([Ss]"))
}

fn kinds(property: &Value) -> BTreeSet<&str> {
    match property {
        Value::String(one) => [&**one].into(),
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => BTreeSet::new(),
    }
}

#[test]
fn limits_page_matches_the_schema() {
    assert_page("docs/reference/limits.md", &generated_page());
}

#[test]
fn every_schema_block_is_listed() {
    let schema = limits_schema();
    let known: BTreeSet<_> =
        schema["$defs"].as_object().unwrap().keys().map(String::as_str).collect();
    let listed: BTreeSet<_> =
        BLOCKS.iter().map(|(name, ..)| *name).filter(|name| !name.is_empty()).collect();
    assert_eq!(listed, known);
}
