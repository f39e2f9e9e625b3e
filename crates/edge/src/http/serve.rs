//! Accepts and serves the connections of an HTTP port.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};

use super::connection::HttpConnection;
use super::health_routes::is_health_path;
use super::response::text_response;
use crate::connection_gate::ConnectionGate;

/// The timeouts of the connections of one HTTP port.
#[derive(Clone, Copy, Debug)]
pub struct HttpTimeouts {
    /// The timeout for receiving a request head, also for the next request on an idle connection.
    pub head: Duration,
    /// The longest time without progress of a write. Without it, clients that never read could
    /// occupy all connections.
    pub write: Duration,
}

impl Default for HttpTimeouts {
    fn default() -> Self {
        Self { head: Duration::from_secs(30), write: Duration::from_secs(30) }
    }
}

/// The idle time before the first TCP keepalive probe, and the interval between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Serves `router` on the connections of `listener` that `gate` admits until `shutdown`, then
/// finishes the open requests. Other connections get a reply to a health probe, or status 503.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    gate: ConnectionGate,
    shutdown: impl Future<Output = ()>,
) {
    serve_with_timeouts(listener, router, (gate, HttpTimeouts::default()), shutdown).await;
}

/// As [`serve`], with other timeouts.
pub async fn serve_with_timeouts(
    listener: TcpListener,
    router: Router,
    (mut gate, timeouts): (ConnectionGate, HttpTimeouts),
    shutdown: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let stream = tokio::select! {
            () = &mut shutdown => break,
            stream = accept(&listener, &mut gate) => stream,
        };
        let Some(slot) = gate.admit() else {
            gate.refuse(reply_once(stream, router.clone(), gate.refusal_text(), timeouts));
            continue;
        };
        let (io, peer) = HttpConnection::new(stream, slot.port(), timeouts.write);
        let router_service = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            router_service.call(request)
        });
        let builder = http1_builder(timeouts);
        let connection = builder.serve_connection(TokioIo::new(io), service).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            connection.await.ok();
            drop(slot);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Replies to one request of a connection above the maximum.
async fn reply_once(stream: TcpStream, router: Router, refusal: String, timeouts: HttpTimeouts) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let health = is_health_path(request.uri().path()).then(|| router.call(request));
        let refusal = text_response(StatusCode::SERVICE_UNAVAILABLE, &refusal);
        async move {
            let response: Result<Response, Infallible> = match health {
                Some(response) => response.await,
                None => Ok(refusal),
            };
            response
        }
    });
    let mut builder = http1_builder(timeouts);
    builder.http1().keep_alive(false);
    builder.serve_connection(TokioIo::new(stream), service).await.ok();
}

fn http1_builder(timeouts: HttpTimeouts) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(timeouts.head);
    builder
}

/// Accepts the next connection. Retries after errors.
async fn accept(listener: &TcpListener, gate: &mut ConnectionGate) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                enable_keepalive(&stream);
                return stream;
            }
            Err(error) => gate.pause_after(&error).await,
        }
    }
}

/// Enables TCP keepalive, so that the permits of a vanished client are released.
fn enable_keepalive(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_INTERVAL)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(2);
    // After an error, the connection keeps the defaults of the operating system.
    drop(SockRef::from(stream).set_tcp_keepalive(&keepalive));
}
