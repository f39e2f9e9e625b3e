//! Reads the bytes of a limits file.
//!
//! Guarantees:
//! - A file with an error in its encoding, syntax or nesting has no findings of later steps.
//!
//! Not covered:
//! - The fields (see [`super::typed`]).

use super::{File, document, names, typed};
use crate::diagnostic::{Diagnostics, Findings, SourceText};
use crate::yaml;

/// A limits file with at least one error.
#[derive(Debug)]
pub struct InvalidFile {
    /// Every error and warning of the file, or only the syntax error.
    pub diagnostics: Diagnostics,
    /// The fields that could be read, for further validation. `None` after a syntax error.
    pub readable: Option<(File, SourceText)>,
}

/// Reads one limits file. Diagnostics show `name` as the name of the file.
///
/// Returns the file's fields, its text (which converts positions to lines), and the warnings in the
/// order of their positions.
///
/// # Errors
///
/// Returns every error and warning of the file, and the fields that could be read. If there is a
/// syntax error, returns only this error.
pub fn read(name: &str, bytes: &[u8]) -> Result<(File, SourceText, Diagnostics), Box<InvalidFile>> {
    let mut findings = Findings::default();
    let text = yaml::decode(bytes, &mut findings);
    let is_document = document::is_document(name, &text);
    let file = if is_document {
        findings = document::finding();
        None
    } else {
        parse_file(&text, &mut findings)
    };
    let failed = findings.has_errors();
    let source = SourceText::new(name, text);
    let diagnostics = findings.into_diagnostics(&source);
    match file {
        Some(file) if !failed => Ok((file, source, diagnostics)),
        file => {
            let readable = file.map(|file| (File { is_incomplete: true, ..file }, source));
            Err(Box::new(InvalidFile { diagnostics, readable }))
        }
    }
}

/// Returns the text of a limits file, which converts positions to lines. Cost: decoding the text.
#[must_use]
pub fn source(name: &str, bytes: &[u8]) -> SourceText {
    SourceText::new(name, yaml::decode(bytes, &mut Findings::default()))
}

/// Returns the fields of the file, or `None` after an error in its encoding, syntax or nesting.
fn parse_file(text: &str, findings: &mut Findings) -> Option<File> {
    if findings.has_errors() {
        return None;
    }
    let tree = yaml::parse(text, findings);
    if findings.has_errors() {
        return None;
    }
    let misfits = yaml::check(&tree, findings)?;
    let reported = names::check(&tree, misfits, findings);
    Some(typed::read(&tree, &reported, findings))
}
