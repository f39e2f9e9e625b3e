//! Parses the first YAML document of a text.
//!
//! Guarantees:
//! - Time and memory are proportional to the length of the text.
//!
//! Not covered:
//! - The content of later documents, which causes a warning and is ignored, as in
//!   envoyproxy/ratelimit.

use granit_parser::{ErrorKind, Event, Parser, ScanError};

use super::DEPTH;
use super::input::LenientInput;
use super::node::builder::{YamlTreeBuilder, is_null_text};
use super::node::{YamlTree, span_of};
use super::syntax_error::{report_syntax_error, report_too_deep, report_unknown_directives};
use crate::diagnostic::{Code, Findings, Span};

/// Parses the first YAML document of `text`. Adds syntax errors to `findings`.
pub(crate) fn parse<'s>(text: &'s str, findings: &mut Findings) -> YamlTree<'s> {
    report_unknown_directives(text, 0, findings);
    let version_at = text.find("%YAML").unwrap_or_default();
    let version_at = Span { start: version_at, end: version_at + "%YAML".len() };
    let mut builder = YamlTreeBuilder::new(text, version_at);
    let mut parser = Parser::with_options(LenientInput::new(text), parser_options(DEPTH));
    while let Some(event) = parser.next() {
        match event {
            Ok((Event::DocumentEnd | Event::StreamEnd, at)) => {
                builder.strict.check_token(span_of(&at), findings);
                report_later_documents(parser, builder.is_empty_document(), findings);
                break;
            }
            Ok((event, span)) => builder.apply_event(event, &span, findings),
            Err(error) if builder.is_complete() && ends_document(&error) => {
                let at = error.marker().byte_offset().unwrap_or(text.len());
                report_unknown_directives(text, at, findings);
                if !findings.has_errors() {
                    report_second_document(
                        Span { start: at, end: at },
                        builder.is_empty_document(),
                        findings,
                    );
                }
                break;
            }
            Err(error) => {
                report_syntax_error(&error, text, findings);
                break;
            }
        }
        if DEPTH < builder.open.len() {
            let at = builder.open.last().map(|open| builder.tree.span(open.id));
            report_too_deep(at.unwrap_or_default(), findings);
            break;
        }
    }
    builder.tree
}

/// Warns about a second document, which is ignored, as in envoyproxy/ratelimit. Empty documents
/// cause no warning.
fn report_later_documents<'s>(
    rest: impl Iterator<Item = Result<(Event<'s>, granit_parser::Span), ScanError>>,
    is_first_empty: bool,
    findings: &mut Findings,
) {
    let mut begins = None;
    for event in rest {
        match event {
            Ok((Event::StreamEnd, _)) => return,
            Ok((Event::DocumentStart(..), at)) => begins = Some(span_of(&at)),
            Ok((Event::DocumentEnd, _)) => {}
            Ok((Event::Scalar(text, ..), _)) if is_null_text(&text) => {}
            Ok(_) => break,
            Err(error) => {
                let at = error.marker().byte_offset().unwrap_or_default();
                begins = begins.or(Some(Span { start: at, end: at }));
                break;
            }
        }
    }
    if let Some(at) = begins {
        report_second_document(at, is_first_empty, findings);
    }
}

fn report_second_document(at: Span, is_first_empty: bool, findings: &mut Findings) {
    let help = if is_first_empty {
        "the first document is empty: remove the `---` before this one"
    } else {
        "move it to another file: a file is one document with one domain"
    };
    let message = "a second document starts here and is ignored".to_owned();
    findings.add_with_help(Code::SecondDocument, at, message, help);
}

fn parser_options(depth: usize) -> granit_parser::Options {
    let mut options = granit_parser::options! {
        flow_nesting_limit: depth,
        block_nesting_limit: depth,
        emit_anchor_events: true,
    };
    options.set_emit_comments(false);
    options
}

/// Returns `true` if the error is a directive (`%`) after the first document. A valid directive
/// ends the document, and the text after it is not read.
fn ends_document(error: &ScanError) -> bool {
    *error.kind() == ErrorKind::MissingDocumentEndBeforeDirective
}
