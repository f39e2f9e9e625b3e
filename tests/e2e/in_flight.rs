//! Ceilings on requests in flight, held by `ext_proc`, two rate limit filters, or `ext_authz` with the access log: a place is taken once and comes back, however the request ends.

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

/// A client, Envoy, the service, and an upstream that answers by hand.
pub(super) struct Scene {
    pub(super) hook: Shipped,
    limits: TempDir,
    pub(super) service: Service,
    pub(super) envoy: Envoy,
    pub(super) upstream: Visits,
}

impl Scene {
    /// With these descriptors in the domain that the hook asks about.
    fn with(descriptors: &str) -> Self {
        Self::of(Shipped::ExtProc, descriptors)
    }

    fn of(shipped: Shipped, descriptors: &str) -> Self {
        Self::changed(shipped, descriptors, |_| {})
    }

    /// With something changed in the shipped configuration.
    pub(super) fn changed(
        shipped: Shipped,
        descriptors: &str,
        change: impl FnOnce(&mut String),
    ) -> Self {
        Self::through(shipped, descriptors, change, |service| service)
    }

    /// With the service where `door` says that Envoy finds it.
    pub(super) fn through(
        shipped: Shipped,
        descriptors: &str,
        change: impl FnOnce(&mut String),
        door: impl FnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        let limits = tempfile::tempdir().unwrap();
        let text = format!("domain: edge\ndescriptors:\n{descriptors}");
        std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
        let service = serve(&limits);
        let upstream = Visits::listen();
        let mut text =
            configured(shipped, upstream.address, &[door(service.grpc)], WhenDown::Allow);
        change(&mut text);
        let envoy = Envoy::start_with(text, 1);
        Self { hook: shipped, limits, service, envoy, upstream }
    }

    /// Kills the service, and starts another one.
    pub(super) fn serve_anew(&mut self) {
        self.service.kill();
        self.service = serve(&self.limits);
    }

    /// The ceiling over everything says this.
    fn under(ceiling: &str) -> Self {
        Self::with(&over_all(ceiling))
    }

    /// The same where only RLS asks.
    fn split_under(ceiling: &str) -> Self {
        Self::of(Shipped::RlsConcurrency, &over_all(ceiling))
    }

    /// The same where `ext_authz` asks and the access log tells.
    fn logged_under(ceiling: &str) -> Self {
        Self::of(Shipped::ExtAuthzConcurrency, &over_all(ceiling))
    }

    /// Sends a request whose answer is waited for elsewhere.
    pub(super) fn send(&self) -> JoinHandle<std::io::Result<Reply>> {
        let ingress = self.envoy.ingress;
        std::thread::spawn(move || http1::get(ingress, "/", &[]))
    }

    /// Sends a request and keeps only the connection.
    pub(super) fn connect(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.envoy.ingress).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: edge\r\n\r\n").unwrap();
        stream
    }

    fn get(&self) -> Reply {
        http1::get(self.envoy.ingress, "/", &[]).unwrap()
    }

    pub(super) fn shows(&self, gauge: &str, value: u64) {
        shows(self.service.metrics, gauge, value);
    }

    pub(super) fn holds(&self, in_flight: u64) {
        self.shows("sluicegate_requests_in_flight", in_flight);
    }
}

fn serve(limits: &TempDir) -> Service {
    let flags = ["--hooks", HOOKS, "--drain-delay", "1ms", "--retry-after", "true"];
    Service::start(limits.path(), &flags.map(str::to_owned)).unwrap()
}

pub(super) fn over_all(ceiling: &str) -> String {
    format!("- key: upstream\n  value: all\n  concurrency: {{{ceiling}}}\n")
}

pub(super) fn gauge(metrics: SocketAddr, name: &str) -> u64 {
    let page = http1::get(metrics, "/metrics", &[]).unwrap().text();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {page}"))
}

pub(super) fn shows(metrics: SocketAddr, name: &str, value: u64) {
    until(name, || match gauge(metrics, name) {
        found if found == value => Ok(()),
        found => Err(format!("{found}, wanted {value}")),
    })
    .unwrap();
}

