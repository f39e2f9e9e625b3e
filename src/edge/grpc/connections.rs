//! Serves the connections of the gRPC port until they end or the process shuts down.
//!
//! Guarantees:
//! - A connection has at most [`MAX_CALLS_PER_CONNECTION`] calls at one time.
//! - Vanished proxies are detected by pings ([`PING_INTERVAL`]) and idle timeouts ([`GrpcConnection`]).
//! - A connection that reaches its age limit receives GOAWAY.
//! - At shutdown the listener closes first, then every connection receives GOAWAY.
//! - Open calls are finished.
//!
//! Not covered:
//! - A limit on the time to finish, except the lifetime that [`IncomingConnections`] enforces.

use std::pin::pin;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_stream::StreamExt as _;
use tonic::service::Routes;
use tonic::transport::server::Connected as _;

use super::incoming::{GrpcConnection, IncomingConnections, ShortIdleHandle};
use super::rls::RateLimitService;
use super::router::ConnectionRouter;
use super::{PING_INTERVAL, PONG_TIMEOUT};

/// The largest number of calls at one time on one connection.
/// With `ext_proc`, each request in flight is one call.
const MAX_CALLS_PER_CONNECTION: u32 = 10_000;

/// Serves `rate_limits` and `routes` on all `incoming` connections until `shutdown`, then
/// finishes the open calls. If `most` is given, a connection of that age receives GOAWAY.
pub(super) async fn serve(
    mut incoming: IncomingConnections,
    (rate_limits, routes): (RateLimitService, Routes),
    most: Option<Duration>,
    shutdown: impl Future<Output = ()>,
) {
    let (drain, draining) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        let connection = tokio::select! {
            () = &mut shutdown => break,
            connection = incoming.next() => connection,
        };
        // The accept task has ended: finish the accepted connections, then end.
        let Some(connection) = connection else { break };
        let Ok(connection) = connection else { continue };
        let idle_handle = connection.idle_handle();
        let services = ConnectionRouter::new(
            &rate_limits,
            &routes,
            (connection.connect_info(), idle_handle.clone()),
        );
        tokio::spawn(serve_one((connection, idle_handle), services, most, draining.clone()));
    }
    drop(incoming);
    drain.send_replace(());
    drop(draining);
    drain.closed().await;
}

async fn serve_one(
    (connection, idle_handle): (GrpcConnection, ShortIdleHandle),
    router: ConnectionRouter,
    most: Option<Duration>,
    mut draining: watch::Receiver<()>,
) {
    let builder = http2_builder();
    let mut calls = pin!(builder.serve_connection(TokioIo::new(connection), router));
    let max_age_reached = async {
        match most {
            Some(most) => sleep(most).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // An error here means that the client disconnected.
        _ = &mut calls => return,
        _ = draining.changed() => {}
        () = max_age_reached => {}
    }
    // Shortens the idle timeout, so that a vanished client cannot delay the shutdown.
    let _guard = idle_handle.create_guard();
    calls.as_mut().graceful_shutdown();
    drop(calls.await);
}

fn http2_builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http2_only();
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(MAX_CALLS_PER_CONNECTION);
    // `GrpcConnection` enforces the shorter idle timeout.
    http2.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PONG_TIMEOUT);
    builder
}
