//! Tests of invalid checks through gRPC and `/json`.
//!
//! Guarantees:
//! - Checks that envoyproxy/ratelimit refuses get its status: `UNKNOWN`, or 400 over HTTP.
//! - Checks that crash envoyproxy/ratelimit, or that it misreads, get `INVALID_ARGUMENT` or 400.
//! - A valid descriptor precedes the invalid one, so a wrong charge would be visible.

use std::fmt::Write as _;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code as Verdict;
use prost::Message as _;
use tonic::Code;

use super::{Fixture, LIMITS, check_request, hits, k, limited, refund};

/// A bad request, its expected gRPC code, and a word that the message must contain.
struct Case {
    label: &'static str,
    request: RateLimitRequest,
    code: Code,
    word: &'static str,
}

fn case(label: &'static str, request: RateLimitRequest, code: Code, word: &'static str) -> Case {
    Case { label, request, code, word }
}

fn invalid(label: &'static str, bad: Vec<RateLimitDescriptor>, word: &'static str) -> Case {
    let descriptors = std::iter::once(k("good")).chain(bad).collect();
    case(label, check_request(descriptors), Code::InvalidArgument, word)
}

fn cases() -> Vec<Case> {
    let nowhere = RateLimitRequest { domain: String::new(), ..check_request(vec![k("good")]) };
    let long = "x".repeat(64 * 1024);
    let long_key = super::pair(&long, "v");
    vec![
        case("no domain", nowhere, Code::Unknown, "domain"),
        case("nothing at all", RateLimitRequest::default(), Code::Unknown, "domain"),
        case("no descriptors", check_request(Vec::new()), Code::Unknown, "descriptors"),
        invalid("unit 0", vec![limited(k("o"), 5, 0)], "0 is not a unit"),
        invalid("unit 8", vec![limited(k("o"), 5, 8)], "8 is not a unit"),
        invalid("unit -1", vec![limited(k("o"), 5, -1)], "-1 is not a unit"),
        invalid("unit 42", vec![limited(k("good"), 5, 42)], "42 is not a unit"),
        invalid("2^63 hits", vec![hits(k("good"), 1 << 63)], "9223372036854775808"),
        invalid("2^64 - 1 hits", vec![hits(k("good"), u64::MAX)], "18446744073709551615"),
        invalid("2^63 hits back", vec![refund(k("good"), 1 << 63)], "9223372036854775808"),
        invalid("a refund while refunds are off", vec![refund(k("good"), 1)], "limits.refunds"),
        invalid("1001 descriptors", vec![k("good"); 1_000], "1001 descriptors"),
        invalid("10000 descriptors", vec![k("good"); 9_999], "10000 descriptors"),
        invalid("a key of 64 KiB", vec![long_key], "65536"),
    ]
}

#[test]
fn invalid_checks_are_refused_and_charge_nothing() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    for Case { label, request, code, word } in cases() {
        fixture.assert_unaffected(label, |fixture| {
            let refused = fixture.try_check(&request).unwrap_err();
            assert_eq!(refused.code(), code, "{label}: {refused}");
            assert!(refused.message().contains(word), "{label}: {}", refused.message());
        });
        fixture.assert_unaffected(label, |fixture| {
            let reply = fixture.json(json(&request).as_bytes());
            assert_eq!((reply.status, &*reply.text()), (400, "Bad Request\n"), "{label} as JSON");
        });
    }
}

