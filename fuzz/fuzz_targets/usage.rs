//! Bytes as the body of an LLM reply, in chunks of a length that the first byte gives.
//!
//! Guarantees:
//! - Chunks do not change the usage.
//! - Every value is within its bounds.
//! - A valid JSON body has the usage that a parser of the whole text finds.
#![no_main]

#[path = "../../crates/usage/tests/usage/oracle.rs"]
mod oracle;

use libfuzzer_sys::fuzz_target;
use oracle::Found;
use sluicegate_usage::{MAX_COUNT, MAX_TOKEN_BYTES, Usage, UsageReader};

fuzz_target!(|bytes: &[u8]| {
    let Some((&length, body)) = bytes.split_first() else { return };
    let chunks = body.chunks(usize::from(length).max(1));
    assert_bounds(&read("text/event-stream", body, chunks.clone()));
    let usage = read("application/json", body, chunks);
    assert_bounds(&usage);
    let mut found = Found::default();
    if found.read(body).is_some() {
        assert_eq!(usage, found.usage());
    }
});

fn read<'b>(content_type: &str, body: &'b [u8], chunks: impl Iterator<Item = &'b [u8]>) -> Usage {
    let new_reader = || UsageReader::new(content_type).expect("a known type");
    let (mut whole, mut chunked) = (new_reader(), new_reader());
    whole.push(body);
    chunks.for_each(|chunk| chunked.push(chunk));
    assert_eq!(whole.usage(), chunked.usage());
    whole.usage()
}

fn assert_bounds(usage: &Usage) {
    let counts = [usage.input, usage.output, usage.cached_input];
    assert!(counts.iter().flatten().all(|&count| count <= MAX_COUNT));
    assert!(usage.input.is_none() || usage.cached_input <= usage.input);
    assert!(usage.model.as_ref().is_none_or(|model| model.len() <= MAX_TOKEN_BYTES - 2));
}
