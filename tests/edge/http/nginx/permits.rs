//! Concurrency limits: `/check` with a request id, and `/acquire`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::body_memory::BodyLimits;
use sluicegate::edge::health::{Health, Readiness};
use sluicegate::edge::http::{CheckPort, router, router_with_slots, serve};
use sluicegate::engine::Engine;
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::units::Revision;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::codegen::Service as _;

use super::{SET, check, hooks, port, status, with};
use crate::edge::engine;
use crate::edge::http::{MAX_CONNECTIONS, gate, read_until};
use crate::support::waiting::PATIENCE;

const ID: (&str, &str) = ("x-sluicegate-id", "0123456789abcdef");

/// An engine and its router with a concurrency limit of one. `rest` adds fields to the limit.
fn with_concurrency_limit(rest: &str) -> (Arc<Engine>, Router) {
    let text = format!("domain: d\ndescriptors:\n- key: k\n  concurrency: {{limit: 1{rest}}}\n");
    let (config, _) =
        sluicegate::config::load([("a.yaml", text.as_bytes())], Revision(1), false).unwrap();
    let engine = engine(config);
    (Arc::clone(&engine), port(engine, hooks("")))
}

#[tokio::test]
async fn a_denied_permit_returns_the_configured_rejection() {
    let reject = ", reject: {status: 503, retry_after: 1500ms, body: busy}";
    let (engine, router) = with_concurrency_limit(reject);
    assert_eq!(status(&router, &[("x-key", "v"), ID]).await, 200);
    assert_eq!(engine.concurrency_limits().totals().in_flight, 1);
    let other = ("x-sluicegate-id", "another-0123456789");
    let (status, headers, _) = check(&router, &with(&[("x-key", "v"), other])).await;
    assert_eq!((status, &headers["x-deny-status"]), (403, &"503".parse().unwrap()));
    assert_eq!(
        (&headers["retry-after"], &headers["x-deny-body"]),
        (&"2".parse().unwrap(), &"busy".parse().unwrap())
    );
    assert_eq!(headers["x-sluicegate-denied-by"], "d.k");
    engine.release(ID.1, None, RequestOutcome::Success, None);
    assert_eq!(self::status(&router, &[("x-key", "v"), other]).await, 200);
}

#[tokio::test]
async fn requests_without_an_id_acquire_no_permit() {
    let (engine, router) = with_concurrency_limit("");
    for _ in 0..3 {
        assert_eq!(status(&router, &[("x-key", "v")]).await, 200);
    }
    assert_eq!(engine.concurrency_limits().totals().in_flight, 0);
}

#[tokio::test]
async fn invalid_duplicate_and_active_request_ids_are_rejected() {
    let (engine, router) = with_concurrency_limit(", reject: {body: \"two\\nlines\"}");
    let long = "x".repeat(129);
    for bad in ["", "0123456789abcde", "0123456789abcde!", &long] {
        let (status, _, text) = check(&router, &with(&[("x-key", "v"), (ID.0, bad)])).await;
        assert_eq!(status, 400, "{bad}");
        assert!(text.contains(ID.0), "{text}");
    }
    assert_eq!(status(&router, &[("x-key", "v"), ID, ID]).await, 400);
    assert_eq!(engine.concurrency_limits().totals().in_flight, 0);
    assert_eq!(status(&router, &[("x-key", "v"), ID]).await, 200);
    assert_eq!(status(&router, &[("x-key", "v"), ID]).await, 400, "in flight already");
    // A rejection body of two lines cannot be sent in a header.
    let other = (ID.0, "another-0123456789");
    let (status, headers, _) = check(&router, &with(&[("x-key", "v"), other])).await;
    assert_eq!((status, headers.contains_key("x-deny-body")), (403, false));
}

/// As [`with_concurrency_limit`]; at most `most` requests may have a `/acquire` response or wait in
/// the queue.
fn with_pending_limit(most: usize) -> (Arc<Engine>, Router) {
    let (engine, _) = with_concurrency_limit(", queue: {size: 9, timeout: 10m}");
    let (reporting, hooks) = (ReplyOptions::default(), Arc::new(hooks("")));
    let (health, leaving) = (Health::new(Readiness::Ready), watch::channel(false).1);
    let ask = CheckPort {
        engine: Arc::clone(&engine),
        reporting,
        health,
        hooks,
        draining: leaving,
        bodies: BodyLimits::default(),
    };
    (engine, router_with_slots(ask, most))
}

