//! A connection of the gRPC port that closes at the end of its lifetime or when the client sends
//! nothing.
//!
//! Guarantees:
//! - While a [`ShortIdleGuard`] exists, the idle timeout is [`PERMIT_STREAM_IDLE_TIMEOUT`];
//!   otherwise it is [`PONG_TIMEOUT`].
//! - Any received byte restarts it, so a proxy that is too busy for pings stays connected.
//! - Pending writes do not extend the idle timeout. A client that never reads its replies is thus
//!   disconnected, too: the HTTP/2 server stops reading from it.
//! - The idle timeout restarts if this process was suspended for 500 ms or longer.
//!
//! Not covered: pings to idle clients, which the HTTP/2 server sends.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::super::{PERMIT_STREAM_PONG_TIMEOUT, PING_INTERVAL, PONG_TIMEOUT};
use super::HANDSHAKE_TIMEOUT;

/// The length of the HTTP/2 client preface, in bytes (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;
/// The idle timeout of a connection with a [`ShortIdleGuard`]. With TLS, only decrypted bytes
/// restart it.
const PERMIT_STREAM_IDLE_TIMEOUT: Duration =
    PING_INTERVAL.saturating_add(PERMIT_STREAM_PONG_TIMEOUT);
/// The interval at which a connection checks its idle timeout. A timer that is late by another
/// interval shows that this process was suspended and could not read.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

pub(super) type RawSocket = Either<TcpStream, UnixStream>;
pub(super) type Socket = Either<RawSocket, Box<TlsStream<RawSocket>>>;

/// Shortens the idle timeout of its connection to two seconds while it exists.
///
/// - For a permit stream: a vanished client's permits make other requests wait.
/// - For a connection at shutdown: a vanished client would delay the shutdown.
#[derive(Debug)]
pub struct ShortIdleGuard(
    #[expect(dead_code, reason = "only its reference count is read")] Arc<()>,
);

/// Creates [`ShortIdleGuard`] guards for one connection.
#[derive(Clone, Debug)]
pub struct ShortIdleHandle(Weak<()>);

impl ShortIdleHandle {
    /// Creates a guard for the connection, or `None` if the connection is closed.
    pub fn create_guard(&self) -> Option<ShortIdleGuard> {
        self.0.upgrade().map(ShortIdleGuard)
    }
}

/// An accepted connection of the gRPC port, with its lifetime and idle timeout.
#[derive(Debug)]
pub struct GrpcConnection {
    io: Socket,
    lifetime: Option<Pin<Box<Sleep>>>,
    idle_timer: IdleTimer,
    guards: Arc<()>,
    /// One slot of the maximum number of connections, freed on drop.
    _slot: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct IdleTimer {
    preface_missing: usize,
    last_read: Instant,
    next_check: Pin<Box<Sleep>>,
}

impl IdleTimer {
    fn new() -> Self {
        Self {
            preface_missing: PREFACE_BYTES,
            last_read: Instant::now(),
            next_check: Box::pin(sleep(HANDSHAKE_TIMEOUT)),
        }
    }

    fn record_read(&mut self, bytes: usize) {
        self.last_read = Instant::now();
        if self.preface_missing == 0 {
            return;
        }
        self.preface_missing = self.preface_missing.saturating_sub(bytes);
        if self.preface_missing == 0 {
            self.next_check.as_mut().reset(self.last_read + IDLE_CHECK_INTERVAL);
        }
    }

    /// Returns `true` at the end of the idle timeout. Otherwise schedules the next check.
    fn is_expired(&mut self, guards: &Arc<()>, cx: &mut Context<'_>) -> bool {
        while self.next_check.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if IDLE_CHECK_INTERVAL <= now - self.next_check.deadline() {
                self.last_read = now;
            }
            let has_guards = Arc::strong_count(guards) > 1;
            let deadline =
                self.last_read + if has_guards { PERMIT_STREAM_IDLE_TIMEOUT } else { PONG_TIMEOUT };
            if self.preface_missing > 0 || deadline <= now {
                return true;
            }
            self.next_check.as_mut().reset(deadline.min(now + IDLE_CHECK_INTERVAL));
        }
        false
    }
}

impl GrpcConnection {
    pub(super) fn new(
        io: Socket,
        lifetime: Option<Pin<Box<Sleep>>>,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { io, lifetime, idle_timer: IdleTimer::new(), guards: Arc::default(), _slot: slot }
    }

    /// Returns a handle that creates [`ShortIdleGuard`]s for this connection.
    pub fn idle_handle(&self) -> ShortIdleHandle {
        ShortIdleHandle(Arc::downgrade(&self.guards))
    }

    /// Returns the result of a read or write, or a timeout error at the end of the lifetime or the
    /// idle timeout.
    fn fail_if_expired<T>(
        &mut self,
        result: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let is_past = |lifetime: &mut Pin<Box<Sleep>>| lifetime.as_mut().poll(cx).is_ready();
        let is_expired = self.lifetime.as_mut().is_some_and(is_past);
        if is_expired || result.is_pending() && self.idle_timer.is_expired(&self.guards, cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        result
    }
}

impl Connected for GrpcConnection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        let raw = match &self.io {
            Socket::Left(raw) => raw,
            Socket::Right(stream) => stream.get_ref().0,
        };
        match raw {
            RawSocket::Left(stream) => stream.connect_info(),
            RawSocket::Right(_) => TcpConnectInfo { local_addr: None, remote_addr: None },
        }
    }
}

impl AsyncRead for GrpcConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        let received = buffer.filled().len().saturating_sub(before);
        if received > 0 {
            self.idle_timer.record_read(received);
        }
        self.fail_if_expired(read, cx)
    }
}

impl AsyncWrite for GrpcConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.fail_if_expired(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bytes);
        self.fail_if_expired(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.fail_if_expired(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.io).poll_shutdown(cx);
        self.fail_if_expired(closed, cx)
    }
}
