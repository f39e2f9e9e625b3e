//! Tests of the HTTP port: routes, bodies, health, connections.

mod admin;
mod console;
mod health_routes;
mod json;
mod metrics;
pub mod nginx;
mod timeouts;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use serde_json::{Value, json};
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::body_memory::BodyLimits;
use sluicegate::edge::connection_gate::{ConnectionGate, ListenPort};
use sluicegate::edge::headers::{CompatHeaderNames, RateLimitHeaders};
use sluicegate::edge::health::{Health, Readiness};
use sluicegate::edge::http::{CheckPort, router, serve};
use sluicegate::engine::Engine;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tonic::codegen::Service as _;

use super::{empty_engine, engine, two_a_minute};
use crate::support::waiting::soon;

const ONE_HIT: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;

pub(super) const MAX_CONNECTIONS: usize = 4_096;

/// A bound that no test reaches.
pub(super) fn gate() -> ConnectionGate {
    ConnectionGate::new(ListenPort::Http, MAX_CONNECTIONS)
}

fn port(engine: Arc<Engine>, reporting: ReplyOptions, health: &Health) -> Router {
    router(
        CheckPort {
            engine,
            reporting,
            health: health.clone(),
            hooks: Arc::default(),
            draining: watch::channel(false).1,
            bodies: BodyLimits::default(),
        },
        MAX_CONNECTIONS,
    )
}

fn default_router(engine: Arc<Engine>) -> Router {
    port(engine, ReplyOptions::default(), &Health::new(Readiness::Ready))
}

/// Sends a request and returns status, content type and body of the response.
async fn call(router: &Router, request: Request<Body>) -> (u16, String, String) {
    let Ok(response) = router.clone().call(request).await;
    let status = response.status().as_u16();
    let kind = header(&response, "content-type");
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, kind, String::from_utf8(body.to_vec()).unwrap())
}

fn header(response: &Response<Body>, name: &str) -> String {
    response.headers().get(name).map_or_else(String::new, |v| v.to_str().unwrap().to_owned())
}

fn to(method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder().method(method).uri(path).body(body.into()).unwrap()
}

async fn post(router: &Router, body: impl Into<Body>) -> (u16, Value) {
    let (status, kind, body) = call(router, to("POST", "/json", body)).await;
    assert_eq!(kind, "application/json", "{body}");
    (status, serde_json::from_str(&body).unwrap())
}

#[tokio::test]
async fn checks_return_200_until_the_limit_then_429() {
    let router = default_router(engine(two_a_minute()));
    let want = |code: &str, remaining: u32| {
        let limit = json!({"name": "lim", "requestsPerUnit": 2, "unit": "MINUTE"});
        let mut status = json!({"code": code, "currentLimit": limit, "durationUntilReset": "60s"});
        if 0 < remaining {
            status["limitRemaining"] = remaining.into();
        }
        json!({"overallCode": code, "statuses": [status]})
    };
    assert_eq!(post(&router, ONE_HIT).await, (200, want("OK", 1)));
    assert_eq!(post(&router, ONE_HIT).await, (200, want("OK", 0)));
    assert_eq!(post(&router, ONE_HIT).await, (429, want("OVER_LIMIT", 0)));
}

#[tokio::test]
async fn unlimited_and_unmatched_descriptors_omit_defaults() {
    let body =
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"u"}]},{"entries":[{"key":"zz"}]},{}]}"#;
    let statuses = json!([{"code": "OK", "limitRemaining": 4_294_967_295_u32}, {"code": "OK"}, {"code": "OK"}]);
    let want = json!({"overallCode": "OK", "statuses": statuses});
    assert_eq!(post(&default_router(engine(two_a_minute())), body).await, (200, want));
}

#[tokio::test]
async fn rate_limit_headers_and_metadata_appear_in_the_body() {
    let reporting = ReplyOptions {
        headers: RateLimitHeaders {
            compat_names: Some(CompatHeaderNames::default()),
            ..RateLimitHeaders::default()
        },
        dynamic_metadata: true,
        ..ReplyOptions::default()
    };
    let router = port(engine(two_a_minute()), reporting, &Health::new(Readiness::Ready));
    let (_, body) = post(&router, ONE_HIT).await;
    let headers = json!([{"key": "RateLimit-Limit", "value": "2"},
        {"key": "RateLimit-Remaining", "value": "1"}, {"key": "RateLimit-Reset", "value": "60"}]);
    assert_eq!(body["responseHeadersToAdd"], headers);
    let metadata = json!({"domain": "d", "descriptors": [{"entries": ["k=v"]}]});
    assert_eq!(body["dynamicMetadata"], metadata);
}

