//! Connections of the gRPC port: TCP or a Unix socket, in plain text or TLS, until their time is over.
//!
//! Guarantees: a client that is slow to shake hands, or to say that it speaks HTTP/2, delays nobody else and is
//! dropped after [`HANDSHAKE`]; one that falls silent is dropped as [`Connection`] says; no more connections at one time
//! than are allowed, the next wait in the kernel's queue; a connection that was told to go is closed after its grace,
//! calls or not; with the stream the listener goes.
//! Leaves out: asking the silent for a sign and telling a connection to go, which the server does.

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

/// How long a client may take to shake hands, and after that to say that it speaks HTTP/2.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Most clients that shake hands at one time; the next wait in the kernel's queue.
const MOST_HANDSHAKES: usize = 4096;
/// Connections that wait for the server to take them.
const WAITING: usize = 64;
/// The pause after a failed accept: without it a process that is out of files spins.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A socket in the file system.
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

/// Connections, ready for calls.
#[derive(Debug)]
pub struct Incoming {
    ready: mpsc::Receiver<io::Result<Connection>>,
    accepting: JoinHandle<()>,
}

impl Incoming {
    /// Accepts at most `most` at one time from `listener`. Each connection lasts for `life` at most, where one is given.
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
        // Never closed, so never refused.
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
