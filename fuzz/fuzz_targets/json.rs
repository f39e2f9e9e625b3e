//! Bytes as the body of `/json`: an accepted body equals the same gRPC message.
#![no_main]

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use sluicegate::edge::http::json;
use sluicegate_fuzz::laws;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = json::parse_request(bytes) else { return };
    let decoded = RateLimitRequest::decode(&*request.encode_to_vec()).expect("an encoded request");
    assert_eq!(request, decoded);
    laws::assert_all(&request, bytes.len());
});
