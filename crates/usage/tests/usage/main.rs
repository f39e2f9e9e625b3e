//! Replies of each provider, hostile replies, and laws over random ones.
#![allow(clippy::unwrap_used)]
#![allow(clippy::doc_markdown, reason = "OpenAI is a name")]

mod hostile;
mod laws;
mod memory;
mod oracle;
mod providers;
mod sse;

use sluicegate_usage::{Usage, UsageReader};

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

fn read_chunks<'c>(content_type: &str, chunks: impl IntoIterator<Item = &'c [u8]>) -> Usage {
    let mut reader = UsageReader::new(content_type).unwrap();
    chunks.into_iter().for_each(|chunk| reader.push(chunk));
    reader.usage()
}

/// Reads a body, and asserts that no split into chunks changes the result.
fn read(content_type: &str, body: impl AsRef<[u8]>) -> Usage {
    let body = body.as_ref();
    let usage = read_chunks(content_type, [body]);
    assert_eq!(read_chunks(content_type, body.chunks(1)), usage, "split at every byte");
    for at in 0..=body.len() {
        let (left, right) = body.split_at(at);
        assert_eq!(read_chunks(content_type, [left, right]), usage, "split at byte {at}");
    }
    usage
}

fn read_json(body: impl AsRef<[u8]>) -> Usage {
    read(JSON, body)
}

fn read_events(body: impl AsRef<[u8]>) -> Usage {
    read(EVENTS, body)
}

/// Usage without invalid values.
fn usage(input: u64, output: u64, cached_input: Option<u64>, model: &str) -> Usage {
    Usage {
        input: Some(input),
        output: Some(output),
        cached_input,
        model: Some(model.into()),
        invalid: 0,
    }
}

#[test]
fn only_json_and_events_are_read() {
    for known in ["application/json", " Application/JSON ; charset=utf-8", "text/event-stream;x"] {
        assert!(UsageReader::new(known).is_some(), "{known}");
    }
    for other in ["", "text/plain", "application/json+x", "application/jsonx", "json"] {
        assert!(UsageReader::new(other).is_none(), "{other}");
    }
}