#[test]
fn a_ceiling_is_held_exactly_and_a_place_is_free_when_a_request_ends() {
    let scene = Scene::under("limit: 3, reject: {status: 503, retry_after: 1500ms, body: busy}");
    let clients: Vec<_> = (0..3).map(|_| scene.send()).collect();
    let mut visits: Vec<_> = (0..3).map(|_| scene.upstream.next()).collect();
    scene.holds(3);
    for _ in 0..5 {
        let turned_away = scene.get();
        assert_eq!((turned_away.status, turned_away.text().as_str()), (503, "busy"));
        assert_eq!(turned_away.header("retry-after"), Some("2"), "rounded up");
    }
    visits.pop().unwrap().answer();
    scene.holds(2);
    let fourth = scene.send();
    visits.push(scene.upstream.next());
    scene.holds(3);
    visits.into_iter().for_each(Visit::answer);
    for client in clients.into_iter().chain([fourth]) {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
    scene.holds(0);
}

#[test]
fn a_streamed_body_holds_its_place_to_its_last_byte() {
    let scene = Scene::under("limit: 1");
    let mut client = scene.connect();
    let mut visit = scene.upstream.next();
    visit.begin();
    let mut part = [0; 1024];
    assert!(0 < client.read(&mut part).unwrap(), "the answer has begun");
    assert_eq!(scene.get().status, 503);
    scene.holds(1);
    visit.end();
    scene.holds(0);
}

/// With the heads of answers shown to the service.
fn with_heads(ceiling: &str) -> Scene {
    Scene::changed(Shipped::ExtProc, &over_all(ceiling), |text| {
        replace_once(text, "response_header_mode: SKIP", "response_header_mode: SEND");
    })
}

#[test]
fn where_heads_of_answers_are_shown_a_place_is_held_to_the_last_byte_as_well() {
    let scene = with_heads("limit: 1");
    let mut client = scene.connect();
    let mut visit = scene.upstream.next();
    visit.begin();
    assert!(0 < client.read(&mut [0; 1024]).unwrap(), "the answer has begun");
    assert_eq!(scene.get().status, 503);
    scene.holds(1);
    visit.end();
    scene.holds(0);
}

/// A ceiling for [`fall`].
pub(super) const FALLS: &str = "limit: 4, adaptive: {policy: aimd, min: 1, max: 4}";

/// Fails every request until the ceiling is as low as may be; none of them may count as a latency.
pub(super) fn fall(
    service: &Service,
    upstream: &Visits,
    send: impl Fn() -> JoinHandle<std::io::Result<Reply>>,
) {
    let ceiling = || gauge(service.metrics, "sluicegate_ceilings_limit");
    let began = now();
    while ceiling() != 1 {
        let client = send();
        upstream.next().refuse();
        assert_eq!(client.join().unwrap().unwrap().status, 503);
        shows(service.metrics, "sluicegate_requests_in_flight", 0);
        assert!(began.elapsed() < PATIENCE, "the ceiling stays at {}", ceiling());
    }
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    for measured in ["sluicegate_ceiling_rtt_seconds{", "sluicegate_ceiling_min_rtt_seconds{"] {
        assert!(!page.contains(measured), "{measured} of nothing but failures:\n{page}");
    }
}

/// A backend that fails at once would else seem the quickest there is.
#[test]
fn where_heads_of_answers_are_shown_what_failed_is_no_measurement_and_lowers_the_ceiling() {
    let scene = with_heads(FALLS);
    fall(&scene.service, &scene.upstream, || scene.send());
    let client = scene.send();
    scene.upstream.next().answer();
    assert_eq!(client.join().unwrap().unwrap().status, 200);
    scene.holds(0);
    let page = http1::get(scene.service.metrics, "/metrics", &[]).unwrap().text();
    assert!(page.contains("sluicegate_ceiling_rtt_seconds{"), "of one that succeeded:\n{page}");
}

/// Where Envoy lets itself be told, it is; where not, the stream's end says the same.
#[test]
fn a_request_that_meets_no_ceiling_keeps_no_stream_open() {
    const UNLIMITED: &str = "- key: api_key\n  rate_limit: {unlimited: true}\n";
    for told in ["allow_mode_override: true", "allow_mode_override: false"] {
        let scene = Scene::changed(Shipped::ExtProc, UNLIMITED, |text| {
            let both = format!("{told}\n                      processing_mode:");
            replace_once(text, "processing_mode:", &both);
        });
        let client = scene.send();
        let visit = scene.upstream.next();
        let ended = || match scene.envoy.open() {
            0 => Ok(()),
            open => Err(open.to_string()),
        };
        until("the stream's end before the request's", ended).unwrap();
        visit.answer();
        assert_eq!(client.join().unwrap().unwrap().status, 200, "{told}");
    }
}

/// Envoy ends a stream in one of several ways, whatever ended the request: by a race, and not by how it went.
#[test]
fn every_request_that_ends_is_a_measurement_whatever_envoy_is_told_to_show() {
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
        scene.holds(0);
        let shown = http1::get(scene.service.admin, "/permits", &[]).unwrap().text();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let buckets = shown["busiest"].as_array().unwrap();
        let measured = buckets.iter().filter(|bucket| bucket["rtt_us"].is_u64()).count();
        assert_eq!((buckets.len(), measured), (20, 20), "{show}: {shown:#}");
    }
}

