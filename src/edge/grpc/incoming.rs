//! Accepts the connections of the gRPC port: TCP or Unix sockets, plain text or TLS.
//!
//! Guarantees:
//! - A slow TLS handshake delays no other client.
//! - The TLS handshake, and then the HTTP/2 preface, may each take [`HANDSHAKE_TIMEOUT`].
//! - A client that sends nothing is disconnected (see [`GrpcConnection`]).
//! - Connections above the maximum wait in the listener's backlog.
//! - A connection is closed at the end of its lifetime, even with open calls.
//! - Dropping [`IncomingConnections`] closes the listener.

mod connection;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;

use super::timeouts::HANDSHAKE_TIMEOUT;
use super::tls::ServerTls;
use crate::edge::accept_errors::AcceptErrors;
pub use connection::{GrpcConnection, ShortIdleGuard, ShortIdleHandle};
use connection::{RawSocket, Socket};

const MAX_HANDSHAKES: usize = 4096;
/// The largest number of accepted connections that wait for the HTTP/2 server.
const READY_QUEUE_CAPACITY: usize = 64;
/// The pause after an accept error, because a process without free file descriptors would otherwise
/// be in a busy loop.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

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
    /// Accepts connections from `listener`, at most `max_connections` at one time. Each connection
    /// is closed after `max_lifetime`, if given.
    #[must_use]
    pub fn new(
        listener: GrpcListener,
        tls: Option<Arc<ServerTls>>,
        max_lifetime: Option<Duration>,
        max_connections: usize,
    ) -> Self {
        let (sender, ready) = mpsc::channel(READY_QUEUE_CAPACITY);
        let accept_task =
            tokio::spawn(accept(listener, tls, (max_lifetime, max_connections), sender));
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
    (max_lifetime, max_connections): (Option<Duration>, usize),
    ready: mpsc::Sender<io::Result<GrpcConnection>>,
) {
    let (slots, handshakes) =
        (Arc::new(Semaphore::new(max_connections)), Semaphore::new(MAX_HANDSHAKES));
    let handshakes = Arc::new(handshakes);
    let mut errors = AcceptErrors::new("gRPC");
    loop {
        // Acquiring always succeeds, because the semaphores are never closed.
        let slot = Arc::clone(&slots).acquire_owned().await.ok();
        let handshake_slot = Arc::clone(&handshakes).acquire_owned().await.ok();
        let raw = match listener.accept().await {
            Ok(raw) => raw,
            Err(error) => {
                errors.record_failure(&error);
                sleep(ACCEPT_RETRY_PAUSE).await;
                continue;
            }
        };
        errors.record_success();
        let lifetime = max_lifetime.map(|duration| Box::pin(sleep(duration)));
        let Some(tls) = tls.clone() else {
            if ready.send(Ok(GrpcConnection::new(Socket::Left(raw), lifetime, slot))).await.is_err()
            {
                return;
            }
            continue;
        };
        let ready = ready.clone();
        tokio::spawn(async move {
            match timeout(HANDSHAKE_TIMEOUT, handshake(&tls, raw)).await {
                Ok(Ok(io)) => drop(ready.send(Ok(GrpcConnection::new(io, lifetime, slot))).await),
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => tracing::debug!("TLS handshake timed out"),
            }
            drop(handshake_slot);
        });
    }
}

async fn handshake(tls: &Arc<ServerTls>, raw: RawSocket) -> io::Result<Socket> {
    let acceptor = TlsAcceptor::from(ServerTls::current(tls).await);
    Ok(Socket::Right(Box::new(acceptor.accept(raw).await?)))
}
