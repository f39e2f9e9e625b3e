//! Finds the values at the known paths of a JSON text, in chunks.
//!
//! Guarantees:
//! - Only one key or scalar at a known path is kept, up to [`MAX_TOKEN_BYTES`].
//! - Other values are skipped: their brackets and strings are counted, not checked.
//! - After an error on a known path, the rest of the text is ignored.

use std::borrow::Cow;

use crate::counts::Counts;
use crate::paths::{MAX_TOKEN_BYTES, PATHS, PathRow};

/// The next part of the text.
#[derive(Debug, Clone, Copy)]
enum TextPlace {
    /// A value.
    Value,
    /// A key, or the end of the object.
    Key,
    /// The colon after a key.
    Colon,
    /// A comma, or the end of the object or list.
    Comma,
    /// The rest of a string.
    String(StringUse),
    /// The byte after a backslash in a string.
    Escape(StringUse),
    /// The rest of a number or literal.
    Bare,
    /// The rest of a skipped object or array.
    Skipped,
    /// White space.
    End,
    /// Nothing, after an error.
    Nothing,
}

/// The use of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StringUse {
    Key,
    Value,
    Skip,
}

/// The state of the scanner between two bytes.
///
/// The path of the next key is the first `open - 1` keys of `row`. The path of a wanted value is the first `open` keys.
#[derive(Debug)]
pub(crate) struct JsonScanner {
    place: TextPlace,
    row: &'static PathRow,
    /// Open objects on the path.
    open: usize,
    /// The path of the value is a known path or the beginning of one.
    is_wanted: bool,
    /// The text is a list of replies.
    is_list: bool,
    /// Open objects and arrays of a skipped value.
    nesting: u64,
    /// The key or scalar so far, with quotes; one byte above the maximum if it is longer.
    token: Vec<u8>,
}

impl Default for JsonScanner {
    fn default() -> Self {
        Self {
            place: TextPlace::Value,
            row: &PATHS[0],
            open: 0,
            is_wanted: true,
            is_list: false,
            nesting: 0,
            token: Vec::new(),
        }
    }
}

impl JsonScanner {
    /// Forgets the text so far, complete or not. The next byte begins another one.
    pub(crate) fn restart(&mut self) {
        let token = std::mem::take(&mut self.token);
        *self = Self { token, ..Self::default() };
    }

