//! A connection of the gRPC port that closes at the
//! end of its lifetime or when the client sends nothing.
//!
//! Guarantees:
//! - While a [`ShortIdleGuard`] exists, the idle timeout is [`GrpcTimeouts::permit_connection_idle_timeout`].
//! - Otherwise, the idle timeout is [`GrpcTimeouts::idle`].
//! - With TLS, only decrypted bytes restart the idle timeout.
//! - Any received byte restarts it, so a proxy that is too busy for pings stays connected.
//! - Pending writes do not extend the idle timeout.
//! - The idle timeout restarts if this process was suspended for 500 ms or longer.
//!
//! Not covered:
//! - Pings to idle clients, which the HTTP/2 server sends.
//!
//! If a client sends but never reads its replies, the HTTP/2 server soon stops
//! reading from its connection. The idle timeout then ends this connection too.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::super::timeouts::GrpcTimeouts;
use crate::connection_gate::ConnectionSlot;
use crate::engine::proxies::PeerKey;
use crate::failed_connections::FailedConnection;
use crate::first_bytes::FirstBytes;

/// The length of the HTTP/2 client preface, in bytes (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;
/// The interval at which a connection with a [`ShortIdleGuard`] examines its idle timeout. A timer
/// that is late by this interval shows that this process was suspended and could not read.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

pub(super) type RawSocket = Either<TcpStream, UnixStream>;
pub(super) type Socket = Either<RawSocket, Box<TlsStream<RawSocket>>>;

/// A guard that shortens the idle timeout of its connection to two seconds while it exists.
///
/// - A permit stream has a guard, because a vanished client's permits make other requests wait.
/// - A connection at shutdown has a guard, because a vanished client would delay the shutdown.
/// - Other connections have none: an early close would only fail the calls of a paused client.
#[derive(Debug)]
pub struct ShortIdleGuard(#[expect(dead_code, reason = "counted by who watches over it")] Arc<()>);

/// Creates [`ShortIdleGuard`] guards for one connection.
#[derive(Clone, Debug)]
pub struct ShortIdleHandle(Weak<()>);

impl ShortIdleHandle {
    /// Creates a guard for the connection; `None` if the connection is closed.
    pub fn create_guard(&self) -> Option<ShortIdleGuard> {
        self.0.upgrade().map(ShortIdleGuard)
    }

    /// Returns `true` while a guard of the connection exists.
    pub(in crate::grpc) fn has_guards(&self) -> bool {
        // The connection itself has one reference.
        1 < self.0.strong_count()
    }
}

/// An accepted connection of the gRPC port, with its lifetime and its idle timeout.
#[derive(Debug)]
pub struct GrpcConnection {
    io: Socket,
    lifetime: Option<Pin<Box<Sleep>>>,
    idle_timer: IdleTimer,
    first_bytes: FirstBytes,
    guards: Arc<()>,
    /// One of the slots for all connections; its drop frees it.
    slot: ConnectionSlot,
}

#[derive(Debug)]
struct IdleTimer {
    timeouts: GrpcTimeouts,
    preface_missing: usize,
    last_read: Instant,
    /// `true` if a guard existed at the last poll, after the HTTP/2 preface.
    has_guards: bool,
    next_check: Pin<Box<Sleep>>,
}

impl IdleTimer {
    fn new(timeouts: GrpcTimeouts) -> Self {
        Self {
            timeouts,
            preface_missing: PREFACE_BYTES,
            last_read: Instant::now(),
            has_guards: false,
            next_check: Box::pin(sleep(timeouts.handshake)),
        }
    }

    fn record_read(&mut self, bytes: usize) {
        self.last_read = Instant::now();
        if self.preface_missing == 0 {
            return;
        }
        self.preface_missing = self.preface_missing.saturating_sub(bytes);
        if self.preface_missing == 0 {
            self.next_check.as_mut().reset(self.last_read + self.timeouts.idle());
        }
    }

    /// Starts the short idle timeout now if the connection has its first guard, because the last
    /// read may be long ago.
    fn update_guards(&mut self, has_guards: bool) {
        let has_guards = has_guards && self.preface_missing == 0;
        if has_guards && !self.has_guards {
            self.last_read = Instant::now();
            self.next_check.as_mut().reset(self.last_read + IDLE_CHECK_INTERVAL);
        }
        self.has_guards = has_guards;
    }

    /// Returns true if the idle timeout is over. Otherwise registers
    /// the task to be woken for the next examination.
    fn is_expired(&mut self, guard: &Arc<()>, cx: &mut Context<'_>) -> bool {
        self.update_guards(Arc::strong_count(guard) > 1);
        while self.next_check.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if IDLE_CHECK_INTERVAL <= now - self.next_check.deadline() {
                self.last_read = now;
            }
            let (timeout, interval) = if self.has_guards {
                (self.timeouts.permit_connection_idle_timeout(), IDLE_CHECK_INTERVAL)
            } else {
                (self.timeouts.idle(), self.timeouts.idle())
            };
            let deadline = self.last_read + timeout;
            if self.preface_missing > 0 || deadline <= now {
                return true;
            }
            self.next_check.as_mut().reset(deadline.min(now + interval));
        }
        false
    }
}

