//! Applies the rules of YAML 1.1 that `granit_parser`, a parser of YAML 1.2, does not apply.
//!
//! Guarantees:
//! - Tabs are rejected where a key may start.
//! - `?` and a leading `:` are rejected in unquoted texts inside brackets.
//! - The escape `\/` and escaped UTF-16 surrogates are rejected.
//! - Anchors may contain only letters, digits, `_` and `-`.
//!
//! Not covered:
//! - Line ends other than CR and LF.
//! - Quoted texts with lines indented less than their block: valid in YAML 1.1, but rejected.
//! - Tabs inside brackets inside an indented block: valid in YAML 1.1, but rejected.

use std::borrow::Cow;

use granit_parser::ScalarStyle;

use crate::config::diagnostic::{Code, Findings, Span};

pub(super) struct Yaml11Checks<'s> {
    text: &'s str,
    /// The end of the last token. The text before it is verified.
    checked_to: usize,
    /// `true` if the last token was an unquoted text. Such a token includes the blanks after it.
    after_plain: bool,
    open_brackets: usize,
}

impl<'s> Yaml11Checks<'s> {
    pub(super) fn new(text: &'s str) -> Self {
        Self { text, checked_to: 0, after_plain: false, open_brackets: 0 }
    }

    pub(super) fn open_bracket(&mut self, span: Span, findings: &mut Findings) {
        self.check_text_before(span.start, findings);
        self.open_brackets += 1;
    }

    pub(super) fn close_bracket(&mut self, span: Span) {
        self.open_brackets = self.open_brackets.saturating_sub(1);
        self.record_token(span, false);
    }

    /// Verifies a scalar and the text before it. Returns the text that the scalar has in YAML 1.1.
    pub(super) fn check_scalar(
        &mut self,
        text: Cow<'s, str>,
        style: ScalarStyle,
        span: Span,
        findings: &mut Findings,
    ) -> Cow<'s, str> {
        self.check_text_before(span.start, findings);
        self.record_token(span, style == ScalarStyle::Plain);
        match style {
            // The parser returns the text `~` for a missing value.
            ScalarStyle::Plain if span.start == span.end => Cow::Borrowed(""),
            ScalarStyle::Plain if 0 < self.open_brackets => {
                self.check_plain_in_brackets(text, span, findings)
            }
            ScalarStyle::DoubleQuoted => {
                self.check_escapes(span, findings);
                text
            }
            _ => text,
        }
    }

    pub(super) fn check_token(&mut self, span: Span, findings: &mut Findings) {
        self.check_text_before(span.start, findings);
        self.record_token(span, false);
    }

    fn record_token(&mut self, token: Span, is_plain: bool) {
        if self.checked_to < token.end {
            (self.checked_to, self.after_plain) = (token.end, is_plain);
        }
    }

    pub(super) fn check_anchor(name: &str, span: Span, findings: &mut Findings) {
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')) {
            let message = format!("the anchor `{name}` has other than letters, digits, _ and -");
            findings.add_with_help(Code::Syntax, span, message, "rename it");
        }
    }

    /// Verifies the text between the last token and the token that starts at `token_start`.
    fn check_text_before(&self, token_start: usize, findings: &mut Findings) {
        let gap = self.text.get(self.checked_to..token_start).unwrap_or_default();
        if 0 < self.open_brackets || !gap.contains('\t') {
            return;
        }
        if let Some(tab) = find_misplaced_tab(gap, self.checked_to == 0, self.after_plain) {
            let (start, message) = (self.checked_to + tab, "a tab where a line or an item starts");
            let span = Span { start, end: start + 1 };
            findings.add_with_help(Code::Syntax, span, message, "indent with spaces");
        }
    }

    /// In YAML 1.1, `unit:` before a comma in brackets is one text, not a key without a value.
    fn check_plain_in_brackets(
        &self,
        text: Cow<'s, str>,
        span: Span,
        findings: &mut Findings,
    ) -> Cow<'s, str> {
        let source = self.text.get(span.start..span.end).unwrap_or_default();
        if source.contains('?') || source.starts_with(':') {
            let message = format!("`{source}` inside brackets must be quoted");
            findings.add_with_help(Code::Syntax, span, message, format!("'{source}'"));
        }
        match self.text.as_bytes().get(span.end..span.end + 2) {
            Some(b":," | b":}") => format!("{text}:").into(),
            Some(b":[" | b":{" | b":]") => {
                let message = format!("`{source}:` wants a blank behind the colon");
                findings.add_with_help(Code::Syntax, span, message, format!("{source}: …"));
                text
            }
            _ => text,
        }
    }

    fn check_escapes(&self, span: Span, findings: &mut Findings) {
        let mut rest = self.text.get(span.start..span.end).unwrap_or_default();
        while let Some((_, escape)) = rest.split_once('\\') {
            let is_surrogate = ["ud8", "ud9", "uda", "udb"]
                .iter()
                .any(|half| escape.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(half)));
            if is_surrogate || escape.starts_with('/') {
                let message = "an escape that YAML 1.1 does not have";
                let help = "write the character itself, or \\U and eight digits";
                return findings.add_with_help(Code::Syntax, span, message, help);
            }
            // Skip the escaped character, which may be another backslash.
            let mut escape = escape.chars();
            escape.next();
            rest = escape.as_str();
        }
    }
}

/// Returns the position of the first tab at the start of a line or after `-` or `?`, except in a
/// comment. On blank lines after an unquoted text, only the first column counts.
fn find_misplaced_tab(gap: &str, starts_line: bool, mut after_plain: bool) -> Option<usize> {
    let mut key_may_start = starts_line;
    let mut previous = if starts_line { '\n' } else { 'x' };
    let mut in_comment = false;
    for (position, c) in gap.char_indices() {
        let is_after_blank = previous.is_ascii_whitespace();
        after_plain &= c.is_ascii_whitespace();
        let is_in_plain = after_plain && !matches!(previous, '\n' | '\r');
        match c {
            '\n' | '\r' => (key_may_start, in_comment) = (true, false),
            '\t' if key_may_start && !in_comment && !is_in_plain => return Some(position),
            ' ' | '\t' => {}
            '#' if is_after_blank => in_comment = true,
            // The `-` of an item or the `?` of a key.
            '-' | '?' if is_after_blank => {}
            _ => key_may_start = false,
        }
        previous = c;
    }
    None
}
