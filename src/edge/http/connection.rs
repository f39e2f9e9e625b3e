//! One connection of an HTTP port, and who is at its other end.
//!
//! Guarantees: a client that takes nothing of what is written to it is cut off after [`UNREAD`], and what it left unread
//! is dropped; one that reads on never is, however slowly, while its end makes room for more within that time. An answer
//! that takes its time can learn that its client has closed, while there are bytes that nobody reads as well, when hyper
//! does not look: as far as they fit the socket's receive buffer, since behind more of them no closing comes.
//! Leaves out: a client that is slow to ask, which hyper cuts off.

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

/// How long nothing of what is written may be taken: as long as a client may be silent. Without a bound those who
/// never read would have every connection.
const UNREAD: Duration = Duration::from_secs(30);

/// How long the two kernels may go on moving what is written between their buffers, though nobody reads: what room there
/// is then tells nothing of the client, and is filled before [`UNREAD`] begins.
const SETTLING: Duration = Duration::from_secs(1);

/// Ready when the other end has closed, and not for bytes: those nobody may read, and a closing behind them would not
/// be seen.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOSED: Interest = Interest::PRIORITY;
/// Elsewhere nothing says so but an error, and hyper's own look has to do.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOSED: Interest = Interest::ERROR;

/// What hyper reads and writes.
#[derive(Debug)]
pub(super) struct Connection {
    reading: OwnedReadHalf,
    writing: Arc<OwnedWriteHalf>,
    /// While there is no room for more.
    unread: Option<Unread>,
}

/// Until when something has to be taken.
#[derive(Debug)]
struct Unread {
    ends: Pin<Box<Sleep>>,
    is_settled: bool,
}

impl Connection {
    /// That of `stream`, and its other end.
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

    /// Writes past what tokio knows, when it is time: Linux says that there is room only when a third of what waits is
    /// taken, and any room shows that the client reads.
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

/// Else the kernel would keep megabytes for who does not read them.
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
        // The kernel has it already.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(self.socket()).shutdown(Shutdown::Write))
    }
}

/// The other end of a connection; one that never closes where a request came by none.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer(Option<Arc<OwnedWriteHalf>>);

impl Peer {
    /// Whose request has these.
    pub(super) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// Until it has closed, its machine is gone, or it says that nothing more will come.
    pub(super) async fn gone(&self) {
        match &self.0 {
            // Only a process that ends cannot wait for it.
            Some(socket) => drop(socket.ready(CLOSED).await),
            None => std::future::pending().await,
        }
    }
}
