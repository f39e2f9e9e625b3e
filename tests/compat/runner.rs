//! Runs `spec/conformance/run.py` against our binary, and against wrong and hung servers.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

use crate::support::ports;
use crate::support::rate_limit_server::RateLimitServer;
use crate::support::redis::Redis;
use crate::support::service::sluicegate;

/// Starts our binary as a drop-in.
const OURS: &str = "exec \"$SERVER\" ratelimit";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn runner() -> Command {
    let python: PathBuf = root().join(".tools/examples/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/examples.sh", python.display());
    let mut command = Command::new(python);
    command.arg(root().join("spec/conformance/run.py"));
    command.arg("--known").arg(root().join("tests/compat/differs.txt"));
    command.env("SERVER", sluicegate().get_program()).env("SLUICEGATE_STORE_URL", "memory");
    command
}

/// Runs it with these options. Returns its exit code and its output.
fn run(options: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = runner().args(options).output().unwrap();
    (status.code(), [stdout, stderr].map(|text| String::from_utf8(text).unwrap()).concat())
}

/// The counts of a line of the table: passed, failed, skipped, known, info.
fn counts<'a>(group: &str, text: &'a str) -> Vec<&'a str> {
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|words| words.first() == Some(&group) && words.len() == 6);
    line.unwrap_or_else(|| panic!("no counts of {group}:\n{text}")).split_off(1)
}

/// Runs scenarios against a server that runs already.
fn run_against(address: &str, options: &[&str]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let limits = dir.path().join("limits");
    std::fs::create_dir(&limits).unwrap();
    let at = ["--address", address, "--reset", "true", "--reload-wait", "0"];
    run(&[&at[..], &["--config-dir", limits.to_str().unwrap()], options].concat())
}

#[test]
fn our_binary_passes_the_runner() {
    let options = ["--group", "errors", "--group", "headers", "--group", "http_json"];
    let (code, text) = run(&[&["--command", OURS][..], &options].concat());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(counts("errors", &text), ["4", "0", "2", "0", "1"], "{text}");
    assert_eq!(counts("headers", &text), ["15", "0", "0", "0", "0"], "{text}");
    assert_eq!(counts("http_json", &text), ["32", "0", "0", "1", "0"], "{text}");
    assert!(text.contains("skipped: 2, starts with counters in Redis (--redis)"), "{text}");
    assert!(text.contains("not compared: store of 53 scenarios"), "{text}");
}

#[test]
fn a_server_with_another_limit_fails_the_runner() {
    let command = format!("sed -i 's/unit: 10/unit: 11/' \"$RUNTIME_ROOT\"/limits/a.yaml; {OURS}");
    let (code, text) = run(&["--command", &command, "--only", "hits_addend-001"]);
    assert_eq!((code, counts("all", &text)[1]), (Some(1), "1"), "{text}");
    let failure = "FAILED  hits_addend-001 (the request addend counts that many hits): step 1: ";
    assert!(text.contains(failure) && text.contains("is 11 instead of 10"), "{text}");
}

/// Runs scenarios of our binary with a Redis over TCP, and with StatsD.
fn run_with_redis(settings: &str, options: &[&str]) -> (Option<i32>, String) {
    let address = ports::free();
    let _redis = Redis::start_with(&["--port", &address.port().to_string()]);
    let command = format!("unset SLUICEGATE_STORE_URL; export {settings}; {OURS}");
    let with = ["--command", &command, "--redis", &address.to_string()];
    run(&[&with[..], &["--not-counters", "sluicegate", "--statsd"], options].concat())
}

#[test]
fn counters_and_statistics_pass_the_runner() {
    let options = ["--group", "store_commands", "--group", "prometheus", "--group", "errors"];
    let (code, text) = run_with_redis("LC_ALL=C", &options);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(counts("all", &text), ["23", "0", "0", "0", "1"], "{text}");
    assert!(text.contains("not compared: commands of 10 scenarios"), "{text}");
}

#[test]
fn wrong_counters_and_statistics_fail_the_runner() {
    for (settings, id, failure) in [
        ("CACHE_KEY_PREFIX=x", "matching-001", "store is {'xd_"),
        ("EXPIRATION_JITTER_MAX_SECONDS=9000000", "store_commands-010", "expires in"),
        ("NEAR_LIMIT_RATIO=0.1", "stats-001", "near_limit is "),
        ("SHADOW_MODE=true", "hits_addend-001", "response.overallCode is 'OK' instead of"),
        ("MERGE_DOMAIN_CONFIG=true", "merging-010", "step 1: response"),
    ] {
        let (code, text) = run_with_redis(settings, &["--only", id]);
        assert_eq!((code, counts("all", &text)[1]), (Some(1), "1"), "{settings}: {text}");
        assert!(text.contains(failure), "{settings}: {text}");
    }
}

#[test]
fn a_server_that_always_allows_fails_the_runner() {
    let allow = |_: &RateLimitRequest| {
        Some(RateLimitResponse { overall_code: Code::Ok.into(), ..RateLimitResponse::default() })
    };
    let server = RateLimitServer::start(Box::new(allow));
    let options = ["--group", "multi_descriptor", "--group", "headers"];
    let (code, text) = run_against(&server.address.to_string(), &options);
    assert_eq!((code, counts("multi_descriptor", &text)[1]), (Some(1), "7"), "{text}");
    assert_eq!(counts("headers", &text), ["0", "1", "14", "0", "0"], "{text}");
    assert!(text.contains("skipped: 14, needs environment variables (--command)"), "{text}");
}

#[test]
fn a_server_without_replies_is_a_failed_scenario() {
    let server = RateLimitServer::start(Box::new(|_| None));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mute = listener.local_addr().unwrap();
    for address in [server.address, mute] {
        let options = ["--only", "units-001", "--timeout", "0.5"];
        let (code, text) = run_against(&address.to_string(), &options);
        assert_eq!((code, counts("units", &text)[1]), (Some(1), "1"), "{text}");
        assert!(text.contains("step 1: the call fails with gRPC code "), "{text}");
    }
}

#[test]
fn a_server_that_dies_is_a_failed_scenario() {
    let (code, text) = run(&["--command", "echo out of luck; exit 3", "--only", "units-001"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("the gRPC port does not open; the log ends with:\nout of luck"),
        "{text}"
    );
}

#[test]
fn wrong_options_of_the_runner_exit_with_2() {
    for options in [&["--command", OURS, "--only", "nothing"][..], &["--address", "localhost:1"]] {
        let (code, text) = run(options);
        assert_eq!(code, Some(2), "{text}");
    }
}
