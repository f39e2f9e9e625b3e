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

/// Files from the field.
fn field(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/field").join(name);
    notes(&fs::read_to_string(path).unwrap())
}

#[test]
fn a_network_filter_closes_connections() {
    let closed = "without a reply, connections are closed, as after a denial; limits hold";
    assert_eq!(
        field("envoy_tcp.yaml"),
        [format!("11 N43 this network rate limit filter fails closed: {closed}")]
    );
    for (filter, field, wanted) in [
        ("network.ratelimit.v3.RateLimit", "", "N42 this network rate limit filter fails open"),
        (
            "network.thrift_proxy.filters.ratelimit.v3.RateLimit",
            ", failure_mode_deny: true",
            "N43 this Thrift rate limit filter fails closed: without a reply, calls get an error",
        ),
        ("network.ext_authz.v3.ExtAuthz", "", "N43 this network ext_authz filter fails closed"),
    ] {
        let text = typed("", "").replace("filters.http.", &format!("filters.{filter}{field}"));
        let found = notes(&text);
        assert!(found.len() == 1 && found[0].contains(wanted), "{filter}: {found:?}");
    }
}

#[test]
fn an_unread_timeout_of_grpc_service_is_reported() {
    let unread = "N44 the filter's `timeout` is missing, so Envoy waits 20 ms; \
                  `grpc_service.timeout` does not count";
    let found = field("envoy_timeout.yaml");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("6 N43 ") && found[1] == format!("7 {unread}"), "{found:?}");
    let service =
        "rate_limit_service: {grpc_service: {envoy_grpc: {cluster_name: r}, timeout: 1s}}";
    for (own, wanted) in [
        ("", unread.to_owned()),
        ("timeout: 1s, ", String::new()),
        ("timeout: 5s, ", "N44 Envoy waits 5s, the filter's `timeout`".to_owned()),
    ] {
        let found = notes(&typed(RLS, &format!(", {own}{service}")));
        let others: Vec<_> = found.iter().filter(|note| !note.contains("N42")).collect();
        assert!(others.len() <= 1 && others.iter().all(|one| one.contains(&wanted)), "{found:?}");
        assert_eq!(others.is_empty(), wanted.is_empty(), "{found:?}");
    }
    // ext_authz reads the timeout of `grpc_service`.
    let authz =
        notes(&typed(AUTHZ, ", grpc_service: {envoy_grpc: {cluster_name: r}, timeout: 1s}"));
    assert_eq!(authz.len(), 1, "{authz:?}");
}

#[test]
fn the_share_and_the_status_of_failures_are_explained() {
    let percent = |value: &str| {
        notes(&typed(
            RLS,
            &format!(", failure_mode_deny: true, failure_mode_deny_percent: {value}"),
        ))
        .concat()
    };
    let half = percent("{default_value: {numerator: 50}}");
    assert!(
        half.contains("N42 this rate limit filter fails closed for 50 % of requests: "),
        "{half}"
    );
    assert!(half.contains("these get 500, and the others pass without a limit"), "{half}");
    let some =
        percent("{default_value: {numerator: 5, denominator: TEN_THOUSAND}, runtime_key: a}");
    assert!(some.contains("for 0.05 % of requests"), "{some}");
    assert!(percent("{default_value: {numerator: 100}}").contains(" N43 "));
    assert!(
        percent("{default_value: {numerator: 0}}")
            .contains(" N42 this rate limit filter fails open")
    );
    for (filter, field, status) in [
        (RLS, ", failure_mode_deny: true, status_on_error: {code: 503}", 503),
        (RLS, ", failureModeDeny: true, statusOnError: {code: ServiceUnavailable}", 503),
        (AUTHZ, ", status_on_error: {code: TooManyRequests}", 429),
        (PROC, ", status_on_error: {code: 502}", 502),
        (RLS, ", failure_mode_deny: true, status_on_error: {code: 200}", 500),
    ] {
        let found = notes(&typed(filter, field)).concat();
        assert!(found.contains(&format!("requests get {status}; limits hold")), "{found}");
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
        ("budgets_ext_proc.yaml", "N43", 1),
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
