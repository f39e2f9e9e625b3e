//! Converts an xDS resource to a configuration file with the same meaning.
//!
//! Guarantees:
//! - Every protobuf field becomes the field of the same name.
//! - Fields under `sluicegate` in a descriptor's metadata become fields of its rule.
//! - Such fields leave the metadata and never override a protobuf field.
//!
//! Not covered:
//! - Validating the fields (see [`crate::config`]).

use envoy_types::pb::google::protobuf::Struct;
use envoy_types::pb::google::protobuf::value::Kind;
use serde_json::{Map, Value, json};

use super::message::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};

/// The metadata key with Sluicegate's own fields.
const OURS: &str = "sluicegate";
/// The key below it with fields of the whole domain. Allowed in first-level descriptors.
const DOMAIN: &str = "domain";

/// Returns the file of one domain, as JSON, which is valid YAML.
///
/// # Errors
/// A message, if our fields are not an object or repeat a protobuf field.
pub(super) fn of(config: &RateLimitConfig) -> Result<String, String> {
    let mut file = Map::new();
    file.insert("domain".to_owned(), config.domain.clone().into());
    let mut descriptors = Vec::new();
    for descriptor in &config.descriptors {
        let (node, more) = node(descriptor)?;
        join(&mut file, more)?;
        descriptors.push(node);
    }
    put(&mut file, "descriptors", descriptors.into(), !config.descriptors.is_empty());
    Ok(Value::Object(file).to_string())
}

fn node(descriptor: &RateLimitDescriptor) -> Result<(Value, Map<String, Value>), String> {
    let RateLimitDescriptor { key, value, shadow_mode, detailed_metric, quota_mode, .. } =
        descriptor;
    let mut node = Map::new();
    node.insert("key".to_owned(), key.clone().into());
    put(&mut node, "value", value.clone().into(), !value.is_empty());
    for (word, is_on) in [
        ("shadow_mode", *shadow_mode),
        ("detailed_metric", *detailed_metric),
        ("quota_mode", *quota_mode),
    ] {
        put(&mut node, word, is_on.into(), is_on);
    }
    if let Some(limit) = &descriptor.rate_limit {
        node.insert("rate_limit".to_owned(), policy(limit));
    }
    let mut below = Vec::new();
    for child in &descriptor.descriptors {
        let (child, more) = self::node(child)?;
        if !more.is_empty() {
            return Err(format!("`{OURS}.{DOMAIN}` stands below the first level"));
        }
        below.push(child);
    }
    put(&mut node, "descriptors", below.into(), !descriptor.descriptors.is_empty());
    let mut metadata = descriptor.metadata.as_ref().map(object).unwrap_or_default();
    let ours = match metadata.remove(OURS) {
        None => Map::new(),
        Some(Value::Object(ours)) => ours,
        Some(_) => {
            return Err(format!("`{OURS}` of `{key}` must hold words of the limits' language"));
        }
    };
    put(&mut node, "metadata", metadata.clone().into(), !metadata.is_empty());
    let more = words(&mut node, ours)?;
    Ok((node.into(), more))
}

/// Adds our fields to the rule. Returns the fields for the domain.
fn words(
    node: &mut Map<String, Value>,
    mut ours: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let more = match ours.remove(DOMAIN) {
        None => Map::new(),
        Some(Value::Object(more)) => more,
        Some(_) => {
            return Err(format!("`{OURS}.{DOMAIN}` must hold words of the limits' language"));
        }
    };
    if let Some(limit) = ours.remove("rate_limit") {
        let Value::Object(limit) = limit else {
            return Err(format!("`{OURS}.rate_limit` must hold words of the limits' language"));
        };
        match node.entry("rate_limit").or_insert_with(|| json!({})) {
            Value::Object(fields) => join(fields, limit)?,
            _ => return Err("a limit is no block".to_owned()),
        }
    }
    join(node, ours)?;
    Ok(more)
}

/// Adds `words`. Fails if a field already exists. `per` replaces a
/// unit of `unknown`, which is protobuf's value for an unset unit.
fn join(fields: &mut Map<String, Value>, words: Map<String, Value>) -> Result<(), String> {
    if words.contains_key("per") && fields.get("unit").is_some_and(|unit| unit == "unknown") {
        fields.remove("unit");
    }
    for (word, value) in words {
        if fields.contains_key(&word) {
            return Err(format!(
                "`{word}` stands under `{OURS}`, and the resource has a field for it"
            ));
        }
        fields.insert(word, value);
    }
    Ok(())
}

fn policy(limit: &RateLimitPolicy) -> Value {
    let RateLimitPolicy { requests_per_unit, unlimited, name, replaces, .. } = limit;
    let mut fields = Map::new();
    let unit = RateLimitUnit::try_from(limit.unit).map(RateLimitUnit::word);
    let has_unit = !unlimited || limit.unit != 0;
    put(
        &mut fields,
        "unit",
        unit.map_or_else(|_| limit.unit.to_string().into(), Value::from),
        has_unit,
    );
    put(&mut fields, "requests_per_unit", (*requests_per_unit).into(), !unlimited);
    put(&mut fields, "unlimited", true.into(), *unlimited);
    put(&mut fields, "name", name.clone().into(), !name.is_empty());
    let names: Vec<_> = replaces.iter().map(|other| json!({"name": other.name})).collect();
    put(&mut fields, "replaces", names.into(), !replaces.is_empty());
    fields.into()
}

fn put(fields: &mut Map<String, Value>, word: &str, value: Value, is_there: bool) {
    if is_there {
        fields.insert(word.to_owned(), value);
    }
}

fn object(of: &Struct) -> Map<String, Value> {
    of.fields.iter().map(|(name, value)| (name.clone(), self::value(value.kind.as_ref()))).collect()
}

fn value(kind: Option<&Kind>) -> Value {
    match kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => (*value).into(),
        Some(Kind::NumberValue(number)) => self::number(*number),
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::StructValue(fields)) => object(fields).into(),
        Some(Kind::ListValue(list)) => {
            list.values.iter().map(|value| self::value(value.kind.as_ref())).collect()
        }
    }
}

/// Keeps whole numbers as integers, because our fields accept
/// no others. Numbers that JSON cannot express become strings.
#[expect(clippy::cast_possible_truncation, reason = "checked to be whole and small")]
fn number(number: f64) -> Value {
    /// The integers up to here are exact as `f64`.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() < EXACT {
        return (number as i64).into();
    }
    serde_json::Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number)
}
