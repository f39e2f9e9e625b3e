//! Collects the findings of all limits files while they are validated.
//!
//! Guarantees:
//! - Findings are returned by file, then by position.
//! - If a file has an error, the result is an error, even if this finding is not kept.
//!
//! Not covered:
//! - Printing of findings (see [`crate::diagnostic`]).

use std::fmt::Display;

use crate::diagnostic::{self, Code, Diagnostics, SourceText, Span};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileSpan {
    /// The index of the file in the list of files.
    pub(crate) file: usize,
    pub(crate) span: Span,
}

pub(crate) struct FileFindings<'a>(Vec<(&'a SourceText, diagnostic::Findings)>);

impl<'a> FileFindings<'a> {
    pub(crate) fn new(sources: impl Iterator<Item = &'a SourceText>) -> Self {
        Self(sources.map(|source| (source, diagnostic::Findings::default())).collect())
    }

    pub(crate) fn add(
        &mut self,
        code: Code,
        at: FileSpan,
        message: String,
        help: impl Into<String>,
    ) {
        if let Some((_, findings)) = self.0.get_mut(at.file) {
            findings.add_with_help(code, at.span, message, help);
        }
    }

    /// Adds an error about a field that cannot be combined with another one.
    pub(crate) fn contradict(
        &mut self,
        at: FileSpan,
        field: impl Display,
        other: impl Display,
        fix: &str,
    ) {
        let message = format!("`{field}` cannot be combined with `{other}`");
        self.add(Code::Contradiction, at, message, fix);
    }

    /// If enough findings of the severity of `code` are kept for this file, counts one more and
    /// returns `true`. The caller then need not build the message.
    pub(crate) fn count_if_full(&mut self, code: Code, at: FileSpan) -> bool {
        self.0.get_mut(at.file).is_none_or(|(_, findings)| {
            let is_full = findings.is_full(code);
            if is_full {
                findings.count_dropped(code);
            }
            is_full
        })
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.0.iter().any(|(_, findings)| findings.has_errors())
    }

    /// Returns `, first in` and the place of the first occurrence. Returns nothing if both are in
    /// one resource of an xDS server, which has no lines.
    pub(crate) fn first_place(&self, first: FileSpan, second: FileSpan) -> String {
        let source = self.0.get(first.file).map(|(source, _)| source);
        if first.file == second.file && source.is_some_and(|source| source.is_one_line_json()) {
            return String::new();
        }
        format!(", first in {}", self.place(first))
    }

    /// Returns the location as `file:line:column`, or the name of a resource of an xDS server.
    /// Cost: linear in the length of the line.
    pub(crate) fn place(&self, at: FileSpan) -> String {
        self.0.get(at.file).map_or_else(String::new, |(source, _)| {
            if source.is_one_line_json() {
                return source.name.to_string();
            }
            let location = source.locate(at.span);
            format!("{}:{}:{}", location.file, location.line, location.column)
        })
    }

    /// Returns the location as `file:line`.
    pub(crate) fn line(&self, at: FileSpan) -> String {
        self.0.get(at.file).map_or_else(String::new, |(source, _)| {
            format!("{}:{}", source.name, source.line(at.span.start))
        })
    }

    /// Returns the warnings and notes of all files. If there is an error, returns all findings as
    /// `Err`.
    pub(crate) fn finish(self) -> Result<Diagnostics, Diagnostics> {
        let is_valid = !self.has_errors();
        let mut all = Diagnostics::default();
        for (source, found) in self.0 {
            all.append(found.into_diagnostics(source));
        }
        debug_assert!(!is_valid || all.counts().errors == 0);
        if is_valid { Ok(all) } else { Err(all) }
    }
}
