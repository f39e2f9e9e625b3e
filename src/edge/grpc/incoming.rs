//! Accepts the connections of the gRPC port: TCP or Unix sockets, plain text or TLS.
//!
//! Guarantees:
//! - A client that handshakes slowly delays no other client.
//! - A handshake, and then the HTTP/2 preface, may each take [`HANDSHAKE`].
//! - A silent client is disconnected as [`Connection`] describes.
//! - Connections above the maximum wait in the kernel's queue.
//! - A connection is closed at the end of its lifetime, even with open calls.
//! - Dropping [`Incoming`] closes the listener.
//!
//! Not covered:
//! - Pings and GOAWAY, which the HTTP/2 server sends.

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

use super::tls::Tls;
pub use connection::{Connection, Held, Holding};
use connection::{Io, Raw};

/// The timeout of the TLS handshake, and then of the HTTP/2 preface.
const HANDSHAKE: Duration = Duration::from_secs(5);
const MOST_HANDSHAKES: usize = 4096;
/// The largest number of ready connections that the server has not taken yet.
const WAITING: usize = 64;
/// The pause after a failed accept. Without it, a process without free file descriptors spins.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix domain socket.
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Raw> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Raw::Left(stream))
            }
            Self::Unix(listener) => Ok(Raw::Right(listener.accept().await?.0)),
        }
    }
}

/// The stream of accepted connections, ready for HTTP/2.
#[derive(Debug)]
pub struct Incoming {
    ready: mpsc::Receiver<io::Result<Connection>>,
    accepting: JoinHandle<()>,
}

impl Incoming {
    /// Accepts at most `most` connections at one time from `listener`.
    /// If `life` is given, a connection is closed after that time.
    #[must_use]
    pub fn new(
        listener: Listener,
        tls: Option<Arc<Tls>>,
        life: Option<Duration>,
        most: usize,
    ) -> Self {
        let (sender, ready) = mpsc::channel(WAITING);
        let accepting = tokio::spawn(accept(listener, tls, (life, most), sender));
        Self { ready, accepting }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(cx)
    }
}

async fn accept(
    listener: Listener,
    tls: Option<Arc<Tls>>,
    (life, most): (Option<Duration>, usize),
    ready: mpsc::Sender<io::Result<Connection>>,
) {
    let (slots, handshakes) = (Arc::new(Semaphore::new(most)), Semaphore::new(MOST_HANDSHAKES));
    let handshakes = Arc::new(handshakes);
    loop {
        // The semaphores are never closed, so `acquire_owned` always succeeds.
        let slot = Arc::clone(&slots).acquire_owned().await.ok();
        let shaking = Arc::clone(&handshakes).acquire_owned().await.ok();
        let raw = match listener.accept().await {
            Ok(raw) => raw,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let life = life.map(|life| Box::pin(sleep(life)));
        let Some(tls) = tls.clone() else {
            if ready.send(Ok(Connection::new(Io::Left(raw), life, slot))).await.is_err() {
                return;
            }
            continue;
        };
        let ready = ready.clone();
        tokio::spawn(async move {
            match timeout(HANDSHAKE, shake(&tls, raw)).await {
                Ok(Ok(io)) => drop(ready.send(Ok(Connection::new(io, life, slot))).await),
                Ok(Err(error)) => tracing::debug!(%error, "a client did not come to terms on TLS"),
                Err(_) => tracing::debug!("a client took too long to come to terms on TLS"),
            }
            drop(shaking);
        });
    }
}

async fn shake(tls: &Arc<Tls>, raw: Raw) -> io::Result<Io> {
    let acceptor = TlsAcceptor::from(Tls::current(tls).await);
    Ok(Io::Right(Box::new(acceptor.accept(raw).await?)))
}
