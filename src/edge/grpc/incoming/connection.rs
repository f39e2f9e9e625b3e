//! A connection of the gRPC port that closes at the
//! end of its lifetime or when the client is silent.
//!
//! Guarantees:
//! - With a [`Held`] guard, a silent client is disconnected after [`SILENCE`].
//! - Otherwise, a silent client is disconnected after [`PONG_AT_LAST`].
//! - Any received byte counts, so a proxy too busy for pings stays connected.
//! - Pending writes do not extend the time.
//! - The time restarts if this process was suspended for 500 ms or longer.
//!
//! Not covered:
//! - Pings to idle clients, which the HTTP/2 server sends.
//!
//! If a client sends but never reads its replies, the server soon stops
//! reading from it. The client is then disconnected like a silent one.

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

use super::super::{PING_AFTER, PONG_AT_LAST, PONG_WITHIN};
use super::HANDSHAKE;

/// The length of the HTTP/2 client preface, in bytes (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// The idle timeout of a client that has sent the [`PREFACE`] and
/// has a [`Held`] guard. With TLS, only decrypted bytes count.
const SILENCE: Duration = PING_AFTER.saturating_add(PONG_WITHIN);
/// The interval of idle checks. A check that is late by this
/// much shows that the process was suspended and could not read.
const LOOK: Duration = Duration::from_millis(250);

pub(super) type Raw = Either<TcpStream, UnixStream>;
pub(super) type Io = Either<Raw, Box<TlsStream<Raw>>>;

/// A guard that shortens the idle timeout of its connection to [`SILENCE`].
///
/// Permit streams and connections under shutdown have one, because
/// they make others wait. Other connections have the longer timeout:
/// closing them early would only fail the calls of a paused client.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "counted by who watches over it")] Arc<()>);

/// Creates [`Held`] guards for one connection.
#[derive(Clone, Debug)]
pub struct Holding(Weak<()>);

impl Holding {
    /// Creates a guard; `None` if the connection is closed.
    pub fn hold(&self) -> Option<Held> {
        self.0.upgrade().map(Held)
    }
}

/// An accepted connection.
#[derive(Debug)]
pub struct Connection {
    io: Io,
    life: Option<Pin<Box<Sleep>>>,
    silence: Silence,
    held: Arc<()>,
    /// Frees the slot for another connection on drop.
    _slot: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct Silence {
    missing: usize,
    since: Instant,
    look: Pin<Box<Sleep>>,
}

impl Silence {
    fn new() -> Self {
        Self { missing: PREFACE, since: Instant::now(), look: Box::pin(sleep(HANDSHAKE)) }
    }

    fn hears(&mut self, more: usize) {
        self.since = Instant::now();
        if self.missing == 0 {
            return;
        }
        self.missing = self.missing.saturating_sub(more);
        if self.missing == 0 {
            self.look.as_mut().reset(self.since + LOOK);
        }
    }

    /// Returns true if the client was silent for too
    /// long. Otherwise wakes the task for the next check.
    fn is_over(&mut self, held: &Arc<()>, cx: &mut Context<'_>) -> bool {
        while self.look.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if LOOK <= now - self.look.deadline() {
                self.since = now;
            }
            let holds = Arc::strong_count(held) > 1;
            let ends = self.since + if holds { SILENCE } else { PONG_AT_LAST };
            if self.missing > 0 || ends <= now {
                return true;
            }
            self.look.as_mut().reset(ends.min(now + LOOK));
        }
        false
    }
}

impl Connection {
    pub(super) fn new(
        io: Io,
        life: Option<Pin<Box<Sleep>>>,
        slot: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { io, life, silence: Silence::new(), held: Arc::default(), _slot: slot }
    }

    /// Returns a handle that creates guards for this connection.
    pub fn holding(&self) -> Holding {
        Holding(Arc::downgrade(&self.held))
    }

    /// Returns `done`, or a timeout error if the connection's lifetime or idle time is over.
    fn unless_over<T>(
        &mut self,
        done: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let is_dead = |life: &mut Pin<Box<Sleep>>| life.as_mut().poll(cx).is_ready();
        let is_dead = self.life.as_mut().is_some_and(is_dead);
        if is_dead || done.is_pending() && self.silence.is_over(&self.held, cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        done
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        let raw = match &self.io {
            Io::Left(raw) => raw,
            Io::Right(stream) => stream.get_ref().0,
        };
        match raw {
            Raw::Left(stream) => stream.connect_info(),
            Raw::Right(_) => TcpConnectInfo { local_addr: None, remote_addr: None },
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        let more = buffer.filled().len().saturating_sub(before);
        if more > 0 {
            self.silence.hears(more);
        }
        self.unless_over(read, cx)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.unless_over(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bytes);
        self.unless_over(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.unless_over(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.unless_over(shut, cx)
    }
}
