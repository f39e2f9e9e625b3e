//! Tests of dynamic metadata in responses: format and merging, as recorded from
//! envoyproxy/ratelimit.

use std::sync::Arc;

use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, UInt64Value, Value};
use serde_json::json;
use sluicegate::config::NON_FINITE_PREFIX;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::grpc::convert;
use sluicegate::engine::Decision;
use sluicegate::kernel::decision::{DescriptorDecision, Reason, Verdict};
use sluicegate::kernel::units::Nanos;

use crate::edge::{
    ENFORCED, QUOTA, SHADOW, admitted, decision, denied, descriptor, free, overridden, per_minute,
    request,
};

/// Converts metadata to JSON, the format of the recordings from envoyproxy/ratelimit.
fn to_json(value: &Value) -> serde_json::Value {
    match value.kind.as_ref().unwrap() {
        Kind::NullValue(_) => json!(null),
        Kind::NumberValue(n) => json!(n),
        Kind::StringValue(s) => json!(s),
        Kind::BoolValue(b) => json!(b),
        Kind::StructValue(s) => fields(s),
        Kind::ListValue(l) => l.values.iter().map(to_json).collect(),
    }
}

fn fields(message: &Struct) -> serde_json::Value {
    message.fields.iter().map(|(key, value)| (key.clone(), to_json(value))).collect()
}

fn metadata(
    asked: &envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest,
    answer: &Decision,
) -> serde_json::Value {
    let reporting = ReplyOptions { dynamic_metadata: true, ..ReplyOptions::default() };
    fields(&convert::to_response(asked, answer, &reporting).dynamic_metadata.unwrap())
}

fn answer_with_metadata(parts: Vec<(DescriptorDecision, serde_json::Value)>) -> Decision {
    let (findings, attached): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    let mut answer = decision(Verdict::Allow, findings);
    for (status, attached) in answer.statuses.iter_mut().zip(attached) {
        status.metadata = attached.as_object().cloned().map(Arc::new);
    }
    answer
}

fn ok() -> DescriptorDecision {
    admitted(per_minute(9, ""), 8, Nanos::SECOND)
}

fn merged(parts: Vec<(DescriptorDecision, serde_json::Value)>) -> serde_json::Value {
    metadata(&request(vec![]), &answer_with_metadata(parts))["metadata"].clone()
}

#[test]
fn metadata_lists_domain_and_descriptors() {
    let mut two = descriptor("k", "v");
    two.entries.extend(descriptor("a", "").entries);
    let asked = request(vec![two]);
    let want = json!({"domain": "d", "descriptors": [{"entries": ["k=v", "a="]}]});
    assert_eq!(metadata(&asked, &decision(Verdict::Allow, vec![free(Reason::NoLimit)])), want);
}

#[test]
fn hits_addend_is_a_number_if_present() {
    let mut probe = descriptor("k", "v");
    probe.hits_addend = Some(UInt64Value { value: 0 });
    let mut asked = request(vec![probe, descriptor("l", "w")]);
    asked.hits_addend = 7;
    let want = json!({"domain": "d", "hitsAddend": 7.0, "descriptors": [
        {"entries": ["k=v"], "hitsAddend": 0.0}, {"entries": ["l=w"]},
    ]});
    assert_eq!(metadata(&asked, &decision(Verdict::Allow, vec![])), want);
}

#[test]
fn metadata_shows_limit_overrides_in_protobuf_text_format() {
    let texts = [
        (overridden(7, 5), "requests_per_unit:7 unit:MONTH"),
        (overridden(0, 6), "unit:YEAR"),
        (overridden(3, 7), "requests_per_unit:3 unit:7"),
        (overridden(u32::MAX, 1), "requests_per_unit:4294967295 unit:SECOND"),
    ];
    for (written, want) in texts {
        let shown = metadata(&request(vec![written]), &decision(Verdict::Allow, vec![]));
        assert_eq!(shown["descriptors"][0]["limit"], want);
    }
}

#[test]
fn metadata_of_the_first_rule_wins_and_objects_merge() {
    let first = json!({"who": "a", "x": 1.0, "o": {"x": 1.0, "in": {"p": 1.0}}, "l": [1.0, 2.0]});
    let second = json!({"who": "b", "z": null, "o": {"x": 2.0, "z": 3.0, "in": {"p": 9.0, "q": 8.0}},
        "l": [3.0]});
    let want = json!({"who": "a", "x": 1.0, "z": null, "l": [1.0, 2.0],
        "o": {"x": 1.0, "z": 3.0, "in": {"p": 1.0, "q": 8.0}}});
    assert_eq!(merged(vec![(ok(), first), (ok(), second)]), want);
}

