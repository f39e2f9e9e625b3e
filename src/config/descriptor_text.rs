//! The text form of a descriptor: `api_key=me,path=/`.
//!
//! Guarantees:
//! - Every non-empty list of entries can be formatted and parsed back.
//! - Escapes: `\,` is a comma in an entry, `\=` an `=` in a key.
//! - `\\` is a backslash; before other characters a backslash is literal.
//!
//! Not covered:
//! - Lookup of the entries.

use std::fmt::Write as _;

/// Parses the entries of `text`, in order.
///
/// # Errors
///
/// A sentence for the user who wrote the text.
pub fn parse_entries(text: &str) -> Result<Vec<(String, String)>, String> {
    split_entries(text).into_iter().map(parse_entry).collect()
}

/// Formats entries in the form that [`parse_entries`] parses.
pub fn format_entries<'e>(entries: impl IntoIterator<Item = (&'e str, &'e str)>) -> String {
    let mut text = String::new();
    for (key, value) in entries {
        let comma = if text.is_empty() { "" } else { "," };
        let _infallible = write!(text, "{comma}{}={}", escape(key, &['=']), escape(value, &[]));
    }
    text
}

/// Borrows the entries in the form that the engine accepts.
#[must_use]
pub fn borrow_entries(entries: &[(String, String)]) -> Vec<(&str, &str)> {
    entries.iter().map(|(key, value)| (&**key, &**value)).collect()
}

/// Splits at unescaped commas and keeps the backslashes.
fn split_entries(text: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(end) = find_unescaped(rest, ',') {
        let (part, after) = rest.split_at(end);
        parts.push(part);
        rest = after.get(1..).unwrap_or_default();
    }
    parts.push(rest);
    parts
}

fn parse_entry(part: &str) -> Result<(String, String), String> {
    let end = find_unescaped(part, '=').ok_or_else(|| {
        let comma = if part.is_empty() { "" } else { ", and a comma in it `\\,`" };
        format!("`{part}` is not an entry; one is written key=value{comma}")
    })?;
    let (key, value) = part.split_at(end);
    Ok((unescape(key), unescape(value.get(1..).unwrap_or_default())))
}

/// Returns the position of the first unescaped `wanted`.
fn find_unescaped(text: &str, wanted: char) -> Option<usize> {
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        if character == '\\' {
            characters.next_if(|(_, next)| is_special(*next));
        } else if character == wanted {
            return Some(at);
        }
    }
    None
}

fn unescape(text: &str) -> String {
    let (mut plain, mut characters) = (String::new(), text.chars().peekable());
    while let Some(character) = characters.next() {
        let meant = characters.next_if(|next| character == '\\' && is_special(*next));
        plain.push(meant.unwrap_or(character));
    }
    plain
}

fn escape(text: &str, more: &[char]) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if matches!(character, ',' | '\\') || more.contains(&character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

const fn is_special(character: char) -> bool {
    matches!(character, ',' | '=' | '\\')
}
