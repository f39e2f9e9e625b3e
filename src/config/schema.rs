//! The JSON Schema of a limits file, for completion and validation in editors.
//!
//! Guarantees:
//! - The schema is derived from the parser's types and keyword lists.
//! - A key in a block where it has no effect is marked as an error.
//!
//! Not covered:
//! - Problems that depend on several rules or files (see the command `check`).
//! - Anchors, aliases and merge keys, which editors expand first.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::raw::File;
use super::resolve::keywords::{self, Keywords};
use super::resolve::{duration, overshoot};

/// Returns the JSON Schema of a limits file.
#[must_use]
pub fn limits_schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<File>();
    schema.insert("title".to_owned(), json!("Limits of one domain, for Sluicegate"));
    schema.to_value()
}

/// Returns the schema of a text. A YAML number or boolean is accepted as text.
pub(super) fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["string", "integer", "boolean", "null"]})
}

pub(super) fn charge(_: &mut SchemaGenerator) -> Schema {
    keyword_or_null(keywords::CHARGE_POLICIES)
}

pub(super) fn strategy(_: &mut SchemaGenerator) -> Schema {
    keyword_or_null(keywords::STRATEGIES)
}

pub(super) fn rate_limit_fallback(_: &mut SchemaGenerator) -> Schema {
    keyword_or_null(keywords::FALLBACK_MODES)
}

pub(super) fn rate_limit_mode(_: &mut SchemaGenerator) -> Schema {
    keyword_or_null(keywords::MODES)
}

pub(super) fn overshoot(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [
        {"type": "integer", "minimum": 0, "maximum": u32::MAX},
        {"type": "string", "pattern": overshoot::PATTERN, "examples": ["2%", "0.5%", "100"]},
        {"type": "null"},
    ]})
}

pub(super) fn unit(_: &mut SchemaGenerator) -> Schema {
    let units: Vec<&str> = keywords::UNITS.iter().map(|&(unit, _)| unit).collect();
    let pattern = format!("^({})$", case_insensitive_pattern(&units));
    or_null(&json_schema!({"anyOf": [{"enum": units}, {"type": "string", "pattern": pattern}]}))
}

pub(super) fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": duration::PATTERN, "examples": ["250ms", "90s", "36h", "7d"]})
}

pub(super) fn optional_duration(generator: &mut SchemaGenerator) -> Schema {
    or_null(&duration(generator))
}

pub(super) fn requests(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["integer", "null"], "minimum": 0, "maximum": u32::MAX})
}

pub(super) fn optional_count(generator: &mut SchemaGenerator) -> Schema {
    or_null(&at_least_one(generator))
}

pub(super) fn at_least_one(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "minimum": 1, "maximum": u32::MAX})
}

pub(super) fn concurrency_mode(_: &mut SchemaGenerator) -> Schema {
    keyword_or_null(keywords::CONCURRENCY_MODES)
}

pub(super) fn concurrency_fallback(_: &mut SchemaGenerator) -> Schema {
    keyword_or_null(keywords::CONCURRENCY_FALLBACKS)
}

pub(super) fn adaptive_policy(_: &mut SchemaGenerator) -> Schema {
    keyword_or_null(keywords::ALGORITHMS)
}

pub(super) fn status(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["integer", "null"], "minimum": 400, "maximum": 599})
}

pub(super) fn starts_on(_: &mut SchemaGenerator) -> Schema {
    let days: Vec<&str> = keywords::WEEKDAYS.iter().map(|&(day, _)| day).collect();
    let pattern = format!("^([0-9]{{1,2}}(-[0-9]{{1,2}})?|{})$", case_insensitive_pattern(&days));
    json_schema!({"anyOf": [
        {"type": "integer", "minimum": 1, "maximum": 31},
        {"enum": days},
        {"type": "string", "pattern": pattern},
        {"type": "null"},
    ]})
}

/// Adds the top-level field `metadata`, which has no effect but may contain YAML anchors.
pub(super) fn allow_anchor_metadata(schema: &mut Schema) {
    let anything = json!({"description": "A place for anchors; nothing reads it."});
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert("metadata".to_owned(), anything);
    }
}

pub(super) fn metadata(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["object", "null"]})
}

pub(super) fn replaces(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["array", "null"], "items": {
        "type": "object",
        "additionalProperties": false,
        "required": ["name"],
        "properties": {"name": {"type": ["string", "integer", "boolean"], "description": "A rule's `name`."}},
    }})
}

/// Requires one of `unit`, `per` and `unlimited`, and forbids `unit` together with `per`.
pub(super) fn require_one_period(schema: &mut Schema) {
    let text = json!({"type": "string"});
    let requires_text = |field: &str| json!({"required": [field], "properties": {field: text}});
    let periods = [requires_text("unit"), requires_text("per"), json!({"required": ["unlimited"]})];
    schema.insert("anyOf".to_owned(), Value::from(periods.to_vec()));
    let unit_and_per = json!({"unit": text, "per": text});
    schema
        .insert("not".to_owned(), json!({"required": ["unit", "per"], "properties": unit_and_per}));
}

fn keyword_or_null<T>(keywords: &Keywords<T>) -> Schema {
    or_null(
        &json_schema!({"enum": keywords.iter().map(|&(keyword, _)| keyword).collect::<Vec<_>>()}),
    )
}

/// Returns a schema that also accepts null, because a key without a value counts as absent.
fn or_null(schema: &Schema) -> Schema {
    json_schema!({"anyOf": [schema, {"type": "null"}]})
}

fn case_insensitive_pattern(words: &[&str]) -> String {
    let either_case = |letter: char| ['[', letter.to_ascii_uppercase(), letter, ']'];
    let patterns = words.iter().map(|word| word.chars().flat_map(either_case).collect::<String>());
    patterns.collect::<Vec<_>>().join("|")
}
