//! Tests of the latency that adaptive concurrency limits measure with real proxies.
//!
//! Guarantees:
//! - The measured latency is the response time of the upstream.
//! - Queue time and slow clients are not part of it.
//! - A failed request lowers the limit and is not measured.
//! - The tests time the upstream themselves, so a busy machine shifts the expected latency, too.
//!
//! Not covered:
//! - `ext_proc` and NGINX with Lua, where the latency is the lifetime of the permit.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::Request;
use h2::RecvStream;
use h2::client::ResponseFuture;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::envoy::Shipped;
use super::in_flight::{EnvoyScene, FALLING_LIMIT, gauge, limit_all_requests, lower_limit};
use super::nginx_in_flight::{self, Integration};
use super::stepwise_upstream::Visit;
use crate::support::http1;
use crate::support::waiting::{now, soon};

/// Envoy integrations that report a latency other than the lifetime of the permit.
const HOOKS: [Shipped; 2] = [Shipped::RlsConcurrency, Shipped::ExtAuthzConcurrency];

/// An adaptive concurrency limit with one permit and one queue position.
const LIMIT: &str =
    "limit: 1, adaptive: {algorithm: aimd, min: 1, max: 1}, queue: {size: 1, timeout: 5m}";

const QUEUE_WAIT: Duration = Duration::from_millis(100);

const UPSTREAM_TIME: Duration = Duration::from_millis(50);

/// Tolerance: NGINX reports whole milliseconds, and the service adds half a millisecond.
const ROUNDING: Duration = Duration::from_millis(2);

/// A POST without the last byte of its body.
const UNFINISHED_REQUEST: &str =
    "POST / HTTP/1.1\r\nhost: edge\r\nconnection: close\r\ncontent-length: 2\r\n\r\no";

/// An HTTP/2 client with a window of one byte. The request is in flight until the client reads the
/// second byte.
struct SlowClient {
    runtime: Runtime,
    answer: ResponseFuture,
}

impl SlowClient {
    fn ask(ingress: SocketAddr) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let mut requests = runtime.block_on(async {
            let stream = TcpStream::connect(ingress).await.unwrap();
            let mut client = h2::client::Builder::new();
            let connected = client.initial_window_size(1).handshake::<_, Bytes>(stream);
            let (requests, connection) = connected.await.unwrap();
            tokio::spawn(connection);
            requests
        });
        let request = Request::get("http://edge/").body(()).unwrap();
        let (answer, _) = requests.send_request(request, true).unwrap();
        Self { runtime, answer }
    }

    fn begin(&mut self) -> RecvStream {
        self.runtime.block_on(async {
            let answer = soon("an answer", &mut self.answer).await.unwrap();
            assert_eq!(answer.status(), 200);
            let mut body = answer.into_body();
            assert_eq!(soon("its first byte", body.data()).await.unwrap().unwrap(), "o");
            body
        })
    }

    fn end(&self, mut body: RecvStream) {
        body.flow_control().release_capacity(1).unwrap();
        let last = self.runtime.block_on(soon("its last byte", body.data()));
        assert_eq!(last.unwrap().unwrap(), "k");
    }
}

/// Sends the response after a delay. Returns a lower bound of the upstream's response time.
fn answer_after_delay(visit: Visit) -> Duration {
    let began = now();
    sleep(UPSTREAM_TIME);
    let took = began.elapsed();
    visit.answer();
    took
}

/// Asserts that the measured latency of the only bucket is from `least` to `most`.
fn check_latency(by: &str, admin: SocketAddr, least: Duration, most: Duration) {
    let shown = http1::get(admin, "/permits", &[]).unwrap().text();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let rtt = shown["busiest"][0]["rtt_us"].as_u64().map(Duration::from_micros);
    let rtt = rtt.unwrap_or_else(|| panic!("{by}: no latency: {shown:#}"));
    let lies = least <= rtt + ROUNDING && rtt <= most + ROUNDING;
    assert!(lies, "{by}: {rtt:?}, and the upstream took {least:?} to {most:?}");
}

#[test]
fn envoy_latency_excludes_queue_and_slow_download() {
    for hook in HOOKS {
        let scene = EnvoyScene::changed(hook, &limit_all_requests(LIMIT), |_| {});
        let first = scene.send();
        let held = scene.upstream.next();
        let mut client = SlowClient::ask(scene.envoy.ingress);
        scene.expect_gauge("sluicegate_requests_queued", 1);
        sleep(QUEUE_WAIT);
        let freed = now();
        // The failed request is not measured, so the shown latency is that of the next one.
        held.refuse();
        let least = answer_after_delay(scene.upstream.next());
        let body = client.begin();
        let most = freed.elapsed();
        // The client waits long enough to exceed `most` if its download time counted.
        sleep(most);
        assert_eq!(gauge(scene.service.metrics, "sluicegate_requests_in_flight"), 1, "{hook:?}");
        client.end(body);
        scene.expect_in_flight(0);
        assert_eq!(first.join().unwrap().unwrap().status, 503);
        check_latency(&format!("{hook:?}"), scene.service.admin, least, most);
    }
}

#[test]
fn nginx_latency_excludes_queue_and_slow_upload() {
    let scene = nginx_in_flight::NginxScene::with_limit(Integration::Datagrams, LIMIT);
    let first = scene.send();
    let held = scene.upstream.next();
    let mut client = scene.connect_and_send(UNFINISHED_REQUEST);
    scene.expect_queued(1);
    sleep(QUEUE_WAIT);
    held.refuse();
    scene.expect_queued(0);
    sleep(QUEUE_WAIT);
    let whole = now();
    client.write_all(b"k").unwrap();
    let least = answer_after_delay(scene.upstream.next());
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    let most = whole.elapsed();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // After a request with a body, NGINX waits up to 5 s for the client to close, and then reports
    // the end.
    drop(client);
    scene.expect_in_flight(0);
    assert_eq!(first.join().unwrap().unwrap().status, 503);
    check_latency("datagrams", scene.service.admin, least, most);
}

#[test]
fn failures_lower_the_limit_and_are_not_measured() {
    for hook in HOOKS {
        let scene = EnvoyScene::changed(hook, &limit_all_requests(FALLING_LIMIT), |_| {});
        lower_limit(&scene.service, &scene.upstream, || scene.send());
    }
    let scene = nginx_in_flight::NginxScene::with_limit(Integration::Datagrams, FALLING_LIMIT);
    lower_limit(&scene.service, &scene.upstream, || scene.send());
}
