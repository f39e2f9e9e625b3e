//! Tests that every request on a real Envoy releases its permit.
//!
//! Guarantees:
//! - All ways to end a request are covered, with each Envoy integration.
//! - `max_duration` is longer than each wait, unless nothing else can free the permit.
//! - A lost release fails the test, because its permit stays in use.
//!
//! Not covered:
//! - The time until the release: see the module `timing`.

mod envoy_failures;
mod timing;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::envoy::{Shipped, replace_once};
use super::in_flight::{EnvoyScene, gauge, limit_all_requests};
use super::release_time::{time_until_idle, time_until_zero};
use super::stepwise_upstream::Visit;
use crate::support::waiting::{PATIENCE, now};

const HOOKS: [Shipped; 3] =
    [Shipped::ExtProc, Shipped::RlsConcurrency, Shipped::ExtAuthzConcurrency];

const ROUTE: &str = "- match: {prefix: /}
                          route: {cluster: upstream, timeout: 0s}";

/// Routes for requests that Envoy itself ends, placed before the shipped route.
const ROUTES: &str = r#"- match: {prefix: /late}
                          route: {cluster: upstream, timeout: 0.3s}
                        - match: {prefix: /again}
                          route: {cluster: upstream, timeout: 0s, retry_policy: {retry_on: "reset,5xx", num_retries: 1}}
                        - match: {prefix: /local}
                          direct_response: {status: 204}
                        - match: {prefix: /refused}
                          route: {cluster: nobody}
                        "#;

const ROUTER: &str = "                  - name: envoy.filters.http.router";

/// A filter after the rate limit hook that rejects `/rejected`.
const REJECTING_FILTER: &str = r#"                  - name: envoy.filters.http.rbac
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
                      rules:
                        action: DENY
                        policies:
                          rejected:
                            permissions: [{url_path: {path: {prefix: /rejected}}}]
                            principals: [{any: true}]
"#;

const UPSTREAM: &str = "    - name: upstream
      type: STATIC";

/// A cluster whose upstream refuses connections, because nothing listens on port 1.
const UNREACHABLE_CLUSTER: &str = r"    - name: nobody
      type: STATIC
      connect_timeout: 1s
      load_assignment:
        cluster_name: nobody
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 1}}}

";

pub(super) fn with_endings(text: &mut String) {
    let upgrades = "use_remote_address: true
                upgrade_configs: [{upgrade_type: websocket}]";
    replace_once(text, "use_remote_address: true", upgrades);
    replace_once(text, ROUTE, &[ROUTES, ROUTE].concat());
    replace_once(text, ROUTER, &[REJECTING_FILTER, ROUTER].concat());
    replace_once(text, UPSTREAM, &[UNREACHABLE_CLUSTER, UPSTREAM].concat());
}

