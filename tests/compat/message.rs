//! Converts the proto3 JSON of recorded scenarios to and from Protobuf messages.
//!
//! Guarantees:
//! - A request field without a conversion is an error.
//!
//! Not covered:
//! - Other messages. A general JSON library would hide the list of compared fields.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::{Duration, Struct, UInt64Value, Value as Pb, value::Kind};
use serde_json::{Map, Value, json};

/// Converts the JSON of a rate limit request to its message.
///
/// # Errors
/// Names an unknown field. If it were ignored, the replay would omit a part of the recording.
pub fn request(json: &Value) -> Result<RateLimitRequest, String> {
    known(json, &["domain", "descriptors", "hitsAddend"])?;
    Ok(RateLimitRequest {
        domain: text(&json["domain"]),
        descriptors: list(&json["descriptors"]).iter().map(descriptor).collect::<Result<_, _>>()?,
        hits_addend: u32::try_from(number(&json["hitsAddend"])?).map_err(|e| e.to_string())?,
    })
}

fn descriptor(json: &Value) -> Result<RateLimitDescriptor, String> {
    known(json, &["entries", "limit", "hitsAddend", "isNegativeHits"])?;
    let addend = json.get("hitsAddend").map(number).transpose()?;
    Ok(RateLimitDescriptor {
        entries: list(&json["entries"]).iter().map(entry).collect::<Result<_, _>>()?,
        limit: json.get("limit").map(limit_override).transpose()?,
        hits_addend: addend.map(|value| UInt64Value { value }),
        is_negative_hits: json["isNegativeHits"].as_bool().unwrap_or_default(),
    })
}

fn entry(json: &Value) -> Result<Entry, String> {
    known(json, &["key", "value"])?;
    Ok(Entry { key: text(&json["key"]), value: text(&json["value"]) })
}

fn limit_override(json: &Value) -> Result<RateLimitOverride, String> {
    known(json, &["requestsPerUnit", "unit"])?;
    let unit = match &json["unit"] {
        Value::String(name) => RateLimitUnit::from_str_name(name)
            .map(i32::from)
            .ok_or_else(|| format!("no unit is named {name}"))?,
        other => i32::try_from(number(other)?).map_err(|e| e.to_string())?,
    };
    let requests_per_unit =
        u32::try_from(number(&json["requestsPerUnit"])?).map_err(|e| e.to_string())?;
    Ok(RateLimitOverride { requests_per_unit, unit })
}

/// Converts a response to JSON: first the response without headers, then its headers. Omits default
/// values.
pub fn response(message: &RateLimitResponse) -> (Value, Value) {
    let mut json = Map::new();
    put(&mut json, "overallCode", code(message.overall_code));
    let statuses: Vec<Value> = message.statuses.iter().map(status).collect();
    put(&mut json, "statuses", Value::Array(statuses));
    put(
        &mut json,
        "dynamicMetadata",
        message.dynamic_metadata.as_ref().map_or(Value::Null, object),
    );
    for (name, unexpected) in [
        ("requestHeadersToAdd", !message.request_headers_to_add.is_empty()),
        ("rawBody", !message.raw_body.is_empty()),
        ("quota", message.quota.is_some()),
    ] {
        put(&mut json, name, if unexpected { json!("set") } else { Value::Null });
    }
    let headers = message.response_headers_to_add.iter().map(|header| {
        let mut json = Map::new();
        put(&mut json, "key", json!(header.key));
        put(&mut json, "value", json!(header.value));
        Value::Object(json)
    });
    (Value::Object(json), Value::Array(headers.collect()))
}

/// Converts a response of `/json` to the same form as [`response`].
pub fn response_of_json(mut json: Value) -> (Value, Value) {
    let headers = json.as_object_mut().and_then(|object| object.remove("responseHeadersToAdd"));
    (json, headers.unwrap_or_else(|| json!([])))
}

fn status(status: &DescriptorStatus) -> Value {
    let mut json = Map::new();
    put(&mut json, "code", code(status.code));
    put(&mut json, "currentLimit", status.current_limit.as_ref().map_or(Value::Null, limit));
    put(&mut json, "limitRemaining", json!(status.limit_remaining));
    let reset = status.duration_until_reset.as_ref().map_or(Value::Null, duration);
    put(&mut json, "durationUntilReset", reset);
    Value::Object(json)
}

