//! Tests that clients of Envoy that disconnect just when the decision arrives leak no permit.
//!
//! Guarantees:
//! - All three Envoy integrations are covered: `ext_proc`, `ext_authz` and two rate limit filters.
//! - Acquires are delayed by 20 ms, so some releases arrive before their acquires.
//! - Clients disconnect within 3 ms of their measured median response time.
//! - Two wrong setups leak permits: one rate limit filter, or a service without early releases.
#![expect(clippy::print_stdout, reason = "what was seen is part of the proof")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use sluicegate::config::hooks::Hooks;
use sluicegate::edge::health::Readiness;

use super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::in_flight::{gauge, limit_all_requests};
use super::nginx_disconnects::{engine_without_early_releases, wait_for_leaks};
use super::upstream;
use crate::edge::grpc::served_with;
use crate::support::dice::{Dice, seed};
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::support::service::Service;
use crate::support::waiting::until;

const REQUESTS: usize = 4_000;
const CLIENTS: usize = 32;
/// Minimum number of acquired permits, a tenth of the requests. About half acquire one after each
/// client has measured its response time, which is slow on a busy machine.
const MIN_ACQUIRED: u64 = REQUESTS as u64 / 10;
const ACQUIRE_DELAY: Duration = Duration::from_millis(20);
const LIMIT: &str = "limit: 100000, max_duration: 10m";

const HOOKS: &str = r#"[{"name": "edge", "domain": "edge", "descriptors": [
    [{"generic_key": {"descriptor_key": "upstream", "descriptor_value": "all"}}]]}]"#;

/// An Envoy cluster that reaches the service through the delaying proxy.
fn delayed_cluster(proxy: SocketAddr) -> String {
    format!(
        r#"
    - name: late
      type: STATIC
      connect_timeout: 1s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{http2_protocol_options: {{}}}}
      circuit_breakers: {{thresholds: [{{max_requests: 100000, max_pending_requests: 100000}}]}}
      load_assignment:
        cluster_name: late
        endpoints:
          - lb_endpoints:
              - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}
"#,
        proxy.port()
    )
}

/// Sends acquires through the delaying proxy: the last filter that names the service makes them.
fn delay_acquires(text: &mut String, proxy: SocketAddr) {
    const TO_SERVICE: &str = "{cluster_name: sluicegate}";
    let at = text.rfind(TO_SERVICE).unwrap();
    text.replace_range(at..at + TO_SERVICE.len(), "{cluster_name: late}");
    text.push_str(&delayed_cluster(proxy));
}

/// Moves the release into the acquiring filter. Envoy cancels that filter on disconnect, which
/// loses the release.
fn with_one_filter(text: &mut String) {
    let start = text.find("                  # Releases the permit. A separate filter").unwrap();
    let end = text.find("                  # Acquires the permit, or waits for it.").unwrap();
    text.replace_range(start..end, "");
    let acquire =
        "- request_headers: {header_name: x-sluicegate-id, descriptor_key: sluicegate.acquire}";
    let release = r#"
                        - actions:
                            - request_headers: {header_name: x-sluicegate-id, descriptor_key: sluicegate.release}
                          hits_addend: {format: "%DURATION%"}
                          apply_on_stream_done: true"#;
    replace_once(text, acquire, &[acquire, release].concat());
}

/// Metric for requests that `ext_proc` allowed. Their permits have no request id.
const STREAMS: &str = r#"sluicegate_edge_requests_total{protocol="ext_proc",outcome="allow"}"#;

#[derive(Debug)]
struct RunResult {
    acquired: u64,
    over: u64,
    leaked: u64,
}

/// A client that disconnects at most `EARLY` before or after its estimated median response time.
struct DisconnectingClient {
    ingress: SocketAddr,
    dice: Dice,
    /// Estimated median response time.
    answered: Duration,
}

impl DisconnectingClient {
    const EARLY: Duration = Duration::from_millis(3);
    const STEP: Duration = Duration::from_millis(1);

