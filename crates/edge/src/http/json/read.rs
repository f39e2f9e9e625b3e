//! Parses proto3 JSON into a `RateLimitRequest`, as strictly as envoyproxy/ratelimit.
//!
//! Guarantees:
//! - A field name may be `hitsAddend` or `hits_addend`; each field appears at most once.
//! - Null means an absent field, but is an error in a list.
//! - An integer is a number or a string, also `1.0` or `2e0`, and is parsed without rounding.
//! - A unit is a number or a name of the enum `RateLimitUnit`.
//! - Unknown fields and trailing data are errors.
//! - Objects are counted before parsing, because 4 MB of `{},{},{}` would use 100 MB of memory.

use std::fmt;
use std::marker::PhantomData;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::UInt64Value;
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::grpc::convert::{MAX_DESCRIPTORS, MAX_ENTRIES};

/// The largest number of JSON objects in a valid body: the request, each descriptor and its
/// override, and all entries.
const MAX_OBJECTS: usize = 1 + 2 * MAX_DESCRIPTORS + MAX_ENTRIES;

/// The reason why a body is rejected.
#[derive(Debug, thiserror::Error)]
pub enum JsonRequestError {
    /// The body is not a valid `RateLimitRequest` in JSON.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    /// The body has more JSON objects than the largest valid check; contains their number.
    #[error("{0} objects in one check; the maximum is {MAX_OBJECTS}: send the rest separately")]
    TooManyObjects(usize),
}

/// Parses a `RateLimitRequest` from a JSON body.
///
/// # Errors
/// [`JsonRequestError`] if the body is invalid or has too many objects.
pub fn parse_request(body: &[u8]) -> Result<RateLimitRequest, JsonRequestError> {
    let objects = count_objects(body);
    if MAX_OBJECTS < objects {
        return Err(JsonRequestError::TooManyObjects(objects));
    }
    Ok(serde_json::from_slice::<ParsedMessage<RateLimitRequest>>(body)?.0)
}

/// Counts the JSON objects in `body`, without those in strings.
fn count_objects(body: &[u8]) -> usize {
    let mut bytes = body.iter();
    let (mut objects, mut in_text) = (0, false);
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_text = !in_text,
            b'\\' if in_text => drop(bytes.next()),
            b'{' if !in_text => objects += 1,
            _ => {}
        }
    }
    objects
}

struct ParsedMessage<M>(M);

trait JsonFields: Default {
    type Slots: Default;

    /// Parses the next value of `map` into the slot of the field `name`.
    fn parse_field<'de, A: MapAccess<'de>>(
        slots: &mut Self::Slots,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error>;

    fn from_slots(slots: Self::Slots) -> Self;
}

/// The parsed value of a field: `None` before the field appears, `Some(None)` for null.
type FieldSlot<T> = Option<Option<T>>;

fn fill_slot<'de, T: DeserializeOwned, A: MapAccess<'de>>(
    slot: &mut FieldSlot<T>,
    map: &mut A,
) -> Result<(), A::Error> {
    if slot.is_some() {
        return Err(A::Error::custom("duplicate field"));
    }
    *slot = Some(map.next_value()?);
    Ok(())
}

impl<'de, M: JsonFields> Deserialize<'de> for ParsedMessage<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<M>(PhantomData<M>);
        impl<'de, M: JsonFields> Visitor<'de> for ObjectVisitor<M> {
            type Value = ParsedMessage<M>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<ParsedMessage<M>, A::Error> {
                let mut slots = M::Slots::default();
                while let Some(name) = map.next_key::<String>()? {
                    M::parse_field(&mut slots, &name, &mut map)?;
                }
                Ok(ParsedMessage(M::from_slots(slots)))
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

impl JsonFields for RateLimitRequest {
    type Slots =
        (FieldSlot<String>, FieldSlot<Vec<ParsedMessage<RateLimitDescriptor>>>, FieldSlot<JsonU32>);

    fn parse_field<'de, A: MapAccess<'de>>(
        (domain, descriptors, hits_addend): &mut Self::Slots,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "domain" => fill_slot(domain, map),
            "descriptors" => fill_slot(descriptors, map),
            "hitsAddend" | "hits_addend" => fill_slot(hits_addend, map),
            _ => Err(A::Error::unknown_field(name, &["domain", "descriptors", "hitsAddend"])),
        }
    }

    fn from_slots((domain, descriptors, hits_addend): Self::Slots) -> Self {
        let descriptors = descriptors.flatten().unwrap_or_default();
        Self {
            domain: domain.flatten().unwrap_or_default(),
            descriptors: descriptors.into_iter().map(|descriptor| descriptor.0).collect(),
            hits_addend: hits_addend.flatten().unwrap_or_default().0,
        }
    }
}

impl JsonFields for RateLimitDescriptor {
    type Slots = (
        FieldSlot<Vec<ParsedMessage<Entry>>>,
        FieldSlot<ParsedMessage<RateLimitOverride>>,
        FieldSlot<JsonU64>,
        FieldSlot<bool>,
    );

