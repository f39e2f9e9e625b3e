//! The process: how it starts, what it opens, how it ends.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::http1;
use crate::service::{self, Service, as_ratelimit};
use crate::support::redis::Redis;
use crate::waiting::{for_a_day_with_a_minute_left, unix_seconds, until};

const LIMITS: &str =
    "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 5}\n";

/// A tree of files with one domain; what names it.
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

/// The process over that tree.
pub fn start(more: &[(&str, &str)]) -> (TempDir, Service) {
    let (root, variables) = tree();
    let variables: Vec<_> = variables.iter().map(|(name, text)| (*name, &**text)).collect();
    let service = Service::start_as_ratelimit(&[&variables, more].concat()).unwrap();
    (root, service)
}

/// How a process ended that does not start, and what it said.
pub fn refused(variables: &[(&str, &str)]) -> (Option<i32>, String) {
    service::refused(as_ratelimit().envs(variables.iter().copied()))
}

/// The status of a question about its one limit.
pub fn ask(service: &Service) -> u16 {
    let body = br#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    http1::call(service.http, "POST", "/json", &[], Some(body)).unwrap().status
}

#[test]
fn what_it_cannot_start_with_ends_it_with_2_and_a_sentence_each() {
    let (code, said) = refused(&[("PORT", ""), ("BACKEND_TYPE", "memcache")]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("PORT takes a whole number") && said.contains("memcached"), "{said}");
}

#[test]
fn a_line_is_logged_for_what_means_nothing_here_and_none_for_what_nobody_knows() {
    let (_root, service) = start(&[("REDIS_POOL_SIZE", "30"), ("FOO_BAR", "1")]);
    let log = service.log();
    assert!(log.contains("REDIS_POOL_SIZE: one connection carries"), "{log}");
    assert!(!log.contains("FOO_BAR"), "{log}");
}

