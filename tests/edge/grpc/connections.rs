//! Tests of idle timeouts of gRPC connections, with plain HTTP/2 clients that answer no ping.
//!
//! Guarantees:
//! - A client that sends frames stays connected.
//! - Only a client with a permit stream is pinged often.
//! - A silent client with an open stream is disconnected sooner than a silent client without
//!   streams.
//! - A client that stops reading does not delay the shutdown.
//! - A suspended server keeps idle connections when it resumes.

use std::io;
use std::time::Duration;

use sluicegate::edge::grpc::{GrpcTimeouts, PERMIT_STREAM_PONG_TIMEOUT, PING_INTERVAL};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};

use super::{Served, limited_with};
use crate::support::waiting::{now, soon};

/// The connection preface and an empty SETTINGS frame (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// A PING frame without the ACK flag (RFC 9113, 6.7).
const PING: [u8; 17] = *b"\0\0\x08\x06\0\0\0\0\0sluicing";
/// The idle timeout of a client with an open `Session` stream, which keeps permits.
const SILENCE: Duration = PING_INTERVAL.saturating_add(PERMIT_STREAM_PONG_TIMEOUT);
/// The interval between the frames of an active client.
const PAUSE: Duration = SILENCE.checked_div(8).unwrap();
/// A timeout that no test reaches.
const NEVER: Duration = Duration::from_secs(3_600);

/// The product's timeouts for permit streams. No other timeout ends a connection.
fn only_permit_streams() -> GrpcTimeouts {
    GrpcTimeouts { idle_ping_interval: NEVER, pong: NEVER, ..GrpcTimeouts::default() }
}

/// The HEADERS frame that opens a `Session` stream, with the indices of RFC 7541, appendix A.
fn open_hold_stream() -> Vec<u8> {
    const PATH: &[u8] = b"/sluicegate.v1.Permits/Session";
    const CONTENT: &[u8] = b"application/grpc";
    let text = |text: &[u8]| [&[u8::try_from(text.len()).unwrap()], text].concat();
    let method_and_scheme = [0x83, 0x86];
    let headers = [&method_and_scheme[..], &[0x04], &text(PATH), &[0x0f, 0x10], &text(CONTENT)];
    let headers = headers.concat();
    let length = u8::try_from(headers.len()).unwrap();
    [&[0, 0, length, 0x01, 0x04, 0, 0, 0, 1], &*headers].concat()
}

async fn connect(served: &Served, hello: &[u8]) -> TcpStream {
    let mut client = TcpStream::connect(served.address).await.unwrap();
    client.write_all(hello).await.unwrap();
    client
}

/// Sends the frames `hello`, then PING frames for the duration `active`, then nothing. Returns the
/// time from the last frame to the disconnect.
async fn time_to_disconnect(served: &Served, hello: &[u8], active: Duration) -> Duration {
    let mut client = connect(served, hello).await;
    let (began, mut last_sent) = (now(), Instant::now());
    while began.elapsed() < active {
        if PAUSE <= last_sent.elapsed() {
            last_sent = Instant::now();
            client.write_all(&PING).await.unwrap();
        }
        assert!(receive(&mut client).await.is_some(), "closed after {:?}", began.elapsed());
    }
    soon("the end of the silent connection", receive_to_end(&mut client)).await;
    last_sent.elapsed()
}

/// Returns the bytes received within [`PAUSE`], or `None` if the connection ended.
async fn receive(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 4096];
    match timeout(PAUSE, client.read(&mut buffer)).await {
        Err(_) => Some(Vec::new()),
        Ok(Ok(0) | Err(_)) => None,
        Ok(Ok(length)) => Some(buffer[..length].to_vec()),
    }
}

/// Returns the bytes received within `time`, in which the connection must stay open.
async fn receive_for(client: &mut TcpStream, time: Duration) -> Vec<u8> {
    let (began, mut received) = (now(), Vec::new());
    while began.elapsed() < time {
        received.extend(receive(client).await.expect("an open connection"));
    }
    received
}

/// Returns the bytes received until the connection ended.
async fn receive_to_end(client: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    while let Some(more) = receive(client).await {
        received.extend(more);
    }
    received
}