    fn parse_field<'de, A: MapAccess<'de>>(
        (entries, limit, hits_addend, is_negative_hits): &mut Self::Slots,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "entries" => fill_slot(entries, map),
            "limit" => fill_slot(limit, map),
            "hitsAddend" | "hits_addend" => fill_slot(hits_addend, map),
            "isNegativeHits" | "is_negative_hits" => fill_slot(is_negative_hits, map),
            _ => {
                let known = &["entries", "limit", "hitsAddend", "isNegativeHits"];
                Err(A::Error::unknown_field(name, known))
            }
        }
    }

    fn from_slots((entries, limit, hits_addend, is_negative_hits): Self::Slots) -> Self {
        let entries = entries.flatten().unwrap_or_default();
        Self {
            entries: entries.into_iter().map(|entry| entry.0).collect(),
            limit: limit.flatten().map(|limit| limit.0),
            hits_addend: hits_addend.flatten().map(|JsonU64(value)| UInt64Value { value }),
            is_negative_hits: is_negative_hits.flatten().unwrap_or_default(),
        }
    }
}

impl JsonFields for Entry {
    type Slots = (FieldSlot<String>, FieldSlot<String>);

    fn parse_field<'de, A: MapAccess<'de>>(
        (key, value): &mut Self::Slots,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "key" => fill_slot(key, map),
            "value" => fill_slot(value, map),
            _ => Err(A::Error::unknown_field(name, &["key", "value"])),
        }
    }

    fn from_slots((key, value): Self::Slots) -> Self {
        let text = |slot: FieldSlot<String>| slot.flatten().unwrap_or_default();
        Self { key: text(key), value: text(value) }
    }
}

impl JsonFields for RateLimitOverride {
    type Slots = (FieldSlot<JsonU32>, FieldSlot<JsonUnit>);

    fn parse_field<'de, A: MapAccess<'de>>(
        (requests_per_unit, unit): &mut Self::Slots,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        match name {
            "requestsPerUnit" | "requests_per_unit" => fill_slot(requests_per_unit, map),
            "unit" => fill_slot(unit, map),
            _ => Err(A::Error::unknown_field(name, &["requestsPerUnit", "unit"])),
        }
    }

    fn from_slots((requests_per_unit, unit): Self::Slots) -> Self {
        Self {
            requests_per_unit: requests_per_unit.flatten().unwrap_or_default().0,
            unit: unit.flatten().unwrap_or_default().0,
        }
    }
}

/// An unsigned integer in proto3 JSON: a number, or a string with a number.
#[derive(Default)]
struct JsonU64(u64);

impl<'de> Deserialize<'de> for JsonU64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let number = if raw.get().starts_with('"') {
            serde_json::from_str(raw.get())
                .ok()
                .and_then(|text: String| parse_quoted_integer(&text))
        } else {
            parse_integer(raw.get())
        };
        let number = number.and_then(|number| u64::try_from(number).ok());
        number.map(Self).ok_or_else(|| D::Error::custom("not an unsigned integer"))
    }
}

#[derive(Default)]
struct JsonU32(u32);

impl<'de> Deserialize<'de> for JsonU32 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let JsonU64(value) = JsonU64::deserialize(deserializer)?;
        u32::try_from(value)
            .map(Self)
            .map_err(|_| D::Error::custom("the number has more than 32 bits"))
    }
}

/// Parses a string that is exactly one JSON number, without white space.
fn parse_quoted_integer(text: &str) -> Option<i128> {
    let number: &RawValue = serde_json::from_str(text).ok()?;
    (number.get().len() == text.len()).then(|| parse_integer(text)).flatten()
}

/// Parses a JSON number with an integral value. Floats would round large values.
fn parse_integer(text: &str) -> Option<i128> {
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = format!("{whole}{fraction}");
    let significant_digits = digits.trim_end_matches('0');
    let Some(last_digit) = significant_digits.trim_start_matches('-').chars().last() else {
        return Some(0);
    };
    let decimals = i64::try_from(fraction.len()).ok()?;
    let zeros = i64::try_from(digits.len() - significant_digits.len()).ok()?;
    let power = exponent.parse::<i64>().ok()?.checked_sub(decimals)?.checked_add(zeros)?;
    let power = u32::try_from(power).ok()?;
    last_digit.is_ascii_digit().then_some(())?;
    significant_digits.parse::<i128>().ok()?.checked_mul(10_i128.checked_pow(power)?)
}

/// The unit of an override, by number or name. The enum has no week.
#[derive(Default)]
struct JsonUnit(i32);

impl<'de> Deserialize<'de> for JsonUnit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let unit = match serde_json::from_str::<String>(raw.get()) {
            Ok(name) => RateLimitUnit::from_str_name(&name).map(i32::from),
            Err(_) => parse_integer(raw.get()).and_then(|number| i32::try_from(number).ok()),
        };
        unit.map(Self).ok_or_else(|| D::Error::custom("not the name or number of a unit"))
    }
}
