//! Collects the findings of all limits files while they are validated.
//!
//! Guarantees:
//! - Findings are returned by file, then by position.
//! - If a file has an error, the result is an error, even if this finding is not kept.

use crate::config::diagnostic::{self, Code, Diagnostics, SourceText, Span};

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
        span: FileSpan,
        message: String,
        help: impl Into<String>,
    ) {
        if let Some((_, findings)) = self.0.get_mut(span.file) {
            findings.add_with_help(code, span.span, message, help);
        }
    }

    /// Counts the finding and returns `true` if this file already has the maximum for `code`. The
    /// caller can then skip building the message.
    pub(crate) fn count_if_full(&mut self, code: Code, span: FileSpan) -> bool {
        self.0.get_mut(span.file).is_none_or(|(_, findings)| {
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

    /// Formats the location as `file:line:column`. Cost: linear in the length of the line.
    pub(crate) fn format_position(&self, span: FileSpan) -> String {
        self.0.get(span.file).map_or_else(String::new, |(source, _)| {
            let location = source.locate(span.span);
            format!("{}:{}:{}", location.file, location.line, location.column)
        })
    }

    /// Formats the location as `file:line`.
    pub(crate) fn format_line(&self, span: FileSpan) -> String {
        self.0.get(span.file).map_or_else(String::new, |(source, _)| {
            format!("{}:{}", source.name, source.line(span.span.start))
        })
    }

    /// Returns the warnings and notes of all files, or all findings as `Err` if one is an error.
    pub(crate) fn finish(self) -> Result<Diagnostics, Diagnostics> {
        let is_valid = !self.has_errors();
        let mut all = Diagnostics::default();
        for (source, findings) in self.0 {
            all.append(findings.into_diagnostics(source));
        }
        debug_assert!(!is_valid || all.counts().errors == 0);
        if is_valid { Ok(all) } else { Err(all) }
    }
}
