//! Connections of an HTTP port.
//!
//! Guarantees: see [`super`].
//! Leaves out: what is answered.

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

/// How long a client may take to send a request's head; also how long it may stay silent between
/// two requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);

/// Most connections at one time; the next wait in the kernel's queue.
pub(super) const MAX_CONNECTIONS: usize = 4_096;

/// How long a connection is silent until its peer's machine is asked, and between two askings.
const SILENCE: Duration = Duration::from_secs(5);

/// The pause after a failed accept: without it a process that is out of files spins.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until `shutdown`, then finishes what is under way.
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
            // A client that breaks off is its own affair.
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

/// The next connection, and the slot that it has until it ends. Failures are waited out.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // Never closed, so never refused.
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

/// Asks the peer's machine whether it is still there, so that one that vanished frees what it holds.
fn keep_alive(stream: &TcpStream) {
    let asking = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE).with_retries(2);
    // Without it a connection lives as long as it would on any other system.
    drop(SockRef::from(stream).set_tcp_keepalive(&asking));
}
