//! Connections of the gRPC port: TCP or a Unix socket, in plain text or TLS, until their time is over.
//!
//! Guarantees: a client that is slow to shake hands, or to say that it speaks HTTP/2, delays nobody else and is
//! dropped after [`HANDSHAKE`]; no more connections at one time than are allowed, the next wait in the kernel's queue;
//! a connection that was told to go is closed after its grace, calls or not; with the stream the
//! listener goes.
//! Leaves out: telling a connection to go, which the server does.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::tls::Tls;

/// How long a client may take to shake hands, and after that to send the [`PREFACE`].
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Length of what every client of HTTP/2 sends first, in bytes (RFC 9113, 3.4).
const PREFACE: usize = 24;
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
                Ok(Raw::Tcp(stream))
            }
            Self::Unix(listener) => Ok(Raw::Unix(listener.accept().await?.0)),
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
            if ready.send(Ok(Connection::new(Io::Plain(raw), life, slot))).await.is_err() {
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
    Ok(Io::Tls(Box::new(acceptor.accept(raw).await?)))
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    io: Io,
    life: Option<Pin<Box<Sleep>>>,
    silence: Option<Silence>,
    /// Another connection's, once this one is gone.
    _slot: Option<OwnedSemaphorePermit>,
}

/// What a client has not sent of the preface, and until when it may.
#[derive(Debug)]
struct Silence {
    missing: usize,
    ends: Pin<Box<Sleep>>,
}

#[derive(Debug)]
enum Io {
    Plain(Raw),
    Tls(Box<TlsStream<Raw>>),
}

#[derive(Debug)]
enum Raw {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    fn new(io: Io, life: Option<Pin<Box<Sleep>>>, slot: Option<OwnedSemaphorePermit>) -> Self {
        let silence = Silence { missing: PREFACE, ends: Box::pin(sleep(HANDSHAKE)) };
        Self { io, life, silence: Some(silence), _slot: slot }
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let mut over = |ends: &mut Pin<Box<Sleep>>| ends.as_mut().poll(cx).is_ready();
        self.life.as_mut().is_some_and(&mut over)
            || self.silence.as_mut().is_some_and(|silence| over(&mut silence.ends))
    }

    /// Takes it that the client sent `more` bytes.
    fn hears(&mut self, more: usize) {
        let Some(silence) = &mut self.silence else { return };
        silence.missing = silence.missing.saturating_sub(more);
        if silence.missing == 0 {
            self.silence = None;
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        let raw = match &self.io {
            Io::Plain(raw) => raw,
            Io::Tls(stream) => stream.get_ref().0,
        };
        match raw {
            Raw::Tcp(stream) => stream.connect_info(),
            Raw::Unix(_) => TcpConnectInfo { local_addr: None, remote_addr: None },
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if (self.life.is_some() || self.silence.is_some()) && self.is_over(cx) {
            (self.life, self.silence) = (None, None);
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let read = match &mut self.io {
            Io::Plain(raw) => Pin::new(raw).poll_read(cx, buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        };
        self.hears(buffer.filled().len().saturating_sub(before));
        read
    }
}

impl AsyncRead for Raw {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

/// Writes what `$inner` of a connection or a socket writes.
macro_rules! write_through {
    ($of:ty, $this:ident => $inner:expr, $($variant:pat => $stream:ident),+) => {
        impl AsyncWrite for $of {
            fn poll_write(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                let $this = &mut *self;
                match $inner { $($variant => Pin::new($stream).poll_write(cx, bytes),)+ }
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let $this = &mut *self;
                match $inner { $($variant => Pin::new($stream).poll_write_vectored(cx, bytes),)+ }
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $this = &mut *self;
                match $inner { $($variant => Pin::new($stream).poll_flush(cx),)+ }
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $this = &mut *self;
                match $inner { $($variant => Pin::new($stream).poll_shutdown(cx),)+ }
            }
        }
    };
}

write_through!(Connection, this => &mut this.io, Io::Plain(raw) => raw, Io::Tls(stream) => stream);
write_through!(Raw, this => this, Raw::Tcp(stream) => stream, Raw::Unix(stream) => stream);
