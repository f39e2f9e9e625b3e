//! Everything found while resolving, file by file.
//!
//! Guarantees: findings come out by file and place; whether something was wrong is never lost.
//! Leaves out: how they look, which is for [`crate::config::diagnostic`].

use crate::config::diagnostic::{self, Code, Diagnostics, Source, Span};

/// A stretch of one of the files.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct At {
    /// The number of the file.
    pub(crate) file: usize,
    pub(crate) span: Span,
}

/// What was found so far, per file.
pub(crate) struct Findings<'a>(Vec<(&'a Source, diagnostic::Findings)>);

impl<'a> Findings<'a> {
    pub(crate) fn new(sources: impl Iterator<Item = &'a Source>) -> Self {
        Self(sources.map(|source| (source, diagnostic::Findings::default())).collect())
    }

    pub(crate) fn add(&mut self, code: Code, at: At, message: String, help: impl Into<String>) {
        if let Some((_, found)) = self.0.get_mut(at.file) {
            found.add_with_help(code, at.span, message, help);
        }
    }

    /// Whether another finding like this in this file would not be kept, and counts it then: no need to look up its
    /// neighbours.
    pub(crate) fn only_counts(&mut self, code: Code, at: At) -> bool {
        self.0.get_mut(at.file).is_none_or(|(_, found)| {
            let is_full = found.is_full(code);
            if is_full {
                found.count(code);
            }
            is_full
        })
    }

    /// Whether the configuration is refused.
    pub(crate) fn has_errors(&self) -> bool {
        self.0.iter().any(|(_, found)| found.has_errors())
    }

    /// `file:line:column`. Cost: linear in the line.
    pub(crate) fn place(&self, at: At) -> String {
        self.0.get(at.file).map_or_else(String::new, |(source, _)| {
            let place = source.place(at.span);
            format!("{}:{}:{}", place.file, place.line, place.column)
        })
    }

    /// `file:line`.
    pub(crate) fn line(&self, at: At) -> String {
        self.0.get(at.file).map_or_else(String::new, |(source, _)| {
            format!("{}:{}", source.name, source.line(at.span.start))
        })
    }

    /// The warnings and notes, or everything where one is an error.
    pub(crate) fn finish(self) -> Result<Diagnostics, Diagnostics> {
        let sound = !self.has_errors();
        let mut all = Diagnostics::default();
        for (source, found) in self.0 {
            all.append(found.into_diagnostics(source));
        }
        debug_assert!(!sound || all.counts().errors == 0);
        if sound { Ok(all) } else { Err(all) }
    }
}
