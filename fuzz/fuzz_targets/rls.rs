//! Bytes as Envoy's message: whatever can be decoded is answered, or refused before a counter moves.
#![no_main]

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use sluicegate_fuzz::laws;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = RateLimitRequest::decode(bytes) else { return };
    let again = RateLimitRequest::decode(&*request.encode_to_vec()).expect("what was encoded");
    assert_eq!(request, again);
    laws::hold(&request, bytes.len());
});
