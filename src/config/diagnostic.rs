//! What is wrong with a text, where, and what would cure it.
//!
//! Guarantees: a diagnostic is self-contained (it carries the line it points at), has a code from
//! a closed list, and its severity follows from the code.
//! Leaves out: finding problems, which is for [`super::raw`], [`super::resolve`] and [`super::lint`].

use std::sync::Arc;

/// A stretch of a source text, in bytes of the decoded text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// A value and where it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub span: Span,
}

/// A named text, so that a span can be shown to a person.
#[derive(Debug)]
pub struct Source {
    /// The path as the person knows it, for example `limits/shop.yaml`.
    pub name: Arc<str>,
    /// The decoded text (UTF-8, no byte order mark).
    pub text: Arc<str>,
}

/// A place that a person can go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file's name.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// How many characters of the line are meant; at least 1.
    pub width: usize,
    /// The line itself.
    pub text: Box<str>,
}

/// How bad a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Loads, but is probably not what was meant.
    Warning,
    /// Does not load.
    Error,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// What kind of finding, from the closed list.
    pub code: Code,
    /// Where.
    pub place: Place,
    /// What was wanted and what was got: one sentence, lower case, no full stop.
    pub message: String,
    /// What would cure it.
    pub help: Option<String>,
}

/// The closed list of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The text is not YAML.
    Syntax,
}
