//! Tests of proto3 JSON requests and responses. Expected results were recorded from
//! envoyproxy/ratelimit.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Duration, Struct, UInt64Value, Value};
use serde_json::json;
use sluicegate::edge::http::json::{NotExpressibleInJson, parse_request, to_json_text};

use crate::edge::{descriptor, overridden, request as asked};
use crate::support::http1;
use crate::support::service::Service;

fn read(body: &str) -> RateLimitRequest {
    parse_request(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn body_with(fields: &str) -> String {
    format!(
        r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"k","value":"v"}}],{fields}}}]}}"#
    )
}

fn own_addend(body: &str) -> Option<u64> {
    read(body).descriptors[0].hits_addend.map(|own| own.value)
}

#[test]
fn camel_and_snake_case_names_are_accepted() {
    let camel = r#"{"domain":"d","hitsAddend":3,"descriptors":[{"entries":[{"key":"k","value":"v"}],
        "limit":{"requestsPerUnit":7,"unit":"DAY"},"hitsAddend":"2","isNegativeHits":true}]}"#;
    let snake = r#"{"domain":"d","hits_addend":3,"descriptors":[{"entries":[{"key":"k","value":"v"}],
        "limit":{"requests_per_unit":7,"unit":4},"hits_addend":2,"is_negative_hits":true}]}"#;
    let mut want = asked(vec![overridden(7, 4)]);
    want.hits_addend = 3;
    want.descriptors[0].hits_addend = Some(UInt64Value { value: 2 });
    want.descriptors[0].is_negative_hits = true;
    assert_eq!(read(camel), want);
    assert_eq!(read(snake), want);
}

