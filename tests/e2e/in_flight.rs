//! Tests of concurrency limits through `ext_proc`, two rate limit filters, or `ext_authz` with
//! access log.
//!
//! Guarantees:
//! - Each request acquires exactly one permit.
//! - Every way to end a request releases its permit.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;

use tempfile::TempDir;

use super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::visits::{Visit, Visits};
use crate::http1::{self, Reply};
use crate::service::Service;
use crate::waiting::{PATIENCE, for_a_day_with_a_minute_left, now, until};

pub(super) const HOOKS: &str = r#"[{"name": "other", "domain": "nowhere",
                         "descriptors": [[{"remote_address": {}}]]},
                        {"name": "edge", "domain": "edge", "descriptors": [
                         [{"generic_key": {"descriptor_key": "upstream", "descriptor_value": "all"}}],
                         [{"request_headers": {"header_name": "x-api-key", "descriptor_key": "api_key"}}]]}]"#;

/// Envoy, the service, and an upstream that the test controls.
pub(super) struct Scene {
    pub(super) hook: Shipped,
    limits: TempDir,
    pub(super) service: Service,
    pub(super) envoy: Envoy,
    pub(super) upstream: Visits,
}

impl Scene {
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

    /// As [`Scene::with_limit`], through two rate limit filters.
    fn with_rls_limit(limit: &str) -> Self {
        Self::of(Shipped::RlsConcurrency, &limit_all_requests(limit))
    }