#[tokio::test]
async fn a_client_stays_connected_while_it_sends_frames() {
    let served = limited_with(only_permit_streams()).await;
    let mut without_streams = connect(&served, PREFACE).await;
    let hello = [PREFACE, &open_hold_stream()].concat();
    let silent = time_to_disconnect(&served, &hello, 2 * SILENCE + PAUSE).await;
    assert!(SILENCE <= silent, "closed {silent:?} after its last frame");
    // It has sent nothing for longer, so only a permit stream has the shorter timeout.
    receive_for(&mut without_streams, PAUSE).await;
    served.shut_down().await.unwrap();
}

/// Without permits, a silent client blocks no other request, so a suspended machine may stay
/// connected longer.
#[tokio::test]
async fn a_silent_client_without_streams_has_the_longer_timeout() {
    let (idle_ping_interval, pong) = (SILENCE / 2, SILENCE);
    let timeouts = GrpcTimeouts { idle_ping_interval, pong, ..GrpcTimeouts::default() };
    let served = limited_with(timeouts).await;
    let silent = time_to_disconnect(&served, PREFACE, Duration::ZERO).await;
    assert!(idle_ping_interval + pong <= silent, "closed {silent:?} after its last frame");
    served.shut_down().await.unwrap();
}

/// Returns the number of PING frames without the ACK flag.
fn count_pings(mut frames: &[u8]) -> usize {
    let mut pings = 0;
    while let [a, b, c, kind, flags, _, _, _, _, payload @ ..] = frames {
        pings += usize::from((*kind, *flags) == (6, 0));
        frames = &payload[usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).unwrap()..];
    }
    pings
}

#[tokio::test]
async fn only_a_client_with_a_permit_stream_is_pinged_often() {
    let served = limited_with(only_permit_streams()).await;
    let mut client = connect(&served, PREFACE).await;
    let mut received = receive_for(&mut client, 4 * PING_INTERVAL).await;
    assert_eq!(count_pings(&received), 0);
    client.write_all(&open_hold_stream()).await.unwrap();
    // The server sends no second ping before the reply to the first one, which never comes.
    received.extend(soon("the end of the connection", receive_to_end(&mut client)).await);
    assert_eq!(count_pings(&received), 1);
    served.shut_down().await.unwrap();
}

/// The server cannot send its replies, so it also stops reading from this connection. Without the
/// shorter timeout at shutdown, the connection would stay open.
#[tokio::test]
async fn a_client_that_stops_reading_does_not_delay_shutdown() {
    let served = limited_with(only_permit_streams()).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(served.address).await.unwrap();
    client.write_all(PREFACE).await.unwrap();
    let (pings, mut sent) = (PING.repeat(100), 0);
    while timeout(PAUSE, client.writable()).await.is_ok() {
        match client.try_write(&pings[sent % PING.len()..]) {
            Ok(more) => sent += more,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    served.shut_down().await.unwrap();
    drop(client);
}

/// A suspended server has read nothing, so a missing frame does not prove that the client is dead.
/// The runtime of this test has one thread, so a blocked test suspends the server.
#[tokio::test]
async fn a_suspended_server_keeps_idle_connections_on_resume() {
    let silence = SILENCE / 2;
    let (ping_interval, permit_stream_pong) = (silence / 4, 3 * silence / 4);
    let timeouts = GrpcTimeouts { ping_interval, permit_stream_pong, ..only_permit_streams() };
    let served = limited_with(timeouts).await;
    let hello = [PREFACE, &open_hold_stream()].concat();
    let mut clients = [connect(&served, &hello).await, connect(&served, PREFACE).await];
    for suspended in [3 * silence / 4, silence, 2 * silence] {
        for client in &mut clients {
            client.write_all(&PING).await.unwrap();
            // The server reads the frame before it is suspended.
            receive_for(client, PAUSE).await;
        }
        std::thread::sleep(suspended);
        for client in &mut clients {
            receive_for(client, PAUSE).await;
        }
    }
    served.shut_down().await.unwrap();
}