/// Starts a check and returns when it waits in the queue.
async fn queued_check(engine: &Engine, router: &Router, id: &'static str) -> JoinHandle<u16> {
    let (router, before) = (router.clone(), engine.concurrency_limits().totals().waiting);
    let asks = async move { status(&router, &[("x-key", "v"), (ID.0, id)]).await };
    let asked = tokio::spawn(asks);
    until("it waits", || engine.concurrency_limits().totals().waiting == before + 1).await;
    asked
}

#[tokio::test]
async fn queued_requests_and_open_hold_responses_share_one_maximum() {
    let (engine, router) = with_pending_limit(1);
    let waiting = || engine.concurrency_limits().totals().waiting;
    assert_eq!(status(&router, &[("x-key", "v"), ID]).await, 200);
    let first = queued_check(&engine, &router, "the-first-that-waits").await;
    let second = ("x-sluicegate-id", "the-second-of-them");
    let headers = with(&[("x-key", "v"), second]);
    let refused = timeout(PATIENCE, check(&router, &headers)).await;
    let (refused, _, text) = refused.expect("it waits, too");
    assert_eq!(refused, 503);
    assert!(
        text.contains("too many requests with a permit or in a queue: the maximum is 1"),
        "{text}"
    );
    assert_eq!(waiting(), 1, "it waits no more");
    assert_eq!(hold(&router, "GET").await.status().as_u16(), 503, "the places are the same");
    assert!(!engine.release(second.1, None, RequestOutcome::Ignored, None));
    assert_eq!(engine.early_releases().0, 0, "its release is expected");

    let other_bucket = ("x-sluicegate-id", "under-another-ceiling");
    assert_eq!(status(&router, &[("x-key", "w"), other_bucket]).await, 200, "it need not wait");

    engine.release(ID.1, None, RequestOutcome::Success, None);
    assert_eq!(first.await.unwrap(), 200);
    let next = queued_check(&engine, &router, "the-next-that-waits").await;
    next.abort();
    assert!(next.await.unwrap_err().is_cancelled());
    queued_check(&engine, &router, "who-left-left-its-place").await.abort();
}

#[tokio::test]
async fn maximum_of_open_hold_responses_prevents_queueing() {
    let (engine, router) = with_pending_limit(1);
    let held = hold(&router, "GET").await;
    assert_eq!(held.status().as_u16(), 200);
    let refused = timeout(PATIENCE, status(&router, &[("x-key", "v"), ID])).await;
    assert_eq!(refused.expect("it waits"), 503);
    assert_eq!(engine.concurrency_limits().totals().waiting, 0);
    drop(held);
    assert_eq!(status(&router, &[("x-key", "v"), ID]).await, 200);
}

/// As [`with_concurrency_limit`]. The returned sender starts the drain, which ends open `/acquire`
/// responses.
fn with_drain_signal(rest: &str) -> (Arc<Engine>, Router, watch::Sender<bool>) {
    let (engine, _) = with_concurrency_limit(rest);
    let (leave, leaving) = watch::channel(false);
    let health = Health::new(Readiness::Ready);
    let (reporting, hooks) = (ReplyOptions::default(), Arc::new(hooks("")));
    let router = router(
        CheckPort {
            engine: Arc::clone(&engine),
            reporting,
            health,
            hooks,
            draining: leaving,
            bodies: BodyLimits::default(),
        },
        MAX_CONNECTIONS,
    );
    (engine, router, leave)
}

async fn hold(router: &Router, method: &str) -> Response<Body> {
    let mut request = Request::builder().method(method).uri("/acquire");
    for (name, value) in SET.into_iter().chain([("x-key", "v")]) {
        request = request.header(name, value);
    }
    let Ok(response) = router.clone().call(request.body(Body::empty()).unwrap()).await;
    response
}

