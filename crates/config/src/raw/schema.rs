//! The JSON Schema of single fields of a limits file.
//!
//! Guarantees:
//! - Derived from the keyword lists of the parser, so that each completion is valid.
//!
//! Not covered:
//! - The schema of the file (see [`crate::schema`]).

use std::ops::RangeInclusive;

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::budget_amount;
use crate::concurrency::{DECREASE, FAIR_KEYS, INCREASE, PROBE_DEPTH, SMOOTHING, TOLERANCE};
use crate::kernel::concurrency::MAX_CLASSES;
use crate::kernel::concurrency::adaptive::Hundredths;
use crate::penalty::STRIKES;
use crate::resolve::{duration, keywords, overshoot};
use crate::table_column::TableColumn;

/// The regular expression of the texts of `network`.
const NETWORK_PATTERN: &str = "^[0-9A-Fa-f:.]+/[0-9]{1,3}$";

/// The regular expression of the texts of `counter_per`.
const COUNTER_PATTERN: &str = "^(address|network|/[0-9]{1,3})$";

/// The regular expression of a percentage from `1%` to `100%`.
const PERCENT_PATTERN: &str = "^([1-9][0-9]?|100)%$";

/// Returns the schema of a text. A YAML number or boolean is accepted as the text that is written.
pub(super) fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["string", "integer", "boolean", "null"]})
}

pub(super) fn charge(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::CHARGE_POLICIES.iter().map(|&(word, _)| word))
}

pub(super) fn strategy(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::STRATEGIES.iter().map(|&(word, _)| word))
}

pub(super) fn on_excess(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::ON_EXCESS.iter().map(|&(word, _)| word))
}

pub(super) fn failure(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::FALLBACK_MODES.iter().map(|&(word, _)| word))
}

pub(super) fn mode(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::MODES.iter().map(|&(word, _)| word))
}

pub(super) fn overshoot(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [
        {"type": "integer", "minimum": 0, "maximum": u32::MAX},
        {"type": "string", "pattern": overshoot::PATTERN, "examples": ["2%", "0.5%", "100"]},
        {"type": "null"},
    ]})
}

pub(super) fn network(_: &mut SchemaGenerator) -> Schema {
    let examples = ["10.0.0.0/8", "2001:db8::/32"];
    or_null(&json_schema!({"type": "string", "pattern": NETWORK_PATTERN, "examples": examples}))
}

pub(super) fn table_column(_: &mut SchemaGenerator) -> Schema {
    let examples = ["customers.api"];
    or_null(
        &json_schema!({"type": "string", "pattern": TableColumn::PATTERN, "examples": examples}),
    )
}

pub(super) fn counter_per(_: &mut SchemaGenerator) -> Schema {
    let examples = ["address", "network", "/64"];
    or_null(&json_schema!({"type": "string", "pattern": COUNTER_PATTERN, "examples": examples}))
}

/// Returns the schema of `unit`: editors propose the lower-case keywords and accept any case.
pub(super) fn unit(_: &mut SchemaGenerator) -> Schema {
    let words: Vec<&str> = keywords::UNITS.iter().map(|&(word, _)| word).collect();
    let pattern = format!("^({})$", in_any_case(&words));
    or_null(&json_schema!({"anyOf": [{"enum": words}, {"type": "string", "pattern": pattern}]}))
}

pub(super) fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": duration::PATTERN, "examples": ["250ms", "90s", "36h", "7d"]})
}

pub(super) fn amount(_: &mut SchemaGenerator) -> Schema {
    let examples = ["500 usd", "0.50 usd", "2M tokens"];
    or_null(
        &json_schema!({"type": "string", "pattern": budget_amount::PATTERN, "examples": examples}),
    )
}

pub(super) fn tokens(generator: &mut SchemaGenerator) -> Schema {
    or_null(&some_tokens(generator))
}

pub(super) fn estimate(generator: &mut SchemaGenerator) -> Schema {
    let words: Vec<&str> = keywords::ESTIMATES.iter().map(|&(word, _)| word).collect();
    json_schema!({"anyOf": [{"enum": words}, some_tokens(generator), {"type": "null"}]})
}

fn some_tokens(_: &mut SchemaGenerator) -> Schema {
    let pattern = "^[0-9]+([.][0-9]+)?[kMG]? +tokens$";
    json_schema!({"type": "string", "pattern": pattern, "examples": ["32k tokens"]})
}

pub(super) fn budget_unit(_: &mut SchemaGenerator) -> Schema {
    let (pattern, examples) = (budget_amount::UNIT_PATTERN, ["usd", "tokens"]);
    or_null(&json_schema!({"type": "string", "pattern": pattern, "examples": examples}))
}

pub(super) fn warn_at(_: &mut SchemaGenerator) -> Schema {
    let percent = json!({"type": "string", "pattern": PERCENT_PATTERN});
    json_schema!({"type": ["array", "null"], "items": percent})
}

pub(super) fn on_expiry(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::ON_EXPIRY.iter().map(|&(word, _)| word))
}

pub(super) fn budget_failure(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::BUDGET_FALLBACKS.iter().map(|&(word, _)| word))
}

pub(super) fn table_name(_: &mut SchemaGenerator) -> Schema {
    let (pattern, examples) = (TableColumn::TABLE_PATTERN, ["models"]);
    or_null(&json_schema!({"type": "string", "pattern": pattern, "examples": examples}))
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
    one_of(keywords::CONCURRENCY_MODES.iter().map(|&(word, _)| word))
}

pub(super) fn concurrency_failure(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::CONCURRENCY_FALLBACKS.iter().map(|&(word, _)| word))
}

