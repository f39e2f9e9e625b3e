//! Tests of the notes about the failure modes of Envoy's filters.

use std::fs;
use std::path::Path;

use sluicegate::config::envoy_filter::explain_failure_modes;

/// The notes of a configuration, each as `line code message`.
fn notes(text: &str) -> Vec<String> {
    let found = explain_failure_modes("envoy.yaml", text.as_bytes());
    let note = |one: &sluicegate::config::diagnostic::Diagnostic| {
        format!("{} {} {}", one.location.line, one.code.name(), one.message)
    };
    found.iter().map(note).collect()
}

fn shipped(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/envoy").join(name);
    notes(&fs::read_to_string(path).unwrap())
}

fn typed(filter: &str, field: &str) -> String {
    format!(
        "a: [{{b: {{\"@type\": type.googleapis.com/envoy.extensions.filters.http.{filter}{field}}}}}]\n"
    )
}

const RLS: &str = "ratelimit.v3.RateLimit";
const AUTHZ: &str = "ext_authz.v3.ExtAuthz";
const PROC: &str = "ext_proc.v3.ExternalProcessor";

const OPEN: &str = "without a reply, requests pass without a limit; \
                    a killed replica lets its whole queue through";

#[test]
fn each_failure_mode_of_each_filter_is_explained() {
    let open = |name: &str| format!("1 N42 this {name} fails open: {OPEN}");
    let closed = |name: &str, status: u16| {
        format!(
            "1 N43 this {name} fails closed: without a reply, requests get {status}; limits hold"
        )
    };
    for (filter, field, note) in [
        (RLS, "", open("rate limit filter")),
        (RLS, ", failure_mode_deny: false", open("rate limit filter")),
        (RLS, ", failureModeDeny: true", closed("rate limit filter", 500)),
        (AUTHZ, "", closed("ext_authz filter", 403)),
        (AUTHZ, ", failure_mode_allow: true", open("ext_authz filter")),
        (PROC, "", closed("ext_proc filter", 500)),
        (PROC, ", failureModeAllow: true", open("ext_proc filter")),
        (PROC, ", failure_mode_allow: false", closed("ext_proc filter", 500)),
    ] {
        assert_eq!(notes(&typed(filter, field)), [note], "{filter}{field}");
    }
}

#[test]
fn other_types_and_routes_have_no_failure_mode() {
    for other in
        ["router.v3.Router", "ratelimit.v3.RateLimitPerRoute", "ext_proc.v3.ExtProcPerRoute"]
    {
        assert_eq!(notes(&typed(other, ", failure_mode_deny: true")), [""; 0], "{other}");
    }
}

#[test]
fn shipped_configurations_state_their_failure_mode() {
    for (file, code, filters) in [
        ("rls.yaml", "N42", 1),
        ("rls_concurrency.yaml", "N42", 2),
        ("ext_proc.yaml", "N42", 1),
        ("ext_proc_fail_closed.yaml", "N43", 1),
        ("ext_authz.yaml", "N42", 1),
    ] {
        let found = shipped(file);
        assert!(found.len() == filters && found.iter().all(|one| one.contains(code)), "{found:?}");
    }
}

#[test]
fn every_document_is_read_and_syntax_errors_are_reported() {
    let text = format!("x: 1\n---\n{}---\na: [\n", typed(PROC, ""));
    let found = notes(&text);
    assert!(found[0].starts_with("3 N43 "), "{found:?}");
    assert!(found[1].contains(" E01 this document is not valid YAML"), "{found:?}");
}
