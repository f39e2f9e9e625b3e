//! Diagnostics: findings in a configuration file, each with its location and suggested fix.
//!
//! Guarantees:
//! - A diagnostic contains the source line, so it can be printed without the file.
//! - The code of a finding is from a closed list and determines its severity.
//!
//! Not covered:
//! - Detection of problems (see [`super::raw`], [`super::resolve`] and `super::lint`).

mod code;
mod findings;
mod list;
mod source;

use std::fmt;

use serde::{Serialize, Serializer};

pub use code::{Code, Severity};
pub use findings::Findings;
pub(crate) use findings::MAX_SHOWN_PER_FILE;
pub use list::{Diagnostics, SeverityCounts};
pub use source::{SourceLocation, SourceText, Span, Spanned};

/// One result of a validation: an error, a warning or a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The kind of the finding, such as `E01`.
    pub code: Code,
    /// The file, line and column of the finding.
    pub location: SourceLocation,
    /// The message: one sentence in lower case without a full stop. Names the expected and the
    /// actual content.
    pub message: String,
    /// The suggested fix.
    pub help: Option<String>,
}

impl Diagnostic {
    /// Returns the severity, which the code determines.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.code.severity()
    }
}

/// Formats the finding as the command `validate` prints it: location and message, the source line, and
/// a caret with the suggested fix.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SourceLocation { file, line, column, width, skipped_chars: shown, text } =
            &self.location;
        let (severity, code) = (self.severity(), self.code.name());
        writeln!(f, "{file}:{line}:{column} {severity}[{code}] {}", self.message)?;
        writeln!(f, "{line:>5} | {text}")?;
        let indent = column.saturating_sub(shown + 1);
        write!(f, "      | {:indent$}{:^<width$}", "", "")?;
        self.help.as_ref().map_or(Ok(()), |help| write!(f, " {help}"))
    }
}

impl Serialize for Diagnostic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        DiagnosticJson {
            severity: self.severity(),
            code: self.code.name(),
            file: &self.location.file,
            line: self.location.line,
            column: self.location.column,
            message: &self.message,
            help: self.help.as_deref(),
        }
        .serialize(serializer)
    }
}

/// The JSON form of a diagnostic. Other programs read it, so its field names are stable.
#[derive(Serialize)]
struct DiagnosticJson<'a> {
    severity: Severity,
    code: &'a str,
    file: &'a str,
    line: usize,
    column: usize,
    message: &'a str,
    help: Option<&'a str>,
}