fn json(request: &RateLimitRequest) -> String {
    let mut descriptors = String::new();
    for (at, descriptor) in request.descriptors.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let entry = &descriptor.entries[0];
        let (key, value, negative) = (&entry.key, &entry.value, descriptor.is_negative_hits);
        let _ = write!(descriptors, r#"{comma}{{"entries":[{{"key":"{key}","value":"{value}"}}]"#);
        let _ = write!(descriptors, r#","isNegativeHits":{negative}"#);
        if let Some(own) = &descriptor.hits_addend {
            let _ = write!(descriptors, r#","hitsAddend":"{}""#, own.value);
        }
        if let Some(limit) = descriptor.limit {
            let (requests, unit) = (limit.requests_per_unit, limit.unit);
            let _ =
                write!(descriptors, r#","limit":{{"requestsPerUnit":{requests},"unit":{unit}}}"#);
        }
        descriptors.push('}');
    }
    format!(r#"{{"domain":"{}","descriptors":[{descriptors}]}}"#, request.domain)
}

#[test]
fn requests_at_the_size_limits_are_served() {
    let fixture = Fixture::with(LIMITS, &[]);
    let many = fixture.check((0..1_000).map(|n| k(&n.to_string())).collect());
    assert_eq!(many.statuses.len(), 1_000);
    assert!(many.statuses.iter().all(|status| status.limit_remaining == 99));
}

#[test]
fn values_of_any_length_are_limited_by_checks_and_json() {
    let fixture = Fixture::with(LIMITS, &[]);
    // The largest message has 1 MiB.
    for length in [64 * 1024 - 1, 64 * 1024, 1_000_000] {
        for end in ["a", "b"] {
            let long = check_request(vec![k(&("x".repeat(length) + end))]);
            assert_eq!(fixture.try_check(&long).unwrap().statuses[0].limit_remaining, 99);
            assert_eq!(fixture.json(json(&long).as_bytes()).status, 200);
            assert_eq!(fixture.try_check(&long).unwrap().statuses[0].limit_remaining, 97);
        }
    }
}

#[test]
fn largest_hits_addend_does_not_overflow() {
    let fixture = Fixture::with(LIMITS, &[]);
    for _ in 0..3 {
        let response = fixture.check(vec![hits(k("much"), (1 << 63) - 1)]);
        assert_eq!(response.overall_code(), Verdict::OverLimit);
        assert_eq!(response.statuses[0].limit_remaining, 0);
    }
    assert_eq!(fixture.remaining("much"), 0);
}

#[test]
fn malformed_protobuf_is_refused_and_charges_nothing() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    let good = check_request(vec![k("good")]).encode_to_vec();
    let mut not_utf8 = good.clone();
    *not_utf8.last_mut().unwrap() = 0xff;
    let mut nested_not_utf8 = vec![0x0a, 1, 0xff];
    nested_not_utf8.extend_from_slice(&good);
    let mut huge_length = good.clone();
    huge_length.extend_from_slice(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    let cases = [
        ("noise", vec![0xff; 64]),
        ("a truncated message", good[..good.len() - 1].to_vec()),
        ("a value that is not UTF-8", not_utf8),
        ("a domain that is not UTF-8", nested_not_utf8),
        ("a length beyond the end", huge_length),
        (
            "an endless number",
            vec![0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ),
    ];
    for (label, bytes) in cases {
        fixture.assert_unaffected(label, |fixture| {
            let refused = fixture.send(bytes).unwrap_err();
            assert_eq!(refused.code(), Code::Internal, "{label}: {refused}");
        });
    }
}

const MAX_MESSAGE_BYTES: usize = 1 << 20;

#[test]
fn oversized_message_is_resource_exhausted_and_charges_nothing() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    let one = check_request(vec![k("good"), k(&"x".repeat(4_000))]);
    let padded = |length: usize| {
        let mut bytes = one.encode_to_vec();
        // Field 900 is unknown to the service and pads the message to `length` bytes.
        let filler = length - bytes.len() - 2 - prost::length_delimiter_len(length);
        bytes.extend_from_slice(&[0xa2, 0x38]);
        prost::encode_length_delimiter(filler, &mut bytes).unwrap();
        bytes.resize(length, 0);
        bytes
    };
    assert_eq!(fixture.send(padded(MAX_MESSAGE_BYTES)).unwrap().statuses[0].limit_remaining, 99);
    for length in [MAX_MESSAGE_BYTES + 1, 4 * MAX_MESSAGE_BYTES] {
        fixture.assert_unaffected("a long message", |fixture| {
            let refused = fixture.send(padded(length)).unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted, "{length} bytes: {refused}");
        });
    }
}
