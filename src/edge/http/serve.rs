//! Accepts and serves the connections of an HTTP port.

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

use super::connection::HttpConnection;
use crate::edge::accept_errors::AcceptErrors;

/// The timeout for receiving a request head, also for the next request on an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest number of connections on one port. Others wait in the listener's backlog.
pub(super) const MAX_CONNECTIONS: usize = 4_096;

/// The idle time before the first TCP keepalive probe, and the interval between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The pause after an accept error, because a process without free file descriptors would otherwise
/// be in a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until `shutdown`, then finishes the open requests.
pub async fn serve(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    let mut errors = AcceptErrors::new("HTTP");
    loop {
        let (stream, slot) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &slots, &mut errors) => accepted,
        };
        let (io, peer) = HttpConnection::new(stream);
        let router_service = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            router_service.call(request)
        });
        let connection = http1_builder().serve_connection(TokioIo::new(io), service).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            connection.await.ok();
            drop(slot);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

fn http1_builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder
}

/// Accepts the next connection and takes a slot for it. Retries after errors.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    errors: &mut AcceptErrors,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // Acquiring always succeeds, because the semaphore is never closed.
    let slot = Arc::clone(slots).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                errors.record_success();
                enable_keepalive(&stream);
                return (stream, slot);
            }
            Err(error) => {
                errors.record_failure(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
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
