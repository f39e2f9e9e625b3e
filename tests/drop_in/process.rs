//! Tests of startup, ports, logs, overrides and shutdown of the process in compatibility mode.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::{self, Service, as_ratelimit};
use crate::support::waiting::{for_a_day_with_a_minute_left, unix_seconds, until};

const LIMITS: &str =
    "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 5}\n";

/// Creates a runtime directory with the limits of one domain, and the variables that select it.
fn tree() -> (TempDir, [(&'static str, String); 4]) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("s/config")).unwrap();
    fs::write(root.path().join("s/config/a.yaml"), LIMITS).unwrap();
    let variables = [
        ("RUNTIME_ROOT", root.path().display().to_string()),
        ("RUNTIME_SUBDIRECTORY", "s".to_owned()),
        ("RUNTIME_WATCH_ROOT", "false".to_owned()),
        ("USE_STATSD", "false".to_owned()),
    ];
    (root, variables)
}

pub fn start(more: &[(&str, &str)]) -> (TempDir, Service) {
    let (root, variables) = tree();
    let variables: Vec<_> = variables.iter().map(|(name, text)| (*name, &**text)).collect();
    let service = Service::start_as_ratelimit(&[&variables, more].concat()).unwrap();
    (root, service)
}

/// Starts `ratelimit`, which must fail. Returns its exit code and output.
pub fn refused(variables: &[(&str, &str)]) -> (Option<i32>, String) {
    service::refused(as_ratelimit().envs(variables.iter().copied()))
}

/// Sends a check for the only limit and returns the HTTP status.
pub fn ask(service: &Service) -> u16 {
    let body = br#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    http1::call(service.http, "POST", "/json", &[], Some(body)).unwrap().status
}

#[test]
fn every_invalid_variable_is_reported_with_exit_code_2() {
    let (code, output) = refused(&[("PORT", ""), ("BACKEND_TYPE", "memcache")]);
    assert_eq!(code, Some(2), "{output}");
    assert!(
        output.contains("PORT must be a whole number") && output.contains("memcached"),
        "{output}"
    );
}

#[test]
fn unsupported_variables_are_logged_and_unknown_ones_ignored() {
    let (_root, service) = start(&[("REDIS_POOL_SIZE", "30"), ("FOO_BAR", "1")]);
    let log = service.log();
    assert!(
        log.contains(
            "REDIS_POOL_SIZE: no effect: Sluicegate pipelines all calls over one connection"
        ),
        "{log}"
    );
    assert!(!log.contains("FOO_BAR"), "{log}");
}

#[test]
fn json_logs_use_envoyproxy_field_names() {
    let (_root, service) = start(&[("LOG_FORMAT", "json"), ("REDIS_POOL_SIZE", "30")]);
    let log = service.log();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let line = lines
        .into_iter()
        .find(|line| line["@message"].as_str().unwrap().starts_with("REDIS_POOL_SIZE"));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert_eq!(line["level"], "warning");
    assert!(line["@timestamp"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn sluicegate_and_envoyproxy_ratelimit_share_counters_in_redis() {
    for_a_day_with_a_minute_left();
    let redis = Redis::start();
    let socket = redis.socket().display().to_string();
    let (_root, service) = start(&[("REDIS_URL", &socket), ("CACHE_KEY_PREFIX", "p:")]);
    until("the store answers", || match ask(&service) {
        200 => Ok(()),
        other => Err(other.to_string()),
    })
    .unwrap();
    // Redis key of envoyproxy/ratelimit: domain, key, value and start of the day's window.
    let now = unix_seconds();
    let key = format!("p:d_k_v_{}", now - now % 86_400);
    let mut client = redis.connect();
    assert_eq!(client.call(&["GET", &key]).text(), "1", "what was asked here is counted there");
    client.call(&["INCRBY", &key, "3"]);
    assert_eq!(ask(&service), 200, "the fifth of five");
    assert_eq!(ask(&service), 429, "what was counted there is gone here");
    assert_eq!(client.call(&["GET", &key]).text(), "6");
}

#[test]
fn two_processes_share_the_http_port() {
    let (_root, one) = start(&[]);
    let port = one.http.port().to_string();
    let (_other_root, other) = start(&[("PORT", &port)]);
    assert_eq!(one.http, other.http);
}

#[test]
fn sigterm_sigint_and_sighup_exit_with_code_0() {
    for signal in ["TERM", "INT", "HUP"] {
        let (_root, mut service) = start(&[("SLUICEGATE_LISTEN_DRAIN_DELAY", "0s")]);
        service.signal(signal);
        assert_eq!(service.ended().unwrap().code(), Some(0), "SIG{signal}: {}", service.log());
    }
}

fn printed(more: &[(&str, &str)]) -> String {
    let (_root, variables) = tree();
    let mut command: Command = as_ratelimit();
    command.envs(variables).envs(more.iter().copied()).arg("--print-config");
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

fn line(text: &str, name: &str) -> String {
    text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned()
}

#[test]
fn sluicegate_variables_override_envoyproxy_variables() {
    let plain = printed(&[("REDIS_TIMEOUT", "1s")]);
    assert!(line(&plain, "  timeout: 1s").ends_with("# REDIS_TIMEOUT"), "{plain}");
    assert!(
        line(&plain, "    expiry_jitter: 300s").contains("default of EXPIRATION_JITTER"),
        "{plain}"
    );
    let ours = printed(&[("REDIS_TIMEOUT", "1s"), ("SLUICEGATE_STORE_TIMEOUT", "9ms")]);
    assert!(line(&ours, "  timeout: 9ms").ends_with("# SLUICEGATE_STORE_TIMEOUT"), "{ours}");
}

#[test]
fn sluicegate_backend_overrides_memcached() {
    // The error message for `BACKEND_TYPE=memcache` recommends to set `SLUICEGATE_STORE_URL`.
    let (_root, service) =
        start(&[("BACKEND_TYPE", "memcache"), ("SLUICEGATE_STORE_URL", "memory")]);
    assert_eq!(ask(&service), 200);
}

#[test]
fn startup_succeeds_with_unused_envoyproxy_variables() {
    let (_root, service) = start(&[
        ("USE_STATSD", "true"),
        ("SLUICEGATE_COMPAT_STATS_SINK", "none"),
        ("SLUICEGATE_LISTEN_MAX_CONNECTION_AGE", "never"),
        ("BACKEND_TYPE", "memcache"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "1048576"),
        ("SLUICEGATE_STORE_URL", "memory"),
    ]);
    assert_eq!(ask(&service), 200);
    let log = service.log();
    assert!(
        log.contains("warning: LOCAL_CACHE_SIZE_IN_BYTES: `compat.store.deny_cache` has"),
        "{log}"
    );
}

/// Environment with `SLUICEGATE_LIMITS_PATHS` and envoyproxy/ratelimit's `RUNTIME_ROOT`.
fn with_limits<'v>(root: &'v str, limits: &'v str) -> [(&'static str, &'v str); 4] {
    let ours = [("SLUICEGATE_LIMITS_PATHS", limits), ("SLUICEGATE_STORE_URL", "memory")];
    [ours[0], ours[1], ("RUNTIME_ROOT", root), ("USE_STATSD", "false")]
}

#[test]
fn sluicegate_limits_make_runtime_root_optional() {
    let (root, _) = tree();
    let limits = root.path().join("s/config").display().to_string();
    let service = Service::start_as_ratelimit(&with_limits("/no/such/place", &limits)).unwrap();
    assert_eq!(ask(&service), 200);
}

#[test]
fn sluicegate_limits_ignore_the_runtime_layout() {
    let (root, _) = tree();
    let (at, limits) = (root.path().join("current"), root.path().join("s/config"));
    let (at, limits) = (at.display().to_string(), limits.display().to_string());
    let service = Service::start_as_ratelimit(&with_limits(&at, &limits)).unwrap();
    assert_eq!(ask(&service), 200);
    assert!(!service.log().contains("nothing is limited"), "{}", service.log());
    // The file name prefix of the `RUNTIME_ROOT` layout does not apply to `SLUICEGATE_LIMITS_PATHS`
    // either.
    let service = Service::start_as_ratelimit(
        &[&with_limits(&at, &limits)[..], &[("RUNTIME_SUBDIRECTORY", "s")]].concat(),
    );
    assert_eq!(ask(&service.unwrap()), 200);
}

#[test]
fn missing_path_in_sluicegate_limits_stops_startup() {
    let (root, _) = tree();
    let (at, limits) = (root.path().join("current"), root.path().join("s/confg"));
    let (at, limits) = (at.display().to_string(), limits.display().to_string());
    let (code, output) = refused(&with_limits(&at, &limits));
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains(&limits), "{output}");
}

#[test]
fn settings_without_an_override_come_from_envoyproxy_variables() {
    let ours = [
        ("SLUICEGATE_LISTEN_TLS_CERT_FILE", "/ours/tls.crt"),
        ("SLUICEGATE_LISTEN_TLS_KEY_FILE", "/theirs/tls.key"),
        ("GRPC_CLIENT_TLS_CACERT", "/ca"),
    ];
    let authority = line(&printed(&ours), "    client_ca_file");
    assert!(authority.starts_with("    client_ca_file: \"/ca\""), "{authority}");
    let text = printed(&[
        ("LOG_LEVEL", "bogus"),
        ("SLUICEGATE_TELEMETRY_LOG_LEVEL", "debug"),
        ("LOG_FORMAT", "json"),
        ("PORT", "tcp://10.0.0.1:80"),
        ("SLUICEGATE_LISTEN_HTTP_PORT", "8"),
        ("SLUICEGATE_LIMITS_XDS_SERVER", "xds.test:1"),
        ("CONFIG_GRPC_XDS_NODE_ID", "me"),
    ]);
    for wanted in [
        "    format: compat",
        "  http_port: 8 ",
        "    server: \"xds.test:1\"",
        "    node_id: \"me\"",
    ] {
        assert!(text.contains(&format!("\n{wanted}")), "{wanted}: {text}");
    }
}