    fn visit(&mut self) {
        let mut stream = TcpStream::connect(self.ingress).unwrap();
        let after = Duration::from_micros(self.dice.up_to(2 * 3_000));
        let timeout = self.answered.saturating_sub(Self::EARLY) + after;
        stream.set_read_timeout(Some(timeout.max(Self::STEP))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: edge\r\n\r\n").unwrap();
        self.answered = match stream.read(&mut [0; 64]) {
            Ok(1..) => self.answered.saturating_sub(Self::STEP),
            _ => self.answered + Self::STEP,
        };
    }
}

/// The processes and counts after a run. Envoy must stay alive until all its releases have arrived.
struct FinishedRun {
    seed: u64,
    _envoy: Envoy,
    _proxy: Proxy,
}

fn run_clients(hook: Shipped, change: fn(&mut String), grpc: SocketAddr) -> FinishedRun {
    let proxy = Proxy::before(Upstream::Tcp(grpc));
    proxy.set(Way::ToStore, Flow::Delay(ACQUIRE_DELAY));
    let mut text = configured(hook, upstream::start(), &[grpc], WhenDown::Allow);
    change(&mut text);
    delay_acquires(&mut text, proxy.address());
    let envoy = Envoy::start_with(text, 1);
    let first = seed();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let dice = Dice::new(first.wrapping_add(client as u64));
            let mut client =
                DisconnectingClient { ingress: envoy.ingress, dice, answered: ACQUIRE_DELAY };
            scope.spawn(move || (0..REQUESTS / CLIENTS).for_each(|_| client.visit()));
        }
    });
    FinishedRun { seed: first, _envoy: envoy, _proxy: proxy }
}

fn chaos(name: &str, hook: Shipped, change: fn(&mut String)) -> RunResult {
    let limits = tempfile::tempdir().unwrap();
    let text = format!("domain: edge\ndescriptors:\n{}", limit_all_requests(LIMIT));
    std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
    let flags = ["--hooks", HOOKS].map(str::to_owned);
    let service = Service::start(limits.path(), &flags).unwrap();
    let run = run_clients(hook, change, service.grpc);
    let ids = |event| {
        gauge(service.metrics, &format!(r#"sluicegate_permit_ids_total{{event="{event}"}}"#))
    };
    let streams = gauge(service.metrics, STREAMS);
    let in_flight = || gauge(service.metrics, "sluicegate_requests_in_flight");
    let calm = until("all places", || match in_flight() {
        0 => Ok(()),
        held => Err(held.to_string()),
    });
    let leaked = if calm.is_ok() { 0 } else { in_flight() };
    let seen =
        RunResult { acquired: ids("acquired") + streams, over: ids("already_released"), leaked };
    println!("{name}: {REQUESTS} requests, seed {}: {seen:?}", run.seed);
    seen
}

#[test]
fn ext_proc_leaks_no_permit() {
    let seen = chaos("ext_proc", Shipped::ExtProc, |_| {});
    assert!(seen.leaked == 0 && MIN_ACQUIRED < seen.acquired, "{seen:?}");
}

#[test]
fn ext_authz_applies_early_releases_and_leaks_no_permit() {
    let seen = chaos("ext_authz and access log", Shipped::ExtAuthzConcurrency, |_| {});
    assert!(seen.leaked == 0 && 0 < seen.over && MIN_ACQUIRED < seen.acquired, "{seen:?}");
}

#[test]
fn two_rate_limit_filters_leak_nothing_but_one_leaks() {
    let good = chaos("two rate limit filters", Shipped::RlsConcurrency, |_| {});
    assert!(good.leaked == 0 && 0 < good.over && MIN_ACQUIRED < good.acquired, "{good:?}");
    let bad =
        chaos("one rate limit filter, known to be bad", Shipped::RlsConcurrency, with_one_filter);
    assert!(10 <= bad.leaked, "{bad:?}");
}

#[test]
fn rate_limit_filters_leak_without_early_releases() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let engine = engine_without_early_releases(LIMIT);
    let serving = served_with(Arc::clone(&engine), Readiness::Ready, Hooks::default());
    let served = runtime.block_on(serving);
    let run = run_clients(Shipped::RlsConcurrency, |_| {}, served.address);
    let leaked = wait_for_leaks(&engine);
    println!(
        "two rate limit filters, no tombstones: {REQUESTS} requests, seed {}: {leaked} leaked",
        run.seed
    );
}
