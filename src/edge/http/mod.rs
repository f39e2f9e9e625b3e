//! The HTTP ports: questions and health; metrics; admin.
//!
//! Guarantees: a connection that is slow to send its head, or to read its answers, is closed,
//! connections are bounded, and at shutdown the listener closes at once while requests under way are
//! finished. Those who are held, or wait in a queue, leave connections for others. Nobody waits in a
//! queue for a client that has left, unless more came after the question than the socket's receive
//! buffer takes, which hides that it has.
//! Leaves out: TLS, and any limit on how long the finishing may take.

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

/// What the port for questions and health serves.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Answers.
    pub engine: Arc<Engine>,
    /// What answers show.
    pub reporting: Reporting,
    /// What health checks show.
    pub health: Health,
    /// What `/check` and `/hold` ask about.
    pub hooks: Arc<Hooks>,
    /// Becomes true when what is held must end.
    pub leaving: watch::Receiver<bool>,
}

/// One header of a response.
type Typed = [(HeaderName, &'static str); 1];

const JSON: Typed = [(CONTENT_TYPE, "application/json")];
const PLAIN: Typed = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
/// Browsers must not take an error's text for a page.
const NO_SNIFFING: Typed = [(X_CONTENT_TYPE_OPTIONS, "nosniff")];

/// What is behind the port.
struct Port {
    ask: Ask,
    holds: Holds,
}

/// `/json`, `/check`, `/hold`, `/healthcheck`, `/livez`, `/readyz`; paths are exact, methods free
/// but for `/hold`, which is for GET.
pub fn router(ask: Ask) -> Router {
    router_with(ask, MAX_HELD)
}

/// The same, where at most `most` requests of `/check` and `/hold` are held or wait in queues at one time.
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
    // Boxed: what a question takes is not moved about with what waits for it.
    let answer = Box::pin(nginx::answer(&port.ask, &port.holds, &head.headers));
    unless_left(&peer, span.around(answer)).await
}

async fn held(State(port): State<Arc<Port>>, request: Request<Body>) -> Response {
    let (head, _) = request.into_parts();
    // An answer to HEAD has no body, and so nothing that could last.
    if head.method != Method::GET {
        return ([(ALLOW, "GET")], text(StatusCode::METHOD_NOT_ALLOWED)).into_response();
    }
    let span = trace::hold(&|name| head.headers.get(name)?.to_str().ok());
    let peer = Peer::of(&head.extensions);
    let answer = nginx::hold::answer(&port.ask, &port.holds, &head.headers, &peer);
    unless_left(&peer, span.around(answer)).await
}

/// `answer`, unless the client leaves before. What it sent besides is no further request then.
async fn unless_left(peer: &Peer, answer: impl Future<Output = Response>) -> Response {
    tokio::select! {
        // Most need no wait, and so no look at the other end.
        biased;
        answer = answer => answer,
        () = peer.gone() => (StatusCode::REQUEST_TIMEOUT, [(CONNECTION, "close")]).into_response(),
    }
}

fn question(protocol: Protocol, headers: &HeaderMap) -> trace::Span {
    trace::question(protocol, &|name| headers.get(name)?.to_str().ok())
}

/// As the reference answers: the state and nothing else.
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

/// What a ready process says of a store that does not answer. It stays ready: it answers, and a
/// fleet that leaves the load balancer together is no help to anybody.
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

/// An error whose text is the status's own name, as the reference sends it.
fn text(status: StatusCode) -> Response {
    let name = status.canonical_reason().unwrap_or("Error");
    (status, PLAIN, NO_SNIFFING, format!("{name}\n")).into_response()
}
