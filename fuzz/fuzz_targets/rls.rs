//! Bytes as they come to the port: whatever can be decoded is answered, or refused before a counter moves; what holds too
//! much is refused by its number, and nothing else is; reserved words are taken off, and nothing else is.
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
        // Too much of something may be counted before where the bytes are no message.
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

/// The refusal of what holds more than one question may.
fn too_much(request: &RateLimitRequest) -> Option<Refusal> {
    let descriptors = request.descriptors.len();
    let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
    if MAX_DESCRIPTORS < descriptors {
        return Some(Refusal::TooManyDescriptors { got: descriptors, most: MAX_DESCRIPTORS });
    }
    let refusal = Refusal::TooManyEntries { got: entries, most: MAX_ENTRIES };
    (MAX_ENTRIES < entries).then_some(refusal)
}

/// The question about limits that `request` is, if it is one.
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

/// Of the descriptors that are covered the last entry, which names `id`; they have others.
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

/// The reserved word that a descriptor ends in.
fn word(request: &RateLimitRequest, descriptor: usize) -> Option<&str> {
    const WORDS: [&str; 6] = ["acquire", "release", "owner", "rtt_us", "status", "duration_ms"];
    let last = request.descriptors[descriptor].entries.last()?;
    let word = last.key.strip_prefix("sluicegate.")?;
    WORDS.contains(&word).then_some(word)
}
