//! Writes Envoy's response as proto3 JSON.
//!
//! Guarantees:
//! - Fields with default values are omitted.
//! - Durations are strings, such as `"59s"`.
//! - A value that JSON cannot express is an error, never an approximation.
//!
//! Not covered:
//! - Headers for the upstream request, because `/json` has no upstream.
//! - Fields that Sluicegate never sets: raw body and quota.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use serde_json::{Map, Number, Value as Json};

/// A response with an infinite number or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer holds a number that JSON cannot express")]
pub struct Inexpressible;

/// Returns `response` as JSON text.
///
/// # Errors
/// [`Inexpressible`] if a rule's metadata contains infinity or NaN.
pub fn response(response: &RateLimitResponse) -> Result<String, Inexpressible> {
    let mut object = Object::default();
    object.text("overallCode", code(response.overall_code()));
    object.list("statuses", response.statuses.iter().map(status));
    object.list("responseHeadersToAdd", response.response_headers_to_add.iter().map(header));
    if let Some(metadata) = &response.dynamic_metadata {
        object.put("dynamicMetadata", fields(metadata)?);
    }
    Ok(Json::Object(object.0).to_string())
}

fn status(status: &DescriptorStatus) -> Json {
    let mut object = Object::default();
    object.text("code", code(status.code()));
    if let Some(limit) = &status.current_limit {
        object.put("currentLimit", current_limit(limit));
    }
    object.number("limitRemaining", status.limit_remaining);
    if let Some(reset) = status.duration_until_reset {
        object.text("durationUntilReset", &format!("{}s", reset.seconds));
    }
    Json::Object(object.0)
}

fn current_limit(limit: &RateLimit) -> Json {
    let mut object = Object::default();
    object.text("name", &limit.name);
    object.number("requestsPerUnit", limit.requests_per_unit);
    object
        .text("unit", named(limit.unit() != rate_limit::Unit::Unknown, limit.unit().as_str_name()));
    Json::Object(object.0)
}

fn header(header: &HeaderValue) -> Json {
    let mut object = Object::default();
    object.text("key", &header.key);
    object.text("value", &header.value);
    Json::Object(object.0)
}

fn code(code: Code) -> &'static str {
    named(code != Code::Unknown, code.as_str_name())
}

/// Returns an enumeration's name, or an empty string for the default value.
fn named(is_set: bool, name: &'static str) -> &'static str {
    if is_set { name } else { "" }
}

fn fields(message: &Struct) -> Result<Json, Inexpressible> {
    let pair = |(key, value): (&String, &Value)| Ok((key.clone(), plain(value)?));
    message.fields.iter().map(pair).collect::<Result<_, _>>().map(Json::Object)
}

fn plain(value: &Value) -> Result<Json, Inexpressible> {
    Ok(match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::NumberValue(value)) => Json::Number(number(*value)?),
        Some(Kind::StringValue(text)) => Json::String(text.clone()),
        Some(Kind::BoolValue(value)) => Json::Bool(*value),
        Some(Kind::StructValue(message)) => fields(message)?,
        Some(Kind::ListValue(list)) => {
            Json::Array(list.values.iter().map(plain).collect::<Result<_, _>>()?)
        }
    })
}

/// Writes a whole number without a decimal point, so that readers can parse an integer.
fn number(value: f64) -> Result<Number, Inexpressible> {
    let whole = (value.fract() == 0.0).then(|| value.to_string().parse::<i64>().ok()).flatten();
    whole.map(Number::from).or_else(|| Number::from_f64(value)).ok_or(Inexpressible)
}

/// A JSON object without fields that have default values.
#[derive(Default)]
struct Object(Map<String, Json>);

impl Object {
    fn put(&mut self, name: &str, value: Json) {
        self.0.insert(name.to_owned(), value);
    }

    fn text(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.put(name, value.into());
        }
    }

    fn number(&mut self, name: &str, value: u32) {
        if value != 0 {
            self.put(name, value.into());
        }
    }

    fn list(&mut self, name: &str, values: impl ExactSizeIterator<Item = Json>) {
        if values.len() != 0 {
            self.put(name, values.collect());
        }
    }
}