impl GrpcConnection {
    pub(super) fn new(
        io: Socket,
        timeouts: GrpcTimeouts,
        lifetime: Option<Pin<Box<Sleep>>>,
        slot: ConnectionSlot,
    ) -> Self {
        let (idle_timer, first_bytes) = (IdleTimer::new(timeouts), FirstBytes::default());
        Self { io, lifetime, idle_timer, first_bytes, guards: Arc::default(), slot }
    }

    /// Returns the timeouts of the connection's port.
    pub(in crate::grpc) const fn timeouts(&self) -> &GrpcTimeouts {
        &self.idle_timer.timeouts
    }

    /// Returns a handle that creates guards for this connection.
    pub fn idle_handle(&self) -> ShortIdleHandle {
        ShortIdleHandle(Arc::downgrade(&self.guards))
    }

    /// Reports a client with another protocol, whose connection the HTTP/2 server then closes.
    fn recognize(&mut self, received: &[u8]) {
        let Some(protocol) = self.first_bytes.add(received) else { return };
        let peer = self.connect_info().remote_addr();
        if let Some(failed) = FailedConnection::of_protocol(self.slot.port(), protocol, peer) {
            failed.report();
        }
    }

    /// Returns the result of a read or write, or a timeout error if the connection's
    /// lifetime or idle timeout is over.
    fn fail_if_expired<T>(
        &mut self,
        done: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let is_past_lifetime = |timer: &mut Pin<Box<Sleep>>| timer.as_mut().poll(cx).is_ready();
        let is_dead = self.lifetime.as_mut().is_some_and(is_past_lifetime);
        if is_dead || done.is_pending() && self.idle_timer.is_expired(&self.guards, cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        done
    }
}

/// The client of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The peer whose streams and records are bounded together.
    pub peer: PeerKey,
    /// True with a verified client certificate, from a loopback address and on the Unix socket.
    pub is_trusted: bool,
}

impl GrpcConnection {
    /// Returns the client of the connection.
    pub(in crate::grpc) fn client(&self) -> ClientIdentity {
        let certificate = match &self.io {
            Socket::Left(_) => None,
            Socket::Right(stream) => stream.get_ref().1.peer_certificates().and_then(<[_]>::first),
        };
        if let Some(certificate) = certificate {
            let peer = PeerKey::Certificate(Sha256::digest(certificate).into());
            return ClientIdentity { peer, is_trusted: true };
        }
        match self.connect_info().remote_addr() {
            Some(address) => ClientIdentity {
                peer: PeerKey::of_address(address.ip()),
                is_trusted: address.ip().to_canonical().is_loopback(),
            },
            None => ClientIdentity { peer: PeerKey::UnixSocket, is_trusted: true },
        }
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
            RawSocket::Left(stream) => {
                // A port on `::` sees IPv4 clients as `::ffff:192.0.2.7`.
                let TcpConnectInfo { local_addr, remote_addr } = stream.connect_info();
                let canonical =
                    |peer: SocketAddr| SocketAddr::new(peer.ip().to_canonical(), peer.port());
                TcpConnectInfo { local_addr, remote_addr: remote_addr.map(canonical) }
            }
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
        let more = buffer.filled().len().saturating_sub(before);
        if more > 0 {
            self.idle_timer.record_read(more);
            self.recognize(&buffer.filled()[before..]);
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
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.fail_if_expired(shut, cx)
    }
}
