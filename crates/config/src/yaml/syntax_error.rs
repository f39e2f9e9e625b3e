//! Reports syntax errors of YAML, with the suggested fix.
//!
//! Guarantees:
//! - Every error has a position in the text.

use granit_parser::{ErrorKind, ScanError};

use super::DEPTH;
use crate::diagnostic::{Code, Findings, Span};

pub(super) fn report_too_deep(at: Span, findings: &mut Findings) {
    let message = format!("the file is nested more than {DEPTH} levels deep");
    findings.add(Code::TooDeep, at, message);
}

/// Reports unknown directives (`%`) as errors, as YAML 1.1 parsers do. The parser `granit_parser`
/// skips them.
pub(super) fn report_unknown_directives(text: &str, from: usize, findings: &mut Findings) {
    let mut start = from;
    for line in text.get(from..).unwrap_or_default().split_inclusive(['\n', '\r']) {
        let content = line.trim();
        let is_known = ["%YAML", "%TAG"].iter().any(|name| {
            content.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '\t']))
        });
        if line.starts_with('%') && !is_known {
            let message = format!("`{content}` is not a YAML directive");
            let span = Span { start, end: start + content.len() };
            let help = "remove this line; only `%YAML 1.1` and `%TAG` are valid";
            findings.add_with_help(Code::Syntax, span, message, help);
        }
        if !content.is_empty() && !line.starts_with(['%', '#']) {
            return;
        }
        start += line.len();
    }
}

pub(super) fn report_syntax_error(error: &ScanError, text: &str, findings: &mut Findings) {
    let start = error.marker().byte_offset().unwrap_or(0).min(text.len());
    let rest = text.get(start..).unwrap_or_default();
    if *error.kind() == ErrorKind::RecursionLimitExceeded {
        return report_too_deep(Span { start, end: start }, findings);
    }
    if *error.kind() == ErrorKind::MappingValueNotAllowed
        && let Some(word) = lone_word_before_colon(&text[..start])
    {
        let message = format!("invalid YAML: {}", error.info());
        return findings.add_with_help(Code::Syntax, word, message, CONTINUED_TEXT_FIX);
    }
    let word = rest.split([' ', '\t', '\n', '\r', ',', ']', '}']).next().unwrap_or_default();
    let span = Span { start, end: start + word.len() };
    let message = match error.kind() {
        ErrorKind::UnknownAnchor => format!("the alias `{word}` has no anchor above it"),
        _ => format!("invalid YAML: {}", error.info()),
    };
    match suggest_fix(error.kind()) {
        Some(help) => findings.add_with_help(Code::Syntax, span, message, help),
        None => findings.add(Code::Syntax, span, message),
    }
}

/// The suggested fix for an unquoted text that unintentionally continues on the next line.
const CONTINUED_TEXT_FIX: &str =
    "indent all keys of a block equally, and write a space after each colon";

/// Returns the word before a colon if only blanks and dashes precede the word on its line. The
/// syntax error is then in an unquoted text that starts on an earlier line.
fn lone_word_before_colon(before: &str) -> Option<Span> {
    let first = before.rfind(['\n', '\r']).map_or(0, |end| end + 1);
    let line = before[first..].trim_end_matches([' ', '\t']);
    let word = line.rsplit([' ', '\t']).next().filter(|word| !word.is_empty())?;
    let end = first + line.len();
    let start = end - word.len();
    let is_alone = before[first..start].split_whitespace().all(|mark| mark == "-");
    is_alone.then_some(Span { start, end })
}

fn suggest_fix(kind: &ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabNotAllowed
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabAtBlockScalarStart => "indent with spaces",
        ErrorKind::MissingAnchorOrAliasName => "quote a lone star: '*'",
        ErrorKind::UnknownAnchor => "quote a text that starts with a star: '*.png'",
        ErrorKind::UnexpectedCharacter { .. } => "quote the text",
        ErrorKind::UnclosedQuotedScalar | ErrorKind::InvalidQuotedScalarIndent => {
            "look for an unclosed quote above"
        }
        ErrorKind::MappingValueNotAllowed => "quote a text that contains `: `",
        ErrorKind::InvalidIndentation => "indent all keys of a block equally",
        ErrorKind::UnclosedFlowCollection { .. } => "close the bracket",
        _ => return None,
    })
}
