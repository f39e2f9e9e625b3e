//! When a connection of the gRPC port that says nothing is let go, by clients of plain HTTP/2 that answer no ping.

use std::io;
use std::time::Duration;

use sluicegate::edge::grpc::{PING_AFTER, PONG_AT_LAST, PONG_WITHIN};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::grpc::limited;
use crate::service::Service;
use crate::waiting::now;

/// The preface and empty settings (RFC 9113, 3.4).
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// A ping, which is no answer to another one (6.7).
const PING: [u8; 17] = *b"\0\0\x08\x06\0\0\0\0\0sluicing";
/// How long a client may be silent that has a stream of requests in flight.
const SILENCE: Duration = PING_AFTER.saturating_add(PONG_WITHIN);
/// What a client says something after.
const PAUSE: Duration = SILENCE.checked_div(8).unwrap();

/// The headers of a stream of requests in flight (RFC 7541, appendix A), which is open then.
fn holds() -> Vec<u8> {
    const PATH: &[u8] = b"/sluicegate.v1.Permits/Hold";
    const CONTENT: &[u8] = b"application/grpc";
    let text = |text: &[u8]| [&[u8::try_from(text.len()).unwrap()], text].concat();
    let method_and_scheme = [0x83, 0x86];
    let headers = [&method_and_scheme[..], &[0x04], &text(PATH), &[0x0f, 0x10], &text(CONTENT)];
    let headers = headers.concat();
    let length = u8::try_from(headers.len()).unwrap();
    [&[0, 0, length, 0x01, 0x04, 0, 0, 0, 1], &*headers].concat()
}

/// How long after its last word the server lets a client go that says `hello`, after as long a time as `kept`, in which
/// it sends pings.
async fn let_go_after(hello: &[u8], kept: Duration) -> Duration {
    let served = limited().await;
    let mut client = TcpStream::connect(served.address).await.unwrap();
    client.write_all(hello).await.unwrap();
    let (began, mut spoke) = (now(), Instant::now());
    while began.elapsed() < kept {
        if PAUSE <= spoke.elapsed() {
            spoke = Instant::now();
            client.write_all(&PING).await.unwrap();
        }
        assert!(hears(&mut client).await.is_some(), "let go after {:?}", began.elapsed());
    }
    let ended = async { while hears(&mut client).await.is_some() {} };
    timeout(2 * PONG_AT_LAST, ended).await.expect("the end of who is silent");
    let silent = spoke.elapsed();
    served.left().await.unwrap();
    silent
}

/// What came within a pause; `None` at the end.
async fn hears(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut said = vec![0; 4096];
    match timeout(PAUSE, client.read(&mut said)).await {
        Err(_) => Some(Vec::new()),
        Ok(Ok(0) | Err(_)) => None,
        Ok(Ok(length)) => Some(said[..length].to_vec()),
    }
}

#[tokio::test]
async fn a_client_of_which_something_comes_is_kept_though_it_answers_no_ping_and_a_silent_one_is_not()
 {
    let silent = let_go_after(&[HELLO, &holds()].concat(), 2 * SILENCE + PAUSE).await;
    assert!((SILENCE..PONG_AT_LAST / 2).contains(&silent), "let go {silent:?} after its last word");
}

/// A machine that stood still asks on, and only places of requests in flight are waited for by others.
#[tokio::test]
async fn a_silent_client_that_holds_nothing_has_as_long_as_for_a_ping() {
    let silent = let_go_after(HELLO, Duration::ZERO).await;
    assert!(PONG_AT_LAST <= silent, "let go {silent:?} after its last word");
}

/// What the server has to say to it waits for ever, and with it all that would be read next.
#[tokio::test]
async fn a_client_that_reads_nothing_and_then_says_nothing_does_not_hold_the_server_up() {
    let served = limited().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(served.address).await.unwrap();
    client.write_all(HELLO).await.unwrap();
    let (pings, mut said) = (PING.repeat(100), 0);
    while timeout(PAUSE, client.writable()).await.is_ok() {
        match client.try_write(&pings[said % PING.len()..]) {
            Ok(more) => said += more,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    // Before the ping that it does not answer would end it.
    timeout(PONG_AT_LAST / 2, served.left()).await.unwrap().unwrap();
    drop(client);
}

/// A watch of health, on which nothing comes: whoever has slept has asked nobody for a sign meanwhile.
#[tokio::test]
async fn a_service_that_stood_still_lets_nobody_go_for_that() {
    let limits = tempfile::tempdir().unwrap();
    let service = Service::start(limits.path(), &[]).unwrap();
    let channel = service.door().connect().await.unwrap();
    let watching = HealthClient::new(channel).watch(HealthCheckRequest::default()).await.unwrap();
    let mut states = watching.into_inner();
    states.message().await.unwrap().unwrap();
    for stands_still in [3 * SILENCE / 4, SILENCE, 2 * SILENCE] {
        service.signal("STOP");
        let came = timeout(stands_still, states.message()).await;
        service.signal("CONT");
        came.expect_err("nothing while it stands still");
        let came = timeout(SILENCE, states.message()).await;
        came.expect_err("what goes on says nothing");
    }
}
