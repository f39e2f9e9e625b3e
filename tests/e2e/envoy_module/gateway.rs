//! Tests of the filter in the form of Envoy Gateway, in real Envoys.
//!
//! Guarantees:
//! - Source: `internal/xds/translator/dynamicmodule.go` of Envoy Gateway 1.9.1, which runs Envoy 1.39.
//!
//! Not covered:
//! - Envoy Gateway itself.

use std::ffi::OsString;

use sluicegate::cli::{self, CommandOutcome, Terminal};

use super::super::{Limits, serve};
use super::{LateReply, MODULE, counted_fallbacks, get, launch, repeat_until_decided, settle_with};
use crate::e2e::envoy::Envoy;
use crate::support::waiting::for_a_day_with_a_minute_left;

/// The path of the module is absolute, the config is JSON text, and a route enables the filter.
const FORM: &str = r#"
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: gateway
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /open}
                direct_response: {status: 200}
              - match: {prefix: /}
                direct_response: {status: 200}
                typed_per_filter_config:
                  envoy.filters.http.dynamic_modules/limits:
                    "@type": type.googleapis.com/envoy.config.route.v3.FilterConfig
                    config: {}
          http_filters:
          - name: envoy.filters.http.dynamic_modules/limits
            disabled: true
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
              dynamic_module_config: {do_not_close: true, module: {local: {filename: "MODULE"}}}
              filter_name: sluicegate_envoy
              filter_config:
                "@type": type.googleapis.com/google.protobuf.StringValue
                value: 'CONFIG'
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"#;

fn form(config: &str) -> String {
    let path = MODULE.join("libsluicegate_envoy.so").display().to_string();
    FORM.replace("MODULE", &path).replace("CONFIG", config)
}

#[test]
fn envoy_gateway_form_limits_only_enabled_routes() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per_key(3);
    let service = serve(limits.path(), &[]);
    let config = format!(
        r#"{{"service": {{"address": "{}"}}, "domain": "shop", "deadline": "1s", "failure": "deny", "descriptors": [[{{"request_headers": {{"header_name": "x-api-key", "descriptor_key": "api_key"}}}}]]}}"#,
        service.grpc
    );
    let mut keys = 0..;
    for version in ["1.39", "1.40"] {
        repeat_until_decided(|| {
            check_routes(version, &config, &format!("key-{}", keys.next().unwrap_or(0)))
        });
    }
}

/// Sends requests with a new key to a new Envoy, which must then have no finding.
fn check_routes(version: &'static str, config: &str, key: &str) -> Result<(), LateReply> {
    let envoy = Envoy::launch(form(config), 0, &launch(version));
    let statuses = [(); 5].map(|()| get(&envoy, "/", &[("x-api-key", key)]));
    settle_with(&envoy, || get(&envoy, "/", &[("x-api-key", "settle")]));
    if 0 < counted_fallbacks(&envoy) {
        return Err(LateReply);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429], "{version}: {}", envoy.log());
    assert_eq!(get(&envoy, "/open", &[("x-api-key", key)]), 200, "{version}");
    let argv = ["sluicegate", "doctor", "--envoy", &envoy.admin_url()].map(OsString::from);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let terminal = &mut Terminal { out: &mut out, err: &mut err };
    assert_eq!(cli::run(argv.to_vec(), [], terminal), CommandOutcome::Success);
    let out = String::from_utf8(out).unwrap();
    assert!(out.ends_with("findings: 0 errors, 0 warnings\n"), "{version}: {out}");
    Ok(())
}
