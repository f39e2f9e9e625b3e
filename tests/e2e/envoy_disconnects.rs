//! Tests that clients of Envoy that disconnect just when the decision arrives leak no permit.
//!
//! Guarantees:
//! - All three Envoy integrations are covered: `ext_proc`, `ext_authz` and two rate limit filters.
//! - Acquires are delayed by 20 ms, so some releases arrive before their acquires.
//! - Clients disconnect within 3 ms, or an eighth, of their measured median response time.
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
use super::nginx_disconnects::{engine_without_early_releases, min_disconnects};
use super::upstream;
use crate::edge::grpc::served_with;
use crate::support::dice::{Dice, seed};
use crate::support::http1;
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::support::service::Service;
use crate::support::waiting::{now, until};

const CLIENTS: usize = 32;
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
      connect_timeout: 20s
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
pub(super) fn delay_acquires(text: &mut String, proxy: SocketAddr) {
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
    requests: u64,
    acquired: u64,
    over: u64,
    leaked: u64,
}

impl RunResult {
    /// Requires that many requests acquired a permit, although about half of the clients
    /// disconnect before.
    fn expect_acquired(&self) {
        assert!(self.requests / 10 < self.acquired, "{self:?}");
    }
}

/// A client that disconnects a little before or after its estimated median response time.
struct DisconnectingClient {
    ingress: SocketAddr,
    dice: Dice,
    /// Estimated median response time.
    answered: Duration,
}

impl DisconnectingClient {
    const EARLY: Duration = Duration::from_millis(3);
    const STEP: Duration = Duration::from_millis(1);

    /// A client that has measured its response time with a complete request.
    fn new(ingress: SocketAddr, dice: Dice) -> Self {
        let began = now();
        http1::get(ingress, "/", &[]).unwrap();
        Self { ingress, dice, answered: began.elapsed() }
    }

    fn visit(&mut self) {
        let mut stream = TcpStream::connect(self.ingress).unwrap();
        // On a busy machine, response times vary by more milliseconds.
        let early = Self::EARLY.max(self.answered / 8);
        let step = Self::STEP.max(self.answered / 32);
        let after = self.dice.up_to(2 * u64::try_from(early.as_micros()).unwrap());
        let timeout = self.answered.saturating_sub(early) + Duration::from_micros(after);
        stream.set_read_timeout(Some(timeout.max(Self::STEP))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: edge\r\n\r\n").unwrap();
        self.answered = match stream.read(&mut [0; 64]) {
            Ok(1..) => self.answered.saturating_sub(step),
            _ => self.answered + step,
        };
    }
}

/// The processes after a run. Envoy must stay alive until all its releases have arrived.
struct FinishedRun {
    seed: u64,
    envoy: Envoy,
    _proxy: Proxy,
}

impl FinishedRun {
    /// Waits until the service has received all messages about requests of disconnected clients.
    ///
    /// The last messages of both workers precede those of complete requests.
    fn wait_until_settled(&self) {
        self.wait_until_idle();
        for _ in 0..CLIENTS {
            assert_eq!(http1::get(self.envoy.ingress, "/", &[]).unwrap().status, 200);
        }
        self.wait_until_idle();
    }

    /// Waits until Envoy has no request, and then until it has no call.
    fn wait_until_idle(&self) {
        for gauge in [
            "http.ingress.downstream_rq_active",
            "cluster.sluicegate.upstream_rq_active",
            "cluster.late.upstream_rq_active",
        ] {
            until(gauge, || match self.envoy.counter(gauge) {
                0 => Ok(()),
                active => Err(active.to_string()),
            })
            .unwrap();
        }
    }
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
            let ingress = envoy.ingress;
            scope.spawn(move || {
                let mut client = DisconnectingClient::new(ingress, dice);
                (0..min_disconnects() / CLIENTS).for_each(|_| client.visit());
            });
        }
    });
    FinishedRun { seed: first, envoy, _proxy: proxy }
}

/// A run with the real service.
struct Chaos {
    name: &'static str,
    service: Service,
    run: FinishedRun,
    _limits: tempfile::TempDir,
}

impl Chaos {
    fn run(name: &'static str, hook: Shipped, change: fn(&mut String)) -> Self {
        let limits = tempfile::tempdir().unwrap();
        let text = format!("domain: edge\ndescriptors:\n{}", limit_all_requests(LIMIT));
        std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
        let flags = ["--hooks", HOOKS].map(str::to_owned);
        let service = Service::start(limits.path(), &flags).unwrap();
        let run = run_clients(hook, change, service.grpc);
        Self { name, service, run, _limits: limits }
    }

    fn in_flight(&self) -> u64 {
        gauge(self.service.metrics, "sluicegate_requests_in_flight")
    }

    /// Waits until no request is in flight. Returns the counts.
    fn expect_no_leak(&self) -> RunResult {
        let calm = until("all places", || match self.in_flight() {
            0 => Ok(()),
            held => Err(held.to_string()),
        });
        let result = self.result(self.in_flight());
        assert!(calm.is_ok(), "{result:?}");
        result
    }

    /// Returns the counts after the last release has arrived.
    fn result_of_leaks(&self) -> RunResult {
        self.run.wait_until_settled();
        self.result(self.in_flight())
    }

    fn result(&self, leaked: u64) -> RunResult {
        let count = |series: &str| gauge(self.service.metrics, series);
        let ids = |event| count(&format!(r#"sluicegate_permit_ids_total{{event="{event}"}}"#));
        let (acquired, over) = (ids("acquired") + count(STREAMS), ids("already_released"));
        let requests = min_disconnects() as u64;
        let result = RunResult { requests, acquired, over, leaked };
        println!("{}: seed {}: {result:?}", self.name, self.run.seed);
        result
    }
}

#[test]
fn ext_proc_leaks_no_permit() {
    Chaos::run("ext_proc", Shipped::ExtProc, |_| {}).expect_no_leak().expect_acquired();
}

#[test]
fn ext_authz_applies_early_releases_and_leaks_no_permit() {
    let chaos = Chaos::run("ext_authz and access log", Shipped::ExtAuthzConcurrency, |_| {});
    let result = chaos.expect_no_leak();
    result.expect_acquired();
    assert!(0 < result.over, "{result:?}");
}

#[test]
fn two_rate_limit_filters_leak_nothing_but_one_leaks() {
    let good =
        Chaos::run("two rate limit filters", Shipped::RlsConcurrency, |_| {}).expect_no_leak();
    good.expect_acquired();
    assert!(0 < good.over, "{good:?}");
    let name = "one rate limit filter, known to be bad";
    let bad = Chaos::run(name, Shipped::RlsConcurrency, with_one_filter).result_of_leaks();
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
    run.wait_until_settled();
    let leaked = engine.concurrency_limits().totals().in_flight;
    println!("two rate limit filters, no tombstones: seed {}: {leaked} leaked", run.seed);
    assert!(10 <= leaked, "{leaked}");
}