#[tokio::test]
async fn any_method_is_accepted_but_paths_are_exact() {
    let router = default_router(engine(two_a_minute()));
    for method in ["GET", "PUT"] {
        assert_eq!(call(&router, to(method, "/json", ONE_HIT)).await.0, 200);
    }
    let not_found =
        (404, "text/plain; charset=utf-8".to_owned(), "404 page not found\n".to_owned());
    for path in ["/", "/json/", "/JSON", "/nothing", "/healthcheck/", "/metrics", "/config"] {
        assert_eq!(call(&router, to("POST", path, ONE_HIT)).await, not_found, "{path}");
    }
}

#[tokio::test]
async fn invalid_checks_return_400_and_charge_nothing() {
    let router = default_router(engine(two_a_minute()));
    let over = (1_u64 << 63).to_string();
    let bodies = [
        String::new(),
        "[]".into(),
        r#"{"domain":"d","bogus":1}"#.into(),
        r#"{"domain":"","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#.into(),
        r#"{"domain":"d","descriptors":null}"#.into(),
        ONE_HIT.replace("}]}]}", r#"}],"limit":{"requestsPerUnit":5}}]}"#),
        ONE_HIT.replace("}]}]}", r#"}],"isNegativeHits":true}]}"#),
        ONE_HIT.replace("}]}]}", &format!(r#"}}],"hitsAddend":{over}}}]}}"#)),
        ONE_HIT.replace(r#""k""#, &format!(r#""{}""#, "x".repeat(64 * 1024))),
        format!(r#"{{"domain":"d","descriptors":[{}{{}}]}}"#, "{},".repeat(9_999)),
        ONE_HIT[..40].into(),
    ];
    for body in bodies {
        let shown: String = body.chars().take(80).collect();
        let Ok(response) = router.clone().call(to("POST", "/json", body)).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{shown}");
        assert_eq!(header(&response, "content-type"), "text/plain; charset=utf-8");
        assert_eq!(header(&response, "x-content-type-options"), "nosniff");
        let body = axum::body::to_bytes(response.into_body(), 99).await.unwrap();
        assert_eq!(&body[..], b"Bad Request\n", "{shown}");
    }
    let (_, fresh) = post(&router, ONE_HIT).await;
    assert_eq!(fresh["statuses"][0]["limitRemaining"], 1, "a counter moved");
}

#[tokio::test]
async fn checks_return_400_before_limits_are_loaded() {
    let (status, _, body) =
        call(&default_router(empty_engine()), to("POST", "/json", ONE_HIT)).await;
    assert_eq!((status, &*body), (400, "Bad Request\n"));
}

#[tokio::test]
async fn bodies_above_one_mebibyte_return_413() {
    let router = default_router(engine(two_a_minute()));
    let padded = |size: usize| ONE_HIT.to_owned() + &" ".repeat(size - ONE_HIT.len());
    assert_eq!(post(&router, padded(1 << 20)).await.0, 200);
    let (status, _, body) = call(&router, to("POST", "/json", padded((1 << 20) + 1))).await;
    assert_eq!((status, &*body), (413, "Payload Too Large\n"));
}

#[tokio::test]
async fn reading_an_endless_body_stops_at_the_limit() {
    let read = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&read);
    let chunks = std::iter::repeat_with(move || {
        counting.fetch_add(1, Relaxed);
        Ok::<_, Infallible>(vec![b' '; 64 * 1024])
    });
    let endless = Body::from_stream(tokio_stream::iter(chunks));
    assert_eq!(
        call(&default_router(engine(two_a_minute())), to("POST", "/json", endless)).await.0,
        413
    );
    assert_eq!(read.load(Relaxed), 17, "16 chunks fit, one is too much");
}

#[tokio::test]
async fn an_interrupted_body_returns_400() {
    let chunks = [Ok(ONE_HIT.as_bytes()), Err(std::io::Error::other("gone"))];
    let body = Body::from_stream(tokio_stream::iter(chunks));
    assert_eq!(
        call(&default_router(engine(two_a_minute())), to("POST", "/json", body)).await.0,
        400
    );
}

#[tokio::test]
async fn health_follows_readiness_for_any_method() {
    let health = Health::new(Readiness::NoConfig);
    let router = port(empty_engine(), ReplyOptions::default(), &health);
    let expected = [
        (Readiness::NoConfig, 500, "", 503, "not ready: no limits are loaded\n"),
        (Readiness::Ready, 200, "OK", 200, "ready\n"),
        (Readiness::Draining, 500, "", 503, "not ready: draining\n"),
    ];
    for (ready, healthy, healthcheck_body, readyz, why) in expected {
        health.set_readiness(ready);
        for method in ["GET", "POST", "DELETE"] {
            let (code, _, body) = call(&router, to(method, "/healthcheck", "x")).await;
            assert_eq!((code, &*body), (healthy, healthcheck_body), "{ready:?}");
        }
        let (code, _, body) = call(&router, to("GET", "/readyz", "")).await;
        assert_eq!((code, &*body), (readyz, why));
        assert_eq!(call(&router, to("GET", "/livez", "")).await.0, 200, "{ready:?}");
    }
}

/// With the setting `store.required_for_health`; the expected statuses are in docs/reference/headers-and-statuses.md.
#[tokio::test]
async fn an_unavailable_store_fails_readiness_but_not_liveness() {
    let health = Health::new(Readiness::Ready);
    let router = port(empty_engine(), ReplyOptions::default(), &health);
    for (answers, healthy, readyz) in [(false, 500, 503), (true, 200, 200)] {
        health.set_store_available(answers);
        let mut found = Vec::new();
        for path in ["/healthcheck", "/readyz", "/livez"] {
            found.push(call(&router, to("GET", path, "")).await.0);
        }
        assert_eq!(found, [healthy, readyz, 200], "the store answers: {answers}");
    }
}

#[test]
fn a_draining_replica_never_becomes_ready_again() {
    let health = Health::new(Readiness::Ready);
    health.set_readiness(Readiness::Draining);
    health.set_readiness(Readiness::Ready);
    assert_eq!(health.readiness(), Readiness::Draining);
}

/// Starts a server. Returns a connection to it, its stop signal and its task.
async fn served() -> (TcpStream, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let router = default_router(engine(two_a_minute()));
    let until: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(async move { drop(stopped.await) });
    let server = tokio::spawn(serve(listener, router, gate(), until));
    (TcpStream::connect(address).await.unwrap(), stop, server)
}

/// Reads from the connection until the received text contains `end`.
pub(super) async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(end) {
        let mut chunk = [0; 1024];
        let n = soon(end, stream.read(&mut chunk)).await.unwrap();
        assert_ne!(n, 0, "closed after {:?}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&chunk[..n]);
    }
    String::from_utf8(seen).unwrap()
}

#[tokio::test]
async fn an_oversized_content_length_is_rejected_before_the_body() {
    let (mut stream, _stop, _server) = served().await;
    let head = "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 104857600\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let reply = read_until(&mut stream, "Payload Too Large\n").await;
    assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
}

#[tokio::test]
async fn shutdown_finishes_requests_in_progress() {
    let (mut stream, stop, server) = served().await;
    let head = format!(
        "POST /json HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        ONE_HIT.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // "100 Continue" asks for the body, so the server is processing the request.
    read_until(&mut stream, "100 Continue\r\n\r\n").await;
    stop.send(()).unwrap();
    let address = stream.peer_addr().unwrap();
    soon("nobody listens", async { while TcpStream::connect(address).await.is_ok() {} }).await;
    assert!(!server.is_finished(), "the listener is closed, the request is not answered");
    stream.write_all(ONE_HIT.as_bytes()).await.unwrap();
    let reply = read_until(&mut stream, "limitRemaining").await;
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    soon("the end of the server", server).await.unwrap();
}

#[tokio::test]
async fn idle_connections_do_not_delay_shutdown() {
    let (mut stream, stop, server) = served().await;
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    read_until(&mut stream, "alive").await;
    stop.send(()).unwrap();
    soon("the end of the server", server).await.unwrap();
}