#[test]
fn missing_and_null_fields_use_defaults() {
    assert_eq!(read("{}"), RateLimitRequest::default());
    let nulls = r#"{"domain":null,"descriptors":null,"hitsAddend":null}"#;
    assert_eq!(read(nulls), RateLimitRequest::default());
    let body = body_with(r#""limit":null,"hitsAddend":null,"isNegativeHits":null"#);
    assert_eq!(read(&body), asked(vec![descriptor("k", "v")]));
    let body = " {\n\"domain\" : \"d\", \"descriptors\":[ {\"entries\":[{\"key\":\"k\",\"value\":null}]} ]\t}\r\n";
    assert_eq!(read(body), asked(vec![descriptor("k", "")]));
}

#[test]
fn escapes_are_decoded_in_names_and_values() {
    let body = r#"{"\u0064omain":"\u0064","descriptors":[{"entries":[{"key":"k","value":"\ud83d\ude00\n\/\u0000"}]}]}"#;
    assert_eq!(read(body), asked(vec![descriptor("k", "\u{1f600}\n/\0")]));
}

#[test]
fn all_integer_notations_are_accepted() {
    let ways = [
        ("1", 1),
        ("1.0", 1),
        ("2e0", 2),
        ("2E+1", 20),
        ("20e-1", 2),
        (r#""1""#, 1),
        (r#""1.0""#, 1),
        (r#""2e0""#, 2),
        (r#""\u0031""#, 1),
        ("0", 0),
        ("-0", 0),
        ("-0.0", 0),
        (r#""-0""#, 0),
        ("0e99999999999999999999", 0),
        ("9007199254740993.0", 9_007_199_254_740_993),
        ("9.007199254740993e15", 9_007_199_254_740_993),
        ("1e18", 1_000_000_000_000_000_000),
        (r#""1e16""#, 10_000_000_000_000_000),
        ("9223372036854775807", (1 << 63) - 1),
        ("18446744073709551615", u64::MAX),
        (r#""18446744073709551615""#, u64::MAX),
    ];
    for (written, want) in ways {
        assert_eq!(
            own_addend(&body_with(&format!(r#""hitsAddend":{written}"#))),
            Some(want),
            "{written}"
        );
    }
}

#[test]
fn invalid_unsigned_integers_are_rejected() {
    let wrong = [
        "-1",
        "1.5",
        "true",
        "[]",
        "{}",
        r#"{"value":2}"#,
        "18446744073709551616",
        "1e20",
        "1e99999999999999999999",
        "1e-1",
        "-1e2",
        "01",
        "+1",
        "NaN",
        "Infinity",
        r#""""#,
        r#""0x1""#,
        r#"" 1""#,
        r#""1 ""#,
        r#""-1""#,
        r#""1.5""#,
        r#""+1""#,
        r#""01""#,
        r#""one""#,
        r#""1,""#,
        r#""null""#,
        r#""18446744073709551616""#,
        r#""\"1\"""#,
        r#""NaN""#,
        "-0.5",
    ];
    for written in wrong {
        let body = body_with(&format!(r#""hitsAddend":{written}"#));
        assert!(parse_request(body.as_bytes()).is_err(), "{written}");
        let body = format!(r#"{{"domain":"d","hitsAddend":{written}}}"#);
        assert!(parse_request(body.as_bytes()).is_err(), "{written} for the request");
    }
}

#[test]
fn values_above_32_bits_are_rejected() {
    assert_eq!(read(r#"{"hitsAddend":4294967295}"#).hits_addend, u32::MAX);
    assert!(parse_request(br#"{"hitsAddend":4294967296}"#).is_err());
    let body = body_with(r#""limit":{"requestsPerUnit":4294967296,"unit":"DAY"}"#);
    assert!(parse_request(body.as_bytes()).is_err());
}

#[test]
fn override_units_are_enum_names_or_any_number() {
    let units = [
        (r#""UNKNOWN""#, 0),
        (r#""SECOND""#, 1),
        (r#""MINUTE""#, 2),
        (r#""HOUR""#, 3),
        (r#""DAY""#, 4),
        (r#""MONTH""#, 5),
        (r#""YEAR""#, 6),
        ("7", 7),
        ("42", 42),
        ("-1", -1),
        ("2.0", 2),
    ];
    for (written, want) in units {
        let body = body_with(&format!(r#""limit":{{"requestsPerUnit":1,"unit":{written}}}"#));
        assert_eq!(read(&body).descriptors[0].limit.unwrap().unit, want);
    }
    for written in [r#""WEEK""#, r#""month""#, r#""Day""#, r#""2""#, r#""""#, "1.5", "2147483648"] {
        let body = body_with(&format!(r#""limit":{{"requestsPerUnit":1,"unit":{written}}}"#));
        assert!(parse_request(body.as_bytes()).is_err(), "{written}");
    }
}

#[test]
fn malformed_json_bodies_are_rejected() {
    let entry = r#"{"entries":[{"key":"k"}]"#;
    let wrong = [
        ("an empty body", String::new()),
        ("white space", "  ".into()),
        ("an array", "[]".into()),
        ("null", "null".into()),
        ("text", r#""d""#.into()),
        ("an unknown field", r#"{"domain":"d","bogus":1}"#.into()),
        ("an unknown field that is null", r#"{"domain":"d","bogus":null}"#.into()),
        ("another case", r#"{"Domain":"d"}"#.into()),
        ("a nested unknown field", format!(r#"{{"descriptors":[{entry},"val":1}}]}}"#)),
        ("a number for text", r#"{"domain":5}"#.into()),
        ("a field twice", r#"{"domain":"d","domain":"d"}"#.into()),
        ("a field twice, once null", r#"{"domain":null,"domain":"d"}"#.into()),
        ("both spellings", body_with(r#""hitsAddend":1,"hits_addend":2"#)),
        ("a null element", r#"{"descriptors":[null]}"#.into()),
        ("a null entry", r#"{"descriptors":[{"entries":[null]}]}"#.into()),
        ("an object for a list", format!(r#"{{"descriptors":{entry}}}}}"#)),
        ("a list for an object", r#"{"descriptors":[[]]}"#.into()),
        ("text for a truth", body_with(r#""isNegativeHits":"true""#)),
        ("a number for a truth", body_with(r#""isNegativeHits":1"#)),
        ("trailing garbage", r#"{"domain":"d"}x"#.into()),
        ("a second object", r#"{"domain":"d"}{}"#.into()),
        ("a trailing comma", r#"{"domain":"d",}"#.into()),
        ("a comment", r#"{"domain":"d"/* */}"#.into()),
        ("single quotes", "{'domain':'d'}".into()),
        ("no quotes", "{domain:\"d\"}".into()),
        ("a byte order mark", "\u{feff}{}".into()),
        ("a high surrogate alone", r#"{"domain":"\ud800"}"#.into()),
        ("a low surrogate alone", r#"{"domain":"\udc00"}"#.into()),
        ("surrogates the wrong way", r#"{"domain":"\udc00\ud800"}"#.into()),
        ("a control character", "{\"domain\":\"\n\"}".into()),
        ("truncated", r#"{"domain":"d","descriptors":[{"entri"#.into()),
        ("nested without end", "[".repeat(100_000)),
        (
            "nested objects without end",
            r#"{"descriptors":[{"entries":[{"key":"#.to_owned() + &"[".repeat(100_000),
        ),
    ];
    for (what, body) in wrong {
        assert!(parse_request(body.as_bytes()).is_err(), "{what}");
    }
    assert!(parse_request(b"{\"domain\":\"\xff\"}").is_err(), "invalid UTF-8");
}

fn shown(reply: &RateLimitResponse) -> serde_json::Value {
    serde_json::from_str(&to_json_text(reply).unwrap()).unwrap()
}

#[test]
fn json_responses_omit_default_values() {
    assert_eq!(shown(&RateLimitResponse::default()), json!({}));
    let limit = RateLimit { name: "lim".into(), requests_per_unit: 3, unit: 4 };
    let full = DescriptorStatus {
        code: 2,
        current_limit: Some(limit),
        limit_remaining: 2,
        duration_until_reset: Some(Duration { seconds: 59, nanos: 0 }),
        ..DescriptorStatus::default()
    };
    let zero = DescriptorStatus {
        code: 1,
        current_limit: Some(RateLimit::default()),
        duration_until_reset: Some(Duration::default()),
        ..DescriptorStatus::default()
    };
    let free =
        DescriptorStatus { code: 1, limit_remaining: u32::MAX, ..DescriptorStatus::default() };
    let reply = RateLimitResponse {
        overall_code: 2,
        statuses: vec![full, zero, free],
        ..RateLimitResponse::default()
    };
    let want = json!({"overallCode": "OVER_LIMIT", "statuses": [
        {"code": "OVER_LIMIT", "limitRemaining": 2, "durationUntilReset": "59s",
            "currentLimit": {"name": "lim", "requestsPerUnit": 3, "unit": "DAY"}},
        {"code": "OK", "currentLimit": {}, "durationUntilReset": "0s"},
        {"code": "OK", "limitRemaining": 4_294_967_295_u32},
    ]});
    assert_eq!(shown(&reply), want);
}

#[test]
fn json_response_headers_keep_their_order_and_omit_empty_names() {
    let header = |key: &str, value: &str| HeaderValue {
        key: key.into(),
        value: value.into(),
        ..HeaderValue::default()
    };
    let reply = RateLimitResponse {
        response_headers_to_add: vec![header("b", "2"), header("", "1")],
        ..RateLimitResponse::default()
    };
    let want = json!({"responseHeadersToAdd": [{"key": "b", "value": "2"}, {"value": "1"}]});
    assert_eq!(shown(&reply), want);
}

fn with_metadata(kind: Kind) -> RateLimitResponse {
    let fields = [("n".to_owned(), Value { kind: Some(kind) })].into();
    RateLimitResponse { dynamic_metadata: Some(Struct { fields }), ..RateLimitResponse::default() }
}

#[test]
fn whole_numbers_in_metadata_have_no_decimal_point() {
    for (number, text) in
        [(7.0, "7"), (-3.0, "-3"), (2.5, "2.5"), (0.0, "0"), (1e15, "1000000000000000")]
    {
        let body = to_json_text(&with_metadata(Kind::NumberValue(number))).unwrap();
        assert_eq!(body, format!(r#"{{"dynamicMetadata":{{"n":{text}}}}}"#));
    }
    let largest = to_json_text(&with_metadata(Kind::NumberValue(f64::MAX))).unwrap();
    let largest: serde_json::Value = serde_json::from_str(&largest).unwrap();
    assert_eq!(largest["dynamicMetadata"]["n"].as_f64(), Some(f64::MAX));
}

#[test]
fn non_finite_numbers_inside_metadata_are_errors() {
    for number in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        let deep = Kind::StructValue(Struct {
            fields: [("x".to_owned(), Value { kind: Some(Kind::NumberValue(number)) })].into(),
        });
        assert_eq!(to_json_text(&with_metadata(deep)), Err(NotExpressibleInJson));
    }
}

/// The lines of level `warn` after these bodies were sent to `/json`.
fn warnings_after(bodies: &[String]) -> Vec<String> {
    let limits = tempfile::tempdir().unwrap();
    let text =
        "domain: shop\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n";
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    let service = Service::start(limits.path(), &[]).unwrap();
    for body in bodies {
        let reply = http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap();
        assert_eq!((reply.status, &*reply.text()), (400, "Bad Request\n"), "{body}");
    }
    let log = service.log();
    log.lines().filter(|line| line.contains(" WARN ")).map(str::to_owned).collect()
}

#[test]
fn the_log_has_the_reason_of_a_bad_request_once() {
    let without_entries =
        r#"{"domain":"shop","descriptors":[{"key":"user","value":"ann"}]}"#.to_owned();
    let without_descriptors = r#"{"domain":"shop"}"#.to_owned();
    let bodies = [vec![without_entries; 3], vec![without_descriptors; 3]].concat();
    let warnings = warnings_after(&bodies);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("unknown field `key`, expected one of `entries`"), "{warnings:?}");
    assert!(warnings[1].contains("the list of descriptors must not be empty"), "{warnings:?}");
}

#[test]
fn many_different_bad_requests_log_few_short_lines() {
    let long = "x".repeat(10_000);
    let bodies: Vec<_> = (0..50).map(|field| format!(r#"{{"f{field}{long}":1}}"#)).collect();
    let warnings = warnings_after(&bodies);
    assert_eq!(warnings.len(), 10);
    assert!(warnings.iter().all(|line| line.len() < 400), "{warnings:?}");
}
