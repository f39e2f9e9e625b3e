//! Bodies of any size need the same small memory.

use allocation_counter::measure;
use sluicegate_usage::{Usage, UsageReader};

use crate::{EVENTS, JSON};

const CHUNK_BYTES: usize = 1 << 16;
const MAX_READER_BYTES: u64 = 2048;

/// Reads a body of `begin`, then `filler` repeated to about `total_bytes`, then `end`, within the memory of a reader.
fn read_long(content_type: &str, parts: [&str; 3], total_bytes: usize) -> Usage {
    let [begin, filler, end] = parts;
    let chunk = filler.repeat(CHUNK_BYTES / filler.len());
    let mut usage = Usage::default();
    let allocated = measure(|| {
        let mut reader = UsageReader::new(content_type).unwrap();
        reader.push(begin.as_bytes());
        for _ in 0..total_bytes / chunk.len() {
            reader.push(chunk.as_bytes());
        }
        reader.push(end.as_bytes());
        usage = reader.usage();
    });
    assert!(allocated.bytes_max <= MAX_READER_BYTES, "{allocated:?}");
    usage
}

const USAGE: &str = r#""usage":{"prompt_tokens":5}}"#;

#[test]
fn one_string_of_a_gigabyte_needs_no_memory() {
    let parts = [r#"{"a":{"b":""#, "long text ", &format!("\"}},{USAGE}")];
    assert_eq!(read_long(JSON, parts, 1 << 30).input, Some(5));
    let parts = [r#"data: {"a":""#, "long text ", &format!("\",{USAGE}\n\n")];
    assert_eq!(read_long(EVENTS, parts, 1 << 28).input, Some(5));
}

#[test]
fn long_texts_of_every_kind_need_no_memory() {
    let usage_event = format!("data: {{{USAGE}\n\n");
    for (content_type, [begin, filler, end]) in [
        (JSON, [r#"{"model":""#, "m", &format!("\",{USAGE}")]),
        (JSON, [r#"{""#, "key", &format!("\":1,{USAGE}")]),
        (JSON, [r#"{"usage":{"prompt_tokens":"#, "1", &format!("}},{USAGE}")]),
        (JSON, ["{", r#""usage":{"prompt_tokens":4},"model":"m","#, USAGE]),
        (JSON, ["[", r#"{"usage":{"prompt_tokens":4}},"#, &format!("{{{USAGE}]")]),
        (JSON, ["", " ", &format!("{{{USAGE}")]),
        (EVENTS, ["", "data: {\"model\":\"m\",\"choices\":[{\"delta\":{}}]}\n\n", &usage_event]),
        (EVENTS, ["event", "event", &format!("\n\n{usage_event}")]),
        (EVENTS, [":", ": comment", &format!("\n\n{usage_event}")]),
        (EVENTS, ["", "data:\n", &format!("\n{usage_event}")]),
        (EVENTS, ["data: [", "[", &format!("\n\n{usage_event}")]),
    ] {
        let read = read_long(content_type, [begin, filler, end], 1 << 25);
        assert_eq!(read.input, Some(5), "{begin}{filler}");
    }
}
