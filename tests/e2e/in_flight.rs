//! Tests of concurrency limits through `ext_proc`, two rate limit filters, or `ext_authz` with
//! access log.
//!
//! Guarantees:
//! - Each request acquires exactly one permit.
//! - Every way to end a request releases its permit.

mod ext_authz;
mod pace;
mod releases;
mod rls_filters;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;

use tempfile::TempDir;

use super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::stepwise_upstream::{Visit, Visits};
use crate::support::http1::{self, Reply};
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, for_a_day_with_a_minute_left, now, until};

pub(super) const HOOKS: &str = r#"[{"name": "other", "domain": "nowhere",
                         "descriptors": [[{"remote_address": {}}]]},
                        {"name": "edge", "domain": "edge", "descriptors": [
                         [{"generic_key": {"descriptor_key": "upstream", "descriptor_value": "all"}}],
                         [{"request_headers": {"header_name": "x-api-key", "descriptor_key": "api_key"}}]]}]"#;

/// Envoy, the service, and an upstream that the test controls.
pub(super) struct EnvoyScene {
    pub(super) hook: Shipped,
    limits: TempDir,
    pub(super) service: Service,
    pub(super) envoy: Envoy,
    pub(super) upstream: Visits,
}

impl EnvoyScene {
    /// Starts a scene whose limits file has these descriptors, in the domain of the hook.
    fn with(descriptors: &str) -> Self {
        Self::of(Shipped::ExtProc, descriptors)
    }

    fn of(shipped: Shipped, descriptors: &str) -> Self {
        Self::changed(shipped, descriptors, |_| {})
    }

    /// Starts a scene with an edited shipped configuration of Envoy.
    pub(super) fn changed(
        shipped: Shipped,
        descriptors: &str,
        change: impl FnOnce(&mut String),
    ) -> Self {
        Self::through(shipped, descriptors, change, |service| service)
    }

    /// Starts a scene; `proxy` maps the service's address to the address that Envoy uses for it.
    pub(super) fn through(
        shipped: Shipped,
        descriptors: &str,
        change: impl FnOnce(&mut String),
        proxy: impl FnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        let limits = tempfile::tempdir().unwrap();
        let text = format!("domain: edge\ndescriptors:\n{descriptors}");
        std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
        let service = serve(&limits);
        let upstream = Visits::listen();
        let mut text =
            configured(shipped, upstream.address, &[proxy(service.grpc)], WhenDown::Allow);
        change(&mut text);
        let envoy = Envoy::start_with(text, 1);
        Self { hook: shipped, limits, service, envoy, upstream }
    }

    pub(super) fn restart_service(&mut self) {
        self.service.kill();
        self.service = serve(&self.limits);
    }

    /// Starts a scene with one concurrency limit for all requests, through `ext_proc`.
    fn with_limit(limit: &str) -> Self {
        Self::with(&limit_all_requests(limit))
    }

    /// As [`EnvoyScene::with_limit`], through two rate limit filters.
    fn with_rls_limit(limit: &str) -> Self {
        Self::of(Shipped::RlsConcurrency, &limit_all_requests(limit))
    }

    /// As [`EnvoyScene::with_limit`], through `ext_authz` and access log.
    fn with_ext_authz_limit(limit: &str) -> Self {
        Self::of(Shipped::ExtAuthzConcurrency, &limit_all_requests(limit))
    }

    /// Sends a request from another thread.
    pub(super) fn send(&self) -> JoinHandle<std::io::Result<Reply>> {
        let ingress = self.envoy.ingress;
        std::thread::spawn(move || http1::get(ingress, "/", &[]))
    }

    /// Sends a request without reading the response.
    pub(super) fn connect(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.envoy.ingress).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: edge\r\n\r\n").unwrap();
        stream
    }

    fn get(&self) -> Reply {
        http1::get(self.envoy.ingress, "/", &[]).unwrap()
    }

    pub(super) fn expect_gauge(&self, gauge: &str, value: u64) {
        expect_gauge(self.service.metrics, gauge, value);
    }

    pub(super) fn expect_in_flight(&self, in_flight: u64) {
        self.expect_gauge("sluicegate_requests_in_flight", in_flight);
    }
}

fn serve(limits: &TempDir) -> Service {
    let flags = ["--hooks", HOOKS, "--listen-drain-delay", "1ms", "--answers-retry-after", "true"];
    Service::start(limits.path(), &flags.map(str::to_owned)).unwrap()
}

pub(super) fn limit_all_requests(limit: &str) -> String {
    format!("- key: upstream\n  value: all\n  concurrency: {{{limit}}}\n")
}

pub(super) fn gauge(metrics: SocketAddr, name: &str) -> u64 {
    let page = http1::get(metrics, "/metrics", &[]).unwrap().text();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {page}"))
}

pub(super) fn expect_gauge(metrics: SocketAddr, name: &str, value: u64) {
    until(name, || match gauge(metrics, name) {
        found if found == value => Ok(()),
        found => Err(format!("{found}, wanted {value}")),
    })
    .unwrap();
}