#[test]
fn a_client_that_goes_frees_its_place_before_the_answer_and_within_it() {
    let scene = Scene::under("limit: 1");
    for begun in [false, true] {
        let mut client = scene.connect();
        let mut visit = scene.upstream.next();
        if begun {
            visit.begin();
            assert!(0 < client.read(&mut [0; 1024]).unwrap());
        }
        scene.holds(1);
        drop(client);
        scene.holds(0);
    }
}

#[test]
fn an_upstream_that_goes_frees_the_place_before_the_answer_and_within_it() {
    let scene = Scene::under("limit: 1");
    for begun in [false, true] {
        let client = scene.send();
        let mut visit = scene.upstream.next();
        if begun {
            visit.begin();
        }
        scene.holds(1);
        visit.reset();
        scene.holds(0);
        let reply = client.join().unwrap();
        assert!(reply.is_err() || reply.unwrap().status == if begun { 200 } else { 503 });
    }
}

#[test]
fn a_proxy_that_is_killed_frees_all_its_places() {
    let mut scene = Scene::under("limit: 9");
    let _clients: Vec<_> = (0..5).map(|_| scene.connect()).collect();
    let _visits: Vec<_> = (0..5).map(|_| scene.upstream.next()).collect();
    scene.holds(5);
    scene.envoy.kill();
    scene.holds(0);
}

#[test]
fn a_rate_limit_denies_with_429_and_gives_the_place_back() {
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
    scene.holds(0);
    for _ in 0..3 {
        let denied = ask();
        assert_eq!(denied.status, 429);
        assert!(denied.header("retry-after").is_some(), "{denied:?}");
        scene.holds(0);
    }
}

