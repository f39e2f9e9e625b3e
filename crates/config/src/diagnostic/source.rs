//! The text of a configuration file, and positions in it.
//!
//! Guarantees:
//! - A location contains at most 120 characters on each side of a finding.
//! - A location contains no control characters.

use std::sync::{Arc, OnceLock};

/// A range of bytes in the decoded text of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The position of the first byte.
    pub start: usize,
    /// The position after the last byte.
    pub end: usize,
}

/// A value of a configuration file, and its position in the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// The position of the value.
    pub span: Span,
}

/// The text of one configuration file, with its name. Converts spans to lines and columns.
#[derive(Debug)]
pub struct SourceText {
    /// The path as the user wrote it, for example `limits/shop.yaml`.
    pub name: Arc<str>,
    /// The decoded text (UTF-8, no byte order mark).
    pub text: Arc<str>,
    /// The byte position of each line start. Computed at first use, because a file without findings
    /// needs no line numbers.
    lines: OnceLock<Box<[usize]>>,
}

/// The largest number of characters that an excerpt shows on each side of a finding. A JSON file
/// can have one line of many megabytes.
const EXCERPT_CHARS: usize = 120;

impl SourceText {
    /// Creates a source text for the file `name`.
    #[must_use]
    pub fn new(name: &str, text: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), text: text.into(), lines: OnceLock::new() }
    }

    /// Returns the file, line and column of `span`. A span beyond the text is moved to the end of
    /// the text.
    ///
    /// Cost: the first call scans the whole text for line starts. Later calls scan one line.
    #[must_use]
    pub fn locate(&self, span: Span) -> SourceLocation {
        let start = floor_char(&self.text, span.start);
        let lines = self.line_starts();
        let line = lines.partition_point(|first| *first <= start);
        let first = lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let before = &self.text[first..start];
        let rest = until_line_end(&self.text[start..]);
        let marked_len = floor_char(rest, span.end.saturating_sub(start));
        SourceLocation {
            file: self.name.clone(),
            line,
            column: before.chars().count() + 1,
            width: rest[..marked_len].chars().take(EXCERPT_CHARS).count().max(1),
            skipped_chars: before.chars().count().saturating_sub(EXCERPT_CHARS),
            text: excerpt(before, rest),
        }
    }

    /// Returns the number (from 1) of the line that contains byte `at`. Cost: logarithmic in the
    /// number of lines, after a first call that scans the text.
    #[must_use]
    pub fn line(&self, at: usize) -> usize {
        self.line_starts().partition_point(|first| *first <= at).max(1)
    }

    /// Returns the span of line `line` (from 1), without blanks at its start and end. If the text
    /// has fewer lines, returns an empty span at its end.
    #[must_use]
    pub fn line_span(&self, line: usize) -> Span {
        let first = self.line_starts().get(line.saturating_sub(1)).copied();
        let first = first.unwrap_or(self.text.len());
        let content = until_line_end(&self.text[first..]);
        let start = first + content.len() - content.trim_start().len();
        Span { start, end: start + content.trim().len() }
    }

    /// Returns `true` for JSON on one line, such as a resource from an xDS server. Its lines and
    /// columns mean nothing to the user.
    #[must_use]
    pub fn is_one_line_json(&self) -> bool {
        self.text.starts_with('{') && !self.text.contains('\n')
    }

    fn line_starts(&self) -> &[usize] {
        self.lines.get_or_init(|| {
            let bytes = self.text.as_bytes();
            let ends_line = |at: usize| {
                bytes[at] == b'\n' || (bytes[at] == b'\r' && bytes.get(at + 1) != Some(&b'\n'))
            };
            std::iter::once(0)
                .chain((0..bytes.len()).filter(|at| ends_line(*at)).map(|at| at + 1))
                .collect()
        })
    }
}

fn floor_char(text: &str, mut at: usize) -> usize {
    at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn until_line_end(text: &str) -> &str {
    text.split(['\n', '\r']).next().unwrap_or_default()
}

/// Replaces a control character, because an escape sequence in a file could change the user's
/// terminal.
pub(super) fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

fn excerpt(before: &str, rest: &str) -> Box<str> {
    let skipped = before.chars().count().saturating_sub(EXCERPT_CHARS);
    before.chars().skip(skipped).chain(rest.chars().take(EXCERPT_CHARS)).map(printable).collect()
}

/// A file, line and column, with the text of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLocation {
    /// The name of the file.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The number of characters that the finding is about; at least 1.
    pub width: usize,
    /// The number of characters that field `text` omits at the start of a long line.
    pub skipped_chars: usize,
    /// The line of the file. If the line is long, only the part around the column.
    pub text: Box<str>,
}
