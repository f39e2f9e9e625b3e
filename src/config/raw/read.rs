//! Reads the bytes of a limits file.
//!
//! Guarantees:
//! - A file with an error in its encoding, syntax or nesting has no findings of later steps.
//!
//! Not covered:
//! - The fields (see [`super::typed`]).

use super::{File, names, typed};
use crate::config::diagnostic::{Diagnostics, Findings, SourceText};
use crate::config::yaml;

/// Reads one limits file. Diagnostics show `name` as the name of the file.
///
/// Returns the file's fields, its text (which converts positions to lines), and the warnings in the
/// order of their positions.
///
/// # Errors
///
/// Returns every error and warning of the file. If there is a syntax error, returns only this
/// error.
pub fn read(name: &str, bytes: &[u8]) -> Result<(File, SourceText, Diagnostics), Diagnostics> {
    let mut findings = Findings::default();
    let text = yaml::decode(bytes, &mut findings);
    let file = parse_file(&text, &mut findings);
    let failed = findings.has_errors();
    let source = SourceText::new(name, text);
    let diagnostics = findings.into_diagnostics(&source);
    if failed { Err(diagnostics) } else { Ok((file, source, diagnostics)) }
}

/// Returns the text of a limits file, which converts positions to lines. Cost: decoding the text.
#[must_use]
pub fn source(name: &str, bytes: &[u8]) -> SourceText {
    SourceText::new(name, yaml::decode(bytes, &mut Findings::default()))
}

fn parse_file(text: &str, findings: &mut Findings) -> File {
    if findings.has_errors() {
        return File::default();
    }
    let tree = yaml::parse(text, findings);
    if findings.has_errors() {
        return File::default();
    }
    let Some(misfits) = yaml::check(&tree, findings) else { return File::default() };
    let reported = names::check(&tree, misfits, findings);
    typed::read(&tree, &reported, findings)
}
