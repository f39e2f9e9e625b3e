//! Connections of the gRPC port, served until they end or all are told to go.
//!
//! Guarantees: at most [`MOST_CALLS`] at one time on each; proxies that vanish
//! are noticed ([`PING_AFTER`], [`Connection`]); a connection that is old enough is told to go (GOAWAY), and at
//! shutdown all are, after the listener has closed; the calls under way are finished.
//! Leaves out: any limit on how long the finishing may take, but the grace that [`Incoming`] gives the old ones.

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

/// Most calls at one time on one connection: each request behind `ext_proc` is one for as long as it lasts.
const MOST_CALLS: u32 = 10_000;

/// Serves `limits` and `others` to whoever comes until `shutdown`, then finishes what is under way. A
/// connection is told to go after `most`, where that is given.
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
        // Without whoever accepts, what was accepted is finished, and the process ends with its port.
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

/// Serves one connection to its end; it is told to go when it is older than `most`, or all are `leaving`.
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
        // A client that breaks off is its own affair.
        _ = &mut calls => return,
        _ = leaving.changed() => {}
        () = is_old => {}
    }
    // Who vanished keeps nobody waiting who goes.
    let _held = holding.hold();
    calls.as_mut().graceful_shutdown();
    drop(calls.await);
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new()).http2_only();
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(MOST_CALLS);
    // The silent are let go by the connection.
    http2.keep_alive_interval(PING_AFTER).keep_alive_timeout(PONG_AT_LAST);
    builder
}
