//! Wraps one connection of an HTTP port: detects a client that disconnects, reads nothing or has
//! another protocol.
//!
//! Guarantees:
//! - A client that accepts no data for the write timeout is disconnected; unsent data is dropped.
//! - A slow client stays connected if it accepts some data within the write timeout.
//! - A disconnect is detected while a reply is computed, even if the client had sent more data.
//!
//! Not covered: the disconnect of a client whose unread data fills the socket's receive buffer.

use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, Shutdown};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::Extensions;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Sleep, sleep};

use crate::connection_gate::ListenPort;
use crate::failed_connections::FailedConnection;
use crate::first_bytes::FirstBytes;

/// For this time, data may still move between the socket buffers of both ends, which does not prove
/// that the client reads. The write timeout starts afterwards.
const BUFFER_SETTLE_TIME: Duration = Duration::from_secs(1);

/// The socket event for a peer that closed its side. "Readable" cannot show this: a socket with
/// unread data is always readable.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOSED: Interest = Interest::PRIORITY;
/// The socket event for an error. Other operating systems do not report that a peer closed its
/// side; only hyper detects it.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOSED: Interest = Interest::ERROR;

#[derive(Debug)]
pub(super) struct HttpConnection {
    read_half: OwnedReadHalf,
    write_half: Arc<OwnedWriteHalf>,
    write_timeout: Duration,
    write_timer: Option<WriteTimer>,
    port: ListenPort,
    first_bytes: FirstBytes,
}

#[derive(Debug)]
struct WriteTimer {
    sleep: Pin<Box<Sleep>>,
    is_settled: bool,
}

impl HttpConnection {
    /// Wraps `stream` of `port`, and also returns its remote end.
    pub(super) fn new(
        stream: TcpStream,
        port: ListenPort,
        write_timeout: Duration,
    ) -> (Self, HttpPeer) {
        let (read_half, write_half) = stream.into_split();
        let write_half = Arc::new(write_half);
        let peer = HttpPeer(Some(Arc::clone(&write_half)));
        let (write_timer, first_bytes) = (None, FirstBytes::default());
        (Self { read_half, write_half, write_timeout, write_timer, port, first_bytes }, peer)
    }

    fn socket(&self) -> &TcpStream {
        OwnedWriteHalf::as_ref(&self.write_half)
    }

    /// Reports a client with another protocol, which the HTTP/1 server then refuses.
    fn recognize(&mut self, received: &[u8]) {
        let Some(protocol) = self.first_bytes.add(received) else { return };
        let peer = self.socket().peer_addr().ok();
        if let Some(failed) = FailedConnection::of_protocol(self.port, protocol, peer) {
            failed.report();
        }
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&SockRef<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let mut written = poll_try_write(self.socket(), cx, &write);
        if written.is_pending() {
            written = self.poll_blocked_write(cx, write);
        }
        if written.is_ready() {
            self.write_timer = None;
        }
        written
    }

    /// Tries to write when the timer expires. Linux reports a socket as writable only when a third
    /// of its send buffer is free, but any free space shows that the client reads.
    fn poll_blocked_write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&SockRef<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let timer = self
                .write_timer
                .get_or_insert_with(|| WriteTimer::start(BUFFER_SETTLE_TIME, false));
            ready!(timer.sleep.as_mut().poll(cx));
            let is_expired = timer.is_settled;
            match write(&SockRef::from(self.socket())) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
            if is_expired {
                return Poll::Ready(Err(reset_and_time_out(self.socket())));
            }
            self.write_timer = Some(WriteTimer::start(self.write_timeout, true));
        }
    }
}

impl WriteTimer {
    fn start(time: Duration, is_settled: bool) -> Self {
        Self { sleep: Box::pin(sleep(time)), is_settled }
    }
}

fn poll_try_write(
    socket: &TcpStream,
    cx: &mut Context<'_>,
    write: impl Fn(&SockRef<'_>) -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(socket.poll_write_ready(cx))?;
        match socket.try_io(Interest::WRITABLE, || write(&SockRef::from(socket))) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
    }
}

/// Makes the close of `socket` reset the connection, and returns a timeout error. Otherwise the
/// operating system would keep megabytes of unsent data.
fn reset_and_time_out(socket: &TcpStream) -> io::Error {
    drop(SockRef::from(socket).set_linger(Some(Duration::ZERO)));
    ErrorKind::TimedOut.into()
}

impl AsyncRead for HttpConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, this) = (buffer.filled().len(), self.get_mut());
        let read = Pin::new(&mut this.read_half).poll_read(cx, buffer);
        this.recognize(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for HttpConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(cx, |socket| socket.send(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(cx, |socket| socket.send_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // This type has no buffer.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(self.socket()).shutdown(Shutdown::Write))
    }
}

/// The remote end of a connection. The default value never closes.
#[derive(Clone, Debug, Default)]
pub(super) struct HttpPeer(Option<Arc<OwnedWriteHalf>>);

impl HttpPeer {
    pub(super) fn from_extensions(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// Returns the IP address of the peer, if it is known.
    pub(super) fn address(&self) -> Option<IpAddr> {
        Some(self.0.as_ref()?.peer_addr().ok()?.ip().to_canonical())
    }

    /// Waits until the peer closes the connection or its sending side, or becomes unreachable.
    pub(super) async fn closed(&self) {
        match &self.0 {
            // `ready` fails only while the process ends.
            Some(socket) => drop(socket.ready(CLOSED).await),
            None => std::future::pending().await,
        }
    }
}
