//! Rate limit checks: results, status codes and message limits.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use prost::Message as _;
use sluicegate::edge::health::Readiness;
use tonic::Code;

use super::{CHECK, METHOD, PROCESS, SESSION, limited, padded, served};
use crate::edge::{descriptor, empty_engine, overridden, request};

const ACQUIRE: &str = "/sluicegate.v1.Permits/Acquire";

#[tokio::test]
async fn the_third_hit_is_over_limit() {
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code::{
        Ok, OverLimit,
    };
    let served = limited().await;
    for want in [Ok, Ok, OverLimit] {
        let reply = served.ask(request(vec![descriptor("k", "v")])).await.unwrap();
        assert_eq!(reply.overall_code(), want);
    }
}

#[tokio::test]
async fn rejected_requests_have_documented_codes_and_charge_nothing() {
    let served = limited().await;
    let mut nameless = request(vec![descriptor("k", "v")]);
    nameless.domain.clear();
    let code = async |request| served.ask(request).await.unwrap_err().code();
    assert_eq!(code(nameless).await, Code::Unknown);
    assert_eq!(code(request(vec![])).await, Code::Unknown);
    for unit in [0, 42] {
        let wrong = request(vec![descriptor("k", "v"), overridden(5, unit)]);
        assert_eq!(code(wrong).await, Code::InvalidArgument);
    }
    let many = request(vec![descriptor("k", "v"); 10_000]);
    assert_eq!(code(many).await, Code::InvalidArgument);
    let fresh = served.ask(request(vec![descriptor("k", "v")])).await.unwrap();
    assert_eq!(fresh.statuses[0].limit_remaining, 1, "a counter moved");
}

#[tokio::test]
async fn checks_return_unknown_before_limits_are_loaded() {
    let served = served(empty_engine(), Readiness::Ready).await;
    let status = served.ask(request(vec![descriptor("k", "v")])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
}

#[tokio::test]
async fn undecodable_messages_return_internal_and_later_calls_succeed() {
    let served = limited().await;
    let invalid_utf8 = b"\n\x01d\x12\x08\n\x06\n\x01k\x12\x01\xff".to_vec();
    let truncated = b"\n\x01d\x12\x08\n\x06\n\x01".to_vec();
    let not_protobuf = b"\xff\xff\xff\xff".to_vec();
    for bytes in [invalid_utf8, truncated, not_protobuf] {
        assert_eq!(served.code(METHOD, bytes).await, Code::Internal);
    }
    assert!(served.ask(request(vec![descriptor("k", "v")])).await.is_ok());
}

#[tokio::test]
async fn unknown_fields_are_ignored_and_the_last_duplicate_wins() {
    let served = limited().await;
    let known = request(vec![descriptor("k", "v")]).encode_to_vec();
    let remaining = async |bytes: Vec<u8>| {
        let reply = served.send(METHOD, bytes).await.unwrap();
        RateLimitResponse::decode(&reply[..]).unwrap().statuses[0].limit_remaining
    };
    let unknown = [&known[..], b"\xa2\x06\x03abc"].concat();
    assert_eq!(remaining(unknown).await, 1);
    let twice = [b"\n\x01x", &known[..]].concat();
    assert_eq!(remaining(twice).await, 0);
}

#[tokio::test]
async fn a_message_with_too_many_descriptors_is_rejected() {
    let served = limited().await;
    let refused = served.send(METHOD, b"\x12\0".repeat(500_000)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("500000 descriptors in one check"), "{refused}");
    assert!(served.ask(request(vec![descriptor("k", "v")])).await.is_ok());
}

#[tokio::test]
async fn should_rate_limit_accepts_at_most_one_mebibyte() {
    let served = limited().await;
    let message = |size| padded(request(vec![descriptor("k", "v")]).encode_to_vec(), size);
    assert_eq!(served.code(METHOD, message(1 << 20)).await, Code::Ok);
    assert_eq!(served.code(METHOD, message((1 << 20) + 1)).await, Code::ResourceExhausted);
}

/// A message of the maximum size has only an unknown field: it is decoded and then rejected.
#[tokio::test]
async fn other_services_accept_at_most_one_mebibyte() {
    let served = limited().await;
    let (most, more) = (padded(vec![], 1 << 20), padded(vec![], (1 << 20) + 1));
    for (path, lacks) in [(CHECK, Code::FailedPrecondition), (ACQUIRE, Code::InvalidArgument)] {
        assert_eq!(served.code(path, most.clone()).await, lacks, "{path}");
        let refused = served.send(path, more.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{path}: {refused}");
        assert!(refused.message().contains("1048576 bytes"), "{path}: {refused}");
    }
    // On a `Session` stream, an invalid acquire gets a reply, not an error status.
    for (path, lacks) in [(PROCESS, Code::InvalidArgument), (SESSION, Code::Ok)] {
        assert_eq!(served.first_reply_code(path, most.clone()).await, lacks, "{path}");
        assert_eq!(
            served.first_reply_code(path, more.clone()).await,
            Code::ResourceExhausted,
            "{path}"
        );
        assert_eq!(served.first_reply_code(path, vec![0xff; 9]).await, Code::Internal, "{path}");
    }
}
