//! What an adaptive ceiling learns from, as real proxies with the shipped configurations tell it: how long the upstream took, in
//! which neither the wait for a place nor a slow client has part, and that it failed.
//!
//! The waits are the load. Between what a latency must lie is taken by the clock here, so that a busy machine moves the bounds
//! as it moves the latency.
//! Leaves out: `ext_proc` and Lua's connections, which tell no latency: there it is the place's own time.

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
use super::in_flight::{FALLS, Scene, fall, gauge, over_all};
use super::in_nginx::{self, By};
use super::visits::Visit;
use crate::http1;
use crate::waiting::{now, soon};

/// The Envoys that tell of a request's end beside its place.
const HOOKS: [Shipped; 2] = [Shipped::RlsConcurrency, Shipped::ExtAuthzConcurrency];

/// One place, and one that waits for it.
const ONE: &str =
    "limit: 1, adaptive: {policy: aimd, min: 1, max: 1}, queue: {size: 1, timeout: 9s}";

/// What a request waits for its place.
const WAITED: Duration = Duration::from_millis(100);

/// What the upstream then takes for it.
const WORKED: Duration = Duration::from_millis(50);

/// NGINX tells whole milliseconds, to which the service adds half of one.
const CUT: Duration = Duration::from_millis(2);

/// A request without the last byte of its body.
const BEGUN: &str =
    "POST / HTTP/1.1\r\nhost: edge\r\nconnection: close\r\ncontent-length: 2\r\n\r\no";

/// A client over HTTP/2 that takes the two bytes of its answer one by one: before it has taken the last, its request is in flight.
struct Slow {
    runtime: Runtime,
    answer: ResponseFuture,
}

impl Slow {
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

    /// Takes the first byte.
    fn begin(&mut self) -> RecvStream {
        self.runtime.block_on(async {
            let answer = soon("an answer", &mut self.answer).await.unwrap();
            assert_eq!(answer.status(), 200);
            let mut body = answer.into_body();
            assert_eq!(soon("its first byte", body.data()).await.unwrap().unwrap(), "o");
            body
        })
    }

    /// Takes the last one.
    fn end(&self, mut body: RecvStream) {
        body.flow_control().release_capacity(1).unwrap();
        let last = self.runtime.block_on(soon("its last byte", body.data()));
        assert_eq!(last.unwrap().unwrap(), "k");
    }
}

/// Works on it and answers: as long as that, at least, the upstream takes.
fn work(visit: Visit) -> Duration {
    let began = now();
    sleep(WORKED);
    let took = began.elapsed();
    visit.answer();
    took
}

/// The latency of the one bucket, which one request made.
fn lies_between(by: &str, admin: SocketAddr, least: Duration, most: Duration) {
    let shown = http1::get(admin, "/permits", &[]).unwrap().text();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let told = shown["busiest"][0]["rtt_us"].as_u64().map(Duration::from_micros);
    let told = told.unwrap_or_else(|| panic!("{by}: no latency: {shown:#}"));
    let lies = least <= told + CUT && told <= most + CUT;
    assert!(lies, "{by}: {told:?}, and the upstream took {least:?} to {most:?}");
}

#[test]
fn with_envoy_a_latency_has_neither_the_queue_nor_a_slow_download_in_it() {
    for hook in HOOKS {
        let scene = Scene::changed(hook, &over_all(ONE), |_| {});
        let first = scene.send();
        let held = scene.upstream.next();
        let mut client = Slow::ask(scene.envoy.ingress);
        scene.shows("sluicegate_requests_queued", 1);
        sleep(WAITED);
        let freed = now();
        // What failed is no latency: the one that is shown is the next one's.
        held.refuse();
        let least = work(scene.upstream.next());
        let body = client.begin();
        let most = freed.elapsed();
        // For so long that a latency which has this in it is too long.
        sleep(most);
        assert_eq!(gauge(scene.service.metrics, "sluicegate_requests_in_flight"), 1, "{hook:?}");
        client.end(body);
        scene.holds(0);
        assert_eq!(first.join().unwrap().unwrap().status, 503);
        lies_between(&format!("{hook:?}"), scene.service.admin, least, most);
    }
}

#[test]
fn with_datagrams_a_latency_has_neither_the_queue_nor_a_slow_upload_in_it() {
    let scene = in_nginx::Scene::under(By::Datagrams, ONE);
    let first = scene.send();
    let held = scene.upstream.next();
    let mut client = scene.connect_to_say(BEGUN);
    scene.waits(1);
    sleep(WAITED);
    held.refuse();
    scene.waits(0);
    sleep(WAITED);
    let whole = now();
    client.write_all(b"k").unwrap();
    let least = work(scene.upstream.next());
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    let most = whole.elapsed();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // NGINX waits up to 5 s for a client that sent a body to close, and tells of the end after it.
    drop(client);
    scene.holds(0);
    assert_eq!(first.join().unwrap().unwrap().status, 503);
    lies_between("datagrams", scene.service.admin, least, most);
}

#[test]
fn with_envoy_and_with_datagrams_what_failed_is_no_latency_and_lowers_the_ceiling() {
    for hook in HOOKS {
        let scene = Scene::changed(hook, &over_all(FALLS), |_| {});
        fall(&scene.service, &scene.upstream, || scene.send());
    }
    let scene = in_nginx::Scene::under(By::Datagrams, FALLS);
    fall(&scene.service, &scene.upstream, || scene.send());
}
