//! Tests of concurrency limits on a real NGINX, released by syslog datagrams or by `OpenResty` Lua
//! code.
//!
//! Guarantees:
//! - Each request acquires exactly one permit.
//! - Every way to end a request releases its permit.

mod failures;

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;

use tempfile::TempDir;

use super::envoy::{WhenDown, replace_once};
use super::in_flight::{HOOKS, expect_gauge, gauge, limit_all_requests};
use super::nginx::{Nginx, Shipped};
use super::stepwise_upstream::{Visit, Visits};
use crate::support::http1::{self, Reply};
use crate::support::ports;
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, for_a_day_with_a_minute_left, until};

/// The mechanism by which NGINX acquires and releases permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Integration {
    Datagrams,
    Lua,
}

pub(super) const INTEGRATIONS: [Integration; 2] = [Integration::Datagrams, Integration::Lua];

/// NGINX, the service, and an upstream that the test controls.
pub(super) struct NginxScene {
    limits: TempDir,
    pub(super) service: Service,
    pub(super) nginx: Nginx,
    pub(super) upstream: Visits,
}

/// Writes the limits file by an atomic rename.
fn write_limits(limits: &TempDir, descriptors: &str) {
    let prepared = limits.path().join(".prepared");
    std::fs::write(&prepared, format!("domain: edge\ndescriptors:\n{descriptors}")).unwrap();
    std::fs::rename(prepared, limits.path().join("edge.yaml")).unwrap();
}

fn service(limits: &TempDir) -> Service {
    let flags = ["--hooks", HOOKS, "--listen-drain-delay", "1ms", "--answers-retry-after", "true"];
    let flags = flags.iter().chain(&["--answers-headers", "draft", "--listen-syslog-port", "0"]);
    let flags: Vec<_> = flags.map(|&flag| flag.to_owned()).collect();
    Service::start(limits.path(), &flags).unwrap()
}

impl NginxScene {
    /// Starts a scene whose limits file has these descriptors, in the domain of the hook.
    fn with(by: Integration, descriptors: &str) -> Self {
        Self::before(by, descriptors, Visits::listen())
    }

    fn before(by: Integration, descriptors: &str, upstream: Visits) -> Self {
        Self::changed(by, descriptors, upstream, |_| {})
    }

    /// Starts a scene with an edited shipped configuration of NGINX.
    pub(super) fn changed(
        by: Integration,
        descriptors: &str,
        upstream: Visits,
        change: impl Fn(&mut String),
    ) -> Self {
        let limits = tempfile::tempdir().unwrap();
        write_limits(&limits, descriptors);
        let service = service(&limits);
        let shipped = shipped(by, service.syslog().unwrap());
        let (app, asked) = (upstream.address, service.http);
        let nginx = Nginx::start_changed(shipped, app, asked, WhenDown::Allow, change);
        Self { limits, service, nginx, upstream }
    }

    /// Starts a scene with one concurrency limit for all requests.
    pub(super) fn with_limit(by: Integration, limit: &str) -> Self {
        Self::with(by, &limit_all_requests(limit))
    }

    /// Replaces the limit for all requests, and waits until it applies.
    fn replace_limit(&self, limit: &str) {
        write_limits(&self.limits, &limit_all_requests(limit));
        let loaded = || match self.service.loads()?.loaded {
            loads @ 0..=1 => Err(loads.to_string()),
            _ => Ok(()),
        };
        until("the new limit", loaded).unwrap();
    }

    pub(super) fn send(&self) -> JoinHandle<std::io::Result<Reply>> {
        let ingress = self.nginx.ingress;
        std::thread::spawn(move || http1::get(ingress, "/", &[]))
    }

    /// Sends a request without reading the response.
    pub(super) fn connect(&self) -> TcpStream {
        self.connect_and_send("GET / HTTP/1.1\r\nhost: edge\r\n\r\n")
    }

