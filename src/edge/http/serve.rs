//! Accepts and serves the connections of an HTTP port.
//!
//! Not covered:
//! - The content of replies (see [`super`]).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::Connection;

/// The timeout for a request's head, and for an idle connection between two requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);

/// The maximum number of connections. Further ones wait in the kernel's queue.
pub(super) const MAX_CONNECTIONS: usize = 4_096;

/// The idle time before the first TCP keepalive probe, and the interval between probes.
const SILENCE: Duration = Duration::from_secs(5);

/// The pause after a failed accept. Without it, running
/// out of file descriptors would cause a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until `shutdown`, then finishes the requests in flight.
pub async fn serve(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, slot) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let (io, peer) = Connection::new(stream);
        let asked = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            asked.call(request)
        });
        let connection = connections().serve_connection(TokioIo::new(io), service).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            connection.await.ok();
            drop(slot);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

fn connections() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE);
    builder
}

/// Returns the next connection and its slot. Retries after errors.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed, so this never fails.
    let slot = Arc::clone(slots).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                keep_alive(&stream);
                return (stream, slot);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Enables TCP keepalive, so that the permits of a vanished peer are released.
fn keep_alive(stream: &TcpStream) {
    let asking = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE).with_retries(2);
    // After an error, the connection keeps the system's defaults.
    drop(SockRef::from(stream).set_tcp_keepalive(&asking));
}
