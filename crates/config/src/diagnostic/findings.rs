//! Collects the findings in one file while it is read.
//!
//! Guarantees:
//! - Bounded memory: a thousand findings of each severity are kept, the others are counted.
//!
//! Not covered:
//! - Detection of problems (see [`crate::raw`], [`crate::resolve`] and
//!   `crate::lint`).

use super::list::{Diagnostics, SeverityCounts};
use super::source::printable;
use super::{Code, Diagnostic, Severity, SourceText, Span};

/// The findings in one file, collected while the file is read. They have byte spans;
/// [`Self::into_diagnostics`] converts the spans to lines and columns.
///
/// Keeps the first thousand findings of each severity, and only counts the others.
#[derive(Debug, Default)]
pub struct Findings {
    errors: Vec<SpannedFinding>,
    warnings: Vec<SpannedFinding>,
    notes: Vec<SpannedFinding>,
    dropped: SeverityCounts,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SpannedFinding {
    span: Span,
    code: Code,
    message: String,
    help: Option<String>,
}

/// The largest number of findings of one severity that are kept. A generated file can have
/// millions.
const MAX_KEPT_FINDINGS: usize = 1000;

/// The largest number of findings of one file that are shown.
pub(crate) const MAX_SHOWN_PER_FILE: usize = 200;

impl Findings {
    /// Adds a finding at `span`, or counts it if enough findings of its severity are kept.
    pub fn add(&mut self, code: Code, span: Span, message: impl Into<String>) {
        self.keep(SpannedFinding { span, code, message: message.into(), help: None });
    }

    /// Adds a finding at `span` with a suggested fix, or counts it if enough are kept.
    pub fn add_with_help(
        &mut self,
        code: Code,
        span: Span,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let help = Some(help.into());
        self.keep(SpannedFinding { span, code, message: message.into(), help });
    }

    /// Counts a finding of this code without keeping it. If [`Self::is_full`] is `true`, a caller
    /// uses this to avoid building a message that would be dropped.
    pub fn count_dropped(&mut self, code: Code) {
        self.dropped.add(code.severity());
    }

    fn keep(&mut self, finding: SpannedFinding) {
        if self.is_full(finding.code) {
            return self.count_dropped(finding.code);
        }
        match finding.code.severity() {
            Severity::Error => self.errors.push(finding),
            Severity::Warning => self.warnings.push(finding),
            Severity::Note => self.notes.push(finding),
        }
    }

    /// Returns `true` if at least one finding is an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Returns `true` if a thousand findings with the severity of `code` are kept, so that further
    /// ones are only counted.
    #[must_use]
    pub fn is_full(&self, code: Code) -> bool {
        let kept = match code.severity() {
            Severity::Error => &self.errors,
            Severity::Warning => &self.warnings,
            Severity::Note => &self.notes,
        };
        MAX_KEPT_FINDINGS <= kept.len()
    }

    /// Returns the findings in the order of their positions, without duplicates.
    ///
    /// Returns at most two hundred findings, errors before warnings before notes, and the number of
    /// the others.
    #[must_use]
    pub fn into_diagnostics(self, source: &SourceText) -> Diagnostics {
        let Self { mut errors, mut warnings, mut notes, dropped: mut more } = self;
        for findings in [&mut errors, &mut warnings, &mut notes] {
            findings.sort_unstable();
            findings.dedup();
        }
        let mut shown: Vec<_> = errors.into_iter().chain(warnings).chain(notes).collect();
        let cut = shown.drain(MAX_SHOWN_PER_FILE.min(shown.len())..);
        cut.for_each(|finding| more.add(finding.code.severity()));
        shown.sort_unstable();
        Diagnostics::new(
            shown.into_iter().map(|finding| finding.into_diagnostic(source)).collect(),
            more,
        )
    }
}

impl SpannedFinding {
    fn into_diagnostic(self, source: &SourceText) -> Diagnostic {
        let Self { span, code, message, help } = self;
        // A message may quote a decoded YAML escape, and so contain a control character that the
        // file itself does not contain.
        let without_control_chars = |text: String| text.chars().map(printable).collect();
        let (message, help) = (without_control_chars(message), help.map(without_control_chars));
        Diagnostic { code, location: source.locate(span), message, help }
    }
}