pub(super) fn algorithm(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::ALGORITHMS.iter().map(|&(word, _)| word))
}

pub(super) fn rate_algorithm(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::RATE_ALGORITHMS.iter().map(|&(word, ())| word))
}

pub(super) fn paused_by(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::RETRY_AFTER_RULES.iter().map(|&(word, _)| word))
}

pub(super) fn overloaded_by(_: &mut SchemaGenerator) -> Schema {
    let words = keywords::STATUS_CLASSES.iter().map(|(word, _)| *word);
    let words: Vec<&str> =
        words.chain(keywords::GRPC_CODES.iter().map(|(word, _)| *word)).collect();
    let status = json!({"type": "integer", "minimum": 400, "maximum": 599});
    json_schema!({"type": ["array", "null"], "items": {"anyOf": [status, {"enum": words}]}})
}

pub(super) fn aggregate(_: &mut SchemaGenerator) -> Schema {
    one_of(keywords::VOTE_AGGREGATES.iter().map(|&(word, _)| word))
}

pub(super) fn tolerance(_: &mut SchemaGenerator) -> Schema {
    decimal(&TOLERANCE)
}

pub(super) fn decrease(_: &mut SchemaGenerator) -> Schema {
    decimal(&DECREASE)
}

pub(super) fn smoothing(_: &mut SchemaGenerator) -> Schema {
    decimal(&SMOOTHING)
}

pub(super) fn probe_depth(_: &mut SchemaGenerator) -> Schema {
    decimal(&PROBE_DEPTH)
}

pub(super) fn increase(_: &mut SchemaGenerator) -> Schema {
    let (min, max) = INCREASE.into_inner();
    or_null(&json_schema!({"type": "integer", "minimum": min, "maximum": max}))
}

fn decimal(range: &RangeInclusive<Hundredths>) -> Schema {
    let (min, max) = (f64::from(range.start().0) / 100.0, f64::from(range.end().0) / 100.0);
    json_schema!({"type": ["number", "null"], "minimum": min, "maximum": max})
}

pub(super) fn class_parts(_: &mut SchemaGenerator) -> Schema {
    let percent = json!({"type": "string", "pattern": PERCENT_PATTERN});
    let most = MAX_CLASSES;
    json_schema!({"type": "object", "additionalProperties": percent, "minProperties": 1, "maxProperties": most})
}

pub(super) fn fair_keys(_: &mut SchemaGenerator) -> Schema {
    let (min, max) = FAIR_KEYS.into_inner();
    or_null(&json_schema!({"type": "integer", "minimum": min, "maximum": max}))
}

pub(super) fn strikes(_: &mut SchemaGenerator) -> Schema {
    let (min, max) = STRIKES.into_inner();
    json_schema!({"type": "integer", "minimum": min, "maximum": max})
}

pub(super) fn status(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["integer", "null"], "minimum": 400, "maximum": 599})
}

pub(super) fn starts_on(_: &mut SchemaGenerator) -> Schema {
    let days: Vec<&str> = keywords::WEEKDAYS.iter().map(|&(word, _)| word).collect();
    let pattern = format!("^([0-9]{{1,2}}(-[0-9]{{1,2}})?|{})$", in_any_case(&days));
    json_schema!({"anyOf": [
        {"type": "integer", "minimum": 1, "maximum": 31},
        {"enum": days},
        {"type": "string", "pattern": pattern},
        {"type": "null"},
    ]})
}

pub(super) fn starts_at(_: &mut SchemaGenerator) -> Schema {
    let pattern = "^([01]?[0-9]|2[0-3]):[0-5][0-9]$";
    json_schema!({"type": ["string", "null"], "pattern": pattern})
}

/// Adds the field `metadata` at the top level. It has no effect, but may contain YAML anchors for
/// use further below.
pub(super) fn parking(schema: &mut Schema) {
    let anything = json!({"description": "A place for YAML anchors, without effect."});
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
pub(super) fn one_period(schema: &mut Schema) {
    insert_periods(schema, &[], json!({"required": ["unlimited"]}));
}

/// Requires an `amount` with `unit` or `per`, or else `prepaid` and `of`. Forbids `unit` together
/// with `per`.
pub(super) fn one_budget_period(schema: &mut Schema) {
    insert_periods(schema, &["amount"], json!({"required": ["prepaid", "of"]}));
}

/// Requires `unit` or `per` with the fields `beside`, or else what `instead` requires.
fn insert_periods(schema: &mut Schema, beside: &[&str], instead: Value) {
    let text = json!({"type": "string"});
    let requires_text = |word: &str| {
        let required: Vec<_> = [word].iter().chain(beside).copied().collect();
        json!({"required": required, "properties": {word: text}})
    };
    let one = [requires_text("unit"), requires_text("per"), instead];
    schema.insert("anyOf".to_owned(), Value::from(one.to_vec()));
    let both = json!({"unit": text, "per": text});
    schema.insert("not".to_owned(), json!({"required": ["unit", "per"], "properties": both}));
}

fn one_of<'w>(words: impl Iterator<Item = &'w str>) -> Schema {
    or_null(&json_schema!({"enum": words.collect::<Vec<_>>()}))
}

/// Returns a schema that also accepts null, because a key without a value counts as absent.
fn or_null(schema: &Schema) -> Schema {
    json_schema!({"anyOf": [schema, {"type": "null"}]})
}

fn in_any_case(words: &[&str]) -> String {
    let either = |letter: char| ['[', letter.to_ascii_uppercase(), letter, ']'];
    let any_case = words.iter().map(|word| word.chars().flat_map(either).collect::<String>());
    any_case.collect::<Vec<_>>().join("|")
}
