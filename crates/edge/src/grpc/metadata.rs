//! Builds Envoy's dynamic metadata of a decision: the request, and the metadata of the rules that
//! allowed it.
//!
//! Guarantees:
//! - The format is that of envoyproxy/ratelimit, plus `denied_by`, `shadow_denied_by`, `degraded`
//!   and the owner of permits.
//! - If two rules have the same key, objects are merged; of other values, the first is used.
//! - `denied_by` is present only in denials, and if `answers.denied_by` selects it.
//! - `shadow_denied_by` is present only if a limit in shadow mode would have denied, likewise.
//! - `degraded` is present only if a fallback decided a descriptor.

use std::collections::hash_map::Entry;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use serde_json::Value as Json;

use crate::ReplyOptions;
use crate::config::NON_FINITE_PREFIX;
use crate::engine::{Decision, LimitStatus, Rejection};
use crate::headers::OWNER_KEY;
use crate::kernel::decision::Verdict;

/// The key with the path of the rule that denied.
const DENIED_BY_KEY: &str = "denied_by";

/// The key with the path of the rule in shadow mode that would have denied.
const SHADOW_DENIED_BY_KEY: &str = "shadow_denied_by";

/// Builds the dynamic metadata of the decision on `request`, for later filters in Envoy.
#[must_use]
pub fn for_decision(request: &RateLimitRequest, decision: &Decision) -> Struct {
    let mut result = Struct::default();
    insert(&mut result, "domain", Kind::StringValue(request.domain.clone()));
    insert(&mut result, "descriptors", to_list(request.descriptors.iter().map(descriptor)));
    if request.hits_addend != 0 {
        insert(&mut result, "hitsAddend", Kind::NumberValue(request.hits_addend.into()));
    }
    let rules = rule_metadata(decision);
    if !rules.fields.is_empty() {
        insert(&mut result, "metadata", Kind::StructValue(rules));
    }
    if decision.statuses.iter().any(|status| status.decision.reason.is_fallback()) {
        insert(&mut result, "degraded", to_list(decision.statuses.iter().map(fallback_reason)));
    }
    result
}

/// Builds the dynamic metadata of a decision. `None` if `options` disable it.
pub(super) fn for_reply(
    request: &RateLimitRequest,
    decision: &Decision,
    options: &ReplyOptions,
) -> Option<Struct> {
    let mut result = options.dynamic_metadata.then(|| for_decision(request, decision))?;
    let paths =
        [(DENIED_BY_KEY, &decision.denied_by), (SHADOW_DENIED_BY_KEY, &decision.shadow_denied_by)];
    for (key, path) in paths.into_iter().filter(|_| options.denied_by_metadata) {
        if let Some(path) = path {
            insert(&mut result, key, Kind::StringValue(path.to_string()));
        }
    }
    Some(result)
}

/// Builds the dynamic metadata of a rejection by a concurrency limit. `None` if `options` disable
/// it.
pub(super) fn for_rejection(rejection: &Rejection, options: &ReplyOptions) -> Option<Struct> {
    let mut result = Struct::default();
    insert(&mut result, DENIED_BY_KEY, Kind::StringValue(rejection.path.to_string()));
    Some(result).filter(|_| options.dynamic_metadata && options.denied_by_metadata)
}

/// Adds the name of the replica that owns the request's permits.
pub fn add_owner(metadata: &mut Option<Struct>, owner: &str) {
    insert(metadata.get_or_insert_default(), OWNER_KEY, Kind::StringValue(owner.to_owned()));
}

/// Returns the reason of a status that a fallback decided; otherwise an empty text.
fn fallback_reason(status: &LimitStatus) -> Kind {
    let reason = status.decision.reason;
    Kind::StringValue(if reason.is_fallback() { reason.as_str() } else { "" }.to_owned())
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Kind {
    let mut result = Struct::default();
    let pairs = descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    insert(&mut result, "entries", to_list(pairs.map(Kind::StringValue)));
    if let Some(limit) = descriptor.limit {
        insert(&mut result, "limit", Kind::StringValue(limit_text(limit)));
    }
    if let Some(hits) = &descriptor.hits_addend {
        // Protobuf's `Value` has only doubles, which round large numbers, as in
        // envoyproxy/ratelimit.
        #[allow(clippy::cast_precision_loss)]
        insert(&mut result, "hitsAddend", Kind::NumberValue(hits.value as f64));
    }
    Kind::StructValue(result)
}

/// Returns an override in protobuf's text format, which omits zeros.
fn limit_text(limit: RateLimitOverride) -> String {
    let requests = match limit.requests_per_unit {
        0 => String::new(),
        requests => format!("requests_per_unit:{requests} "),
    };
    format!("{requests}unit:{}", unit_text(limit.unit))
}

/// Merges the metadata of the rules whose descriptors are within their limits, even in shadow mode.
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
        Entry::Vacant(vacant) => {
            vacant.insert(to_value(value));
        }
        Entry::Occupied(mut occupied) => {
            if let (Some(Kind::StructValue(first)), Json::Object(second)) =
                (&mut occupied.get_mut().kind, value)
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

/// Returns the unit of an override in protobuf's text format: its
/// name, or its number if the enum has no name for it.
fn unit_text(unit: i32) -> String {
    RateLimitUnit::try_from(unit)
        .map_or_else(|_| unit.to_string(), |unit| unit.as_str_name().to_owned())
}
