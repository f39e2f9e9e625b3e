//! Tests of `sluicegate doctor --envoy` with real Envoys.
//!
//! Guarantees:
//! - Each finding is caused in an Envoy, and a correct setup has none.

use std::ffi::OsString;

use serde_json::Value;
use sluicegate::cli::{self, CommandOutcome, Terminal};

use super::super::{Limits, serve};
use super::{
    LateReply, VERSIONS, configuration, fallbacks, get, launch, launch_with_panic,
    repeat_until_decided, wait_for_counts,
};
use crate::e2e::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use crate::e2e::upstream;
use crate::support::service::Service;
use crate::support::waiting::until;

fn doctor(admin: &str, more: &[&str]) -> (CommandOutcome, String, String) {
    let line = ["sluicegate", "doctor", "--envoy", admin];
    let argv = line.iter().chain(more).map(OsString::from).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = cli::run(argv, [], &mut Terminal { out: &mut out, err: &mut err });
    (outcome, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// The codes of the findings. An `!` marks an error; the others are warnings.
fn codes(envoy: &Envoy, more: &[&str]) -> Vec<String> {
    let (_, out, err) = doctor(&envoy.admin_url(), &[&["--format", "json"], more].concat());
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
    let code = |it: &Value| {
        let mark = if it["severity"] == "error" { "!" } else { "" };
        format!("{mark}{}", it["code"].as_str().unwrap())
    };
    report["findings"].as_array().unwrap().iter().map(code).collect()
}

fn admin_url(service: &Service) -> String {
    format!("http://{}", service.admin)
}

fn connected_to(service: &Service) -> String {
    configured(Shipped::Module, upstream::start(), &[service.grpc], WhenDown::Allow)
}

#[test]
fn a_connected_envoy_of_each_version_has_no_finding() {
    let limits = Limits::per_key(1_000);
    let service = serve(limits.path(), &[]);
    let server = admin_url(&service);
    for version in VERSIONS {
        repeat_until_decided(|| {
            let envoy = Envoy::launch(connected_to(&service), 0, &launch(version));
            wait_until_connected(&envoy, &server);
            assert_eq!(get(&envoy, "/", &[("x-api-key", "ann")]), 200, "{version}");
            if 0 < fallbacks(&envoy) {
                return Err(LateReply);
            }
            let (outcome, out, err) = doctor(&envoy.admin_url(), &["--server", &server]);
            assert_eq!((outcome, err.as_str()), (CommandOutcome::Success, ""), "{version}: {out}");
            let text = format!(": examined (Envoy {version}.");
            assert!(out.contains(&text) && out.ends_with("0 errors, 0 warnings\n"), "{out}");
            Ok(())
        });
    }
}

/// Waits until an Envoy without requests has no finding.
fn wait_until_connected(envoy: &Envoy, server: &str) {
    let examined = || match codes(envoy, &["--server", server]) {
        codes if codes.is_empty() => Ok(()),
        codes => Err(format!("{codes:?}")),
    };
    until("the connection of the module", examined).unwrap();
}

#[test]
fn an_envoy_without_its_service_is_not_connected() {
    let limits = Limits::per_key(1_000);
    let other = serve(limits.path(), &[]);
    let envoy = Envoy::launch(configuration(WhenDown::Allow), 0, &launch("1.40"));
    assert_eq!(codes(&envoy, &[]), [""; 0]);
    assert_eq!(codes(&envoy, &["--server", &admin_url(&other)]), ["!connection"]);
    assert_eq!(get(&envoy, "/", &[]), 200);
    wait_for_counts(&envoy, [("fallback_allowed", 1)]);
    assert_eq!(codes(&envoy, &[]), ["fallback"]);
    let (outcome, out, _) = doctor(&envoy.admin_url(), &[]);
    assert_eq!(outcome, CommandOutcome::Success, "a warning: {out}");
    assert!(
        out.contains("1 requests were allowed and 0 denied") && out.contains("; check `service")
    );
    assert_eq!(doctor(&envoy.admin_url(), &["--warnings-as-errors"]).0, CommandOutcome::Negative);
}

#[test]
fn an_envoy_is_identified_by_the_name_in_its_config() {
    let limits = Limits::per_key(1_000);
    let service = serve(limits.path(), &[]);
    let server = admin_url(&service);
    let mut text = connected_to(&service);
    replace_once(&mut text, "domain: shop", "domain: shop\n                          name: edge-1");
    let named = Envoy::launch(text, 0, &launch("1.40"));
    wait_until_connected(&named, &server);
    let mut text = configuration(WhenDown::Allow);
    replace_once(&mut text, "domain: shop", "domain: shop\n                          name: edge-2");
    let other = Envoy::launch(text, 0, &launch("1.40"));
    assert_eq!(codes(&other, &["--server", &server]), ["!connection"]);
}

#[test]
fn modules_that_envoy_may_unload_are_a_warning() {
    let text = configuration(WhenDown::Allow).replace(", do_not_close: true", "");
    let envoy = Envoy::launch(text, 0, &launch("1.40"));
    assert_eq!(codes(&envoy, &[]), ["do_not_close"]);
    let (_, out, _) = doctor(&envoy.admin_url(), &[]);
    assert!(out.contains("; set `do_not_close: true`"), "{out}");
}

#[test]
fn panics_in_the_module_are_an_error() {
    let envoy = Envoy::launch(configuration(WhenDown::Deny), 0, &launch_with_panic("filter_new"));
    assert_eq!(get(&envoy, "/", &[]), 503);
    wait_for_counts(&envoy, [("panics", 1), ("fallback_denied", 1)]);
    assert_eq!(codes(&envoy, &[]), ["!panics", "fallback"]);
    assert_eq!(doctor(&envoy.admin_url(), &[]).0, CommandOutcome::Negative);
}

#[test]
fn an_envoy_without_the_module_is_an_error() {
    let service = ([127, 0, 0, 1], 1).into();
    let text = configured(Shipped::Rls, upstream::start(), &[service], WhenDown::Allow);
    let envoy = Envoy::launch(text, 0, &launch("1.40"));
    assert_eq!(codes(&envoy, &[]), ["!filter"]);
}

/// A listener whose filter lacks its domain, as a file for Envoy's LDS.
const REJECTED_LISTENER: &str = r#"
version_info: "1"
resources:
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: rejected
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
  filter_chains:
  - filters:
    - name: envoy.filters.network.http_connection_manager
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: rejected
        route_config: {virtual_hosts: [{name: none, domains: ["*"]}]}
        http_filters:
        - name: sluicegate
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
            dynamic_module_config: {name: sluicegate_envoy, do_not_close: true}
            filter_name: sluicegate_envoy
            filter_config:
              "@type": type.googleapis.com/google.protobuf.Struct
              value: {service: {address: "127.0.0.1:1"}, descriptors: [[{remote_address: {}}]]}
        - name: envoy.filters.http.router
          typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"#;

#[test]
fn a_rejected_update_with_the_module_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("lds.yaml");
    std::fs::write(&file, REJECTED_LISTENER).unwrap();
    let text = format!(
        "node: {{id: one, cluster: all}}\ndynamic_resources: {{lds_config: {{path_config_source: \
         {{path: {}}}}}}}\n{}",
        file.display(),
        configuration(WhenDown::Allow)
    );
    let envoy = Envoy::launch(text, 0, &launch("1.40"));
    let examined = || match codes(&envoy, &[]) {
        codes if codes == ["!rejected"] => Ok(()),
        codes => Err(format!("{codes:?} {}", envoy.log())),
    };
    until("the rejected listener", examined).unwrap();
}

#[test]
fn addresses_that_are_no_envoy_are_clear_errors() {
    let limits = Limits::per_key(1_000);
    let service = serve(limits.path(), &[]);
    for (admin, problem) in [
        ("127.0.0.1:9901", "--envoy `127.0.0.1:9901` must be http://HOST:PORT"),
        ("https://127.0.0.1:9901", "must be http://HOST:PORT, such as http://127.0.0.1:9901"),
        ("http://127.0.0.1:1", "Connection refused"),
        (&admin_url(&service), "/server_info"),
    ] {
        let (outcome, out, err) = doctor(admin, &[]);
        assert_eq!((outcome, out.as_str()), (CommandOutcome::Failed, ""), "{admin}: {err}");
        assert!(err.starts_with("error: ") && err.contains(problem), "{admin}: {err}");
    }
}
