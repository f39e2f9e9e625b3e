//! Parses and formats a descriptor as text: `api_key=me,path=/`.
//!
//! Guarantees:
//! - Every nonempty list of entries can be formatted and parsed back.
//! - `\,` is a comma in a key or value, and `\=` is an `=` in a key.
//! - `\\` is a backslash. A single backslash before any other character stays a backslash.
//!
//! Not covered:
//! - Finding the rule of a descriptor (see [`super::tree`]).

/// Parses a descriptor such as `api_key=me,path=/` into keys and values, in order.
///
/// # Errors
///
/// Returns a message for the user if an entry has no unescaped `=`.
pub fn parse_entries(text: &str) -> Result<Vec<(String, String)>, String> {
    split_entries(text).into_iter().map(parse_entry).collect()
}

/// Formats keys and values as a text that [`parse_entries`] parses.
pub fn format_entries<'e>(entries: impl IntoIterator<Item = (&'e str, &'e str)>) -> String {
    let mut text = String::new();
    for (key, value) in entries {
        if !text.is_empty() {
            text.push(',');
        }
        push_escaped(&mut text, key, true);
        text.push('=');
        push_escaped(&mut text, value, false);
    }
    text
}

/// Borrows owned keys and values as the `&str` pairs that the engine accepts.
#[must_use]
pub fn borrow_entries(entries: &[(String, String)]) -> Vec<(&str, &str)> {
    entries.iter().map(|(key, value)| (&**key, &**value)).collect()
}

/// Splits `text` at its unescaped commas. The parts keep their backslashes.
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
        let comma = if part.is_empty() { "" } else { " (a comma in it as `\\,`)" };
        format!("`{part}` is not an entry; write entries as key=value{comma}")
    })?;
    let (key, value) = part.split_at(end);
    Ok((unescape(key), unescape(value.get(1..).unwrap_or_default())))
}

/// Returns the byte position of the first `wanted` in `text` that has no backslash before it.
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
    let (mut unescaped, mut characters) = (String::new(), text.chars().peekable());
    while let Some(character) = characters.next() {
        let meant = characters.next_if(|next| character == '\\' && is_special(*next));
        unescaped.push(meant.unwrap_or(character));
    }
    unescaped
}

/// Appends `text` with a backslash before each special character. In a key, `=` is special, too.
fn push_escaped(to: &mut String, text: &str, is_key: bool) {
    let needs_escape = |character: char| is_special(character) && (character != '=' || is_key);
    if !text.contains(needs_escape) {
        return to.push_str(text);
    }
    for character in text.chars() {
        if needs_escape(character) {
            to.push('\\');
        }
        to.push(character);
    }
}

const fn is_special(character: char) -> bool {
    matches!(character, ',' | '=' | '\\')
}
