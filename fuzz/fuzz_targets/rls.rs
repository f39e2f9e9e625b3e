//! Bytes as a gRPC request for a rate limit check.
//!
//! Guarantees:
//! - A decodable request is decided, or refused before a counter changes.
//! - Requests over the size limits, and only these, are refused for their size.
//! - Reserved entries, and only these, are removed.
#![no_main]

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use sluicegate::edge::grpc::convert::{MAX_DESCRIPTORS, MAX_ENTRIES};
use sluicegate::edge::grpc::reserved_keys::{ReservedCall, take_reserved};
use sluicegate::edge::grpc::rls_codec::decode_request;
use sluicegate::engine::{CheckError, validate_id};
use sluicegate_fuzz::laws;

fuzz_target!(|bytes: &[u8]| {
    let bounded = decode_request(bytes);
    let Ok(decoded) = RateLimitRequest::decode(bytes) else {
        // The size limits are checked first, so undecodable bytes may also exceed them.
        assert!(!matches!(bounded, Ok(Ok(_))), "undecodable bytes were accepted");
        return;
    };
    let decoded_again =
        RateLimitRequest::decode(&*decoded.encode_to_vec()).expect("an encoded request");
    assert_eq!(decoded, decoded_again);
    let bounded = bounded.expect("a decodable request");
    if let Some(error) = size_error(&decoded) {
        assert_eq!(bounded, Err(error));
        return;
    }
    assert_eq!(bounded.as_ref(), Ok(&decoded));
    if let Some(request) = without_reserved_entries(&decoded) {
        laws::assert_all(&request, bytes.len());
    }
});

/// The error for a request over the size limits.
fn size_error(request: &RateLimitRequest) -> Option<CheckError> {
    let descriptors = request.descriptors.len();
    let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
    if MAX_DESCRIPTORS < descriptors {
        return Some(CheckError::TooManyDescriptors { got: descriptors, most: MAX_DESCRIPTORS });
    }
    let error = CheckError::TooManyEntries { got: entries, most: MAX_ENTRIES };
    (MAX_ENTRIES < entries).then_some(error)
}

/// The rate limit check in `request` without reserved entries, if there is one.
fn without_reserved_entries(request: &RateLimitRequest) -> Option<RateLimitRequest> {
    let mut stripped = request.clone();
    let mut keys = (0..request.descriptors.len()).map(|index| reserved_key(request, index));
    match take_reserved(&mut stripped) {
        Ok(ReservedCall::Plain) => {
            assert_eq!(&stripped, request);
            assert!(keys.all(|key| key.is_none()));
            Some(stripped)
        }
        Ok(ReservedCall::Acquire { id, covered }) => {
            assert_eq!(validate_id(&id), Ok(()));
            assert_eq!(stripped, without_acquires(request, &id, &covered));
            Some(stripped)
        }
        Ok(ReservedCall::Release { id, .. }) => {
            assert_eq!(validate_id(&id), Ok(()));
            assert_eq!(&stripped, request);
            assert!(keys.all(|key| key.is_some_and(|key| key != "acquire")));
            None
        }
        Err(CheckError::BadId { descriptor, .. }) => {
            let key = reserved_key(request, descriptor);
            assert!(key.is_some(), "descriptor {descriptor} has no reserved key");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// The request without the last entry of each covered descriptor. Its value must be `id`, and other
/// entries must remain.
fn without_acquires(request: &RateLimitRequest, id: &str, covered: &[usize]) -> RateLimitRequest {
    assert!(!covered.is_empty());
    let mut expected = request.clone();
    for (index, descriptor) in expected.descriptors.iter_mut().enumerate() {
        let key = reserved_key(request, index);
        assert_eq!(key, covered.contains(&index).then_some("acquire"));
        if key.is_some() {
            let last = descriptor.entries.pop().expect("the reserved entry");
            assert_eq!(last.value, id);
            assert!(!descriptor.entries.is_empty());
        }
    }
    expected
}

/// The reserved key in the last entry of a descriptor, without its prefix.
fn reserved_key(request: &RateLimitRequest, descriptor: usize) -> Option<&str> {
    const KEYS: [&str; 6] = ["acquire", "release", "owner", "rtt_us", "status", "duration_ms"];
    let last = request.descriptors[descriptor].entries.last()?;
    let key = last.key.strip_prefix("sluicegate.")?;
    KEYS.contains(&key).then_some(key)
}
