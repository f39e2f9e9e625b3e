//! The JSON text of a config that Envoy passes.
//!
//! | Envoy | filter | route |
//! |---|---|---|
//! | 1.39 and later | JSON | JSON |
//! | 1.38 | JSON | a serialized `google.protobuf.Struct` |
//!
//! Not covered:
//! - Integers above 2^53, which a `Struct` cannot have.

use std::borrow::Cow;

use prost::Message as _;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use serde_json::{Map, Value as Json};

/// The first byte of a serialized `Struct` with a field.
const FIRST_BYTE: u8 = 0x0a;

/// The largest float below which every integer is exact.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Returns the config as JSON. A text that is neither is returned unchanged.
pub(crate) fn to_json(config: &[u8]) -> Cow<'_, str> {
    match config {
        [] => Cow::Borrowed("{}"),
        [FIRST_BYTE, ..] => Struct::decode(config).map_or_else(
            |_| String::from_utf8_lossy(config),
            |fields| Cow::Owned(Json::Object(to_object(fields)).to_string()),
        ),
        _ => String::from_utf8_lossy(config),
    }
}

fn to_object(fields: Struct) -> Map<String, Json> {
    fields.fields.into_iter().map(|(name, value)| (name, to_value(value))).collect()
}

/// The recursion is at most as deep as prost decodes, 100 levels.
fn to_value(value: Value) -> Json {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::NumberValue(number)) => to_number(number),
        Some(Kind::StringValue(text)) => Json::String(text),
        Some(Kind::BoolValue(value)) => Json::Bool(value),
        Some(Kind::StructValue(fields)) => Json::Object(to_object(fields)),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(to_value).collect(),
    }
}

/// Writes whole numbers without a fraction, as Envoy does.
fn to_number(number: f64) -> Json {
    if number.fract() == 0.0 && number.abs() < MAX_EXACT {
        format!("{number:.0}").parse::<i64>().map_or(Json::Null, Json::from)
    } else {
        Json::from(number)
    }
}

#[cfg(test)]
mod tests {
    use super::to_json;

    #[test]
    fn a_serialized_struct_is_the_same_as_its_json() {
        // As Envoy 1.38 passed `{enabled: false}`.
        assert_eq!(to_json(b"\n\r\n\x07enabled\x12\x02 \0"), r#"{"enabled":false}"#);
        // `{a: 429}`: 429.0 as a little-endian double.
        let number = b"\n\x0e\n\x01a\x12\x09\x11\0\0\0\0\0\xd0\x7a\x40";
        assert_eq!(to_json(number), r#"{"a":429}"#);
        assert_eq!(to_json(b""), "{}");
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in ["{\"a\": 1}", "\n{\"a\": 1}", "x"] {
            assert_eq!(to_json(text.as_bytes()), text);
        }
    }
}
