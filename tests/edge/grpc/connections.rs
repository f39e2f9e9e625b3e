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

use sluicegate::edge::grpc::{
    IDLE_PING_INTERVAL, PERMIT_STREAM_PONG_TIMEOUT, PING_INTERVAL, PONG_TIMEOUT,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::limited;
use crate::support::service::Service;
use crate::support::waiting::now;

/// The connection preface and an empty SETTINGS frame (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// A PING frame without the ACK flag (RFC 9113, 6.7).
const PING: [u8; 17] = *b"\0\0\x08\x06\0\0\0\0\0sluicing";
/// The idle timeout of a client with an open `Session` stream, which keeps permits.
const SILENCE: Duration = PING_INTERVAL.saturating_add(PERMIT_STREAM_PONG_TIMEOUT);
/// The idle timeout of a client without permit streams.
const LONG_SILENCE: Duration = IDLE_PING_INTERVAL.saturating_add(PONG_TIMEOUT);
/// The interval between the frames of an active client.
const PAUSE: Duration = SILENCE.checked_div(8).unwrap();

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

/// Sends the frames `hello`, then PING frames for the duration `active`, then nothing. Returns the
/// time from the last frame to the disconnect.
async fn time_to_disconnect(hello: &[u8], active: Duration) -> Duration {
    let served = limited().await;
    let mut client = TcpStream::connect(served.address).await.unwrap();
    client.write_all(hello).await.unwrap();
    let (began, mut last_sent) = (now(), Instant::now());
    while began.elapsed() < active {
        if PAUSE <= last_sent.elapsed() {
            last_sent = Instant::now();
            client.write_all(&PING).await.unwrap();
        }
        assert!(receive(&mut client).await.is_some(), "let go after {:?}", began.elapsed());
    }
    let ended = async { while receive(&mut client).await.is_some() {} };
    timeout(2 * LONG_SILENCE, ended).await.expect("the end of who is silent");
    let silent = last_sent.elapsed();
    served.shut_down().await.unwrap();
    silent
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

#[tokio::test]
async fn a_client_stays_connected_while_it_sends_frames() {
    let silent =
        time_to_disconnect(&[PREFACE, &open_hold_stream()].concat(), 2 * SILENCE + PAUSE).await;
    assert!((SILENCE..PONG_TIMEOUT / 2).contains(&silent), "let go {silent:?} after its last word");
}

/// Takes 50 seconds, the idle timeout. Without permits, a silent client blocks no other request, so
/// a suspended machine may stay connected longer.
#[tokio::test]
async fn a_silent_client_without_streams_has_the_longer_timeout() {
    let silent = time_to_disconnect(PREFACE, Duration::ZERO).await;
    assert!(LONG_SILENCE <= silent, "let go {silent:?} after its last word");
}

/// Returns the number of PING frames without the ACK flag that arrive within `time`.
async fn count_pings(client: &mut TcpStream, time: Duration) -> usize {
    let (began, mut received) = (now(), Vec::new());
    while began.elapsed() < time {
        received.extend(receive(client).await.expect("an open connection"));
    }
    let (mut rest, mut pings) = (&received[..], 0);
    while let [a, b, c, kind, flags, _, _, _, _, payload @ ..] = rest {
        pings += usize::from((*kind, *flags) == (6, 0));
        rest = &payload[usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).unwrap()..];
    }
    pings
}

#[tokio::test]
async fn only_a_client_with_a_permit_stream_is_pinged_often() {
    let served = limited().await;
    let mut client = TcpStream::connect(served.address).await.unwrap();
    client.write_all(PREFACE).await.unwrap();
    assert_eq!(count_pings(&mut client, 8 * PING_INTERVAL).await, 0);
    client.write_all(&open_hold_stream()).await.unwrap();
    // The server sends no second ping before the reply to the first one.
    assert_eq!(count_pings(&mut client, 2 * PING_INTERVAL).await, 1);
    served.shut_down().await.unwrap();
}

/// The server cannot send its replies, so it also stops reading from this connection.
#[tokio::test]
async fn a_client_that_stops_reading_does_not_delay_shutdown() {
    let served = limited().await;
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
    // The timeout is shorter than that of pings, which would also end the connection.
    timeout(PONG_TIMEOUT / 2, served.shut_down()).await.unwrap().unwrap();
    drop(client);
}

/// The client watches health, which does not change. A suspended server has sent no pings, so a
/// missing reply does not prove that the client is dead.
#[tokio::test]
async fn a_suspended_server_keeps_idle_connections_on_resume() {
    let limits = tempfile::tempdir().unwrap();
    let service = Service::start(limits.path(), &[]).unwrap();
    let channel = service.door().connect().await.unwrap();
    let watching = HealthClient::new(channel).watch(HealthCheckRequest::default()).await.unwrap();
    let mut states = watching.into_inner();
    states.message().await.unwrap().unwrap();
    for suspended in [3 * SILENCE / 4, SILENCE, 2 * SILENCE] {
        service.signal("STOP");
        let came = timeout(suspended, states.message()).await;
        service.signal("CONT");
        came.expect_err("nothing while it stands still");
        let came = timeout(SILENCE, states.message()).await;
        came.expect_err("what goes on says nothing");
    }
}
