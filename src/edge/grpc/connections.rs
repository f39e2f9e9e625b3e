//! Serves the connections of the gRPC port until they end or the process shuts down.
//!
//! Guarantees:
//! - A connection has at most [`MOST_CALLS`] calls at one time.
//! - Vanished proxies are detected by pings ([`PING_AFTER`]) and idle timeouts ([`Connection`]).
//! - A connection that reaches its age limit receives GOAWAY.
//! - At shutdown the listener closes first, then every connection receives GOAWAY.
//! - Open calls are finished.
//!
//! Not covered:
//! - A limit on the time to finish, except the lifetime that [`Incoming`] enforces.

use std::pin::pin;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_stream::StreamExt as _;
use tonic::service::Routes;
use tonic::transport::server::Connected as _;

use super::doors::Doors;
use super::incoming::{Connection, Holding, Incoming};
use super::rls::RateLimits;
use super::{PING_AFTER, PONG_AT_LAST};

/// The largest number of calls at one time on one connection.
/// With `ext_proc`, each request in flight is one call.
const MOST_CALLS: u32 = 10_000;

/// Serves `limits` and `others` on all `incoming` connections until `shutdown`, then
/// finishes the open calls. If `most` is given, a connection of that age receives GOAWAY.
pub(super) async fn serve(
    mut incoming: Incoming,
    (limits, others): (RateLimits, Routes),
    most: Option<Duration>,
    shutdown: impl Future<Output = ()>,
) {
    let (leave, leaving) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        let connection = tokio::select! {
            () = &mut shutdown => break,
            connection = incoming.next() => connection,
        };
        // The accept task has ended: finish the accepted connections, then end.
        let Some(connection) = connection else { break };
        let Ok(connection) = connection else { continue };
        let holding = connection.holding();
        let doors = Doors::new(&limits, &others, (connection.connect_info(), holding.clone()));
        tokio::spawn(attend((connection, holding), doors, most, leaving.clone()));
    }
    drop(incoming);
    leave.send_replace(());
    drop(leaving);
    leave.closed().await;
}

async fn attend(
    (connection, holding): (Connection, Holding),
    doors: Doors,
    most: Option<Duration>,
    mut leaving: watch::Receiver<()>,
) {
    let builder = builder();
    let mut calls = pin!(builder.serve_connection(TokioIo::new(connection), doors));
    let is_old = async {
        match most {
            Some(most) => sleep(most).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // An error here means that the client disconnected.
        _ = &mut calls => return,
        _ = leaving.changed() => {}
        () = is_old => {}
    }
    // Shortens the idle timeout, so that a vanished client cannot delay the shutdown.
    let _held = holding.hold();
    calls.as_mut().graceful_shutdown();
    drop(calls.await);
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http2_only();
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(MOST_CALLS);
    // `Connection` enforces the shorter idle timeout.
    http2.keep_alive_interval(PING_AFTER).keep_alive_timeout(PONG_AT_LAST);
    builder
}
