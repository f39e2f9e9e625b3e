//! Explains the effect of an Envoy filter's failure mode on limits, and validates the configs of
//! Sluicegate's own filter (`validate --envoy-filter`).
//!
//! Guarantees:
//! - Filters are found by their `@type`, at any depth and in each document of a file.
//! - A missing failure mode has Envoy's default.
//! - `failure_mode_deny_percent` and `status_on_error` are a part of the explanation.
//!
//! Not covered:
//! - Values that Envoy's runtime changes later.

mod failure_mode;
mod filter_kinds;
mod module_filter;

use super::diagnostic::{Code, Diagnostics, Findings, SourceText, Span};
use super::manifest::{document_ranges, field};
use super::yaml::{YamlId, YamlTree, decode, parse};
use failure_mode::FilterReader;
use filter_kinds::{FILTERS, FailureEffects, MODULE};
use module_filter::{ConfigPlace, ModuleFilter};

/// Returns the errors of Sluicegate's own filters in the Envoy configuration `bytes`, and one note for
/// each filter that checks limits.
#[must_use]
pub fn examine_filters(name: &str, bytes: &[u8]) -> Diagnostics {
    let mut findings = Findings::default();
    let text = decode(bytes, &mut findings);
    for range in document_ranges(&text) {
        let mut syntax = Findings::default();
        let tree = parse(&text[range.clone()], &mut syntax);
        if syntax.has_errors() {
            let at = Span { start: range.start, end: range.start };
            findings.add(Code::Syntax, at, "this document is not valid YAML");
            continue;
        }
        (0..tree.len()).for_each(|node| examine_node(&tree, node, range.start, &mut findings));
    }
    findings.into_diagnostics(&SourceText::new(name, text))
}

/// Adds the findings if the node is the configuration of a filter. `offset` is the start of the
/// document.
fn examine_node(tree: &YamlTree<'_>, node: YamlId, offset: usize, findings: &mut Findings) {
    let Some(type_node) = field(tree, node, "@type") else { return };
    let Some((type_name, _)) = tree.scalar(type_node) else { return };
    let place = |node| {
        let Span { start, end } = tree.span(node);
        Span { start: offset + start, end: offset + end }
    };
    if let Some(config) = ConfigPlace::of_type(type_name) {
        let filter = ModuleFilter { tree, node, place: config, offset };
        if let Some(failure) = filter.examine(findings) {
            MODULE.explain(failure.into(), place(type_node), findings);
        }
        return;
    }
    let Some(filter) = FILTERS.iter().find(|filter| type_name.ends_with(filter.type_name)) else {
        return;
    };
    let reader = FilterReader { tree, node, filter };
    let (failure, value) = reader.failure();
    let effects = FailureEffects { refusal: reader.refusal(), ..filter.effects };
    effects.explain(failure, place(value.unwrap_or(type_node)), findings);
    if let Some((at, message, help)) = reader.unread_timeout() {
        findings.add_with_help(Code::UnreadTimeout, place(at), message, help);
    }
}