    /// Sends a complete or partial request without reading the response.
    pub(super) fn connect_and_send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.nginx.ingress).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn get(&self) -> Reply {
        http1::get(self.nginx.ingress, "/", &[]).unwrap()
    }

    pub(super) fn expect_queued(&self, waiting: u64) {
        expect_gauge(self.service.metrics, "sluicegate_requests_queued", waiting);
    }

    pub(super) fn expect_in_flight(&self, in_flight: u64) {
        expect_gauge(self.service.metrics, "sluicegate_requests_in_flight", in_flight);
    }
}

fn status_of(client: JoinHandle<std::io::Result<Reply>>) -> u16 {
    client.join().unwrap().unwrap().status
}

#[test]
fn limit_is_exact_and_permits_are_reused() {
    for by in INTEGRATIONS {
        let scene = NginxScene::with_limit(
            by,
            "limit: 3, reject: {status: 503, retry_after: 1500ms, body: busy}",
        );
        let clients: Vec<_> = (0..3).map(|_| scene.send()).collect();
        let mut visits: Vec<_> = (0..3).map(|_| scene.upstream.next()).collect();
        scene.expect_in_flight(3);
        for _ in 0..5 {
            let rejected = scene.get();
            let log = scene.nginx.log();
            assert_eq!((rejected.status, &*rejected.text()), (503, "busy"), "{by:?} {log}");
            assert_eq!(rejected.header("retry-after"), Some("2"), "rounded up");
            assert_eq!(rejected.header("x-deny-status"), None);
        }
        scene.expect_in_flight(3);
        visits.pop().unwrap().answer();
        scene.expect_in_flight(2);
        let fourth = scene.send();
        visits.push(scene.upstream.next());
        scene.expect_in_flight(3);
        visits.into_iter().for_each(Visit::answer);
        for client in clients.into_iter().chain([fourth]) {
            assert_eq!(status_of(client), 200);
        }
        scene.expect_in_flight(0);
    }
}

#[test]
fn streamed_response_keeps_its_permit_until_the_end() {
    for by in INTEGRATIONS {
        let scene = NginxScene::with_limit(by, "limit: 1, reject: {status: 429}");
        let client = scene.send();
        let mut visit = scene.upstream.next();
        visit.begin();
        assert_eq!(scene.get().status, 429);
        scene.expect_in_flight(1);
        visit.end();
        scene.expect_in_flight(0);
        assert_eq!(status_of(client), 200);
    }
}

#[test]
fn client_disconnect_frees_its_permit_or_queue_position() {
    for by in INTEGRATIONS {
        let scene = NginxScene::with_limit(by, "limit: 1, queue: {size: 1, timeout: 5m}");
        for begun in [false, true] {
            let client = scene.connect();
            let mut visit = scene.upstream.next();
            if begun {
                // The body exceeds the buffers of NGINX, so NGINX notices the disconnect.
                visit.stream();
            }
            scene.expect_in_flight(1);
            let queued = scene.connect();
            scene.expect_queued(1);
            assert_eq!(scene.get().status, 503, "the queue is full");
            drop(queued);
            scene.expect_queued(0);
            scene.expect_in_flight(1);
            drop(client);
            scene.expect_in_flight(0);
        }
    }
}

#[test]
fn upstream_reset_releases_the_permit() {
    for by in INTEGRATIONS {
        let scene = NginxScene::with_limit(by, "limit: 1");
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
            assert!(reply.is_err() || reply.unwrap().status == if begun { 200 } else { 502 });
        }
    }
}

#[test]
fn refused_upstream_connection_releases_the_permit() {
    for by in INTEGRATIONS {
        let mut upstream = Visits::listen();
        upstream.address = ports::free();
        let scene = NginxScene::before(by, &limit_all_requests("limit: 1"), upstream);
        for _ in 0..2 {
            assert_eq!(scene.get().status, 502);
            scene.expect_in_flight(0);
        }
    }
}

