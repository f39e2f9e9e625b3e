//! The canonical form of a request path, for limits by path.
//!
//! | path | normalized |
//! |---|---|
//! | `/pay?a=1` | `/pay` |
//! | `/%70ay`, `//pay`, `/./pay`, `/a/../pay` | `/pay` |
//! | `/a%2F..%2Fpay` | `/pay` |
//! | `/caf%c3%a9`, `/café` | `/caf%C3%A9` |
//!
//! Guarantees:
//! - The result has no query, no `//`, and no `.` or `..` segment.
//! - A character that may be in a path is literal, every other byte is `%` and two hexadecimal
//!   digits in upper case. So each path has one spelling.
//! - Normalizing twice gives the same result as normalizing once.
//!
//! Not covered:
//! - Upper and lower case, which differ in paths.
//! - Parameters after `;`, which are part of their segment.
//!
//! Source: RFC 3986, section 6.2.2. Unlike the RFC, also decodes `%2F` and the other characters that
//! a path may contain, as NGINX does before it selects a location.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The spelling of the path in the header `:path`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathSpelling {
    /// The path with its query, as the client sent it.
    #[default]
    Raw,
    /// The canonical spelling of the path, without its query.
    Normalized,
}

impl PathSpelling {
    /// Returns the value of a header in this spelling. Only `:path` has a path.
    pub(super) fn spell<'a>(self, header: &str, value: Cow<'a, str>) -> Cow<'a, str> {
        match self {
            Self::Normalized if header == ":path" => {
                Cow::Owned(normalize_path(&value).into_owned())
            }
            Self::Normalized | Self::Raw => value,
        }
    }
}

/// The bytes that a normalized path encodes: all except `/` and the characters of a path segment
/// (RFC 3986, `pchar`).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Returns the canonical spelling of `path`. A text that does not start with `/`, such as the `*` of
/// `OPTIONS`, is returned unchanged. Cost: linear in the length.
pub(super) fn normalize_path(path: &str) -> Cow<'_, str> {
    if !path.starts_with('/') {
        return Cow::Borrowed(path);
    }
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let decoded: Vec<u8> = percent_decode_str(path).collect();
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut ends_with_slash = true;
    for segment in decoded.split(|byte| *byte == b'/') {
        ends_with_slash = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    let mut normalized = String::with_capacity(path.len());
    for segment in &segments {
        normalized.push('/');
        normalized.extend(percent_encode(segment, ENCODED));
    }
    if ends_with_slash || segments.is_empty() {
        normalized.push('/');
    }
    Cow::Owned(normalized)
}
