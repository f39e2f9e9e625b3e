//! Serves the three HTTP ports: checks with health, metrics, and admin.
//!
//! Guarantees:
//! - A client that is slow to send a request head or to read a reply is disconnected.
//! - The number of connections is bounded.
//! - Shutdown closes the listener at once and finishes the open requests, without a time limit.
//! - Requests in queues and on `/hold` use at most three quarters of the connections.
//! - A request that waits in a queue is dropped when its client disconnects.
//!
//! Not covered: TLS.

pub mod admin;
mod connection;
pub mod json;
pub mod metrics;
pub mod nginx;
mod serve;

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::sync::watch;

use super::ReplyOptions;
use super::health::{Health, Readiness};
use crate::config::hooks::Hooks;
use crate::engine::Engine;
use crate::kernel::decision::StoreFailure;
use crate::telemetry::event::Protocol;
use crate::telemetry::trace;

use connection::HttpPeer;
use nginx::hold::{LongRequestSlots, MAX_LONG_REQUESTS};
pub use serve::serve;

/// The dependencies of the port for checks and health.
#[derive(Clone, Debug)]
pub struct CheckPort {
    /// The engine that decides the checks.
    pub engine: Arc<Engine>,
    /// The optional parts of replies to checks.
    pub reporting: ReplyOptions,
    /// The readiness that the health endpoints report.
    pub health: Health,
    /// The hooks of `/check` and `/hold`.
    pub hooks: Arc<Hooks>,
    /// Becomes `true` when the process drains; open `/hold` connections must then end.
    pub draining: watch::Receiver<bool>,
}

type StaticHeader = [(HeaderName, &'static str); 1];

const JSON: StaticHeader = [(CONTENT_TYPE, "application/json")];
const PLAIN: StaticHeader = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
/// Keeps browsers from rendering the text of an error as HTML.
const NO_SNIFF: StaticHeader = [(X_CONTENT_TYPE_OPTIONS, "nosniff")];

struct CheckPortState {
    config: CheckPort,
    slots: LongRequestSlots,
}

/// Serves `/json`, `/check`, `/hold`, `/healthcheck`, `/livez` and `/readyz`. Every method is
/// allowed, except for `/hold`, which requires GET.
pub fn router(config: CheckPort) -> Router {
    router_with_slots(config, MAX_LONG_REQUESTS)
}

/// Like [`router`], with at most `max_slots` requests in queues and on `/hold`.
pub fn router_with_slots(config: CheckPort, max_slots: usize) -> Router {
    Router::new()
        .route("/json", any(json))
        .route("/check", any(check))
        .route("/hold", any(hold))
        .route("/healthcheck", any(healthcheck))
        .route("/livez", any(async || (PLAIN, "alive\n")))
        .route("/readyz", any(readyz))
        .fallback(not_found)
        .with_state(Arc::new(CheckPortState { config, slots: LongRequestSlots::new(max_slots) }))
}

async fn json(State(port): State<Arc<CheckPortState>>, request: Request<Body>) -> Response {
    let span = check_span(Protocol::Json, request.headers());
    span.scope(json::reply_to_check(&port.config, request.into_body())).await
}

async fn check(State(port): State<Arc<CheckPortState>>, request: Request<Body>) -> Response {
    let (head, _) = request.into_parts();
    let span = check_span(Protocol::Nginx, &head.headers);
    let peer = HttpPeer::from_extensions(&head.extensions);
    // Boxed, because the future is large and would be moved several times.
    let response = Box::pin(nginx::reply_to_check(&port.config, &port.slots, &head.headers));
    unless_disconnected(&peer, span.scope(response)).await
}

async fn hold(State(port): State<Arc<CheckPortState>>, request: Request<Body>) -> Response {
    let (head, _) = request.into_parts();
    // GET only: the body must stay open while the permit lasts, and a reply to HEAD has none.
    if head.method != Method::GET {
        return ([(ALLOW, "GET")], status_response(StatusCode::METHOD_NOT_ALLOWED)).into_response();
    }
    let span = trace::hold(&|name| head.headers.get(name)?.to_str().ok());
    let peer = HttpPeer::from_extensions(&head.extensions);
    let response = nginx::hold::reply_with_permit(&port.config, &port.slots, &head.headers, &peer);
    unless_disconnected(&peer, span.scope(response)).await
}

/// Returns the response, or closes the connection if the client disconnects first. Otherwise hyper
/// would parse the client's unread data as another request.
async fn unless_disconnected(
    peer: &HttpPeer,
    response: impl Future<Output = Response>,
) -> Response {
    tokio::select! {
        // Polls the decision first, because most decisions are immediate.
        biased;
        response = response => response,
        () = peer.closed() => (StatusCode::REQUEST_TIMEOUT, [(CONNECTION, "close")]).into_response(),
    }
}

fn check_span(protocol: Protocol, headers: &HeaderMap) -> trace::TraceSpan {
    trace::check_span(protocol, &|name| headers.get(name)?.to_str().ok())
}

/// Replies like envoyproxy/ratelimit: status 200 or 500, without a reason.
async fn healthcheck(State(port): State<Arc<CheckPortState>>) -> Response {
    match port.config.health.readiness() {
        Readiness::Ready => (PLAIN, "OK").into_response(),
        Readiness::NoConfig | Readiness::StoreUnavailable | Readiness::Draining => {
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn readyz(State(port): State<Arc<CheckPortState>>) -> Response {
    let CheckPort { engine, health, .. } = &port.config;
    let readiness = health.readiness();
    let status = match readiness {
        Readiness::Ready => StatusCode::OK,
        Readiness::NoConfig | Readiness::StoreUnavailable | Readiness::Draining => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    (status, PLAIN, format!("{readiness}{}\n", StoreFailureText(engine.store_failure())))
        .into_response()
}

/// The text of `/readyz` about an unavailable store. The process stays ready, because fallbacks
/// still decide: otherwise all replicas could become unready at once.
struct StoreFailureText(Option<StoreFailure>);

impl fmt::Display for StoreFailureText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(cause) = self.0 else { return Ok(()) };
        write!(f, "; the store of counters does not answer ({}), ", cause.as_str())?;
        f.write_str("on_backend_failure of each limit decides")
    }
}

async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, PLAIN, NO_SNIFF, "404 page not found\n").into_response()
}

/// Returns an error response with the name of the status as text, as in envoyproxy/ratelimit.
fn status_response(status: StatusCode) -> Response {
    let name = status.canonical_reason().unwrap_or("Error");
    (status, PLAIN, NO_SNIFF, format!("{name}\n")).into_response()
}