    /// As [`Scene::with_limit`], through `ext_authz` and access log.
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
        Scene::with_limit("limit: 3, reject: {status: 503, retry_after: 1500ms, body: busy}");
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
    let scene = Scene::with_limit("limit: 1");
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

/// As [`Scene::with_limit`]; Envoy also sends response headers to the service.
fn with_response_headers(limit: &str) -> Scene {
    Scene::changed(Shipped::ExtProc, &limit_all_requests(limit), |text| {
        replace_once(text, "response_header_mode: SKIP", "response_header_mode: SEND");
    })
}

#[test]
fn response_header_mode_send_keeps_the_permit_until_the_end() {
    let scene = with_response_headers("limit: 1");
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
pub(super) const FALLING_LIMIT: &str = "limit: 4, adaptive: {policy: aimd, min: 1, max: 4}";

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

/// If failures were measured, an upstream that fails immediately would look fast.
#[test]
fn failed_responses_lower_the_limit_and_are_not_measured() {
    let scene = with_response_headers(FALLING_LIMIT);
    lower_limit(&scene.service, &scene.upstream, || scene.send());
    let client = scene.send();
    scene.upstream.next().answer();
    assert_eq!(client.join().unwrap().unwrap().status, 200);
    scene.expect_in_flight(0);
    let page = http1::get(scene.service.metrics, "/metrics", &[]).unwrap().text();
    assert!(page.contains("sluicegate_concurrency_rtt_seconds{"), "of one that succeeded:\n{page}");
}

/// If Envoy permits a mode override, the service turns off later messages; otherwise it ends the
/// stream.
#[test]
fn request_without_concurrency_limit_closes_its_stream() {
    const UNLIMITED: &str = "- key: api_key\n  rate_limit: {unlimited: true}\n";
    for mode_override in ["allow_mode_override: true", "allow_mode_override: false"] {
        let scene = Scene::changed(Shipped::ExtProc, UNLIMITED, |text| {
            let both = format!("{mode_override}\n                      processing_mode:");
            replace_once(text, "processing_mode:", &both);
        });
        let client = scene.send();
        let visit = scene.upstream.next();
        let ended = || match scene.envoy.active_requests() {
            0 => Ok(()),
            open => Err(open.to_string()),
        };
        until("the stream's end before the request's", ended).unwrap();
        visit.answer();
        assert_eq!(client.join().unwrap().unwrap().status, 200, "{mode_override}");
    }
}

/// A race inside Envoy decides how the `ext_proc` stream ends, even after a successful request.
#[test]
fn every_completed_request_is_measured() {
    const EACH: &str = "- key: api_key\n  concurrency: {limit: 2}\n";
    const SHOW: [&str; 2] = ["response_header_mode: SKIP", "response_header_mode: SEND"];
    for show in SHOW {
        let scene =
            Scene::changed(Shipped::ExtProc, EACH, |text| replace_once(text, SHOW[0], show));
        for key in 0..20 {
            let (ingress, key) = (scene.envoy.ingress, key.to_string());
            let get = move || http1::get(ingress, "/", &[("x-api-key", key.as_str())]);
            let client = std::thread::spawn(get);
            scene.upstream.next().answer();
            assert_eq!(client.join().unwrap().unwrap().status, 200);
        }
        scene.expect_in_flight(0);
        let shown = http1::get(scene.service.admin, "/permits", &[]).unwrap().text();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let buckets = shown["busiest"].as_array().unwrap();
        let measured = buckets.iter().filter(|bucket| bucket["rtt_us"].is_u64()).count();
        assert_eq!((buckets.len(), measured), (20, 20), "{show}: {shown:#}");
    }
}

#[test]
fn client_disconnect_releases_the_permit() {
    let scene = Scene::with_limit("limit: 1");
    for begun in [false, true] {
        let mut client = scene.connect();
        let mut visit = scene.upstream.next();
        if begun {
            visit.begin();
            assert!(0 < client.read(&mut [0; 1024]).unwrap());
        }
        scene.expect_in_flight(1);
        drop(client);
        scene.expect_in_flight(0);
    }
}

#[test]
fn upstream_reset_releases_the_permit() {
    let scene = Scene::with_limit("limit: 1");
    for begun in [false, true] {
        let client = scene.send();
        let mut visit = scene.upstream.next();
        if begun {
            visit.begin();
        }
        scene.expect_in_flight(1);
        visit.reset();
        scene.expect_in_flight(0);
        let reply = client.join().unwrap();
        assert!(reply.is_err() || reply.unwrap().status == if begun { 200 } else { 503 });
    }
}

#[test]
fn killed_envoy_releases_all_permits() {
    let mut scene = Scene::with_limit("limit: 9");
    let _clients: Vec<_> = (0..5).map(|_| scene.connect()).collect();
    let _visits: Vec<_> = (0..5).map(|_| scene.upstream.next()).collect();
    scene.expect_in_flight(5);
    scene.envoy.kill();
    scene.expect_in_flight(0);
}

#[test]
fn rate_limit_denial_returns_429_and_releases_the_permit() {
    let scene = Scene::with(
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
    let scene = Scene::with_limit("limit: 1, queue: {size: 1, timeout: 9s}");
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

/// The queue timeout is five times Envoy's `message_timeout`, so the service must extend it.
#[test]
fn envoy_waits_for_the_queue_timeout() {
    let scene = Scene::with_limit("limit: 1, queue: {size: 1, timeout: 1s}, reject: {status: 429}");
    let first = scene.send();
    let held = scene.upstream.next();
    assert_eq!(scene.get().status, 429, "without the announcement it would pass");
    held.answer();
    assert_eq!(first.join().unwrap().unwrap().status, 200);
    scene.expect_in_flight(0);
}

#[test]
fn replica_shutdown_fails_no_request() {
    let mut scene = Scene::with_limit("limit: 1");
    let client = scene.send();
    let visit = scene.upstream.next();
    scene.expect_in_flight(1);
    scene.service.terminate();
    let status = scene.service.ended().unwrap();
    assert_eq!(status.code(), Some(0), "{status}\n{}", scene.service.log());
    visit.answer();
    assert_eq!(client.join().unwrap().unwrap().status, 200);
}

#[test]
fn requests_succeed_without_a_replica() {
    let mut scene = Scene::with_limit("limit: 1");
    scene.service.terminate();
    scene.service.ended().unwrap();
    let clients = [scene.send(), scene.send()];
    for visit in [scene.upstream.next(), scene.upstream.next()] {
        visit.answer();
    }
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
}

#[test]
fn limit_of_two_rate_limit_filters_is_exact_and_permits_are_released() {
    let scene = Scene::with_rls_limit("limit: 2, reject: {retry_after: 1500ms, body: busy}");
    let clients = [scene.send(), scene.send()];
    let [first, second] = [scene.upstream.next(), scene.upstream.next()];
    scene.expect_in_flight(2);
    for _ in 0..5 {
        let rejected = scene.get();
        assert_eq!((rejected.status, rejected.text().as_str()), (503, "busy"));
        assert_eq!(rejected.header("retry-after"), Some("2"));
    }
    first.answer();
    scene.expect_in_flight(1);
    second.answer();
    scene.expect_in_flight(0);
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
}

#[test]
fn two_rate_limit_filters_release_permits_on_disconnect_and_reset() {
    let scene = Scene::with_rls_limit("limit: 1, queue: {size: 1, timeout: 9s}");
    let client = scene.connect();
    let visit = scene.upstream.next();
    let queued = scene.connect();
    scene.expect_gauge("sluicegate_requests_queued", 1);
    drop(queued);
    scene.expect_gauge("sluicegate_requests_queued", 0);
    scene.expect_in_flight(1);
    drop(client);
    scene.expect_in_flight(0);
    visit.reset();
    let client = scene.send();
    let visit = scene.upstream.next();
    scene.expect_in_flight(1);
    visit.reset();
    scene.expect_in_flight(0);
    assert_eq!(client.join().unwrap().unwrap().status, 503);
}

#[test]
fn max_duration_frees_permits_of_a_killed_envoy() {
    let mut scene = Scene::with_rls_limit("limit: 1, max_duration: 1s");
    let _client = scene.connect();
    let _visit = scene.upstream.next();
    scene.envoy.kill();
    scene.expect_in_flight(0);
}

/// Clients must not be able to choose a request id or a hook.
#[test]
fn forged_request_ids_and_hooks_have_no_effect() {
    let limit = "limit: 2, reject: {status: 503}";
    for scene in
        [Scene::with_limit(limit), Scene::with_rls_limit(limit), Scene::with_ext_authz_limit(limit)]
    {
        forged_headers_have_no_effect(&scene);
    }
}

fn forged_headers_have_no_effect(scene: &Scene) {
    // The hook `other` has a domain without limits, so it would allow every request.
    let forged = [
        ("x-sluicegate-id", "0123456789abcdef"),
        ("x-request-id", "0123456789abcdef"),
        ("x-sluicegate-hook", "other"),
        ("x-hook", "other"),
        ("hook", "other"),
    ];
    let (ingress, ask) = (scene.envoy.ingress, http1::get);
    let clients = [(); 2].map(|()| std::thread::spawn(move || ask(ingress, "/", &forged)));
    let visits = [scene.upstream.next(), scene.upstream.next()];
    scene.expect_in_flight(2);
    assert_eq!(ask(ingress, "/", &forged).unwrap().status, 503, "{}", scene.envoy.log());
    visits.into_iter().for_each(Visit::answer);
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
    scene.expect_in_flight(0);
}

#[test]
fn ext_authz_limit_is_exact_and_permits_are_released() {
    let reject = "reject: {status: 503, retry_after: 1500ms, body: busy}";
    let scene = Scene::with_ext_authz_limit(&format!("limit: 2, {reject}"));
    let clients = [scene.send(), scene.send()];
    let [first, second] = [scene.upstream.next(), scene.upstream.next()];
    scene.expect_in_flight(2);
    for _ in 0..5 {
        let rejected = scene.get();
        assert_eq!((rejected.status, rejected.text().as_str()), (503, "busy"));
        assert_eq!(rejected.header("retry-after"), Some("2"));
    }
    first.answer();
    scene.expect_in_flight(1);
    second.answer();
    scene.expect_in_flight(0);
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
    let nothing = r#"sluicegate_permit_ids_total{event="held_nothing"}"#;
    scene.expect_gauge(nothing, 5);
    scene.expect_gauge("sluicegate_early_releases", 0);
}

#[test]
fn ext_authz_queues_and_releases_on_disconnect_and_reset() {
    let scene = Scene::with_ext_authz_limit("limit: 1, queue: {size: 1, timeout: 9s}");
    let client = scene.connect();
    let visit = scene.upstream.next();
    let queued = scene.connect();
    scene.expect_gauge("sluicegate_requests_queued", 1);
    drop(queued);
    scene.expect_gauge("sluicegate_requests_queued", 0);
    scene.expect_in_flight(1);
    let queued = scene.send();
    scene.expect_gauge("sluicegate_requests_queued", 1);
    drop(client);
    let second = scene.upstream.next();
    scene.expect_in_flight(1);
    second.answer();
    assert_eq!(queued.join().unwrap().unwrap().status, 200);
    scene.expect_in_flight(0);
    visit.reset();
    for begun in [false, true] {
        let client = scene.send();
        let mut visit = scene.upstream.next();
        if begun {
            visit.begin();
        }
        scene.expect_in_flight(1);
        visit.reset();
        scene.expect_in_flight(0);
        let reply = client.join().unwrap();
        assert!(reply.is_err() || reply.unwrap().status == if begun { 200 } else { 503 });
    }
}

/// The request of this test lasts three times as long as `max_duration`.
#[test]
fn periodic_access_logs_renew_the_permit() {
    let limit = limit_all_requests("limit: 1, max_duration: 1s");
    let scene = Scene::changed(Shipped::ExtAuthzConcurrency, &limit, |text| {
        replace_once(text, "access_log_flush_interval: 10s", "access_log_flush_interval: 0.1s");
    });
    let client = scene.send();
    let visit = scene.upstream.next();
    let renewed = || match gauge(scene.service.metrics, RENEWED) {
        few @ 0..30 => Err(few.to_string()),
        _ => Ok(()),
    };
    until("thirty entries of a request that goes on", renewed).unwrap();
    scene.expect_in_flight(1);
    assert_eq!(gauge(scene.service.metrics, EXPIRED), 0);
    visit.answer();
    assert_eq!(client.join().unwrap().unwrap().status, 200);
    scene.expect_in_flight(0);
}

const RENEWED: &str = r#"sluicegate_permit_ids_total{event="renewed"}"#;
const EXPIRED: &str = r#"sluicegate_permit_ids_total{event="expired"}"#;
