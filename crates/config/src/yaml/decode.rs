//! Decodes the bytes of a file to text, as a YAML parser does.
//!
//! Guarantees:
//! - The bytes may be UTF-8, or UTF-16 with a byte order mark.
//! - The byte order mark is removed.
//! - Control characters that YAML forbids are reported.
//!
//! Not covered:
//! - Line ends, which stay unchanged.

use super::BYTES;
use crate::diagnostic::{Code, Findings, Span};

/// Decodes the bytes of a file. Invalid bytes and forbidden characters are added to `findings`.
/// Invalid bytes become U+FFFD.
pub(crate) fn decode(bytes: &[u8], findings: &mut Findings) -> String {
    if BYTES < bytes.len() {
        let (size, max_size) = (bytes.len() / 1024 / 1024, BYTES / 1024 / 1024);
        let message = format!("the file has {size} MiB; the maximum is {max_size} MiB");
        let help = "split it into several files of this domain, and set `limits.merge_domains`";
        findings.add_with_help(Code::TooLarge, Span::default(), message, help);
        return String::new();
    }
    let text = match bytes {
        [0xEF, 0xBB, 0xBF, rest @ ..] => decode_utf8(rest, findings),
        [0xFF, 0xFE, rest @ ..] => decode_utf16(rest, u16::from_le_bytes, findings),
        [0xFE, 0xFF, rest @ ..] => decode_utf16(rest, u16::from_be_bytes, findings),
        _ => decode_utf8(bytes, findings),
    };
    if !findings.has_errors() {
        report_control_chars(&text, findings);
    }
    text
}

fn decode_utf8(bytes: &[u8], findings: &mut Findings) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(error) => {
            let at = error.valid_up_to();
            let byte = bytes.get(at).copied().unwrap_or_default();
            let message = format!("byte 0x{byte:02X} is not valid UTF-8");
            report_encoding(at, message, findings);
            String::from_utf8_lossy(bytes).into_owned()
        }
    }
}

fn decode_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16, findings: &mut Findings) -> String {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut text = String::with_capacity(pairs.len());
    for decoded in char::decode_utf16(pairs.iter().map(|pair| unit(*pair))) {
        if let Err(error) = &decoded {
            let half = error.unpaired_surrogate();
            let message = format!("the UTF-16 surrogate 0x{half:04X} is unpaired");
            report_encoding(text.len(), message, findings);
        }
        text.push(decoded.unwrap_or(char::REPLACEMENT_CHARACTER));
    }
    if !rest.is_empty() {
        let message = "the UTF-16 text ends with half a character".to_owned();
        report_encoding(text.len(), message, findings);
    }
    text
}

fn report_encoding(at: usize, message: String, findings: &mut Findings) {
    if !findings.has_errors() {
        let help = "save the file as UTF-8";
        findings.add_with_help(Code::Encoding, Span { start: at, end: at }, message, help);
    }
}

fn report_control_chars(text: &str, findings: &mut Findings) {
    if text.as_bytes().chunks(64).all(is_printable_ascii) {
        return;
    }
    let Some((position, forbidden)) = text.char_indices().find(|(_, c)| !is_allowed_char(*c))
    else {
        return;
    };
    let message = format!("the character U+{:04X} is not allowed in YAML", u32::from(forbidden));
    let help = "remove it, or write it as an escape in double quotes, such as \"\\x01\"";
    findings.add_with_help(Code::Encoding, Span { start: position, end: position }, message, help);
}

/// Returns `true` if all bytes are printable ASCII. The loop has no early exit, so that the
/// compiler can vectorize it.
fn is_printable_ascii(bytes: &[u8]) -> bool {
    bytes.iter().fold(true, |so_far, b| so_far & matches!(b, b'\t' | b'\n' | b'\r' | b' '..=b'~'))
}

/// Returns `true` for the characters that YAML 1.1 allows. It forbids most control characters.
fn is_allowed_char(c: char) -> bool {
    matches!(c,
        '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{A0}'..='\u{D7FF}'
        | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..)
}