#[test]
fn one_that_waits_is_let_in_when_a_place_is_free_and_forgotten_when_it_goes() {
    let scene = Scene::under("limit: 1, queue: {size: 1, timeout: 9s}");
    let first = scene.send();
    let held = scene.upstream.next();
    let gone = scene.connect();
    scene.shows("sluicegate_requests_queued", 1);
    assert_eq!(scene.get().status, 503, "the queue is full");
    drop(gone);
    scene.shows("sluicegate_requests_queued", 0);
    let waits = scene.send();
    scene.shows("sluicegate_requests_queued", 1);
    held.answer();
    scene.upstream.next().answer();
    for client in [first, waits] {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
    scene.holds(0);
}

/// Five times as long as Envoy waits for an answer that nobody announced.
#[test]
fn envoy_waits_as_long_as_the_queue_makes_it() {
    let scene = Scene::under("limit: 1, queue: {size: 1, timeout: 1s}, reject: {status: 429}");
    let first = scene.send();
    let held = scene.upstream.next();
    assert_eq!(scene.get().status, 429, "without the announcement it would pass");
    held.answer();
    assert_eq!(first.join().unwrap().unwrap().status, 200);
    scene.holds(0);
}

#[test]
fn a_replica_that_is_told_to_go_takes_no_request_with_it() {
    let mut scene = Scene::under("limit: 1");
    let client = scene.send();
    let visit = scene.upstream.next();
    scene.holds(1);
    scene.service.terminate();
    let status = scene.service.ended().unwrap();
    assert_eq!(status.code(), Some(0), "{status}\n{}", scene.service.log());
    visit.answer();
    assert_eq!(client.join().unwrap().unwrap().status, 200);
}

#[test]
fn requests_pass_without_a_replica() {
    let mut scene = Scene::under("limit: 1");
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
fn with_rls_alone_a_ceiling_is_held_exactly_and_a_place_is_free_when_a_request_ends() {
    let scene = Scene::split_under("limit: 2, reject: {retry_after: 1500ms, body: busy}");
    let clients = [scene.send(), scene.send()];
    let [first, second] = [scene.upstream.next(), scene.upstream.next()];
    scene.holds(2);
    for _ in 0..5 {
        let turned_away = scene.get();
        assert_eq!((turned_away.status, turned_away.text().as_str()), (503, "busy"));
        assert_eq!(turned_away.header("retry-after"), Some("2"));
    }
    first.answer();
    scene.holds(1);
    second.answer();
    scene.holds(0);
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
}

#[test]
fn with_rls_alone_clients_and_upstreams_that_go_free_their_places() {
    let scene = Scene::split_under("limit: 1, queue: {size: 1, timeout: 9s}");
    let client = scene.connect();
    let visit = scene.upstream.next();
    let waits = scene.connect();
    scene.shows("sluicegate_requests_queued", 1);
    drop(waits);
    scene.shows("sluicegate_requests_queued", 0);
    scene.holds(1);
    drop(client);
    scene.holds(0);
    visit.reset();
    let client = scene.send();
    let visit = scene.upstream.next();
    scene.holds(1);
    visit.reset();
    scene.holds(0);
    assert_eq!(client.join().unwrap().unwrap().status, 503);
}

#[test]
fn with_rls_alone_a_proxy_that_is_killed_keeps_its_places_no_longer_than_max_duration() {
    let mut scene = Scene::split_under("limit: 1, max_duration: 1s");
    let _client = scene.connect();
    let _visit = scene.upstream.next();
    scene.envoy.kill();
    scene.holds(0);
}

/// The client names another's id and another hook, and Envoy does not pass them on.
#[test]
fn ids_and_hooks_that_a_client_sends_have_no_effect() {
    let ceiling = "limit: 2, reject: {status: 503}";
    for scene in [Scene::under(ceiling), Scene::split_under(ceiling), Scene::logged_under(ceiling)]
    {
        forged_headers_have_no_effect(&scene);
    }
}

fn forged_headers_have_no_effect(scene: &Scene) {
    // The hook `other` does not exist: asked about, it would be a service that does not answer, and let all pass.
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
    scene.holds(2);
    assert_eq!(ask(ingress, "/", &forged).unwrap().status, 503, "{}", scene.envoy.log());
    visits.into_iter().for_each(Visit::answer);
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
    scene.holds(0);
}

#[test]
fn with_ext_authz_a_ceiling_is_held_exactly_and_a_place_is_free_when_a_request_ends() {
    let reject = "reject: {status: 503, retry_after: 1500ms, body: busy}";
    let scene = Scene::logged_under(&format!("limit: 2, {reject}"));
    let clients = [scene.send(), scene.send()];
    let [first, second] = [scene.upstream.next(), scene.upstream.next()];
    scene.holds(2);
    for _ in 0..5 {
        let turned_away = scene.get();
        assert_eq!((turned_away.status, turned_away.text().as_str()), (503, "busy"));
        assert_eq!(turned_away.header("retry-after"), Some("2"));
    }
    first.answer();
    scene.holds(1);
    second.answer();
    scene.holds(0);
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
    let nothing = r#"sluicegate_permit_ids_total{event="held_nothing"}"#;
    scene.shows(nothing, 5);
    scene.shows("sluicegate_early_releases", 0);
}

#[test]
fn with_ext_authz_clients_and_upstreams_that_go_free_their_places_and_queues_hold_requests() {
    let scene = Scene::logged_under("limit: 1, queue: {size: 1, timeout: 9s}");
    let client = scene.connect();
    let visit = scene.upstream.next();
    let waits = scene.connect();
    scene.shows("sluicegate_requests_queued", 1);
    drop(waits);
    scene.shows("sluicegate_requests_queued", 0);
    scene.holds(1);
    let waits = scene.send();
    scene.shows("sluicegate_requests_queued", 1);
    drop(client);
    let second = scene.upstream.next();
    scene.holds(1);
    second.answer();
    assert_eq!(waits.join().unwrap().unwrap().status, 200);
    scene.holds(0);
    visit.reset();
    for begun in [false, true] {
        let client = scene.send();
        let mut visit = scene.upstream.next();
        if begun {
            visit.begin();
        }
        scene.holds(1);
        visit.reset();
        scene.holds(0);
        let reply = client.join().unwrap();
        assert!(reply.is_err() || reply.unwrap().status == if begun { 200 } else { 503 });
    }
}

/// Three times as long as the place may be out unseen.
#[test]
fn with_ext_authz_a_request_that_goes_on_keeps_its_place_as_long_as_the_log_says_so() {
    let ceiling = over_all("limit: 1, max_duration: 1s");
    let scene = Scene::changed(Shipped::ExtAuthzConcurrency, &ceiling, |text| {
        replace_once(text, "access_log_flush_interval: 10s", "access_log_flush_interval: 0.1s");
    });
    let client = scene.send();
    let visit = scene.upstream.next();
    let renewed = || match gauge(scene.service.metrics, RENEWED) {
        few @ 0..30 => Err(few.to_string()),
        _ => Ok(()),
    };
    until("thirty entries of a request that goes on", renewed).unwrap();
    scene.holds(1);
    assert_eq!(gauge(scene.service.metrics, EXPIRED), 0);
    visit.answer();
    assert_eq!(client.join().unwrap().unwrap().status, 200);
    scene.holds(0);
}

const RENEWED: &str = r#"sluicegate_permit_ids_total{event="renewed"}"#;
const EXPIRED: &str = r#"sluicegate_permit_ids_total{event="expired"}"#;
