//! Tests that every request on a real NGINX releases its permit.
//!
//! Guarantees:
//! - All ways to end a request are covered, with syslog datagrams and with Lua.
//! - `max_duration` is longer than each wait, so a lost release fails the test.
//!
//! Not covered:
//! - The time until the release: see the module `timing`.
//! - The end of NGINX: see the module `nginx_in_flight::failures`.

mod timing;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::envoy::replace_once;
use super::in_flight::{gauge, limit_all_requests};
use super::nginx_in_flight::{INTEGRATIONS, Integration, NginxScene};
use super::release_time::{time_until_idle, time_until_zero};
use super::stepwise_upstream::{Visit, Visits};
use crate::support::waiting::{PATIENCE, now};

/// A concurrency limit with one permit and one queue position.
const LIMIT: &str = "limit: 1, max_duration: 10m, queue: {size: 1, timeout: 5m}";

/// Repetitions of each way to end a request. If half of the releases are lost at random, at least
/// one of four is lost in 15 of 16 runs.
const ATTEMPTS: usize = 4;

/// The time that NGINX waits for the upstream, except for the ending [`TIMEOUT`].
const LONG_READ: &str = "600s";

/// Adds an upstream for each way to end a request, a timeout, and WebSocket support. The path
/// selects the upstream.
fn with_endings(text: &mut String, app: SocketAddr, read_timeout: &str) {
    let servers = format!(
        "upstream app {{ server {app}; }}
    upstream again {{ server {app} max_fails=0; server {app} max_fails=0; }}
    upstream nobody {{ server 127.0.0.1:1; }}
    map $request_uri $to {{ default app; /refused nobody; /again again; }}"
    );
    replace_once(text, &format!("upstream app {{\n        server {app};\n    }}"), &servers);
    let pass = format!(
        "proxy_read_timeout {read_timeout};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $http_connection;
            proxy_pass http://$to;"
    );
    replace_once(text, "proxy_pass http://app;", &pass);
}

/// Starts a scene in which NGINX waits so long for the upstream.
fn scene(by: Integration, read_timeout: &str) -> NginxScene {
    let upstream = Visits::listen();
    let app = upstream.address;
    NginxScene::changed(by, &limit_all_requests(LIMIT), upstream, move |text| {
        with_endings(text, app, read_timeout);
    })
}

fn release_time(scene: &NginxScene, at: Instant) -> Duration {
    time_until_idle(scene.service.metrics, at)
}

