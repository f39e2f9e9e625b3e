//! Serves the HTTP ports: checks and health, metrics, and admin.
//!
//! Guarantees:
//! - A connection with a slow request head or a slow reader is closed.
//! - The number of connections is bounded.
//! - Shutdown closes the listener at once and finishes the requests in flight.
//! - Permit connections and queued requests always leave connections for other requests.
//! - A queued request is dropped when its client disconnects.
//!
//! Not covered:
//! - TLS.
//! - A time limit for finishing requests at shutdown.
//! - A disconnect behind unread data that fills the socket's receive buffer.

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

use super::Reporting;
use super::health::{Health, Ready};
use crate::config::hooks::Hooks;
use crate::engine::Engine;
use crate::kernel::decision::Cause;
use crate::telemetry::event::Protocol;
use crate::telemetry::trace;

use connection::Peer;
use nginx::hold::{Holds, MAX_HELD};
pub use serve::serve;

/// The parts that the port for checks and health uses.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The engine that decides.
    pub engine: Arc<Engine>,
    /// The content of replies.
    pub reporting: Reporting,
    /// The readiness for health checks.
    pub health: Health,
    /// The hooks of `/check` and `/hold`.
    pub hooks: Arc<Hooks>,
    /// Becomes `true` when open permit connections must end.
    pub leaving: watch::Receiver<bool>,
}

type Typed = [(HeaderName, &'static str); 1];

const JSON: Typed = [(CONTENT_TYPE, "application/json")];
const PLAIN: Typed = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
/// Keeps browsers from rendering an error's text as a page.
const NO_SNIFFING: Typed = [(X_CONTENT_TYPE_OPTIONS, "nosniff")];

struct Port {
    ask: Ask,
    holds: Holds,
}

/// Serves `/json`, `/check`, `/hold`, `/healthcheck`, `/livez` and `/readyz`.
///
/// Paths must match exactly. Every method is allowed, except for `/hold`, which requires GET.
pub fn router(ask: Ask) -> Router {
    router_with(ask, MAX_HELD)
}

/// Serves the same paths with another maximum of requests in queues and on `/hold`.
pub fn router_with(ask: Ask, most: usize) -> Router {
    Router::new()
        .route("/json", any(json))
        .route("/check", any(check))
        .route("/hold", any(held))
        .route("/healthcheck", any(healthcheck))
        .route("/livez", any(async || (PLAIN, "alive\n")))
        .route("/readyz", any(readyz))
        .fallback(not_found)
        .with_state(Arc::new(Port { ask, holds: Holds::new(most) }))
}

async fn json(State(port): State<Arc<Port>>, request: Request<Body>) -> Response {
    let span = question(Protocol::Json, request.headers());
    span.around(json::answer(&port.ask, request.into_body())).await
}

async fn check(State(port): State<Arc<Port>>, request: Request<Body>) -> Response {
    let (head, _) = request.into_parts();
    let span = question(Protocol::Nginx, &head.headers);
    let peer = Peer::of(&head.extensions);
    // Boxed, so that the futures around it do not move its large state.
    let answer = Box::pin(nginx::answer(&port.ask, &port.holds, &head.headers));
    unless_left(&peer, span.around(answer)).await
}

async fn held(State(port): State<Arc<Port>>, request: Request<Body>) -> Response {
    let (head, _) = request.into_parts();
    // A reply to HEAD has no body, so it cannot stay open.
    if head.method != Method::GET {
        return ([(ALLOW, "GET")], text(StatusCode::METHOD_NOT_ALLOWED)).into_response();
    }
    let span = trace::hold(&|name| head.headers.get(name)?.to_str().ok());
    let peer = Peer::of(&head.extensions);
    let answer = nginx::hold::answer(&port.ask, &port.holds, &head.headers, &peer);
    unless_left(&peer, span.around(answer)).await
}

/// Returns `answer`, or closes the connection if the client disconnects
/// first. The rest of its data is then not parsed as another request.
async fn unless_left(peer: &Peer, answer: impl Future<Output = Response>) -> Response {
    tokio::select! {
        // Polls the decision first, because most decisions are immediate.
        biased;
        answer = answer => answer,
        () = peer.gone() => (StatusCode::REQUEST_TIMEOUT, [(CONNECTION, "close")]).into_response(),
    }
}

fn question(protocol: Protocol, headers: &HeaderMap) -> trace::Span {
    trace::question(protocol, &|name| headers.get(name)?.to_str().ok())
}

/// Replies like envoyproxy/ratelimit: the state only.
async fn healthcheck(State(port): State<Arc<Port>>) -> Response {
    match port.ask.health.ready() {
        Ready::Yes => (PLAIN, "OK").into_response(),
        Ready::NoConfig | Ready::NoBackend | Ready::Draining => {
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn readyz(State(port): State<Arc<Port>>) -> Response {
    let Ask { engine, health, .. } = &port.ask;
    let ready = health.ready();
    let status = match ready {
        Ready::Yes => StatusCode::OK,
        Ready::NoConfig | Ready::NoBackend | Ready::Draining => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, PLAIN, format!("{ready}{}\n", Degraded(engine.trouble()))).into_response()
}

/// The text about an unavailable store. The process stays ready: it still decides,
/// and a whole fleet that leaves the load balancer would stop all checks.
struct Degraded(Option<Cause>);

impl fmt::Display for Degraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(cause) = self.0 else { return Ok(()) };
        write!(f, "; the store of counters does not answer ({}): ", cause.as_str())?;
        f.write_str("each limit's on_backend_failure does")
    }
}

async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, PLAIN, NO_SNIFFING, "404 page not found\n").into_response()
}

/// Returns an error with the status's own name as its text, as in envoyproxy/ratelimit.
fn text(status: StatusCode) -> Response {
    let name = status.canonical_reason().unwrap_or("Error");
    (status, PLAIN, NO_SNIFFING, format!("{name}\n")).into_response()
}
