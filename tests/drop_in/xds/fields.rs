//! Fields of xDS messages, compared with those of YAML files.

use envoy_types::pb::google::protobuf::Value;
use envoy_types::pb::google::protobuf::value::Kind;
use sluicegate::source::xds::message::{RateLimitDescriptor, RateLimitPolicy, RateLimitReplace};

use super::{check, descriptor, domain, fields, start, stat, text, wait_for_limit};
use crate::support::http1;
use crate::support::waiting::for_a_day_with_a_minute_left;
use crate::support::xds::Xds;

fn block(of: &[(&str, Value)]) -> Value {
    Value { kind: Some(Kind::StructValue(fields(of))) }
}

#[test]
fn xds_message_fields_match_the_yaml_fields() {
    for_a_day_with_a_minute_left();
    let xds = Xds::start();
    let service = start(&xds, &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let unlimited = RateLimitPolicy {
        unlimited: true,
        name: "free".to_owned(),
        replaces: vec![RateLimitReplace { name: "paid".to_owned() }],
        ..RateLimitPolicy::default()
    };
    let nodes = vec![
        RateLimitDescriptor {
            value: "v".to_owned(),
            descriptors: vec![descriptor("inner", 7)],
            rate_limit: None,
            ..descriptor("outer", 0)
        },
        RateLimitDescriptor { rate_limit: Some(unlimited), ..descriptor("free", 0) },
        RateLimitDescriptor { shadow_mode: true, ..descriptor("shadow", 0) },
        RateLimitDescriptor { quota_mode: true, detailed_metric: true, ..descriptor("quota", 1) },
        RateLimitDescriptor {
            metadata: Some(fields(&[("team", text("a"))])),
            ..descriptor("meta", 5)
        },
    ];
    xds.publish("1", &[domain("d", nodes)]);
    assert_eq!(xds.wait_for_ack("1").1, None);
    wait_for_limit(&service, "d", "outer_v.inner", 7);
    let rules = http1::get(service.admin, "/rlconfig", &[]).unwrap().text();
    assert!(rules.contains("d.free: unit=UNKNOWN requests_per_unit=0, "), "{rules}");
    assert!(rules.contains("d.shadow: unit=DAY requests_per_unit=0, shadow_mode: true"), "{rules}");
    assert!(
        rules.contains(
            "d.quota: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: true"
        )
    );
    assert_eq!(check(&service, "d", "shadow").0, 200);
    assert!(check(&service, "d", "meta").1.contains(r#""metadata":{"team":"a"}"#));
    assert_eq!(check(&service, "d", "quota").0, 200);
    assert_eq!(
        stat(&service, "ratelimit.service.rate_limit.d.quota_v.within_limit"),
        1,
        "detailed"
    );
}

#[test]
fn sluicegate_fields_in_xds_metadata_are_applied_and_removed() {
    for_a_day_with_a_minute_left();
    let xds = Xds::start();
    let service = start(&xds, &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let with = |ours: Value| RateLimitDescriptor {
        metadata: Some(fields(&[("team", text("a")), ("sluicegate", ours)])),
        ..descriptor("k", 60)
    };
    let burst = Value { kind: Some(Kind::NumberValue(2.0)) };
    let gcra = block(&[("rate_limit", block(&[("strategy", text("gcra")), ("burst", burst)]))]);
    xds.publish("1", &[domain("d", vec![with(gcra)])]);
    assert_eq!(xds.wait_for_ack("1").1, None);
    wait_for_limit(&service, "d", "k", 60);
    let answers = [(); 3].map(|()| check(&service, "d", "k"));
    assert_eq!(answers.each_ref().map(|(status, _)| *status), [200, 200, 429], "a burst of two");
    assert!(answers[0].1.contains(r#""metadata":{"team":"a"}"#), "{}", answers[0].1);
    for (version, ours, why) in [
        ("2", block(&[("rate_limit", block(&[("strategi", text("gcra"))]))]), "strategi"),
        ("3", block(&[("key", text("other"))]), "`key` is set in `sluicegate` and in the resource"),
        ("4", text("gcra"), "must be an object of limits file fields"),
    ] {
        xds.publish(version, &[domain("d", vec![with(ours)])]);
        let refused = xds.wait_for_ack(version).1.unwrap();
        assert!(refused.contains(why), "{refused}");
    }
}
