//! The token usage of LLM replies, read from the body as it passes.
//!
//! A reply is a stream of server-sent events or one JSON text. The APIs are OpenAI chat completions and
//! responses, Anthropic messages, and Gemini. One table of JSON paths (`paths.rs`) recognizes them all.
//!
//! Guarantees:
//! - The result is the same for every split of the body into chunks.
//! - A reader needs less than 2 KiB of memory, for any body.
//! - No input panics. No nesting recurses.
//! - A number inside a string, an array or another object is never a count.
//! - If a path occurs again, its last valid value counts. Values are never added up over time.
//! - A reply that ends early keeps the values that were complete.
//!
//! Decisions:
//! - An escaped key is the same key: `"\u0075sage"` is `usage`, as for every JSON parser.
//! - `null` and an empty model are absent values, not invalid ones.
//! - A JSON array of replies is a sequence of replies, as from Gemini without `alt=sse`.
//! - `output_tokens` of Anthropic's `message_start` is not read: a client that leaves early would pay for one token.
//!
//! Not covered:
//! - Compressed bodies, and the binary event streams of AWS.
//! - Validation: text at other paths is skipped, and may be invalid JSON.
//!
//! JSON libraries that accept chunks (`actson`, `json-event-parser`, `picojson`) need each string whole: they
//! buffer or refuse a long message. `struson` reads from `std::io::Read`, and `jiter` needs the whole text. The
//! scanner here keeps one token of 256 bytes, and skips other values in place.

#![allow(clippy::doc_markdown, reason = "OpenAI is a name")]

mod counts;
mod event_lines;
mod paths;
mod scanner;

pub use counts::{MAX_COUNT, Usage};
pub use paths::MAX_TOKEN_BYTES;

use counts::Counts;
use event_lines::{EventLines, EventPart};
use scanner::JsonScanner;

/// Reads the usage from one response body.
///
/// Anthropic excludes cached tokens from its input tokens; [`Usage::input`] includes them:
///
/// ```
/// use sluicegate_usage::UsageReader;
///
/// let mut reader = UsageReader::new("application/json").expect("a known type");
/// reader.push(br#"{"model": "claude-sonnet-5", "usage": {"input_tokens": 10, "#);
/// reader.push(br#""cache_read_input_tokens": 2000, "output_tokens": 5}}"#);
/// let usage = reader.usage();
/// assert_eq!((usage.input, usage.cached_input, usage.output), (Some(2010), Some(2000), Some(5)));
/// assert_eq!(usage.model.as_deref(), Some("claude-sonnet-5"));
/// ```
#[derive(Debug)]
pub struct UsageReader {
    /// The lines of server-sent events; `None` for a JSON body.
    lines: Option<EventLines>,
    scanner: JsonScanner,
    counts: Counts,
}

impl UsageReader {
    /// Creates a reader for a body of this content type, or `None` for a type without usage.
    ///
    /// Accepts `text/event-stream` and `application/json` in any case and with any parameters.
    #[must_use]
    pub fn new(content_type: &str) -> Option<Self> {
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        let is_json = media_type.eq_ignore_ascii_case("application/json");
        let is_known = is_json || media_type.eq_ignore_ascii_case("text/event-stream");
        is_known.then(|| Self {
            lines: (!is_json).then(EventLines::default),
            scanner: JsonScanner::default(),
            counts: Counts::default(),
        })
    }

    /// Returns `true` if the body is a stream of server-sent events, `false` if it is JSON.
    #[must_use]
    pub const fn has_events(&self) -> bool {
        self.lines.is_some()
    }

    /// Reads the next chunk of the body. The time is linear in the length of the chunk.
    pub fn push(&mut self, chunk: &[u8]) {
        let Self { lines, scanner, counts } = self;
        match lines {
            Some(lines) => lines.push(chunk, |part| match part {
                EventPart::Data(data) => scanner.push(data, counts),
                EventPart::End => scanner.restart(),
            }),
            None => scanner.push(chunk, counts),
        }
    }

    /// Returns the usage in the chunks so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.counts.usage()
    }
}