#[test]
fn queued_request_starts_on_release_or_times_out() {
    for by in INTEGRATIONS {
        let scene = NginxScene::with_limit(by, "limit: 1, queue: {size: 1, timeout: 5m}");
        let first = scene.send();
        let held = scene.upstream.next();
        let queued = scene.send();
        scene.expect_queued(1);
        held.answer();
        scene.upstream.next().answer();
        assert_eq!([status_of(first), status_of(queued)], [200, 200]);
        scene.expect_in_flight(0);

        let scene = NginxScene::with_limit(by, "limit: 1, queue: {size: 1, timeout: 50ms}");
        let first = scene.send();
        let held = scene.upstream.next();
        assert_eq!(scene.get().status, 503);
        held.answer();
        assert_eq!(status_of(first), 200);
        scene.expect_in_flight(0);
    }
}

#[test]
fn rate_limit_denial_returns_429_and_releases_the_permit() {
    for by in INTEGRATIONS {
        let scene = NginxScene::with(
            by,
            "- key: upstream\n  value: all\n  concurrency: {limit: 1}\n\
             - key: api_key\n  rate_limit: {unit: year, requests_per_unit: 1, name: per-key}\n",
        );
        for_a_day_with_a_minute_left();
        let ingress = scene.nginx.ingress;
        let ask = move || http1::get(ingress, "/", &[("x-api-key", "k")]).unwrap();
        let first = std::thread::spawn(ask);
        scene.upstream.next().answer();
        let first = first.join().unwrap();
        assert_eq!(first.status, 200);
        assert!(first.header("ratelimit").is_some(), "{first:?}");
        scene.expect_in_flight(0);
        for _ in 0..3 {
            let denied = ask();
            assert_eq!(denied.status, 429, "{by:?} {}", scene.nginx.log());
            assert!(denied.header("retry-after").is_some(), "{denied:?}");
            assert!(denied.header("ratelimit-policy").is_some(), "{denied:?}");
            scene.expect_in_flight(0);
        }
    }
}

/// NGINX's `error_page`, which handles denials, must pass on a 403 that is not from a check.
#[test]
fn nginx_403_reaches_the_client_and_releases_the_permit() {
    let files = tempfile::tempdir().unwrap();
    // Directory listing is disabled, so NGINX itself responds with 403.
    let serves = format!("root {};", files.path().display());
    for by in INTEGRATIONS {
        let limit = limit_all_requests("limit: 1, reject: {status: 503}");
        let scene = NginxScene::changed(by, &limit, Visits::listen(), |text| {
            replace_once(text, "proxy_pass http://app;", &serves);
        });
        for asked in 1..=3 {
            assert_eq!(scene.get().status, 403, "{by:?} {}", scene.nginx.log());
            scene.expect_in_flight(0);
            let admitted = r#"sluicegate_checks_total{verdict="allow"}"#;
            assert_eq!(gauge(scene.service.metrics, admitted), asked, "{by:?}");
        }
    }
}

const fn shipped(by: Integration, syslog: SocketAddr) -> Shipped {
    match by {
        Integration::Datagrams => Shipped::Concurrency(syslog),
        Integration::Lua => Shipped::Lua,
    }
}

#[test]
fn shipped_settings_and_limits_match_shipped_nginx_configuration() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
    let flags = ["--settings", &format!("{config}/nginx.yaml"), "--listen-syslog-port", "0"];
    let flags = flags.map(str::to_owned);
    let service = Service::start(format!("{config}/concurrency").as_ref(), &flags).unwrap();
    for shipped in [Shipped::Concurrency(service.syslog().unwrap()), Shipped::Lua] {
        let upstream = Visits::listen();
        let nginx = Nginx::start_as(shipped, upstream.address, service.http, WhenDown::Deny);
        let ingress = nginx.ingress;
        let ask = move || http1::get(ingress, "/", &[("x-api-key", "anybody")]).unwrap();
        let client = std::thread::spawn(ask);
        let visit = upstream.next();
        // One bucket for all requests and one for the API key.
        expect_gauge(service.metrics, "sluicegate_requests_in_flight", 2);
        visit.answer();
        let reply = client.join().unwrap();
        assert_eq!(reply.status, 200, "{}", nginx.log());
        assert!(reply.header("ratelimit-policy").unwrap().contains("per-key"), "{reply:?}");
        expect_gauge(service.metrics, "sluicegate_requests_in_flight", 0);
    }
}
