//! Explains the effect of an Envoy filter's failure mode on limits (`validate --envoy-filter`).
//!
//! Guarantees:
//! - Filters are found by their `@type`, at any depth and in each document of a file.
//! - A missing failure mode has Envoy's default.
//!
//! Not covered:
//! - All other fields, such as `status_on_error` and `failure_mode_deny_percent`.

use super::diagnostic::{Code, Diagnostics, Findings, SourceText, Span};
use super::manifest::{document_ranges, field};
use super::yaml::{ScalarValue, YamlId, YamlTree, decode, parse};

/// A kind of filter that sends checks.
struct FilterKind {
    /// The end of `@type`.
    type_name: &'static str,
    name: &'static str,
    /// The field of the failure mode, in both spellings. Its default is `false`.
    fields: [&'static str; 2],
    /// The value with which the filter fails open.
    open_value: bool,
    /// The default of `status_on_error`.
    status: u16,
}

const FILTERS: [FilterKind; 3] = [
    FilterKind {
        type_name: ".http.ratelimit.v3.RateLimit",
        name: "rate limit filter",
        fields: ["failure_mode_deny", "failureModeDeny"],
        open_value: false,
        status: 500,
    },
    FilterKind {
        type_name: ".http.ext_authz.v3.ExtAuthz",
        name: "ext_authz filter",
        fields: ["failure_mode_allow", "failureModeAllow"],
        open_value: true,
        status: 403,
    },
    FilterKind {
        type_name: ".http.ext_proc.v3.ExternalProcessor",
        name: "ext_proc filter",
        fields: ["failure_mode_allow", "failureModeAllow"],
        open_value: true,
        status: 500,
    },
];

/// Returns one note for each filter in the Envoy configuration `bytes`.
#[must_use]
pub fn explain_failure_modes(name: &str, bytes: &[u8]) -> Diagnostics {
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
        (0..tree.len()).for_each(|node| explain_node(&tree, node, range.start, &mut findings));
    }
    findings.into_diagnostics(&SourceText::new(name, text))
}

/// Adds a note if the node is the configuration of a filter. `offset` is the start of the document.
fn explain_node(tree: &YamlTree<'_>, node: YamlId, offset: usize, findings: &mut Findings) {
    let Some(type_node) = field(tree, node, "@type") else { return };
    let Some((type_name, _)) = tree.scalar(type_node) else { return };
    let Some(filter) = FILTERS.iter().find(|filter| type_name.ends_with(filter.type_name)) else {
        return;
    };
    let value = filter.fields.iter().find_map(|name| field(tree, node, name));
    let scalar = value.and_then(|value| tree.scalar(tree.target(value)));
    let is_true = scalar.is_some_and(|(_, value)| matches!(value, ScalarValue::Bool(true)));
    let Span { start, end } = tree.span(value.unwrap_or(type_node));
    filter.explain(is_true, Span { start: offset + start, end: offset + end }, findings);
}

impl FilterKind {
    fn explain(&self, is_true: bool, at: Span, findings: &mut Findings) {
        let Self { name, fields: [field, _], status, .. } = self;
        let (code, effect) = if is_true == self.open_value {
            let effect = "without a reply, requests pass without a limit; \
                          a killed replica lets its whole queue through";
            (Code::FailsOpen, effect.to_owned())
        } else {
            (Code::FailsClosed, format!("without a reply, requests get {status}; limits hold"))
        };
        let how = if code == Code::FailsOpen { "open" } else { "closed" };
        let message = format!("this {name} fails {how}: {effect}");
        findings.add_with_help(
            code,
            at,
            message,
            format!("for the opposite, set `{field}: {}`", !is_true),
        );
    }
}
