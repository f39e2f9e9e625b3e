//! Wraps one connection of an HTTP port and detects the state of its peer.
//!
//! Guarantees:
//! - A client that accepts no data for [`UNREAD`] is disconnected, and unsent data is dropped.
//! - A slow client stays connected if it accepts some data within that time.
//! - A reply in progress notices that its client closed, even behind unread data.
//!
//! Not covered:
//! - Slow requests: hyper closes these connections.
//! - A close behind unread data that fills the socket's receive buffer.

use std::io::{self, ErrorKind, IoSlice};
use std::net::Shutdown;
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

/// The maximum time without progress of a write. Equal to the maximum silence of
/// a client. Without it, clients that never read could occupy every connection.
const UNREAD: Duration = Duration::from_secs(30);

/// The time in which the two kernels may still move data between their buffers. Free space
/// in this time does not prove that the client reads. It is filled before [`UNREAD`] starts.
const SETTLING: Duration = Duration::from_secs(1);

/// The readiness for a close of the peer, without data. With unread
/// data, a socket is always readable, which would hide a later close.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOSED: Interest = Interest::PRIORITY;
/// Other systems report only errors. There, hyper's own detection must suffice.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOSED: Interest = Interest::ERROR;

#[derive(Debug)]
pub(super) struct Connection {
    reading: OwnedReadHalf,
    writing: Arc<OwnedWriteHalf>,
    unread: Option<Unread>,
}

#[derive(Debug)]
struct Unread {
    ends: Pin<Box<Sleep>>,
    is_settled: bool,
}

impl Connection {
    /// Wraps `stream` and returns its peer as well.
    pub(super) fn new(stream: TcpStream) -> (Self, Peer) {
        let (reading, writing) = stream.into_split();
        let writing = Arc::new(writing);
        let peer = Peer(Some(Arc::clone(&writing)));
        (Self { reading, writing, unread: None }, peer)
    }

    fn socket(&self) -> &TcpStream {
        OwnedWriteHalf::as_ref(&self.writing)
    }

    fn poll_out(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&SockRef<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let mut written = poll_written(self.socket(), cx, &write);
        if written.is_pending() {
            written = self.poll_unread(cx, write);
        }
        if written.is_ready() {
            self.unread = None;
        }
        written
    }

    /// Writes without tokio's readiness when the timer expires. Linux
    /// reports a socket as writable only after a third of its queue
    /// was sent. Any free space already shows that the client reads.
    fn poll_unread(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&SockRef<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let unread = self.unread.get_or_insert_with(|| Unread::after(SETTLING, false));
            ready!(unread.ends.as_mut().poll(cx));
            let is_over = unread.is_settled;
            match write(&SockRef::from(self.socket())) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
            if is_over {
                return Poll::Ready(Err(cut_off(self.socket())));
            }
            self.unread = Some(Unread::after(UNREAD, true));
        }
    }
}

impl Unread {
    fn after(time: Duration, is_settled: bool) -> Self {
        Self { ends: Box::pin(sleep(time)), is_settled }
    }
}

fn poll_written(
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

/// Resets the connection on close. Otherwise the kernel would keep megabytes of unsent data.
fn cut_off(socket: &TcpStream) -> io::Error {
    drop(SockRef::from(socket).set_linger(Some(Duration::ZERO)));
    ErrorKind::TimedOut.into()
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().reading).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_out(cx, |socket| socket.send(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_out(cx, |socket| socket.send_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Writes go directly to the kernel, so nothing is buffered here.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(self.socket()).shutdown(Shutdown::Write))
    }
}

/// The remote end of a connection. Without a connection, it never closes.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer(Option<Arc<OwnedWriteHalf>>);

impl Peer {
    pub(super) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// Waits until the peer closes the connection or its sending side, or becomes unreachable.
    pub(super) async fn gone(&self) {
        match &self.0 {
            // Fails only while the process ends.
            Some(socket) => drop(socket.ready(CLOSED).await),
            None => std::future::pending().await,
        }
    }
}
