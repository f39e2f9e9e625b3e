//! A connection of the gRPC port, which ends when its time is over or nothing comes any more.
//!
//! Guarantees: whoever sends nothing for [`SILENCE`] is let go where something ends with the connection ([`Held`]), and
//! after [`PONG_AT_LAST`] where nothing does, whether or not something waits to be written. What comes
//! counts, whatever it is: a proxy that is too busy to answer a ping keeps its connection. Where this process slept for
//! half a second or more, the time of those who have sent the preface begins anew.
//! Leaves out: what makes a client that lives say something meanwhile, the server's pings; and those who send
//! and do not take what is written, of whom nothing more is read: they are let go as the silent are.

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

/// Length of what every client of HTTP/2 sends first, in bytes (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// How long nothing may come of a client that has sent the [`PREFACE`] and holds something. In TLS, nothing that can be
/// read.
const SILENCE: Duration = PING_AFTER.saturating_add(PONG_WITHIN);
/// How often that is looked over: who comes so much too late slept, and did not hear what there was to hear.
const LOOK: Duration = Duration::from_millis(250);

/// TCP or a Unix socket.
pub(super) type Raw = Either<TcpStream, UnixStream>;
/// In plain text or TLS.
pub(super) type Io = Either<Raw, Box<TlsStream<Raw>>>;

/// What keeps others waiting for as long as its connection lasts: places of requests in flight, or a shutdown. Those who
/// vanish while there is any are let go soon. For all others haste would only end the calls of who stood still.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "counted by who watches over it")] Arc<()>);

/// Makes what is [`Held`] of one connection.
#[derive(Clone, Debug)]
pub struct Holding(Weak<()>);

impl Holding {
    /// One more; none of a connection that is gone.
    pub fn hold(&self) -> Option<Held> {
        self.0.upgrade().map(Held)
    }
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    io: Io,
    life: Option<Pin<Box<Sleep>>>,
    silence: Silence,
    held: Arc<()>,
    /// Another connection's, once this one is gone.
    _slot: Option<OwnedSemaphorePermit>,
}

/// Since when nothing came, and when that is looked over.
#[derive(Debug)]
struct Silence {
    /// What has not come of the preface.
    missing: usize,
    since: Instant,
    look: Pin<Box<Sleep>>,
}

impl Silence {
    fn new() -> Self {
        Self { missing: PREFACE, since: Instant::now(), look: Box::pin(sleep(HANDSHAKE)) }
    }

    /// Takes it that the client sent `more` bytes.
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

    /// Whether it is too long; whoever asks is woken when that may be so.
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

    /// For what ends with this connection.
    pub fn holding(&self) -> Holding {
        Holding(Arc::downgrade(&self.held))
    }

    /// What became of reading or writing, or that there was nothing to wait for.
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
