//! `sluicegate bench` against the real service, a service that stalls, and broken servers.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::rate_limit_server::{Choose, RateLimitServer};
use crate::support::service::{Service, sluicegate};
use crate::support::signals;
use crate::support::waiting::until;

const CHECKS: [&str; 4] = ["--domain", "shop", "--descriptor", "api_key=client-{key}"];

/// Runs `bench`. Returns the exit code, standard output and standard error.
fn bench(flags: &[&str]) -> (i32, String, String) {
    let output = sluicegate().arg("bench").args(CHECKS).args(flags).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (output.status.code().unwrap(), out, err)
}

/// Runs `bench --format json`. Returns the exit code and the document.
fn measure(flags: &[&str]) -> (i32, Value) {
    let (code, out, err) = bench(&[flags, &["--format", "json"]].concat());
    let json = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    (code, json)
}

fn sum_of_answers(step: &Value) -> u64 {
    step["answers"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

/// A service with a limit of 5 per day for each key.
fn five_a_day() -> (TempDir, Service) {
    let limits = tempfile::tempdir().unwrap();
    let text = "domain: shop\ndescriptors:\n- key: api_key\n  \
                rate_limit: {unit: day, requests_per_unit: 5}\n";
    std::fs::write(limits.path().join("shop.yaml"), text).unwrap();
    let service = Service::start(limits.path(), &[]).unwrap();
    (limits, service)
}

#[test]
fn a_service_has_no_error_over_grpc_and_http() {
    let (_limits, service) = five_a_day();
    let (grpc, json) = (service.grpc.to_string(), format!("http://{}/json", service.http));
    let pid = service.id().to_string();
    for (seed, target) in [("1", ["--address", &*grpc]), ("2", ["--url", &*json])] {
        let value = format!("api_key=run-{seed}-{{key}}");
        let flags = ["--keys", "9", "--skew", "1", "--seed", seed, "--rate", "50,100"];
        let more = ["--duration", "1s", "--timeout", "60s", "--limit", "5/day", "--pid", &pid];
        let mut command = sluicegate();
        command.args(["bench", "--domain", "shop", "--descriptor", &value, "--format", "json"]);
        let output = command.args(target).args(flags).args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let (law, steps) = (&report["law"], report["steps"].as_array().unwrap());
        assert_eq!((&law["over_hits"], &law["under_hits"]), (&0.into(), &0.into()), "{report}");
        let mut hits = 0;
        for (step, count) in steps.iter().zip([50, 100]) {
            let sent = step["sent"].as_u64().unwrap();
            assert_eq!(sent + step["not_sent"].as_u64().unwrap(), count, "{report}");
            assert_eq!((step["decided"].as_u64(), sum_of_answers(step)), (Some(sent), sent));
            assert!(step["cpu_us_per_check"].is_number(), "{report}");
            hits += sent;
        }
        let counted = ["allowed_hits", "denied_hits"].map(|name| law[name].as_u64().unwrap());
        assert_eq!(counted.iter().sum::<u64>(), hits, "{report}");
    }
}

/// One key gets 5 of 100 checks. A limit of 3 allows 2 fewer, and a limit of 9 allows 4 more.
#[test]
fn another_limit_than_the_real_one_is_an_error() {
    let (_limits, service) = five_a_day();
    let address = service.grpc.to_string();
    for (key, limit, expected) in [("a", "3/day", (1, 2, 0)), ("b", "9/day", (0, 0, 4))] {
        let mut command = sluicegate();
        let descriptor = format!("api_key={key}");
        command.args(["bench", "--address", &address, "--domain", "shop", "--limit", limit]);
        command.args(["--descriptor", &descriptor, "--rate", "50", "--duration", "2s"]);
        let output = command.args(["--format", "json", "--timeout", "60s"]).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let count = |name: &str| report["law"][name].as_u64().unwrap();
        let found = (output.status.code().unwrap(), count("over_hits"), count("under_hits"));
        assert_eq!(found, expected, "{report}");
    }
}

#[test]
fn the_table_and_the_picture_have_each_step() {
    let (_limits, service) = five_a_day();
    let (address, folder) = (service.grpc.to_string(), tempfile::tempdir().unwrap());
    let picture = folder.path().join("latency.svg");
    let steps = ["--rate", "20,40", "--duration", "500ms", "--svg", picture.to_str().unwrap()];
    let (code, out, err) = bench(&[&["--address", &*address], &steps[..]].concat());
    assert_eq!(code, 0, "{err}");
    let notice = format!("charges the counters of domain `shop` at gRPC {address}\n");
    assert_eq!(err, notice);
    for text in ["RATE", "\n     20/s", "\n     40/s", "answers at 20/s: allow "] {
        assert!(out.contains(text), "{text}: {out}");
    }
    let picture = std::fs::read_to_string(picture).unwrap();
    assert_eq!(picture.matches("<polyline ").count(), 2, "{picture}");
}

fn allowing() -> RateLimitResponse {
    RateLimitResponse { overall_code: Code::Ok.into(), ..RateLimitResponse::default() }
}

/// The server stops for 1 s at its 100th check. Until then it replied to at most 99 checks, the last
/// of which was sent after 0.98 s or later. So of the first 151 checks, which are due within 1.5 s,
/// 52 or more get no reply within the first 1.98 s. Each waits for 0.48 s or longer. They are more
/// than one tenth of all 300.
///
/// With one check in flight, a latency from the real send time would show the stall once.
#[test]
fn a_stall_shows_in_the_percentiles_although_few_checks_meet_it() {
    let mut count = 0;
    let choose: Choose = Box::new(move |_| {
        count += 1;
        if count == 100 {
            std::thread::sleep(Duration::from_secs(1));
        }
        Some(allowing())
    });
    let server = RateLimitServer::start(choose);
    let address = server.address.to_string();
    let load = ["--rate", "100", "--duration", "3s", "--timeout", "60s", "--max-in-flight", "1"];
    let (code, report) = measure(&[&["--address", &*address][..], &load].concat());
    let p90 = report["steps"][0]["latency_us"]["p90"].as_f64().unwrap();
    assert!(code == 0 && 480_000.0 <= p90, "{report}");
}

/// Without replies, only as many checks are sent as may be in flight. The wait of the others counts.
#[test]
fn checks_beyond_those_in_flight_are_counted_and_their_wait_too() {
    let server = RateLimitServer::start(Box::new(|_| None));
    let address = server.address.to_string();
    let load = ["--rate", "100", "--duration", "1s", "--timeout", "2s", "--max-in-flight", "4"];
    let (code, report) = measure(&[&["--address", &*address][..], &load].concat());
    let step = &report["steps"][0];
    let timeouts = step["answers"]["timeout"].as_u64().unwrap_or(0);
    assert!(code == 1 && timeouts <= 4, "{report}");
    assert_eq!(step["not_sent"].as_u64(), Some(100 - timeouts), "{report}");
    // The first half of the checks waits for at least half of the step.
    let p50 = step["latency_us"]["p50"].as_f64().unwrap();
    assert!(490_000.0 <= p50, "{report}");
}

/// Starts a server that runs `serve` for each connection.
fn server(serve: Serve) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Reads until the client closes the connection, and never replies.
fn hang(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
}

/// Resets or closes the connection at once.
fn close(stream: TcpStream) {
    drop(stream);
}

/// Replies to the first bytes with `reply`, then reads on.
fn reply(mut stream: TcpStream, reply: &[u8]) {
    let mut buffer = [0; 4096];
    let _ = stream.read(&mut buffer);
    let _ = stream.write_all(reply);
    hang(stream);
}

type Serve = fn(TcpStream);

const SERVERS: [(&str, Serve); 7] = [
    ("hangs", hang),
    ("closes", close),
    ("garbage", |stream| reply(stream, &[0xfe; 3000])),
    ("half a status line", |stream| reply(stream, b"HTTP/1.1 2")),
    ("HTML", |stream| reply(stream, b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>")),
    ("endless body", |stream| {
        reply(stream, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{\"a\r\n");
    }),
    ("a frame that is too large", |stream| reply(stream, b"\xff\xff\xff\x00\x00\x00\x00\x00\x01")),
];

/// A broken server ends in a table or an error, never in a hang or a panic.
#[test]
fn broken_servers_are_counted_or_reported() {
    for (name, serve) in SERVERS {
        let address = server(serve).to_string();
        let url = format!("http://{address}/json");
        for target in [["--address", &*address], ["--url", &*url]] {
            let load = ["--rate", "40", "--duration", "500ms", "--timeout", "200ms"];
            let (code, out, err) =
                bench(&[&target[..], &load, &["--format", "json", "--connections", "2"]].concat());
            if code == 2 && target[0] == "--address" {
                assert!(err.contains("is the service running?"), "{name}: {err}");
                continue;
            }
            assert_eq!(code, 1, "{name} {target:?}: {out}{err}");
            let report: Value = serde_json::from_str(&out).unwrap();
            let step = &report["steps"][0];
            let counted = sum_of_answers(step) + step["not_sent"].as_u64().unwrap();
            assert_eq!((counted, step["decided"].as_u64()), (20, Some(0)), "{name}: {report}");
        }
    }
}

/// A server that dies in the middle of a step is a row of the table.
#[test]
fn checks_of_a_dead_server_fail_in_the_table() {
    let seen = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&seen);
    let choose: Choose = Box::new(move |_| {
        counted.fetch_add(1, Relaxed);
        Some(allowing())
    });
    let server = RateLimitServer::start(choose);
    let mut command = sluicegate();
    command.arg("bench").args(CHECKS).args(["--address", &server.address.to_string()]);
    command.args(["--rate", "100", "--duration", "3s", "--format", "json"]);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    until("a check", || if 0 < seen.load(Relaxed) { Ok(()) } else { Err(String::new()) }).unwrap();
    drop(server);
    let output = process.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let step = &report["steps"][0];
    assert_eq!(output.status.code(), Some(0), "{report}");
    let failed = step["sent"].as_u64().unwrap() - step["decided"].as_u64().unwrap();
    assert!(0 < failed + step["not_sent"].as_u64().unwrap(), "{report}");
}

#[test]
fn an_interrupt_prints_the_results_so_far() {
    let seen = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&seen);
    // From the twelfth check on, replies are missing.
    let choose: Choose = Box::new(move |_| (counted.fetch_add(1, Relaxed) < 11).then(allowing));
    let server = RateLimitServer::start(choose);
    let mut command = sluicegate();
    command.arg("bench").args(CHECKS).args(["--address", &server.address.to_string()]);
    command.args(["--rate", "100,200", "--duration", "1h", "--format", "json", "--timeout", "60s"]);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    until("checks", || if 20 < seen.load(Relaxed) { Ok(()) } else { Err(String::new()) }).unwrap();
    signals::send(process.id(), "INT");
    let output = process.wait_with_output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = report["steps"].as_array().unwrap();
    let answers = steps[0]["answers"].as_object().unwrap();
    assert!(steps.len() == 1 && answers.keys().all(|code| code == "allow"), "{report}");
    assert!(sum_of_answers(&steps[0]) <= 11, "{report}");
}

#[test]
fn errors_name_the_flag_and_the_fix() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let (closed, url) = (closed.to_string(), format!("http://{closed}/json"));
    let refused = "Connection refused (os error 111); is the service running? (--address or --url)";
    for (flags, message) in [
        (&["--address", &*closed][..], refused),
        (&["--url", &url], refused),
        (&["--address", "nonsense"], "--address `nonsense` must be HOST:PORT"),
        (&["--url", "https://a/json"], "HTTPS is not supported"),
        (&["--url", "nonsense"], "must be http://HOST:PORT/PATH"),
        (&["--pid", "4294967295"], "--pid: no process 4294967295 on this machine"),
        (&["--limit", "5/day", "--copies", "2"], "--limit compares one limit"),
        (&["--limit", "5/day", "--rate", "1000000", "--duration", "1h"], "at most 5000000 checks"),
        (&["--limit", "5/day", "--burst", "3"], "--burst needs --strategy gcra"),
        (&["--limit", "5/day", "--strategy", "gcra", "--burst", "0"], "0 is not in 1.."),
        (&["--descriptor", "{key}=v"], "{key} has a meaning in values only"),
        (&["--svg", "/nonexistent/x.svg"], "--svg /nonexistent/x.svg: "),
        (&["--limit", "5/week"], "use N/second, N/minute, N/hour or N/day"),
        (&["--duration", "1ms"], "use a duration from 100ms to 1h"),
        (&["--skew", "nan"], "use a number from 0 to 10"),
        (&["--rate", "0"], "0 is not in 1..=1000000"),
        (&["--url", &url, "--tls"], "cannot be used with"),
    ] {
        let (code, out, err) = bench(flags);
        assert!((code, &*out) == (2, "") && err.contains(message), "{flags:?}: {err}");
    }
    let without = ["bench", "--domain", "d", "--descriptor", "k=v", "--keys", "2"];
    let output = sluicegate().args(without).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("write {key} in a value of --descriptor"), "{err}");
}

#[test]
fn the_first_failed_check_is_explained() {
    let (_limits, service) = five_a_day();
    let address = service.grpc.to_string();
    let without_domain = ["bench", "--domain", "", "--descriptor", "k=v", "--address", &address];
    let load = ["--rate", "20", "--duration", "200ms"];
    let output = sluicegate().args(without_domain).args(load).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    let explained = "first failed check: gRPC Unknown: the domain must not be empty";
    assert!(output.status.code() == Some(1) && err.contains(explained), "{err}");
}