#[test]
fn ext_proc_limit_is_exact_and_permits_are_reused() {
    let scene =
        EnvoyScene::with_limit("limit: 3, reject: {status: 503, retry_after: 1500ms, body: busy}");
    let clients: Vec<_> = (0..3).map(|_| scene.send()).collect();
    let mut visits: Vec<_> = (0..3).map(|_| scene.upstream.next()).collect();
    scene.expect_in_flight(3);
    for _ in 0..5 {
        let rejected = scene.get();
        assert_eq!((rejected.status, rejected.text().as_str()), (503, "busy"));
        assert_eq!(rejected.header("retry-after"), Some("2"), "rounded up");
    }
    visits.pop().unwrap().answer();
    scene.expect_in_flight(2);
    let fourth = scene.send();
    visits.push(scene.upstream.next());
    scene.expect_in_flight(3);
    visits.into_iter().for_each(Visit::answer);
    for client in clients.into_iter().chain([fourth]) {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
    scene.expect_in_flight(0);
}

#[test]
fn streamed_response_keeps_its_permit_until_the_end() {
    let scene = EnvoyScene::with_limit("limit: 1");
    let mut client = scene.connect();
    let mut visit = scene.upstream.next();
    visit.begin();
    let mut part = [0; 1024];
    assert!(0 < client.read(&mut part).unwrap(), "the answer has begun");
    assert_eq!(scene.get().status, 503);
    scene.expect_in_flight(1);
    visit.end();
    scene.expect_in_flight(0);
}

/// As [`EnvoyScene::with_limit`]; Envoy sends no response headers to the service.
fn without_response_headers(limit: &str) -> EnvoyScene {
    EnvoyScene::changed(Shipped::ExtProc, &limit_all_requests(limit), |text| {
        replace_once(text, "response_header_mode: SEND", "response_header_mode: SKIP");
    })
}

#[test]
fn response_header_mode_skip_keeps_the_permit_until_the_end() {
    let scene = without_response_headers("limit: 1");
    let mut client = scene.connect();
    let mut visit = scene.upstream.next();
    visit.begin();
    assert!(0 < client.read(&mut [0; 1024]).unwrap(), "the answer has begun");
    assert_eq!(scene.get().status, 503);
    scene.expect_in_flight(1);
    visit.end();
    scene.expect_in_flight(0);
}

/// An adaptive concurrency limit for [`lower_limit`], which lowers it by failed requests.
pub(super) const FALLING_LIMIT: &str = "limit: 4, adaptive: {algorithm: aimd, min: 1, max: 4}";

/// Fails requests until the adaptive limit reaches its minimum. Asserts that failures are not
/// measured as latency.
pub(super) fn lower_limit(
    service: &Service,
    upstream: &Visits,
    send: impl Fn() -> JoinHandle<std::io::Result<Reply>>,
) {
    let limit = || gauge(service.metrics, "sluicegate_concurrency_limits");
    let began = now();
    while limit() != 1 {
        let client = send();
        upstream.next().refuse();
        assert_eq!(client.join().unwrap().unwrap().status, 503);
        expect_gauge(service.metrics, "sluicegate_requests_in_flight", 0);
        assert!(began.elapsed() < PATIENCE, "the ceiling stays at {}", limit());
    }
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    for measured in
        ["sluicegate_concurrency_rtt_seconds{", "sluicegate_concurrency_min_rtt_seconds{"]
    {
        assert!(!page.contains(measured), "{measured} of nothing but failures:\n{page}");
    }
}

#[test]
fn rate_limit_denial_returns_429_and_releases_the_permit() {
    let scene = EnvoyScene::with(
        "- key: upstream\n  value: all\n  concurrency: {limit: 1}\n\
         - key: api_key\n  rate_limit: {unit: year, requests_per_unit: 1}\n",
    );
    for_a_day_with_a_minute_left();
    let ask = || http1::get(scene.envoy.ingress, "/", &[("x-api-key", "k")]).unwrap();
    let first = std::thread::scope(|scope| {
        let first = scope.spawn(ask);
        scene.upstream.next().answer();
        first.join().unwrap()
    });
    assert_eq!(first.status, 200);
    scene.expect_in_flight(0);
    for _ in 0..3 {
        let denied = ask();
        assert_eq!(denied.status, 429);
        assert!(denied.header("retry-after").is_some(), "{denied:?}");
        scene.expect_in_flight(0);
    }
}

#[test]
fn queued_request_starts_on_release_and_leaves_on_disconnect() {
    let scene = EnvoyScene::with_limit("limit: 1, queue: {size: 1, timeout: 5m}");
    let first = scene.send();
    let held = scene.upstream.next();
    let disconnecting = scene.connect();
    scene.expect_gauge("sluicegate_requests_queued", 1);
    assert_eq!(scene.get().status, 503, "the queue is full");
    drop(disconnecting);
    scene.expect_gauge("sluicegate_requests_queued", 0);
    let queued = scene.send();
    scene.expect_gauge("sluicegate_requests_queued", 1);
    held.answer();
    scene.upstream.next().answer();
    for client in [first, queued] {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
    scene.expect_in_flight(0);
}

/// The queue timeout is five times Envoy's `message_timeout`, so the service must extend it. On a
/// busy machine, the extension may be late, and the request passes: the next one is a new attempt.
#[test]
fn envoy_waits_for_the_queue_timeout() {
    const ATTEMPTS: usize = 20;
    let limit = limit_all_requests(
        "limit: 1, queue: {size: 1, timeout: 1s}, max_duration: 10m, reject: {status: 429}",
    );
    let scene = EnvoyScene::changed(Shipped::ExtProc, &limit, |text| {
        replace_once(text, " message_timeout: 9s", " message_timeout: 0.2s");
    });
    let first = scene.send();
    let held = scene.upstream.next();
    let is_rejected = (0..ATTEMPTS).any(|_| {
        let client = scene.send();
        while !client.is_finished() {
            scene.upstream.try_next().into_iter().for_each(Visit::answer);
        }
        client.join().unwrap().unwrap().status == 429
    });
    assert!(is_rejected, "all requests passed before the queue timeout");
    held.answer();
    assert_eq!(first.join().unwrap().unwrap().status, 200);
    scene.expect_in_flight(0);
}
