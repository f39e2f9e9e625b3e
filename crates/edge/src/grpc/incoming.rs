//! Accepts the connections of the gRPC port: TCP or Unix sockets, plain text or TLS.
//!
//! Guarantees:
//! - A slow TLS handshake delays no other client.
//! - The TLS handshake, and then the HTTP/2 preface, may each take the handshake timeout.
//! - A client that sends nothing is disconnected (see [`GrpcConnection`]).
//! - Connections above the maximum get `UNAVAILABLE` and GOAWAY; with TLS, they are closed at once.
//! - Connections with another protocol or a bad certificate are logged and counted.
//! - A connection is closed at the end of its lifetime, even with open calls.
//! - Dropping [`IncomingConnections`] closes the listener.

mod connection;

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;

use super::timeouts::GrpcTimeouts;
use super::tls::ServerTls;
use crate::connection_gate::ConnectionGate;
use crate::failed_connections::FailedConnection;
use crate::telemetry::label::ConnectionFailure;
pub use connection::{ClientIdentity, GrpcConnection, ShortIdleGuard, ShortIdleHandle};
use connection::{RawSocket, Socket};

/// The largest number of accepted connections that wait for the HTTP/2 server.
const READY_QUEUE_CAPACITY: usize = 64;

/// The time in which calls of a refused connection get a reply, before GOAWAY.
const REFUSAL_TIME: Duration = Duration::from_millis(500);

/// The socket that accepts connections.
#[derive(Debug)]
pub enum GrpcListener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix domain socket.
    Unix(UnixListener),
}

impl GrpcListener {
    async fn accept(&self) -> io::Result<RawSocket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(RawSocket::Left(stream))
            }
            Self::Unix(listener) => Ok(RawSocket::Right(listener.accept().await?.0)),
        }
    }
}

#[derive(Debug)]
/// The stream of accepted connections, after the TLS handshake if TLS is configured.
pub struct IncomingConnections {
    ready: mpsc::Receiver<io::Result<GrpcConnection>>,
    accept_task: JoinHandle<()>,
}

impl IncomingConnections {
    /// Accepts the connections of `listener` that `gate` admits. Each connection is closed after
    /// `max_lifetime`, if given.
    #[must_use]
    pub fn new(
        listener: GrpcListener,
        tls: Option<Arc<ServerTls>>,
        max_lifetime: Option<Duration>,
        gate: ConnectionGate,
    ) -> Self {
        Self::with_timeouts(listener, tls, (max_lifetime, GrpcTimeouts::default()), gate)
    }

    /// As [`IncomingConnections::new`], with other timeouts.
    #[must_use]
    pub fn with_timeouts(
        listener: GrpcListener,
        tls: Option<Arc<ServerTls>>,
        times: (Option<Duration>, GrpcTimeouts),
        gate: ConnectionGate,
    ) -> Self {
        let (sender, ready) = mpsc::channel(READY_QUEUE_CAPACITY);
        let accept_task = tokio::spawn(accept(listener, tls, times, (gate, sender)));
        Self { ready, accept_task }
    }
}

impl Drop for IncomingConnections {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}

impl Stream for IncomingConnections {
    type Item = io::Result<GrpcConnection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(cx)
    }
}

async fn accept(
    listener: GrpcListener,
    tls: Option<Arc<ServerTls>>,
    (max_lifetime, timeouts): (Option<Duration>, GrpcTimeouts),
    (mut gate, ready): (ConnectionGate, mpsc::Sender<io::Result<GrpcConnection>>),
) {
    loop {
        let raw = match listener.accept().await {
            Ok(raw) => raw,
            Err(error) => {
                gate.pause_after(&error).await;
                continue;
            }
        };
        let Some(slot) = gate.admit() else {
            // With TLS, a refused client gets no reply, because a handshake is expensive.
            if tls.is_none() {
                gate.refuse(reply_unavailable(raw, gate.refusal_text()));
            }
            continue;
        };
        let (port, peer) = (slot.port(), remote_address(&raw));
        let lifetime = max_lifetime.map(|duration| Box::pin(sleep(duration)));
        let connection = move |io| GrpcConnection::new(io, timeouts, lifetime, slot);
        let Some(tls) = tls.clone() else {
            if ready.send(Ok(connection(Socket::Left(raw)))).await.is_err() {
                return;
            }
            continue;
        };
        let ready = ready.clone();
        tokio::spawn(async move {
            match timeout(timeouts.handshake, handshake(&tls, raw)).await {
                Ok(Ok(io)) => drop(ready.send(Ok(connection(io))).await),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "TLS handshake failed");
                    if let Some(failed) = FailedConnection::of_handshake(port, &error, peer) {
                        failed.report();
                    }
                }
                Err(_) => {
                    let cause = ConnectionFailure::TlsTimeout;
                    FailedConnection { port, cause, peer, error: None }.report();
                }
            }
        });
    }
}

/// Replies `UNAVAILABLE` with `reason` to all calls of a refused connection, then sends GOAWAY.
async fn reply_unavailable(raw: RawSocket, reason: String) {
    let reply = service_fn(move |_: Request<Incoming>| {
        ready(Ok::<_, Infallible>(Status::unavailable(&*reason).into_http::<Body>()))
    });
    let builder = Builder::new(TokioExecutor::new()).http2_only();
    let mut calls = pin!(builder.serve_connection(TokioIo::new(raw), reply));
    if timeout(REFUSAL_TIME, &mut calls).await.is_err() {
        calls.as_mut().graceful_shutdown();
        calls.await.ok();
    }
}

fn remote_address(raw: &RawSocket) -> Option<SocketAddr> {
    match raw {
        RawSocket::Left(stream) => stream.peer_addr().ok(),
        RawSocket::Right(_) => None,
    }
}

async fn handshake(tls: &Arc<ServerTls>, raw: RawSocket) -> io::Result<Socket> {
    let acceptor = TlsAcceptor::from(ServerTls::current(tls).await);
    Ok(Socket::Right(Box::new(acceptor.accept(raw).await?)))
}
