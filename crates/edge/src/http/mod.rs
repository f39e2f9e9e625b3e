//! Serves the three HTTP ports: checks with health, metrics, and admin with the console.
//!
//! Guarantees:
//! - A client that is slow to send a request head or to read a reply is disconnected.
//! - The number of connections is bounded. Health probes above the bound are answered.
//! - Shutdown closes the listener at once and finishes the open requests.
//! - Requests in queues and on `/acquire` use at most three quarters of the connections.
//! - A request that waits in a queue is dropped when its client disconnects.
//!
//! Not covered:
//! - TLS.
//! - A time limit for finishing requests at shutdown.
//! - The disconnect of a client whose unread data fills the socket's receive buffer.

pub mod admin;
mod check_port;
mod connection;
mod console;
mod health_routes;
pub mod json;
pub mod metrics;
pub mod nginx;
mod response;
mod serve;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ALLOW, CONNECTION};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;

use crate::telemetry::event::Protocol;
use crate::telemetry::trace;

pub use check_port::CheckPort;
use connection::HttpPeer;
pub use health_routes::{health_routes, is_health_path};
use nginx::long_requests::LongRequestSlots;
use response::{NO_SNIFF, PLAIN, status_response};
pub use serve::{HttpTimeouts, serve, serve_with_timeouts};

struct CheckPortState {
    config: CheckPort,
    slots: LongRequestSlots,
}

/// Serves `/json`, `/check`, `/acquire`, `/healthcheck`, `/livez` and `/readyz`.
///
/// Paths must match exactly. Every method is allowed, except for `/acquire`, which requires GET.
/// Requests in queues and on `/acquire` may use three quarters of `max_connections`.
pub fn router(config: CheckPort, max_connections: usize) -> Router {
    router_with_slots(config, max_connections - max_connections / 4)
}

/// Like [`router`], with `max_slots` as the maximum number of requests in queues and on `/acquire`.
pub fn router_with_slots(config: CheckPort, max_slots: usize) -> Router {
    let health = health_routes(Arc::clone(&config.engine), config.health.clone());
    Router::new()
        .route("/json", any(json))
        .route("/check", any(check))
        .route("/acquire", any(acquire))
        .fallback(not_found)
        .with_state(Arc::new(CheckPortState { config, slots: LongRequestSlots::new(max_slots) }))
        .merge(health)
}

async fn json(State(port): State<Arc<CheckPortState>>, request: Request<Body>) -> Response {
    let span = check_span(Protocol::Json, request.headers());
    span.scope(json::reply_to_check(&port.config, request.into_body())).await
}

async fn check(State(port): State<Arc<CheckPortState>>, request: Request<Body>) -> Response {
    let (head, _) = request.into_parts();
    let span = check_span(Protocol::Nginx, &head.headers);
    let peer = HttpPeer::from_extensions(&head.extensions);
    // Boxed, because the future is large and the futures that contain it are moved.
    let answer = Box::pin(nginx::reply_to_check(&port.config, &port.slots, &head.headers));
    unless_disconnected(&peer, span.scope(answer)).await
}

async fn acquire(State(port): State<Arc<CheckPortState>>, request: Request<Body>) -> Response {
    let (head, _) = request.into_parts();
    // A reply to HEAD has no body, and the body must stay open while the permit lasts.
    if head.method != Method::GET {
        return ([(ALLOW, "GET")], status_response(StatusCode::METHOD_NOT_ALLOWED)).into_response();
    }
    let span = trace::acquire(&|name| head.headers.get(name)?.to_str().ok());
    let peer = HttpPeer::from_extensions(&head.extensions);
    let answer = nginx::acquire::reply_with_permit(&port.config, &port.slots, &head.headers, &peer);
    unless_disconnected(&peer, span.scope(answer)).await
}

/// Returns the response, or closes the connection if the client disconnects first.
/// Without the close, hyper would parse the client's unread data as another request.
async fn unless_disconnected(
    peer: &HttpPeer,
    response: impl Future<Output = Response>,
) -> Response {
    tokio::select! {
        // Polls the decision first, because most decisions are immediate.
        biased;
        answer = response => answer,
        () = peer.closed() => (StatusCode::REQUEST_TIMEOUT, [(CONNECTION, "close")]).into_response(),
    }
}

fn check_span(protocol: Protocol, headers: &HeaderMap) -> trace::TraceSpan {
    trace::check_span(protocol, &|name| headers.get(name)?.to_str().ok())
}

async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, PLAIN, NO_SNIFF, "404 page not found\n").into_response()
}
