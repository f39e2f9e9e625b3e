//! Tests of the notes about the failure modes of Envoy's filters.

use std::fs;
use std::path::Path;

use sluicegate::config::envoy_filter::examine_filters;

/// The notes of a configuration, each as `line code message`.
fn notes(text: &str) -> Vec<String> {
    let found = examine_filters("envoy.yaml", text.as_bytes());
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
        ("module.yaml", "N42", 1),
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

/// A configuration with the module's filter, whose config has these fields.
fn module(head: &str, value: &str) -> String {
    format!(
        "f:\n  \"@type\": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.\
         DynamicModuleFilter\n{head}  filter_config:\n    \"@type\": \
         type.googleapis.com/google.protobuf.Struct\n    value:\n{value}"
    )
}

const MODULE: &str = "  dynamic_module_config: {name: sluicegate_envoy, do_not_close: true}
  filter_name: sluicegate_envoy
";

const VALUE: &str = "      service: {address: \"limits:8081\"}
      domain: shop
      descriptors:
        - - remote_address: {}
";

#[test]
fn valid_module_filters_have_their_failure_mode_explained() {
    // Its queues are in Envoy.
    let (effect, _) = OPEN.split_once(';').unwrap();
    let open = format!("2 N42 this Sluicegate filter fails open: {effect}");
    assert_eq!(notes(&module(MODULE, VALUE)), [open]);
    let closed = notes(&module(MODULE, &format!("{VALUE}      failure: deny\n")));
    let effect = "without a reply, requests get 503; limits hold";
    assert_eq!(closed, [format!("2 N43 this Sluicegate filter fails closed: {effect}")]);
}

#[test]
fn module_filter_errors_have_the_place_of_their_field() {
    let changed = |from: &str, to: &str| notes(&module(MODULE, &VALUE.replace(from, to)));
    for (from, to, note) in [
        ("limits:8081", "limits", "8 E39 `service.address` has an invalid address"),
        ("domain: shop", "deadline: 2s", "9 E39 `deadline` has an invalid duration"),
        ("remote_address: {}", "remote: {}", "11 E39 `descriptors[0][0]` is `remote`"),
        ("remote_address: {}", "generic_key: {}", "11 E39 `descriptors[0][0].generic_key."),
        ("      domain: shop\n", "", "8 E39 `domain` is missing"),
    ] {
        let found = changed(from, to);
        assert!(found.len() == 1 && found[0].starts_with(note), "{note}: {found:?}");
    }
}

#[test]
fn modules_that_may_be_unloaded_or_have_another_filter_are_reported() {
    let closing = MODULE.replace(", do_not_close: true", "");
    let found = notes(&module(&closing, VALUE));
    assert!(found[0].starts_with("2 N42") && found[1].starts_with("3 W34 "), "{found:?}");
    let other = MODULE.replace("filter_name: sluicegate_envoy", "filter_name: other");
    let found = notes(&module(&other, VALUE));
    assert!(found.iter().any(|note| note.starts_with("4 E39 `filter_name` is not")), "{found:?}");
    let foreign = MODULE.replace("sluicegate_envoy", "other");
    assert_eq!(notes(&module(&foreign, VALUE)), [""; 0]);
}

#[test]
fn module_route_configs_are_examined() {
    let route = |value: &str| {
        let text =
            module(MODULE, value).replace("DynamicModuleFilter\n", "DynamicModuleFilterPerRoute\n");
        notes(&text)
    };
    assert_eq!(route("      enabled: false\n"), [""; 0]);
    let found = route("      enabled: true\n");
    assert!(found.len() == 1 && found[0].contains("E39 `descriptors` is missing"), "{found:?}");
}