fn open(scene: &EnvoyScene, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(scene.envoy.ingress).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: edge\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn status(mut stream: &TcpStream) -> u16 {
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    std::str::from_utf8(&head[9..]).unwrap().parse().unwrap()
}

/// A concurrency limit with one permit and one queue position.
const LIMIT: &str = "limit: 1, max_duration: 10m, queue: {size: 1, timeout: 5m}";

/// Repetitions of each way to end a request. If half of the releases are lost at random, at least
/// one of four is lost in 15 of 16 runs.
const ATTEMPTS: usize = 4;

fn release_time(scene: &EnvoyScene, at: Instant) -> Duration {
    time_until_idle(scene.service.metrics, at)
}

/// Sends a request and waits until it reaches the upstream. Returns the client and the upstream
/// connection.
fn start_request(scene: &EnvoyScene, headers: &str) -> (TcpStream, Visit) {
    let client = open(scene, "/", headers);
    let visit = scene.upstream.next();
    scene.expect_in_flight(1);
    (client, visit)
}

/// As [`start_request`], with the first part of the response sent and read.
fn start_response(scene: &EnvoyScene) -> (TcpStream, Visit) {
    let (client, mut visit) = start_request(scene, "");
    visit.begin();
    assert_eq!(status(&client), 200);
    scene.expect_in_flight(1);
    (client, visit)
}

fn open_websocket(scene: &EnvoyScene) -> (TcpStream, Visit) {
    let (client, mut visit) = start_request(scene, "connection: upgrade\r\nupgrade: websocket\r\n");
    visit.switch();
    assert_eq!(status(&client), 101);
    scene.expect_in_flight(1);
    (client, visit)
}

fn complete_response(scene: &EnvoyScene) -> Duration {
    let (client, visit) = start_request(scene, "");
    let at = now();
    visit.answer();
    let took = release_time(scene, at);
    assert_eq!(status(&client), 200);
    took
}

fn streamed_body(scene: &EnvoyScene) -> Duration {
    let (_client, visit) = start_response(scene);
    let at = now();
    visit.end();
    release_time(scene, at)
}

fn client_leaves_before_response(scene: &EnvoyScene) -> Duration {
    let (client, _visit) = start_request(scene, "");
    let at = now();
    drop(client);
    release_time(scene, at)
}

fn client_leaves_mid_body(scene: &EnvoyScene) -> Duration {
    let (client, _visit) = start_response(scene);
    let at = now();
    drop(client);
    release_time(scene, at)
}

/// Another request keeps the permit. Returns the time until the queue position is free.
fn client_leaves_the_queue(scene: &EnvoyScene) -> Duration {
    let (_client, visit) = start_request(scene, "");
    let queued = open(scene, "/", "");
    scene.expect_gauge("sluicegate_requests_queued", 1);
    let at = now();
    drop(queued);
    let took = time_until_zero(scene.service.metrics, "sluicegate_requests_queued", at);
    scene.expect_in_flight(1);
    visit.answer();
    scene.expect_in_flight(0);
    took
}

fn upstream_resets_before_headers(scene: &EnvoyScene) -> Duration {
    let (client, visit) = start_request(scene, "");
    let at = now();
    visit.reset();
    let took = release_time(scene, at);
    assert_eq!(status(&client), 503);
    took
}

fn upstream_resets_mid_body(scene: &EnvoyScene) -> Duration {
    let (_client, visit) = start_response(scene);
    let at = now();
    visit.reset();
    release_time(scene, at)
}

fn client_closes_websocket(scene: &EnvoyScene) -> Duration {
    let (client, _visit) = open_websocket(scene);
    let at = now();
    drop(client);
    release_time(scene, at)
}

fn upstream_closes_websocket(scene: &EnvoyScene) -> Duration {
    let (_client, visit) = open_websocket(scene);
    let at = now();
    visit.reset();
    release_time(scene, at)
}

/// Returns the time from the request's arrival at the upstream; the route timeout is 300 ms.
fn upstream_times_out(scene: &EnvoyScene) -> Duration {
    let before = admitted(scene);
    let client = open(scene, "/late", "");
    let _visit = scene.upstream.next();
    let took = release_time(scene, now());
    assert_eq!(status(&client), 504);
    assert!(before < admitted(scene), "nobody asked for a place");
    took
}

fn upstream_retry(scene: &EnvoyScene) -> Duration {
    let client = open(scene, "/again", "");
    scene.upstream.next().reset();
    let second = scene.upstream.next();
    scene.expect_in_flight(1);
    let at = now();
    second.answer();
    let took = release_time(scene, at);
    assert_eq!(status(&client), 200);
    took
}

/// Gets a response of Envoy itself to a request that had acquired a permit. Returns the time from
/// its arrival at the client.
fn response_from_envoy(scene: &EnvoyScene, path: &str, want: u16) -> Duration {
    let before = admitted(scene);
    assert_eq!(status(&open(scene, path, "")), want, "{path}");
    let took = release_time(scene, now());
    assert!(before < admitted(scene), "{path}: nobody asked for a place");
    took
}

/// Gets a direct response of Envoy, for which the rate limit filters make no check.
fn direct_response(scene: &EnvoyScene) -> Duration {
    let Shipped::RlsConcurrency = scene.hook else {
        return response_from_envoy(scene, "/local", 204);
    };
    let before = admitted(scene);
    assert_eq!(status(&open(scene, "/local", "")), 204);
    assert_eq!(before, admitted(scene));
    Duration::ZERO
}

fn admitted(scene: &EnvoyScene) -> u64 {
    gauge(scene.service.metrics, r#"sluicegate_checks_total{verdict="allow"}"#)
}

/// One way to end a request: its name, documented release times in ms, and action. The times are
/// for `ext_proc`, two rate limit filters, and `ext_authz` with access log.
type Row = (&'static str, [u64; 3], fn(&EnvoyScene) -> Duration);

const ENDINGS: [Row; 14] = [
    ("an answer", [3, 3, 3], complete_response),
    ("a streamed body", [11, 10, 9], streamed_body),
    ("a client that goes while it waits", [3, 1, 1], client_leaves_before_response),
    ("a client that goes mid-body", [2, 2, 2], client_leaves_mid_body),
    ("a client that goes from the queue", [1, 1, 1], client_leaves_the_queue),
    ("an upstream that goes before its head", [3, 3, 5], upstream_resets_before_headers),
    ("an upstream that goes mid-body", [2, 2, 2], upstream_resets_mid_body),
    ("a websocket that its client closes", [1, 2, 3], client_closes_websocket),
    ("a websocket that its upstream closes", [1, 2, 3], upstream_closes_websocket),
    ("an upstream that is later than 300 ms", [300, 305, 303], upstream_times_out),
    ("an upstream that is tried again", [3, 3, 3], upstream_retry),
    ("an upstream that refuses", [1, 1, 1], |scene| response_from_envoy(scene, "/refused", 503)),
    ("a later filter that says no", [1, 1, 3], |scene| {
        response_from_envoy(scene, "/rejected", 403)
    }),
    ("an answer made in Envoy", [3, 0, 3], direct_response),
];

#[test]
fn every_way_to_end_a_request_releases_its_permit() {
    for hook in HOOKS {
        let scene = EnvoyScene::changed(hook, &limit_all_requests(LIMIT), with_endings);
        for (what, _, end) in ENDINGS {
            for _ in 0..ATTEMPTS {
                end(&scene);
                scene.expect_in_flight(0);
                let expired = gauge(scene.service.metrics, EXPIRED);
                assert_eq!(expired, 0, "{}: {what}", name(hook));
            }
        }
    }
}

const EXPIRED: &str = r#"sluicegate_permit_ids_total{event="expired"}"#;

const fn name(hook: Shipped) -> &'static str {
    match hook {
        Shipped::ExtProc => "`ext_proc`",
        Shipped::RlsConcurrency => "two rate limit filters",
        _ => "`ext_authz` and access log",
    }
}