#[test]
fn metadata_of_conflicting_types_keeps_the_first_value() {
    let (object, flat) =
        (json!({"o": {"x": 1.0}, "s": "text"}), json!({"o": "flat", "s": {"x": 1.0}}));
    assert_eq!(merged(vec![(ok(), object.clone()), (ok(), flat.clone())]), object);
    assert_eq!(merged(vec![(ok(), flat.clone()), (ok(), object)]), flat);
}

#[test]
fn merging_metadata_does_not_modify_the_rules() {
    let answer = answer_with_metadata(vec![
        (ok(), json!({"o": {"x": 1.0}})),
        (ok(), json!({"o": {"z": 3.0}})),
    ]);
    metadata(&request(vec![]), &answer);
    let first = answer.statuses[0].metadata.as_deref().unwrap();
    assert_eq!(first["o"], json!({"x": 1.0}));
}

#[test]
fn only_shadow_rules_attach_metadata_when_over_limit() {
    let over = |standing| denied(per_minute(1, ""), Nanos::SECOND, standing);
    let who = |name: &str| json!({"who": name});
    let parts = vec![
        (over(ENFORCED), who("enforced")),
        (over(QUOTA), who("quota")),
        (over(SHADOW), who("shadow")),
    ];
    assert_eq!(merged(parts), who("shadow"));
    assert_eq!(merged(vec![(over(ENFORCED), who("enforced"))]), json!(null));
}

#[test]
fn metadata_of_all_json_types_is_sent() {
    let all = json!({"n": null, "t": true, "f": 2.5, "i": -3.0, "s": "", "l": [[], {}], "": 1.0});
    assert_eq!(merged(vec![(ok(), all.clone())]), all);
}

#[test]
fn metadata_is_off_by_default() {
    let reply = convert::to_response(
        &request(vec![]),
        &decision(Verdict::Allow, vec![]),
        &ReplyOptions::default(),
    );
    assert_eq!(reply.dynamic_metadata, None);
}

#[test]
fn marked_non_finite_numbers_are_sent_as_numbers() {
    let marked = |name: &str| format!("{NON_FINITE_PREFIX}{name}");
    let attached = json!({"inf": marked("Infinity"), "low": marked("-Infinity"),
        "nan": [marked("NaN")], "text": "Infinity"});
    let answer = answer_with_metadata(vec![(ok(), attached)]);
    let reporting = ReplyOptions { dynamic_metadata: true, ..ReplyOptions::default() };
    let reply = convert::to_response(&request(vec![]), &answer, &reporting);
    let Some(Kind::StructValue(rules)) =
        &reply.dynamic_metadata.unwrap().fields["metadata"].kind.clone()
    else {
        panic!("no metadata");
    };
    let number = |value: &Value| match &value.kind {
        Some(Kind::NumberValue(number)) => *number,
        other => panic!("{other:?}"),
    };
    assert!(number(&rules.fields["inf"]) > f64::MAX);
    assert!(number(&rules.fields["low"]) < f64::MIN);
    let Some(Kind::ListValue(list)) = &rules.fields["nan"].kind else { panic!("no list") };
    assert!(number(&list.values[0]).is_nan());
    assert_eq!(to_json(&rules.fields["text"]), "Infinity");
}

#[test]
fn metadata_of_a_denial_names_the_rule_if_selected() {
    let denied = decision(Verdict::Deny, vec![denied(per_minute(1, ""), Nanos::SECOND, ENFORCED)]);
    let allowed = decision(Verdict::Allow, vec![ok()]);
    let key = |answer: &Decision, dynamic_metadata, denied_by_metadata| {
        let options =
            ReplyOptions { dynamic_metadata, denied_by_metadata, ..ReplyOptions::default() };
        let reply = convert::to_response(&request(vec![]), answer, &options);
        reply.dynamic_metadata.and_then(|metadata| fields(&metadata).get("denied_by").cloned())
    };
    assert_eq!(key(&denied, true, true), Some(json!("d.k")));
    for none in [key(&denied, true, false), key(&denied, false, true), key(&allowed, true, true)] {
        assert_eq!(none, None);
    }
}