#[tokio::test]
async fn closing_a_hold_response_releases_its_permit_but_draining_does_not() {
    let (engine, router, leave) = with_drain_signal("");
    let in_flight = || engine.concurrency_limits().totals().in_flight;
    let first = hold(&router, "GET").await;
    assert_eq!((first.status().as_u16(), in_flight()), (200, 1));
    let denied = hold(&router, "GET").await;
    assert_eq!(denied.headers()["x-deny-status"], "503");
    assert_eq!(denied.headers()["connection"], "close");
    drop(first);
    assert_eq!(in_flight(), 0);
    // Draining ends the open `/acquire` response. The request continues, so it is still in flight.
    let first = hold(&router, "GET").await;
    assert_eq!(in_flight(), 1);
    leave.send_replace(true);
    let body = axum::body::to_bytes(first.into_body(), 10).await.unwrap();
    assert_eq!((body.len(), in_flight()), (0, 1));
}

#[tokio::test]
async fn hold_endpoint_accepts_only_get() {
    let (engine, router, _leave) = with_drain_signal("");
    for method in ["HEAD", "POST", "DELETE"] {
        let refused = hold(&router, method).await;
        assert_eq!(refused.status().as_u16(), 405, "{method}");
        assert_eq!(refused.headers()["allow"], "GET");
        assert_eq!(engine.concurrency_limits().totals().in_flight, 0);
    }
    assert_eq!(hold(&router, "GET").await.status().as_u16(), 200);
}

async fn served(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, router, gate(), std::future::pending()));
    address
}

/// Connects and sends a GET request with the headers `more`, followed by the bytes `rest`.
async fn send_get(address: SocketAddr, path: &str, more: &str, rest: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let set = SET.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
    let asked = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{set}x-key: v\r\n{more}\r\n{rest}");
    stream.write_all(asked.as_bytes()).await.unwrap();
    stream
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let seen = async {
        while !is() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"));
}

#[tokio::test]
async fn closing_the_connection_releases_the_permit_despite_extra_bytes() {
    let (engine, router, _leave) = with_drain_signal("");
    let address = served(router).await;
    let in_flight = || engine.concurrency_limits().totals().in_flight;
    for (more, rest) in [
        ("", ""),
        ("", "X"),
        ("", "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"),
        ("content-length: 5\r\n", ""),
        ("content-length: 5\r\n", "bytes"),
        ("transfer-encoding: chunked\r\n", "5\r\nby"),
        ("expect: 100-continue\r\ncontent-length: 5\r\n", ""),
    ] {
        for (later, resets) in [("", false), ("", true), ("X", false), ("X", true)] {
            let how = format!("{more:?}, {rest:?}, {later:?}, reset {resets}");
            let mut client = send_get(address, "/acquire", more, rest).await;
            let head = read_until(&mut client, "\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{how}: {head}");
            assert_eq!(in_flight(), 1, "{how}");
            client.write_all(later.as_bytes()).await.unwrap();
            if resets {
                SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
            }
            drop(client);
            until(&how, || in_flight() == 0).await;
        }
    }
}

/// The engine's clock is stopped, so only the end of the `/acquire` response can release the permit.
#[tokio::test]
async fn hold_response_ends_after_max_duration() {
    let (engine, router, _leave) = with_drain_signal(", max_duration: 20ms");
    let mut held = send_get(served(router).await, "/acquire", "", "").await;
    let mut text = String::new();
    let ended = timeout(PATIENCE, held.read_to_string(&mut text)).await;
    ended.expect("it has to end").unwrap();
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("\r\n\r\n0\r\n\r\n"), "{text}");
    assert_eq!(engine.concurrency_limits().totals().in_flight, 0);
}

#[tokio::test]
async fn a_disconnected_client_leaves_the_queue() {
    let (engine, router, _leave) = with_drain_signal(", queue: {size: 1, timeout: 10m}");
    let address = served(router).await;
    let waiting = || engine.concurrency_limits().totals().waiting;
    let mut held = send_get(address, "/acquire", "", "").await;
    read_until(&mut held, "\r\n\r\n").await;
    let another = "x-sluicegate-id: another-0123456789\r\n";
    for path in ["/check", "/acquire"] {
        for rest in ["", "X", "GET /check HTTP/1.1\r\nhost: x\r\n\r\n"] {
            let how = format!("{path}, {rest:?}");
            let waits = send_get(address, path, another, rest).await;
            until(&how, || waiting() == 1).await;
            drop(waits);
            until(&how, || waiting() == 0).await;
        }
    }
    assert_eq!(engine.concurrency_limits().totals().in_flight, 1);
}
