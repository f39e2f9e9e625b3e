//! Bytes as the body of `/json`: an accepted body equals the same gRPC message.
#![no_main]

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use sluicegate::edge::http::json;
use sluicegate_fuzz::laws;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = json::request(bytes) else { return };
    let sent = RateLimitRequest::decode(&*request.encode_to_vec()).expect("what was encoded");
    assert_eq!(request, sent);
    laws::hold(&request, bytes.len());
});
