//! One file, letter for letter: what was written and where, before anything is judged.
//!
//! Guarantees: accepts exactly the files whose text, key names and scalar types the base language
//! accepts, with both of its passes; finds every problem of a file at once.
//! Leaves out: what the words mean together, which is for [`super::resolve`].

mod metadata;
mod names;
mod typed;
mod word;

use super::diagnostic::{Diagnostic, Findings, Source, Span, Spanned};
use super::yaml;

/// Reads one file: `name` is what a person knows it by.
///
/// Gives the file, its text for later places, and the warnings, in the order of the text.
///
/// # Errors
///
/// Every error and warning of the file. After a syntax error there is only that one.
pub fn read(name: &str, bytes: &[u8]) -> Result<(File, Source, Vec<Diagnostic>), Vec<Diagnostic>> {
    let mut findings = Findings::default();
    let text = yaml::decode(bytes, &mut findings);
    let file = file(&yaml::without_tight_comments(&text), &mut findings);
    let failed = findings.has_errors();
    let source = Source::new(name, text);
    let diagnostics = findings.into_diagnostics(&source);
    if failed { Err(diagnostics) } else { Ok((file, source, diagnostics)) }
}

fn file(text: &str, findings: &mut Findings) -> File {
    if findings.has_errors() {
        return File::default();
    }
    let tree = yaml::parse(text, findings);
    if findings.has_errors() {
        return File::default();
    }
    let Some(misfits) = yaml::check(&tree, findings) else { return File::default() };
    let blamed = names::check(&tree, misfits, findings);
    typed::read(&tree, &blamed, findings)
}

/// A whole file: one domain.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// `domain`; empty when absent.
    pub domain: Spanned<String>,
    /// `descriptors`: the first matching level.
    pub descriptors: Vec<Descriptor>,
    /// `charge`: ours.
    pub charge: Option<Spanned<String>>,
    /// `defaults`: ours; for every limit of the domain that does not say otherwise.
    pub defaults: Option<Defaults>,
}

/// `defaults` of a domain.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// Where the block stands.
    pub span: Span,
    /// `strategy`.
    pub strategy: Option<Spanned<String>>,
    /// `on_backend_failure`.
    pub on_backend_failure: Option<Spanned<String>>,
    /// `mode`.
    pub mode: Option<Spanned<String>>,
    /// `max_overshoot`: hits or a percentage, as text.
    pub max_overshoot: Option<Spanned<String>>,
}

/// One node of the descriptor tree.
#[expect(clippy::struct_excessive_bools, reason = "the language's own switches, each by its name")]
#[derive(Clone, Debug, Default)]
pub struct Descriptor {
    /// Where the node stands: its first key.
    pub span: Span,
    /// `key`; empty when absent.
    pub key: Spanned<String>,
    /// `value`; empty means any.
    pub value: Spanned<String>,
    /// `rate_limit`.
    pub rate_limit: Option<RateLimit>,
    /// `descriptors`: the next level.
    pub descriptors: Vec<Descriptor>,
    /// `shadow_mode`.
    pub shadow_mode: bool,
    /// `quota_mode`.
    pub quota_mode: bool,
    /// `detailed_metric`.
    pub detailed_metric: bool,
    /// `value_to_metric`.
    pub value_to_metric: bool,
    /// `share_threshold`, with its place.
    pub share_threshold: Spanned<bool>,
    /// `metadata`: free-form, returned to the caller.
    pub metadata: Option<Spanned<serde_json::Map<String, serde_json::Value>>>,
    /// `concurrency`: ours; where it stands.
    pub concurrency: Option<Span>,
}

/// `rate_limit` of a node.
#[derive(Clone, Debug, Default)]
pub struct RateLimit {
    /// Where the block stands.
    pub span: Span,
    /// `requests_per_unit`.
    pub requests_per_unit: Spanned<u32>,
    /// `unit`; empty when absent.
    pub unit: Spanned<String>,
    /// `unlimited`.
    pub unlimited: Spanned<bool>,
    /// `name`; empty when absent.
    pub name: Spanned<String>,
    /// `replaces`: the `name` of each item.
    pub replaces: Vec<Spanned<String>>,
    /// `per`: ours; a duration as text.
    pub per: Option<Spanned<String>>,
    /// `strategy`: ours.
    pub strategy: Option<Spanned<String>>,
    /// `burst`: ours; hits admitted at one instant.
    pub burst: Option<Spanned<u32>>,
    /// `mode`: ours.
    pub mode: Option<Spanned<String>>,
    /// `max_overshoot`: ours; hits or a percentage, as text.
    pub max_overshoot: Option<Spanned<String>>,
    /// `on_backend_failure`: ours.
    pub on_backend_failure: Option<Spanned<String>>,
    /// `calendar`: ours.
    pub calendar: Option<Calendar>,
}

/// `calendar` of a limit.
#[derive(Clone, Debug, Default)]
pub struct Calendar {
    /// Where the block stands.
    pub span: Span,
    /// `time_zone`: an IANA name.
    pub time_zone: Option<Spanned<String>>,
    /// `starts_on`: the day a window starts on.
    pub starts_on: Option<Spanned<String>>,
}
