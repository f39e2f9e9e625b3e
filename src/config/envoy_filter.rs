//! Explains the effect of an Envoy filter's failure mode on limits, and validates the configs of
//! Sluicegate's own filter (`validate --envoy-filter`).
//!
//! Guarantees:
//! - Filters are found by their `@type`, at any depth and in each document of a file.
//! - A missing failure mode has Envoy's default.
//!
//! Not covered:
//! - Other fields of Envoy's filters, such as `status_on_error` and `failure_mode_deny_percent`.

mod module_filter;

use super::diagnostic::{Code, Diagnostics, Findings, SourceText, Span};
use super::hooks::filter_config::FailureMode;
use super::manifest::{document_ranges, field};
use super::yaml::{ScalarValue, YamlId, YamlTree, decode, parse};
use module_filter::{ConfigPlace, ModuleFilter};

/// A kind of Envoy's filters that sends checks.
struct FilterKind {
    /// The end of `@type`.
    type_name: &'static str,
    /// The field of the failure mode, in both spellings. Its default is `false`.
    fields: [&'static str; 2],
    /// The value with which the filter fails open.
    open_value: bool,
    effects: FailureEffects,
}

/// The failure modes of a filter: their settings and effects.
struct FailureEffects {
    name: &'static str,
    open_setting: &'static str,
    closed_setting: &'static str,
    /// The effect on requests that wait for a permit, if the filter fails open.
    queue_effect: &'static str,
    /// The status of requests without a reply, if the filter fails closed.
    status: u16,
}

const MODULE: FailureEffects = FailureEffects {
    name: "Sluicegate filter",
    open_setting: "failure: allow",
    closed_setting: "failure: deny",
    queue_effect: "",
    status: 503,
};

/// The queues of these filters are in Sluicegate.
const REMOTE_QUEUE: &str = "; a killed replica lets its whole queue through";

const FILTERS: [FilterKind; 3] = [
    FilterKind {
        type_name: ".http.ratelimit.v3.RateLimit",
        fields: ["failure_mode_deny", "failureModeDeny"],
        open_value: false,
        effects: FailureEffects {
            name: "rate limit filter",
            open_setting: "failure_mode_deny: false",
            closed_setting: "failure_mode_deny: true",
            queue_effect: REMOTE_QUEUE,
            status: 500,
        },
    },
    FilterKind {
        type_name: ".http.ext_authz.v3.ExtAuthz",
        fields: ["failure_mode_allow", "failureModeAllow"],
        open_value: true,
        effects: FailureEffects {
            name: "ext_authz filter",
            open_setting: "failure_mode_allow: true",
            closed_setting: "failure_mode_allow: false",
            queue_effect: REMOTE_QUEUE,
            status: 403,
        },
    },
    FilterKind {
        type_name: ".http.ext_proc.v3.ExternalProcessor",
        fields: ["failure_mode_allow", "failureModeAllow"],
        open_value: true,
        effects: FailureEffects {
            name: "ext_proc filter",
            open_setting: "failure_mode_allow: true",
            closed_setting: "failure_mode_allow: false",
            queue_effect: REMOTE_QUEUE,
            status: 500,
        },
    },
];

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
            MODULE.explain(failure, place(type_node), findings);
        }
        return;
    }
    let Some(filter) = FILTERS.iter().find(|filter| type_name.ends_with(filter.type_name)) else {
        return;
    };
    let value = filter.fields.iter().find_map(|name| field(tree, node, name));
    let scalar = value.and_then(|value| tree.scalar(tree.target(value)));
    let is_true = scalar.is_some_and(|(_, value)| matches!(value, ScalarValue::Bool(true)));
    let is_open = is_true == filter.open_value;
    let failure = if is_open { FailureMode::Allow } else { FailureMode::Deny };
    filter.effects.explain(failure, place(value.unwrap_or(type_node)), findings);
}

impl FailureEffects {
    fn explain(&self, failure: FailureMode, at: Span, findings: &mut Findings) {
        let Self { name, open_setting, closed_setting, queue_effect, status } = self;
        let (code, message, opposite) = match failure {
            FailureMode::Allow => {
                let effect =
                    format!("without a reply, requests pass without a limit{queue_effect}");
                (Code::FailsOpen, format!("this {name} fails open: {effect}"), closed_setting)
            }
            FailureMode::Deny => {
                let effect = format!("without a reply, requests get {status}; limits hold");
                (Code::FailsClosed, format!("this {name} fails closed: {effect}"), open_setting)
            }
        };
        let help = format!("for the opposite, set `{opposite}`");
        findings.add_with_help(code, at, message, help);
    }
}
