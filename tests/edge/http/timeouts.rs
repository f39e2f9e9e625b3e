//! Clients that are slow to send a request head or to read a reply.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use parking_lot::Mutex;
use sluicegate::edge::http::{HttpTimeouts, serve_with_timeouts};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Notify, oneshot};
use tokio::time::{interval, timeout};

use super::{default_router, gate, read_until};
use crate::edge::{engine, two_a_minute};
use crate::support::waiting::{now, soon};

/// The timeout for a request head in these tests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// The timeout of a write without progress in these tests.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two reads of a slow client.
const READ_INTERVAL: Duration = Duration::from_millis(200);

/// The reads of a slow client: for longer than the write timeout and the second before it.
const READS: u32 = 37;

async fn start(router: Router, timeouts: HttpTimeouts) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let never = std::future::pending();
    tokio::spawn(serve_with_timeouts(listener, router, (gate(), timeouts), never));
    address
}

async fn send(to: SocketAddr, request: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(request).await.unwrap();
    stream
}

/// Sends `piece` repeatedly until the server closes the connection. Returns the reply and the time
/// since the connection began.
async fn trickle(to: SocketAddr, piece: &[u8]) -> (String, Duration) {
    let began = now();
    let (mut stream, mut received) = (send(to, piece).await, Vec::new());
    loop {
        // The server may have closed the connection.
        let _ = stream.write_all(piece).await;
        if let Ok(Ok(0) | Err(_)) = timeout(READ_INTERVAL, stream.read_buf(&mut received)).await {
            return (String::from_utf8(received).unwrap(), began.elapsed());
        }
    }
}

#[tokio::test]
async fn an_unfinished_request_head_times_out_while_others_succeed() {
    let timeouts = HttpTimeouts { head: HEAD_TIMEOUT, ..HttpTimeouts::default() };
    let address = start(default_router(engine(two_a_minute())), timeouts).await;
    let other = async {
        let mut other = send(address, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await;
        read_until(&mut other, "alive").await;
    };
    let all = async { tokio::join!(trickle(address, b"x"), trickle(address, b""), other) };
    let (busy, silent, ()) = soon("the end of all connections", all).await;
    for (reply, took) in [busy, silent] {
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 408 "), "{reply}");
        assert!(HEAD_TIMEOUT <= took, "closed after {took:?}");
    }
}

/// A router with an endless response, and a receiver that fails when its connection is dropped.
fn endless() -> (Router, oneshot::Receiver<()>) {
    let (alive, gone) = oneshot::channel();
    let alive = Arc::new(Mutex::new(Some(alive)));
    let page = move || {
        let alive = alive.lock().take();
        let chunks = std::iter::repeat_with(move || {
            assert!(alive.is_some(), "the page has one request");
            Ok::<_, Infallible>(vec![b' '; 64 * 1024])
        });
        std::future::ready(Body::from_stream(tokio_stream::iter(chunks)))
    };
    (Router::new().route("/endless", get(page)), gone)
}

/// Reads 16 KiB in each interval. Linux reports a socket as writable when a third of its buffer is
/// free, which this client does not reach within the write timeout.
async fn read_slowly(mut stream: TcpStream) -> TcpStream {
    let mut ticks = interval(READ_INTERVAL);
    let mut little = vec![0; 16 * 1024];
    for _ in 0..READS {
        ticks.tick().await;
        stream.read_exact(&mut little).await.unwrap();
    }
    stream
}

/// A route whose reply waits for the notification.
fn late_route() -> (Router, Arc<Notify>) {
    let ready = Arc::new(Notify::new());
    let until_ready = Arc::clone(&ready);
    let late = move || {
        let ready = Arc::clone(&until_ready);
        async move {
            ready.notified().await;
            "late"
        }
    };
    (Router::new().route("/late", get(late)), ready)
}

/// Takes 7 seconds: the write timeout of this test, the second before it, and one more.
#[tokio::test]
async fn slow_client_stays_connected_but_client_that_stops_reading_does_not() {
    let ((router, gone), (slow_router, mut slow_gone)) = (endless(), endless());
    let (late, ready) = late_route();
    let timeouts = HttpTimeouts { write: WRITE_TIMEOUT, ..HttpTimeouts::default() };
    let address = start(router.merge(late).nest("/slow", slow_router), timeouts).await;
    let mut waiting_client = send(address, b"GET /late HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let slow = send(address, b"GET /slow/endless HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let began = now();
    let mut stalled = send(address, b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let gone = async { (gone.await, began.elapsed()) };
    let both = async { tokio::join!(gone, read_slowly(slow)) };
    let ((gone, took), _slow) = soon("the end of the stalled connection", both).await;
    assert!(gone.is_err(), "the page is dropped with its connection");
    assert!(WRITE_TIMEOUT <= took, "closed after {took:?}");
    assert_eq!(slow_gone.try_recv(), Err(TryRecvError::Empty), "it reads on");
    // The server drops the data that it has not sent, so the client gets a reset instead of an
    // orderly close.
    let closed = async {
        stalled.ready(Interest::ERROR).await.unwrap();
        stalled.read_to_end(&mut Vec::new()).await
    };
    let closed = soon("the reset", closed).await;
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::ConnectionReset);
    ready.notify_one();
    let reply = read_until(&mut waiting_client, "late").await;
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
}