fn open(scene: &NginxScene, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(scene.nginx.ingress).unwrap();
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

/// Sends a request and waits until it reaches the upstream. Returns the client and the upstream
/// connection.
fn start_request(scene: &NginxScene, headers: &str) -> (TcpStream, Visit) {
    let client = open(scene, "/", headers);
    let visit = scene.upstream.next();
    scene.expect_in_flight(1);
    (client, visit)
}

fn open_websocket(scene: &NginxScene) -> (TcpStream, Visit) {
    let (client, mut visit) = start_request(scene, "connection: upgrade\r\nupgrade: websocket\r\n");
    visit.switch();
    assert_eq!(status(&client), 101);
    scene.expect_in_flight(1);
    (client, visit)
}

fn complete_response(scene: &NginxScene) -> Duration {
    let (client, visit) = start_request(scene, "");
    let at = now();
    visit.answer();
    let took = release_time(scene, at);
    assert_eq!(status(&client), 200);
    took
}

fn streamed_body(scene: &NginxScene) -> Duration {
    let (client, mut visit) = start_request(scene, "");
    visit.begin();
    assert_eq!(status(&client), 200);
    scene.expect_in_flight(1);
    let at = now();
    visit.end();
    release_time(scene, at)
}

fn client_leaves_before_response(scene: &NginxScene) -> Duration {
    let (client, _visit) = start_request(scene, "");
    let at = now();
    drop(client);
    release_time(scene, at)
}

/// Disconnects during a body that exceeds the buffers of NGINX, so NGINX notices the disconnect.
fn client_leaves_mid_body(scene: &NginxScene) -> Duration {
    let (client, mut visit) = start_request(scene, "");
    visit.stream();
    assert_eq!(status(&client), 200);
    scene.expect_in_flight(1);
    let at = now();
    drop(client);
    release_time(scene, at)
}

/// Another request keeps the permit. Returns the time until the queue position is free.
fn client_leaves_the_queue(scene: &NginxScene) -> Duration {
    let (_client, visit) = start_request(scene, "");
    let queued = open(scene, "/", "");
    scene.expect_queued(1);
    let at = now();
    drop(queued);
    let took = time_until_zero(scene.service.metrics, "sluicegate_requests_queued", at);
    scene.expect_in_flight(1);
    visit.answer();
    scene.expect_in_flight(0);
    took
}

fn upstream_resets_before_headers(scene: &NginxScene) -> Duration {
    let (client, visit) = start_request(scene, "");
    let at = now();
    visit.reset();
    let took = release_time(scene, at);
    assert_eq!(status(&client), 502);
    took
}

fn upstream_resets_mid_body(scene: &NginxScene) -> Duration {
    let (client, mut visit) = start_request(scene, "");
    visit.begin();
    assert_eq!(status(&client), 200);
    scene.expect_in_flight(1);
    let at = now();
    visit.reset();
    release_time(scene, at)
}

fn client_closes_websocket(scene: &NginxScene) -> Duration {
    let (client, _visit) = open_websocket(scene);
    let at = now();
    drop(client);
    release_time(scene, at)
}

fn upstream_closes_websocket(scene: &NginxScene) -> Duration {
    let (_client, visit) = open_websocket(scene);
    let at = now();
    visit.reset();
    release_time(scene, at)
}

/// Returns the time from the request's arrival at the upstream; the read timeout is 300 ms.
fn upstream_times_out(scene: &NginxScene) -> Duration {
    let before = admitted(scene);
    let client = open(scene, "/", "");
    let _visit = scene.upstream.next();
    let took = release_time(scene, now());
    assert_eq!(status(&client), 504);
    assert!(before < admitted(scene), "nobody asked for a place");
    took
}

fn upstream_retry(scene: &NginxScene) -> Duration {
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

/// The upstream refuses a request that has a permit. Returns the time from the arrival of the
/// response.
fn upstream_refuses(scene: &NginxScene) -> Duration {
    let before = admitted(scene);
    assert_eq!(status(&open(scene, "/refused", "")), 502);
    let took = release_time(scene, now());
    assert!(before < admitted(scene), "nobody asked for a place");
    took
}

fn admitted(scene: &NginxScene) -> u64 {
    gauge(scene.service.metrics, r#"sluicegate_checks_total{verdict="allow"}"#)
}

/// Reloads NGINX during a request: the old worker process finishes it.
fn reload(scene: &NginxScene) -> Duration {
    let (client, visit) = start_request(scene, "");
    scene.nginx.reload();
    let (next, second) = (open(scene, "/", ""), &scene.upstream);
    scene.expect_queued(1);
    let at = now();
    visit.answer();
    let second = second.next();
    let took = at.elapsed();
    second.answer();
    assert_eq!([status(&client), status(&next)], [200, 200]);
    scene.expect_in_flight(0);
    took
}

/// One way to end a request: its name, documented release times in ms (syslog datagrams, Lua), and
/// action. Without a documented time (WebSocket, retry, reload), the time of a normal response
/// applies.
type Row = (&'static str, [u64; 2], fn(&NginxScene) -> Duration);

const ENDINGS: [Row; 12] = [
    ("an answer", [4, 1], complete_response),
    ("a streamed body", [5, 8], streamed_body),
    ("a client that goes while it waits", [3, 2], client_leaves_before_response),
    ("a client that goes mid-body", [2, 2], client_leaves_mid_body),
    ("a client that goes from the queue", [1, 1], client_leaves_the_queue),
    ("an upstream that goes before its head", [2, 2], upstream_resets_before_headers),
    ("an upstream that goes mid-body", [2, 2], upstream_resets_mid_body),
    ("a websocket that its client closes", [4, 1], client_closes_websocket),
    ("a websocket that its upstream closes", [4, 1], upstream_closes_websocket),
    ("an upstream that is tried again", [4, 1], upstream_retry),
    ("an upstream that refuses", [1, 1], upstream_refuses),
    ("a reload of NGINX, and an answer", [4, 1], reload),
];

/// The ending that needs a short timeout, and this timeout.
const TIMEOUT: (Row, &str) =
    (("an upstream that is later than 300 ms", [306, 302], upstream_times_out), "300ms");

const fn name(by: Integration) -> &'static str {
    match by {
        Integration::Datagrams => "NGINX by datagrams",
        Integration::Lua => "NGINX by Lua's connections",
    }
}

#[test]
fn every_way_to_end_a_request_releases_its_permit() {
    const EXPIRED: &str = r#"sluicegate_permit_ids_total{event="expired"}"#;
    for by in INTEGRATIONS {
        let (late, read_timeout) = TIMEOUT;
        for (endings, read_timeout) in [(&ENDINGS[..], LONG_READ), (&[late][..], read_timeout)] {
            let scene = scene(by, read_timeout);
            for (what, _, end) in endings {
                for _ in 0..ATTEMPTS {
                    end(&scene);
                    scene.expect_in_flight(0);
                    let expired = gauge(scene.service.metrics, EXPIRED);
                    assert_eq!(expired, 0, "{}: {what}", name(by));
                }
            }
        }
    }
}
