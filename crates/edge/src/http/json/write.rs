//! Converts a `RateLimitResponse` to proto3 JSON.
//!
//! Guarantees:
//! - Fields with default values are omitted.
//! - Durations are strings, such as `"59s"`.
//! - Infinity and NaN, which JSON cannot express, are an error.
//!
//! Not covered: `request_headers_to_add`, as a caller of `/json` has no upstream; `raw_body` and
//! `quota`, which decisions never set.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use serde_json::{Map, Number, Value as Json};

/// The error for a response that contains infinity or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reply contains a number that JSON cannot express")]
pub struct NotExpressibleInJson;

/// Returns `response` as JSON text.
///
/// # Errors
/// [`NotExpressibleInJson`] if the metadata of a rule contains infinity or NaN.
pub fn to_json_text(response: &RateLimitResponse) -> Result<String, NotExpressibleInJson> {
    let mut object = SparseObject::default();
    object.insert_text("overallCode", code_name(response.overall_code()));
    object.insert_list("statuses", response.statuses.iter().map(status_json));
    object.insert_list(
        "responseHeadersToAdd",
        response.response_headers_to_add.iter().map(header_json),
    );
    if let Some(metadata) = &response.dynamic_metadata {
        object.insert("dynamicMetadata", struct_json(metadata)?);
    }
    Ok(Json::Object(object.0).to_string())
}

fn status_json(status: &DescriptorStatus) -> Json {
    let mut object = SparseObject::default();
    object.insert_text("code", code_name(status.code()));
    if let Some(limit) = &status.current_limit {
        object.insert("currentLimit", limit_json(limit));
    }
    object.insert_number("limitRemaining", status.limit_remaining);
    if let Some(reset) = status.duration_until_reset {
        object.insert_text("durationUntilReset", &format!("{}s", reset.seconds));
    }
    Json::Object(object.0)
}

fn limit_json(limit: &RateLimit) -> Json {
    let mut object = SparseObject::default();
    object.insert_text("name", &limit.name);
    object.insert_number("requestsPerUnit", limit.requests_per_unit);
    object.insert_text(
        "unit",
        name_if_set(limit.unit() != rate_limit::Unit::Unknown, limit.unit().as_str_name()),
    );
    Json::Object(object.0)
}

fn header_json(header: &HeaderValue) -> Json {
    let mut object = SparseObject::default();
    object.insert_text("key", &header.key);
    object.insert_text("value", &header.value);
    Json::Object(object.0)
}

fn code_name(code: Code) -> &'static str {
    name_if_set(code != Code::Unknown, code.as_str_name())
}

/// Returns `name`, or an empty text if the enum has its default value.
fn name_if_set(is_set: bool, name: &'static str) -> &'static str {
    if is_set { name } else { "" }
}

fn struct_json(message: &Struct) -> Result<Json, NotExpressibleInJson> {
    let pair = |(key, value): (&String, &Value)| Ok((key.clone(), value_json(value)?));
    message.fields.iter().map(pair).collect::<Result<_, _>>().map(Json::Object)
}

fn value_json(value: &Value) -> Result<Json, NotExpressibleInJson> {
    Ok(match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::NumberValue(value)) => Json::Number(to_json_number(*value)?),
        Some(Kind::StringValue(text)) => Json::String(text.clone()),
        Some(Kind::BoolValue(value)) => Json::Bool(*value),
        Some(Kind::StructValue(message)) => struct_json(message)?,
        Some(Kind::ListValue(list)) => {
            Json::Array(list.values.iter().map(value_json).collect::<Result<_, _>>()?)
        }
    })
}

/// Converts a double. A whole number gets no decimal point, so that clients can parse it as an
/// integer.
fn to_json_number(value: f64) -> Result<Number, NotExpressibleInJson> {
    let whole = (value.fract() == 0.0).then(|| value.to_string().parse::<i64>().ok()).flatten();
    whole.map(Number::from).or_else(|| Number::from_f64(value)).ok_or(NotExpressibleInJson)
}

/// A JSON object that omits fields with default values.
#[derive(Default)]
struct SparseObject(Map<String, Json>);

impl SparseObject {
    fn insert(&mut self, name: &str, value: Json) {
        self.0.insert(name.to_owned(), value);
    }

    fn insert_text(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.insert(name, value.into());
        }
    }

    fn insert_number(&mut self, name: &str, value: u32) {
        if value != 0 {
            self.insert(name, value.into());
        }
    }

    fn insert_list(&mut self, name: &str, values: impl ExactSizeIterator<Item = Json>) {
        if values.len() != 0 {
            self.insert(name, values.collect());
        }
    }
}