#[test]
fn the_log_has_the_references_keys_where_json_is_asked_for() {
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
fn both_fleets_count_in_one_redis() {
    for_a_day_with_a_minute_left();
    let redis = Redis::start();
    let socket = redis.socket().display().to_string();
    let (_root, service) = start(&[("REDIS_URL", &socket), ("CACHE_KEY_PREFIX", "p:")]);
    until("the store answers", || match ask(&service) {
        200 => Ok(()),
        other => Err(other.to_string()),
    })
    .unwrap();
    // As the reference writes it, by hand: the day's start behind domain, key and value.
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
fn two_processes_listen_on_the_same_ports() {
    let (_root, one) = start(&[]);
    let port = one.http.port().to_string();
    let (_other_root, other) = start(&[("PORT", &port)]);
    assert_eq!(one.http, other.http);
}

#[test]
fn sigterm_sigint_and_sighup_end_it_with_0() {
    for signal in ["TERM", "INT", "HUP"] {
        let (_root, mut service) = start(&[("SLUICEGATE_DRAIN_DELAY", "0s")]);
        service.signal(signal);
        assert_eq!(service.ended().unwrap().code(), Some(0), "SIG{signal}: {}", service.log());
    }
}

/// The settings that the variables of that tree and these come to.
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
fn our_own_words_win_over_the_variables() {
    let plain = printed(&[("REDIS_TIMEOUT", "1s")]);
    assert!(line(&plain, "backend_deadline: 1s").ends_with("# REDIS_TIMEOUT"), "{plain}");
    assert!(
        line(&plain, "expiry_jitter: 300s").contains("default of EXPIRATION_JITTER"),
        "{plain}"
    );
    let ours = printed(&[("REDIS_TIMEOUT", "1s"), ("SLUICEGATE_BACKEND_DEADLINE", "9ms")]);
    assert!(
        line(&ours, "backend_deadline: 9ms").ends_with("# SLUICEGATE_BACKEND_DEADLINE"),
        "{ours}"
    );
}

#[test]
fn a_store_that_our_own_word_names_may_stand_beside_memcached() {
    // What the refusal of it says to do.
    let (_root, service) = start(&[("BACKEND_TYPE", "memcache"), ("SLUICEGATE_BACKEND", "memory")]);
    assert_eq!(ask(&service), 200);
}

#[test]
fn what_our_own_words_leave_without_use_keeps_nothing_from_starting() {
    let (_root, service) = start(&[
        ("USE_STATSD", "true"),
        ("SLUICEGATE_STATS_SINK", "none"),
        ("SLUICEGATE_GRPC_MAX_AGE", "0s"),
        ("BACKEND_TYPE", "memcache"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "1048576"),
        ("SLUICEGATE_BACKEND", "memory"),
    ]);
    assert_eq!(ask(&service), 200);
    let log = service.log();
    assert!(log.contains("warning: LOCAL_CACHE_SIZE_IN_BYTES: `local_deny_cache` is"), "{log}");
}

/// The process told by our own word where its limits are, and by `root` where the reference's would be.
fn with_limits<'v>(root: &'v str, limits: &'v str) -> [(&'static str, &'v str); 4] {
    let ours = [("SLUICEGATE_LIMITS", limits), ("SLUICEGATE_BACKEND", "memory")];
    [ours[0], ours[1], ("RUNTIME_ROOT", root), ("USE_STATSD", "false")]
}

#[test]
fn limits_that_our_own_word_names_need_no_root_of_the_references() {
    let (root, _) = tree();
    let limits = root.path().join("s/config").display().to_string();
    let service = Service::start_as_ratelimit(&with_limits("/no/such/place", &limits)).unwrap();
    assert_eq!(ask(&service), 200);
}

#[test]
fn nothing_is_said_of_a_layout_where_our_own_word_names_the_limits() {
    let (root, _) = tree();
    let (at, limits) = (root.path().join("current"), root.path().join("s/config"));
    let (at, limits) = (at.display().to_string(), limits.display().to_string());
    let service = Service::start_as_ratelimit(&with_limits(&at, &limits)).unwrap();
    assert_eq!(ask(&service), 200);
    assert!(!service.log().contains("nothing is limited"), "{}", service.log());
    // Nor are names taken for those of the reference's layout.
    let service = Service::start_as_ratelimit(
        &[&with_limits(&at, &limits)[..], &[("RUNTIME_SUBDIRECTORY", "s")]].concat(),
    );
    assert_eq!(ask(&service.unwrap()), 200);
}

#[test]
fn limits_that_our_own_word_names_must_be_there_as_where_we_serve() {
    let (root, _) = tree();
    let (at, limits) = (root.path().join("current"), root.path().join("s/confg"));
    let (at, limits) = (at.display().to_string(), limits.display().to_string());
    let (code, said) = refused(&with_limits(&at, &limits));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&limits), "{said}");
}

#[test]
fn what_our_own_words_leave_to_the_variables_is_taken_from_them() {
    let ours = [
        ("SLUICEGATE_GRPC_TLS_CERT_FILE", "/ours/tls.crt"),
        ("SLUICEGATE_GRPC_TLS_KEY_FILE", "/theirs/tls.key"),
        ("GRPC_CLIENT_TLS_CACERT", "/ca"),
    ];
    let authority = line(&printed(&ours), "grpc_tls_client_ca_file");
    assert!(authority.starts_with("grpc_tls_client_ca_file: \"/ca\""), "{authority}");
    let text = printed(&[
        ("LOG_LEVEL", "bogus"),
        ("SLUICEGATE_LOG_LEVEL", "debug"),
        ("LOG_FORMAT", "json"),
        ("PORT", "tcp://10.0.0.1:80"),
        ("SLUICEGATE_HTTP_PORT", "8"),
        ("SLUICEGATE_XDS_SERVER", "xds.test:1"),
        ("CONFIG_GRPC_XDS_NODE_ID", "me"),
    ]);
    for wanted in [
        "log_format: reference",
        "http_port: 8 ",
        "xds_server: \"xds.test:1\"",
        "xds_node_id: \"me\"",
    ] {
        assert!(text.contains(&format!("\n{wanted}")), "{wanted}: {text}");
    }
}
