//! Dynamic metadata of an answer: what was asked, and what the rules that passed attach.
//!
//! Guarantees: the shape is the reference's (§2.13 of its behaviour); the first writer of a key
//! wins, two objects under one key merge; the configuration is read, never changed. Ours are
//! `degraded`, there only where the store of counters did not answer, and the owner of permits.
//! Leaves out: errors, which carry no metadata.

use std::collections::hash_map::Entry;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use serde_json::Value as Json;

use super::convert::unit_text;
use crate::config::NOT_FINITE;
use crate::edge::hook::OWNER;
use crate::engine::{Answer, Status};
use crate::kernel::decision::Verdict;

/// The metadata that tells `answer` to the filters behind the asker of `request`.
#[must_use]
pub fn of(request: &RateLimitRequest, answer: &Answer) -> Struct {
    let mut all = Struct::default();
    put(&mut all, "domain", Kind::StringValue(request.domain.clone()));
    put(&mut all, "descriptors", list(request.descriptors.iter().map(descriptor)));
    if request.hits_addend != 0 {
        put(&mut all, "hitsAddend", Kind::NumberValue(request.hits_addend.into()));
    }
    let rules = of_rules(answer);
    if !rules.fields.is_empty() {
        put(&mut all, "metadata", Kind::StructValue(rules));
    }
    if answer.statuses.iter().any(|status| status.finding.reason.is_degraded()) {
        put(&mut all, "degraded", list(answer.statuses.iter().map(degraded)));
    }
    all
}

/// Names the replica that answers, beside what is said already.
pub fn name_owner(said: &mut Option<Struct>, owner: &str) {
    put(said.get_or_insert_default(), OWNER, Kind::StringValue(owner.to_owned()));
}

/// Why a descriptor was answered without the store; empty where the store answered.
fn degraded(status: &Status) -> Kind {
    let reason = status.finding.reason;
    Kind::StringValue(if reason.is_degraded() { reason.as_str() } else { "" }.to_owned())
}

fn descriptor(written: &RateLimitDescriptor) -> Kind {
    let mut shown = Struct::default();
    let pairs = written.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    put(&mut shown, "entries", list(pairs.map(Kind::StringValue)));
    if let Some(limit) = written.limit {
        put(&mut shown, "limit", Kind::StringValue(limit_text(limit)));
    }
    if let Some(own) = &written.hits_addend {
        // The protocol has no other number; the reference loses the same digits.
        #[allow(clippy::cast_precision_loss)]
        put(&mut shown, "hitsAddend", Kind::NumberValue(own.value as f64));
    }
    Kind::StructValue(shown)
}

/// An override in protobuf's text form, where a zero is not written.
fn limit_text(limit: RateLimitOverride) -> String {
    let requests = match limit.requests_per_unit {
        0 => String::new(),
        requests => format!("requests_per_unit:{requests} "),
    };
    format!("{requests}unit:{}", unit_text(limit.unit))
}

/// The metadata of every rule whose status is not over limit, global shadow mode regardless.
fn of_rules(answer: &Answer) -> Struct {
    let mut merged = Struct::default();
    for status in answer.statuses.iter().filter(|s| s.finding.verdict == Verdict::Admit) {
        for (key, value) in status.metadata.iter().flat_map(|metadata| metadata.iter()) {
            merge(&mut merged, key, value);
        }
    }
    merged
}

fn merge(into: &mut Struct, key: &str, value: &Json) {
    match into.fields.entry(key.to_owned()) {
        Entry::Vacant(free) => {
            free.insert(message(value));
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

fn message(value: &Json) -> Value {
    Value { kind: Some(kind(value)) }
}

fn kind(value: &Json) -> Kind {
    match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => {
            not_finite(text).map_or_else(|| Kind::StringValue(text.clone()), Kind::NumberValue)
        }
        Json::Array(items) => list(items.iter().map(kind)),
        Json::Object(fields) => Kind::StructValue(Struct {
            fields: fields.iter().map(|(key, value)| (key.clone(), message(value))).collect(),
        }),
    }
}

/// The number that `text` stands for, if it stands for one that JSON does not have.
fn not_finite(text: &str) -> Option<f64> {
    text.strip_prefix(NOT_FINITE)?.parse().ok()
}

fn list(kinds: impl Iterator<Item = Kind>) -> Kind {
    let values = kinds.map(|kind| Value { kind: Some(kind) }).collect();
    Kind::ListValue(ListValue { values })
}

fn put(into: &mut Struct, key: &str, kind: Kind) {
    into.fields.insert(key.to_owned(), Value { kind: Some(kind) });
}
