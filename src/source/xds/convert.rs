//! Converts an xDS resource to a configuration file with the same meaning.
//!
//! Guarantees:
//! - Every protobuf field becomes the YAML field of the same name.
//! - Fields under `sluicegate` in a descriptor's metadata move to its rule.
//! - Fields under `sluicegate` never override a protobuf field.

use envoy_types::pb::google::protobuf::Struct;
use envoy_types::pb::google::protobuf::value::Kind;
use serde_json::{Map, Value, json};

use super::message::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};

/// The key of Sluicegate's own fields in a descriptor's metadata.
const OURS: &str = "sluicegate";
/// The key below [`OURS`] of the fields for the whole domain. Valid only in top-level descriptors.
const DOMAIN: &str = "domain";

/// Returns the configuration file of one domain as JSON, which is valid YAML.
pub(super) fn to_file_text(config: &RateLimitConfig) -> Result<String, String> {
    let mut file = Map::new();
    file.insert("domain".to_owned(), config.domain.clone().into());
    let mut descriptors = Vec::new();
    for descriptor in &config.descriptors {
        let (node, domain_fields) = rule_fields(descriptor)?;
        merge_fields(&mut file, domain_fields)?;
        descriptors.push(node);
    }
    insert_if(&mut file, "descriptors", descriptors.into(), !config.descriptors.is_empty());
    Ok(Value::Object(file).to_string())
}

/// Returns the fields of a rule, and the fields under `sluicegate.domain` for the whole domain.
fn rule_fields(descriptor: &RateLimitDescriptor) -> Result<(Value, Map<String, Value>), String> {
    let RateLimitDescriptor { key, value, shadow_mode, detailed_metric, quota_mode, .. } =
        descriptor;
    let mut node = Map::new();
    node.insert("key".to_owned(), key.clone().into());
    insert_if(&mut node, "value", value.clone().into(), !value.is_empty());
    for (field, is_set) in [
        ("shadow_mode", *shadow_mode),
        ("detailed_metric", *detailed_metric),
        ("quota_mode", *quota_mode),
    ] {
        insert_if(&mut node, field, is_set.into(), is_set);
    }
    if let Some(limit) = &descriptor.rate_limit {
        node.insert("rate_limit".to_owned(), limit_fields(limit));
    }
    let mut children = Vec::new();
    for child in &descriptor.descriptors {
        let (child, domain_fields) = rule_fields(child)?;
        if !domain_fields.is_empty() {
            return Err(format!("`{OURS}.{DOMAIN}` is valid only in top-level descriptors"));
        }
        children.push(child);
    }
    insert_if(&mut node, "descriptors", children.into(), !descriptor.descriptors.is_empty());
    let mut metadata = descriptor.metadata.as_ref().map(struct_to_json).unwrap_or_default();
    let own_fields = match metadata.remove(OURS) {
        None => Map::new(),
        Some(Value::Object(fields)) => fields,
        Some(_) => {
            return Err(format!("`{OURS}` of `{key}` must be an object of limits file fields"));
        }
    };
    insert_if(&mut node, "metadata", metadata.clone().into(), !metadata.is_empty());
    let domain_fields = add_own_fields(&mut node, own_fields)?;
    Ok((node.into(), domain_fields))
}

/// Adds Sluicegate's own fields to the rule `node`, and returns the fields for the whole domain.
fn add_own_fields(
    node: &mut Map<String, Value>,
    mut own_fields: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let domain_fields = match own_fields.remove(DOMAIN) {
        None => Map::new(),
        Some(Value::Object(fields)) => fields,
        Some(_) => {
            return Err(format!("`{OURS}.{DOMAIN}` must be an object of limits file fields"));
        }
    };
    if let Some(limit) = own_fields.remove("rate_limit") {
        let Value::Object(limit) = limit else {
            return Err(format!("`{OURS}.rate_limit` must be an object of limits file fields"));
        };
        match node.entry("rate_limit").or_insert_with(|| json!({})) {
            Value::Object(fields) => merge_fields(fields, limit)?,
            _ => return Err("`rate_limit` is not an object".to_owned()),
        }
    }
    merge_fields(node, own_fields)?;
    Ok(domain_fields)
}

/// Fails if a field already exists, except that `per` replaces `unit: unknown`, protobuf's default.
fn merge_fields(
    fields: &mut Map<String, Value>,
    new_fields: Map<String, Value>,
) -> Result<(), String> {
    if new_fields.contains_key("per") && fields.get("unit").is_some_and(|unit| unit == "unknown") {
        fields.remove("unit");
    }
    for (field, value) in new_fields {
        if fields.contains_key(&field) {
            return Err(format!(
                "`{field}` is set in `{OURS}` and in the resource; set it in one place"
            ));
        }
        fields.insert(field, value);
    }
    Ok(())
}

fn limit_fields(limit: &RateLimitPolicy) -> Value {
    let RateLimitPolicy { requests_per_unit, unlimited, name, replaces, .. } = limit;
    let mut fields = Map::new();
    let unit = RateLimitUnit::try_from(limit.unit)
        .map_or_else(|_| limit.unit.to_string(), |unit| unit.yaml_name().to_owned());
    insert_if(&mut fields, "unit", unit.into(), !unlimited || limit.unit != 0);
    insert_if(&mut fields, "requests_per_unit", (*requests_per_unit).into(), !unlimited);
    insert_if(&mut fields, "unlimited", true.into(), *unlimited);
    insert_if(&mut fields, "name", name.clone().into(), !name.is_empty());
    let names: Vec<_> = replaces.iter().map(|other| json!({"name": other.name})).collect();
    insert_if(&mut fields, "replaces", names.into(), !replaces.is_empty());
    fields.into()
}

fn insert_if(fields: &mut Map<String, Value>, field: &str, value: Value, is_set: bool) {
    if is_set {
        fields.insert(field.to_owned(), value);
    }
}

fn struct_to_json(message: &Struct) -> Map<String, Value> {
    message
        .fields
        .iter()
        .map(|(name, value)| (name.clone(), value_to_json(value.kind.as_ref())))
        .collect()
}

fn value_to_json(kind: Option<&Kind>) -> Value {
    match kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => (*value).into(),
        Some(Kind::NumberValue(number)) => number_to_json(*number),
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::StructValue(fields)) => struct_to_json(fields).into(),
        Some(Kind::ListValue(list)) => {
            list.values.iter().map(|value| value_to_json(value.kind.as_ref())).collect()
        }
    }
}

/// Converts whole numbers to integers, which most fields require, and infinity and NaN to strings.
#[expect(clippy::cast_possible_truncation, reason = "checked to be whole and small")]
fn number_to_json(number: f64) -> Value {
    /// 2^53, up to which `f64` represents all integers exactly.
    const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() < MAX_EXACT_INTEGER {
        return (number as i64).into();
    }
    serde_json::Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number)
}
