//! Applies the rules of YAML 1.1 that `granit_parser`, a YAML 1.2 parser, does not apply.
//!
//! Guarantees:
//! - Tabs are rejected where a key may start.
//! - `?` and a leading `:` are rejected in unquoted texts inside brackets.
//! - The escape `\/` and escaped UTF-16 surrogates are rejected.
//! - Anchors may contain only letters, digits, `_` and `-`.
//!
//! Not covered:
//! - Comments without a blank before them (see [`super::input`]).
//! - Line ends other than CR and LF.
//! - Quoted texts with lines indented less than their block: valid in YAML 1.1, but rejected.
//! - Tabs inside brackets inside an indented block: valid in YAML 1.1, but rejected.

use std::borrow::Cow;

use granit_parser::ScalarStyle;

use crate::diagnostic::{Code, Findings, Span};

/// Verifies the text between YAML tokens and the spelling of scalars.
pub(super) struct Yaml11Checks<'s> {
    text: &'s str,
    /// The end of the last token. All text before it is already verified.
    checked_to: usize,
    /// `true` if the last token was an unquoted text. The parser includes the blanks after such a
    /// text in the token.
    after_plain: bool,
    open_brackets: usize,
}

impl<'s> Yaml11Checks<'s> {
    pub(super) fn new(text: &'s str) -> Self {
        Self { text, checked_to: 0, after_plain: false, open_brackets: 0 }
    }

    pub(super) fn open_bracket(&mut self, at: Span, findings: &mut Findings) {
        self.check_gap(at.start, findings);
        self.open_brackets += 1;
    }

    pub(super) fn close_bracket(&mut self, at: Span) {
        self.open_brackets = self.open_brackets.saturating_sub(1);
        self.advance(at, false);
    }

    /// Verifies the scalar at `at` and the text before it. Returns the text of the scalar by the
    /// rules of YAML 1.1.
    pub(super) fn check_scalar(
        &mut self,
        text: Cow<'s, str>,
        style: ScalarStyle,
        at: Span,
        findings: &mut Findings,
    ) -> Cow<'s, str> {
        self.check_gap(at.start, findings);
        self.advance(at, style == ScalarStyle::Plain);
        match style {
            // The parser returns the text `~` for a missing value.
            ScalarStyle::Plain if at.start == at.end => Cow::Borrowed(""),
            ScalarStyle::Plain if 0 < self.open_brackets => {
                self.check_plain_in_brackets(text, at, findings)
            }
            ScalarStyle::DoubleQuoted => {
                self.check_escapes(at, findings);
                text
            }
            _ => text,
        }
    }

    /// Verifies the text before a token that is neither a scalar nor a bracket.
    pub(super) fn check_token(&mut self, at: Span, findings: &mut Findings) {
        self.check_gap(at.start, findings);
        self.advance(at, false);
    }

    fn advance(&mut self, token: Span, plain: bool) {
        if self.checked_to < token.end {
            (self.checked_to, self.after_plain) = (token.end, plain);
        }
    }

    pub(super) fn check_anchor(name: &str, at: Span, findings: &mut Findings) {
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')) {
            let message = format!("the anchor `{name}` may have only letters, digits, _ and -");
            findings.add_with_help(Code::Syntax, at, message, "rename the anchor");
        }
    }

    fn check_gap(&self, to: usize, findings: &mut Findings) {
        let gap = self.text.get(self.checked_to..to).unwrap_or_default();
        if 0 < self.open_brackets || !gap.contains('\t') {
            return;
        }
        if let Some(at) = find_misplaced_tab(gap, self.checked_to == 0, self.after_plain) {
            let (start, message) = (self.checked_to + at, "a tab before a key or list item");
            let span = Span { start, end: start + 1 };
            findings.add_with_help(Code::Syntax, span, message, "indent with spaces");
        }
    }

    /// Verifies an unquoted text inside brackets. In YAML 1.1, `unit:` before a comma is one text,
    /// not a key without a value.
    fn check_plain_in_brackets(
        &self,
        text: Cow<'s, str>,
        at: Span,
        findings: &mut Findings,
    ) -> Cow<'s, str> {
        let written = self.text.get(at.start..at.end).unwrap_or_default();
        if written.contains('?') || written.starts_with(':') {
            let message = format!("`{written}` inside brackets must be quoted");
            findings.add_with_help(Code::Syntax, at, message, format!("write '{written}'"));
        }
        match self.text.as_bytes().get(at.end..at.end + 2) {
            Some(b":," | b":}") => format!("{text}:").into(),
            Some(b":[" | b":{" | b":]") => {
                let message = format!("`{written}:` needs a space after the colon");
                findings.add_with_help(Code::Syntax, at, message, format!("write `{written}: …`"));
                text
            }
            _ => text,
        }
    }

    fn check_escapes(&self, at: Span, findings: &mut Findings) {
        let mut rest = self.text.get(at.start..at.end).unwrap_or_default();
        while let Some((_, escape)) = rest.split_once('\\') {
            let is_surrogate = ["ud8", "ud9", "uda", "udb"]
                .iter()
                .any(|half| escape.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(half)));
            if is_surrogate || escape.starts_with('/') {
                let message = "an escape sequence that YAML 1.1 does not have";
                let help = "write the character itself, or `\\U` and eight hexadecimal digits";
                return findings.add_with_help(Code::Syntax, at, message, help);
            }
            let mut after = escape.chars();
            after.next();
            rest = after.as_str();
        }
    }
}

/// Returns the position of the first misplaced tab: at the start of a line or after `-` or `?`, but
/// not in a comment. On blank lines after an unquoted text, only the first column counts.
fn find_misplaced_tab(gap: &str, starts_line: bool, mut after_plain: bool) -> Option<usize> {
    let mut key_may_start = starts_line;
    let mut before = if starts_line { '\n' } else { 'x' };
    let mut in_comment = false;
    for (at, c) in gap.char_indices() {
        let is_after_blank = before.is_ascii_whitespace();
        after_plain &= c.is_ascii_whitespace();
        let is_in_plain = after_plain && !matches!(before, '\n' | '\r');
        match c {
            '\n' | '\r' => (key_may_start, in_comment) = (true, false),
            '\t' if key_may_start && !in_comment && !is_in_plain => return Some(at),
            ' ' | '\t' => {}
            '#' if is_after_blank => in_comment = true,
            // `-` of an item or `?` of a key, at the start of a line or after another `-` or `?`.
            '-' | '?' if is_after_blank => {}
            _ => key_may_start = false,
        }
        before = c;
    }
    None
}
