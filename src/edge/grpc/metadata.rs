//! Builds Envoy's dynamic metadata of a decision: the request, and the metadata of
//! the rules that allowed it.
//!
//! Guarantees:
//! - The format is that of envoyproxy/ratelimit, plus `degraded` and the owner of permits.
//! - If two rules have the same key, objects are merged; of other values, the first is used.
//! - `degraded` is present only if a fallback decided a descriptor.
//!
//! Not covered:
//! - Errors: their replies have no metadata.

use std::collections::hash_map::Entry;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use serde_json::Value as Json;

use super::convert::unit_text;
use crate::config::NON_FINITE_PREFIX;
use crate::edge::hook::OWNER_KEY;
use crate::engine::{Decision, LimitStatus};
use crate::kernel::decision::Verdict;

/// Builds the dynamic metadata of the decision on `request`. Later filters in Envoy can read it.
#[must_use]
pub fn for_decision(request: &RateLimitRequest, decision: &Decision) -> Struct {
    let mut all = Struct::default();
    insert(&mut all, "domain", Kind::StringValue(request.domain.clone()));
    insert(&mut all, "descriptors", to_list(request.descriptors.iter().map(descriptor)));
    if request.hits_addend != 0 {
        insert(&mut all, "hitsAddend", Kind::NumberValue(request.hits_addend.into()));
    }
    let rules = rule_metadata(decision);
    if !rules.fields.is_empty() {
        insert(&mut all, "metadata", Kind::StructValue(rules));
    }
    if decision.statuses.iter().any(|status| status.decision.reason.is_fallback()) {
        insert(&mut all, "degraded", to_list(decision.statuses.iter().map(fallback_reason)));
    }
    all
}

/// Adds the name of the replica that owns the request's permits to the metadata.
pub fn add_owner(metadata: &mut Option<Struct>, owner: &str) {
    insert(metadata.get_or_insert_default(), OWNER_KEY, Kind::StringValue(owner.to_owned()));
}

/// Returns the reason of a descriptor's status that a fallback decided; otherwise an empty string.
fn fallback_reason(status: &LimitStatus) -> Kind {
    let reason = status.decision.reason;
    Kind::StringValue(if reason.is_fallback() { reason.as_str() } else { "" }.to_owned())
}

fn descriptor(written: &RateLimitDescriptor) -> Kind {
    let mut shown = Struct::default();
    let pairs = written.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    insert(&mut shown, "entries", to_list(pairs.map(Kind::StringValue)));
    if let Some(limit) = written.limit {
        insert(&mut shown, "limit", Kind::StringValue(limit_text(limit)));
    }
    if let Some(hits) = &written.hits_addend {
        // Protobuf's `Value` has only doubles. They round large
        // numbers, as in envoyproxy/ratelimit.
        #[allow(clippy::cast_precision_loss)]
        insert(&mut shown, "hitsAddend", Kind::NumberValue(hits.value as f64));
    }
    Kind::StructValue(shown)
}

/// Returns an override in protobuf's text format, which omits a value of zero.
fn limit_text(limit: RateLimitOverride) -> String {
    let requests = match limit.requests_per_unit {
        0 => String::new(),
        requests => format!("requests_per_unit:{requests} "),
    };
    format!("{requests}unit:{}", unit_text(limit.unit))
}

/// Merges the metadata of the rules whose descriptors are within their limits.
/// The setting `answers.shadow_mode` does not matter here.
fn rule_metadata(decision: &Decision) -> Struct {
    let mut merged = Struct::default();
    for status in decision.statuses.iter().filter(|s| s.decision.verdict == Verdict::Allow) {
        for (key, value) in status.metadata.iter().flat_map(|metadata| metadata.iter()) {
            merge(&mut merged, key, value);
        }
    }
    merged
}

fn merge(into: &mut Struct, key: &str, value: &Json) {
    match into.fields.entry(key.to_owned()) {
        Entry::Vacant(free) => {
            free.insert(to_value(value));
        }
        Entry::Occupied(mut taken) => {
            if let (Some(Kind::StructValue(first)), Json::Object(second)) =
                (&mut taken.get_mut().kind, value)
            {
                second.iter().for_each(|(key, value)| merge(first, key, value));
            }
        }
    }
}

fn to_value(value: &Json) -> Value {
    Value { kind: Some(to_kind(value)) }
}

fn to_kind(value: &Json) -> Kind {
    match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => parse_not_finite(text)
            .map_or_else(|| Kind::StringValue(text.clone()), Kind::NumberValue),
        Json::Array(items) => to_list(items.iter().map(to_kind)),
        Json::Object(fields) => Kind::StructValue(Struct {
            fields: fields.iter().map(|(key, value)| (key.clone(), to_value(value))).collect(),
        }),
    }
}

/// Parses infinity or NaN, which JSON cannot express, from text after [`NON_FINITE_PREFIX`].
fn parse_not_finite(text: &str) -> Option<f64> {
    text.strip_prefix(NON_FINITE_PREFIX)?.parse().ok()
}

fn to_list(kinds: impl Iterator<Item = Kind>) -> Kind {
    let values = kinds.map(|kind| Value { kind: Some(kind) }).collect();
    Kind::ListValue(ListValue { values })
}

fn insert(into: &mut Struct, key: &str, kind: Kind) {
    into.fields.insert(key.to_owned(), Value { kind: Some(kind) });
}
