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
use sluicegate::edge::grpc::arrival::arrived;
use sluicegate::edge::grpc::convert::{MAX_DESCRIPTORS, MAX_ENTRIES};
use sluicegate::edge::grpc::reserved::{Call, take_off};
use sluicegate::engine::{Refusal, check_id};
use sluicegate_fuzz::laws;

fuzz_target!(|bytes: &[u8]| {
    let arrived = arrived(bytes);
    let Ok(decoded) = RateLimitRequest::decode(bytes) else {
        // The size limits are checked first, so undecodable bytes may also exceed them.
        assert!(!matches!(arrived, Ok(Ok(_))), "what is no message has arrived");
        return;
    };
    let again = RateLimitRequest::decode(&*decoded.encode_to_vec()).expect("what was encoded");
    assert_eq!(decoded, again);
    let arrived = arrived.expect("what can be decoded");
    if let Some(refusal) = too_much(&decoded) {
        assert_eq!(arrived, Err(refusal));
        return;
    }
    assert_eq!(arrived.as_ref(), Ok(&decoded));
    if let Some(request) = without_words(&decoded) {
        laws::hold(&request, bytes.len());
    }
});

/// The refusal of a request over the size limits.
fn too_much(request: &RateLimitRequest) -> Option<Refusal> {
    let descriptors = request.descriptors.len();
    let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
    if MAX_DESCRIPTORS < descriptors {
        return Some(Refusal::TooManyDescriptors { got: descriptors, most: MAX_DESCRIPTORS });
    }
    let refusal = Refusal::TooManyEntries { got: entries, most: MAX_ENTRIES };
    (MAX_ENTRIES < entries).then_some(refusal)
}

/// The rate limit check in `request` without reserved entries, if there is one.
fn without_words(request: &RateLimitRequest) -> Option<RateLimitRequest> {
    let mut taken = request.clone();
    match take_off(&mut taken) {
        Ok(Call::Plain) => {
            assert_eq!(&taken, request);
            assert!((0..request.descriptors.len()).all(|at| word(request, at).is_none()));
            Some(taken)
        }
        Ok(Call::Acquire { id, covered }) => {
            assert_eq!(check_id(&id), Ok(()));
            only_acquires_are_gone(request, &taken, &id, &covered);
            Some(taken)
        }
        Ok(Call::Release { id, .. }) => {
            assert_eq!(check_id(&id), Ok(()));
            assert_eq!(&taken, request);
            let words = (0..request.descriptors.len()).map(|at| word(request, at));
            assert!(words.into_iter().all(|word| word.is_some_and(|word| word != "acquire")));
            None
        }
        Err(Refusal::BadId { descriptor, .. }) => {
            assert!(word(request, descriptor).is_some(), "descriptor {descriptor} has no word");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// Only the last entry of each covered descriptor is removed. Its value is `id`, and other entries
/// remain.
fn only_acquires_are_gone(
    request: &RateLimitRequest,
    taken: &RateLimitRequest,
    id: &str,
    covered: &[usize],
) {
    assert!(!covered.is_empty());
    let mut expected = request.clone();
    for (at, descriptor) in expected.descriptors.iter_mut().enumerate() {
        let word = word(request, at);
        assert_eq!(word, covered.contains(&at).then_some("acquire"));
        if word.is_some() {
            let last = descriptor.entries.pop().expect("the word");
            assert_eq!(last.value, id);
            assert!(!descriptor.entries.is_empty());
        }
    }
    assert_eq!(taken, &expected);
}

/// The reserved key in the last entry of a descriptor.
fn word(request: &RateLimitRequest, descriptor: usize) -> Option<&str> {
    const WORDS: [&str; 6] = ["acquire", "release", "owner", "rtt_us", "status", "duration_ms"];
    let last = request.descriptors[descriptor].entries.last()?;
    let word = last.key.strip_prefix("sluicegate.")?;
    WORDS.contains(&word).then_some(word)
}