    /// Reads the next bytes, and records each complete value at a known path.
    pub(crate) fn push(&mut self, mut bytes: &[u8], counts: &mut Counts) {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = match self.place {
                TextPlace::String(string) => self.read_string(string, bytes, counts),
                TextPlace::Escape(string) => {
                    self.keep(string, &[byte]);
                    self.place = TextPlace::String(string);
                    rest
                }
                TextPlace::Bare => self.read_bare(bytes, counts),
                TextPlace::Skipped => self.skip(bytes),
                TextPlace::Nothing => return,
                _ => {
                    self.step(byte, counts);
                    rest
                }
            };
        }
    }

    /// Reads one byte between the tokens.
    fn step(&mut self, byte: u8, counts: &mut Counts) {
        let is_root = self.open == 0;
        match (self.place, byte) {
            (_, b' ' | b'\t' | b'\n' | b'\r') => {}
            (TextPlace::Value, b'[') if is_root && !self.is_list => self.is_list = true,
            (TextPlace::Value | TextPlace::Comma, b']') if is_root && self.is_list => {
                self.place = TextPlace::End;
            }
            (TextPlace::Value, b'{' | b'[') => self.open_value(byte, counts),
            (TextPlace::Value, b'"') if self.is_leaf() => self.begin_string(StringUse::Value),
            (TextPlace::Value, b'"') => self.begin_string(StringUse::Skip),
            (TextPlace::Value, byte) if !is_delimiter(byte) => self.begin_bare(byte),
            (TextPlace::Key, b'"') => self.begin_string(StringUse::Key),
            (TextPlace::Key | TextPlace::Comma, b'}') if !is_root => {
                self.open -= 1;
                self.end_value();
            }
            (TextPlace::Colon, b':') => self.place = TextPlace::Value,
            (TextPlace::Comma, b',') if is_root => self.place = TextPlace::Value,
            (TextPlace::Comma, b',') => self.place = TextPlace::Key,
            _ => {
                counts.add_invalid();
                self.place = TextPlace::Nothing;
            }
        }
    }

    /// The value is at the end of a known path.
    fn is_leaf(&self) -> bool {
        self.is_wanted && self.row.path.len() == self.open
    }

    /// Enters an object on a known path, and skips another object or an array.
    fn open_value(&mut self, bracket: u8, counts: &mut Counts) {
        if self.is_leaf() {
            counts.add_invalid();
        } else if self.is_wanted && bracket == b'{' {
            self.open += 1;
            self.place = TextPlace::Key;
            return;
        }
        self.nesting = 1;
        self.place = TextPlace::Skipped;
    }

    fn begin_string(&mut self, string: StringUse) {
        self.token.clear();
        self.keep(string, b"\"");
        self.place = TextPlace::String(string);
    }

    fn begin_bare(&mut self, byte: u8) {
        self.token.clear();
        self.keep(StringUse::Value, &[byte]);
        self.place = TextPlace::Bare;
    }

    /// Appends to the token, unless the string is skipped.
    fn keep(&mut self, string: StringUse, bytes: &[u8]) {
        if string != StringUse::Skip {
            let room = (MAX_TOKEN_BYTES + 1).saturating_sub(self.token.len());
            self.token.extend(bytes.iter().take(room));
        }
    }

    /// Reads up to the next quote or backslash, and returns the rest.
    fn read_string<'b>(
        &mut self,
        string: StringUse,
        bytes: &'b [u8],
        counts: &mut Counts,
    ) -> &'b [u8] {
        let (text, rest) = split_after(bytes, |byte| matches!(byte, b'"' | b'\\'));
        self.keep(string, text);
        match text.last() {
            Some(b'"') => self.end_string(string, counts),
            Some(b'\\') => self.place = TextPlace::Escape(string),
            _ => {}
        }
        rest
    }

    fn end_string(&mut self, string: StringUse, counts: &mut Counts) {
        match string {
            StringUse::Key => self.enter_key(),
            StringUse::Skip if 0 < self.nesting => self.place = TextPlace::Skipped,
            StringUse::Skip => self.end_value(),
            StringUse::Value => {
                counts.record(self.row.field, &self.token);
                self.end_value();
            }
        }
    }

    /// Finds a known path that continues with the key in the token.
    fn enter_key(&mut self) {
        let depth = self.open - 1;
        let parents = self.row.path.iter().take(depth);
        let row = decode_key(&self.token).and_then(|key| {
            let is_key = |row: &&PathRow| row.path.get(depth).is_some_and(|known| *known == key);
            let mut rows = PATHS.iter().filter(is_key);
            rows.find(|row| row.path.iter().take(depth).eq(parents.clone()))
        });
        self.is_wanted = row.is_some();
        self.row = row.unwrap_or(self.row);
        self.place = TextPlace::Colon;
    }

    /// Reads up to the next delimiter, and returns the rest.
    fn read_bare<'b>(&mut self, bytes: &'b [u8], counts: &mut Counts) -> &'b [u8] {
        let end = bytes.iter().position(|&byte| is_delimiter(byte));
        let (text, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        self.keep(StringUse::Value, text);
        if end.is_some() {
            if self.is_leaf() {
                counts.record(self.row.field, &self.token);
            }
            self.end_value();
        }
        rest
    }

    /// Reads up to the next bracket or quote of a skipped value, and returns the rest.
    fn skip<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (skipped, rest) =
            split_after(bytes, |byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']'));
        match skipped.last() {
            Some(b'"') => self.place = TextPlace::String(StringUse::Skip),
            Some(b'{' | b'[') => self.nesting = self.nesting.saturating_add(1),
            Some(b'}' | b']') => self.nesting -= 1,
            _ => {}
        }
        if self.nesting == 0 {
            self.end_value();
        }
        rest
    }

    fn end_value(&mut self) {
        let is_end = self.open == 0 && !self.is_list;
        self.is_wanted = self.open == 0;
        self.place = if is_end { TextPlace::End } else { TextPlace::Comma };
    }
}

/// Splits after the first byte for which `is_stop` is true.
fn split_after(bytes: &[u8], is_stop: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let stop = bytes.iter().position(|&byte| is_stop(byte));
    bytes.split_at(stop.map_or(bytes.len(), |stop| stop + 1))
}

const fn is_delimiter(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' | b'{' | b'}' | b'[' | b']' | b'"')
}

/// Decodes a string with its quotes. `None` if it is invalid or was cut off.
fn decode_key(token: &[u8]) -> Option<Cow<'_, str>> {
    match serde_json::from_slice::<&str>(token) {
        Ok(key) => Some(Cow::Borrowed(key)),
        Err(_) => serde_json::from_slice(token).ok().map(Cow::Owned),
    }
}
