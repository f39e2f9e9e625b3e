//! Serves the connections of the gRPC port until they end or the process shuts down.
//!
//! Guarantees:
//! - A connection has at most [`MAX_CALLS_PER_CONNECTION`] calls at one time.
//! - HTTP/2 pings ([`PingTimer`]) and the idle timeout of [`GrpcConnection`] detect a proxy that
//!   vanished.
//! - At shutdown the listener closes first, then every connection receives GOAWAY. A connection
//!   that reaches its maximum age receives GOAWAY, too.
//! - After GOAWAY, the open calls are finished. Only the connection's lifetime limits their time.

use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http2::Builder;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_stream::StreamExt as _;
use tonic::service::Routes;
use tonic::transport::server::Connected as _;

use super::call_batch::{CallBatch, RunningCalls};
use super::incoming::{GrpcConnection, IncomingConnections, ShortIdleHandle};
use super::peer_addresses::CountedConnection;
use super::ping_timer::PingTimer;
use super::rls::RateLimitService;
use super::router::ConnectionRouter;
use super::timeouts::GrpcTimeouts;
use crate::body_memory::BodyLimits;

/// The largest number of open calls on one connection. With `ext_proc`, each HTTP request in flight
/// is one call.
const MAX_CALLS_PER_CONNECTION: u32 = 10_000;

/// The most calls of one read that their client has reset, above which the connection ends. A proxy
/// whose calls time out while this process is paused resets many at once.
const MAX_RESETS_PER_READ: usize = 1_000;

/// Serves the rate limit service and the other `routes` on all connections until `shutdown`, then
/// finishes the open calls.
pub(super) async fn serve(
    mut incoming: IncomingConnections,
    (rate_limits, routes, bodies): (RateLimitService, Routes, BodyLimits),
    max_age: Option<Duration>,
    shutdown: impl Future<Output = ()>,
) {
    let (drain, draining) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        let connection = tokio::select! {
            () = &mut shutdown => break,
            connection = incoming.next() => connection,
        };
        // The accept task has ended: only the accepted connections remain.
        let Some(connection) = connection else { break };
        let Ok(connection) = connection else { continue };
        let idle_handle = connection.idle_handle();
        let services = ConnectionRouter::new(
            &rate_limits,
            &routes,
            (connection.connect_info(), connection.client(), idle_handle.clone()),
            (connection.timeouts().message, bodies.clone()),
        );
        tokio::spawn(serve_connection(
            (connection, idle_handle),
            services,
            max_age,
            draining.clone(),
        ));
    }
    drop(incoming);
    drain.send_replace(());
    drop(draining);
    drain.closed().await;
}

async fn serve_connection(
    (connection, idle_handle): (GrpcConnection, ShortIdleHandle),
    router: ConnectionRouter,
    max_age: Option<Duration>,
    mut draining: watch::Receiver<()>,
) {
    let _counted = CountedConnection::new(&connection.connect_info());
    let batch = CallBatch::default();
    let builder = http2_builder(batch.clone(), idle_handle.clone(), connection.timeouts());
    let serving = builder.serve_connection(TokioIo::new(connection), router);
    let mut calls = RunningCalls::new(serving, batch);
    let max_age_reached = async {
        match max_age {
            Some(max_age) => sleep(max_age).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // An error means that the client disconnected.
        _ = &mut calls => return,
        _ = draining.changed() => {}
        () = max_age_reached => {}
    }
    // Shortens the idle timeout, so that a vanished client cannot delay the shutdown.
    let _guard = idle_handle.create_guard();
    calls.connection().graceful_shutdown();
    drop(calls.await);
}

fn http2_builder(
    batch: CallBatch,
    idle_handle: ShortIdleHandle,
    timeouts: &GrpcTimeouts,
) -> Builder<CallBatch> {
    let mut builder = Builder::new(batch);
    builder.timer(PingTimer::new(idle_handle, timeouts));
    builder.max_concurrent_streams(MAX_CALLS_PER_CONNECTION);
    builder.max_pending_accept_reset_streams(MAX_RESETS_PER_READ);
    // `GrpcConnection` enforces the shorter timeout of connections with permit streams.
    builder.keep_alive_interval(timeouts.ping_interval).keep_alive_timeout(timeouts.pong);
    builder.auto_date_header(false);
    builder
}