fn limit(limit: &RateLimit) -> Value {
    let mut json = Map::new();
    put(&mut json, "name", json!(limit.name));
    put(&mut json, "requestsPerUnit", json!(limit.requests_per_unit));
    let name = rate_limit::Unit::try_from(limit.unit).map(|unit| unit.as_str_name());
    put(&mut json, "unit", named(name.ok(), limit.unit));
    Value::Object(json)
}

fn code(number: i32) -> Value {
    named(Code::try_from(number).ok().map(|code| code.as_str_name()), number)
}

/// JSON of an enum value: null for 0, its number if it has no name, otherwise its name.
fn named(name: Option<&str>, number: i32) -> Value {
    match (name, number) {
        (_, 0) => Value::Null,
        (Some(name), _) => json!(name),
        (None, number) => json!(number),
    }
}

fn duration(duration: &Duration) -> Value {
    match duration.nanos {
        0 => json!(format!("{}s", duration.seconds)),
        nanos => json!(format!("{}.{nanos:09}s", duration.seconds)),
    }
}

fn object(fields: &Struct) -> Value {
    Value::Object(fields.fields.iter().map(|(key, pb)| (key.clone(), value(pb))).collect())
}

fn value(pb: &Pb) -> Value {
    match &pb.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) if number.is_finite() => json!(number),
        // Proto3 JSON writes NaN and infinities as strings.
        Some(Kind::NumberValue(number)) => json!(number.to_string()),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(yes)) => json!(yes),
        Some(Kind::StructValue(fields)) => object(fields),
        Some(Kind::ListValue(list)) => Value::Array(list.values.iter().map(value).collect()),
    }
}

fn put(object: &mut Map<String, Value>, key: &str, value: Value) {
    let is_default = match &value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_u64() == Some(0),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Object(_) => false,
    };
    if !is_default {
        object.insert(key.to_owned(), value);
    }
}

fn known(json: &Value, fields: &[&str]) -> Result<(), String> {
    let unknown = json.as_object().and_then(|it| it.keys().find(|key| !fields.contains(&&***key)));
    unknown.map_or(Ok(()), |key| Err(format!("the request field `{key}` is not convertible")))
}

fn list(json: &Value) -> &[Value] {
    json.as_array().map_or(&[], Vec::as_slice)
}

fn text(json: &Value) -> String {
    json.as_str().unwrap_or_default().to_owned()
}

/// Proto3 JSON writes 64-bit numbers as strings.
fn number(json: &Value) -> Result<u64, String> {
    match json {
        Value::Null => Ok(0),
        Value::String(text) => text.parse().map_err(|e| format!("{text}: {e}")),
        other => other.as_u64().ok_or_else(|| format!("{other} is no unsigned number")),
    }
}

#[test]
fn a_request_keeps_its_override_and_both_hits_addends() {
    let json = json!({"domain": "d", "hitsAddend": 7, "descriptors": [
        {"entries": [{"key": "k"}], "hitsAddend": "18446744073709551615",
         "limit": {"requestsPerUnit": 2, "unit": "MONTH"}},
        {"limit": {"unit": 7}}]});
    let message = request(&json).unwrap();
    assert_eq!((message.domain.as_str(), message.hits_addend), ("d", 7));
    assert_eq!(message.descriptors[0].hits_addend, Some(UInt64Value { value: u64::MAX }));
    assert_eq!(message.descriptors[0].limit.unwrap().unit, i32::from(RateLimitUnit::Month));
    assert_eq!(message.descriptors[1].limit.unwrap().unit, 7);
    assert!(request(&json!({"domian": "d"})).is_err());
}

#[test]
fn a_response_omits_default_values() {
    let status = DescriptorStatus {
        code: 2,
        current_limit: Some(RateLimit { requests_per_unit: 2, unit: 5, ..RateLimit::default() }),
        duration_until_reset: Some(Duration { seconds: 9, nanos: 0 }),
        ..DescriptorStatus::default()
    };
    let message = RateLimitResponse {
        overall_code: 2,
        statuses: vec![status],
        ..RateLimitResponse::default()
    };
    let expected = json!({"overallCode": "OVER_LIMIT", "statuses": [{"code": "OVER_LIMIT",
        "currentLimit": {"requestsPerUnit": 2, "unit": "MONTH"}, "durationUntilReset": "9s"}]});
    assert_eq!(response(&message), (expected, json!([])));
    assert_eq!(response(&RateLimitResponse::default()), (json!({}), json!([])));
}
