//! Tests of clients that send very many request bodies and finish none.
//!
//! Guarantees:
//! - The bodies take at most `listen.max_body_memory`, and the process little more.
//! - Small checks succeed meanwhile.
//! - The read timeouts end the bodies, and their memory is free again.

use std::convert::Infallible;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use tokio_stream::StreamExt as _;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::codegen::http::Request;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::admin_connections::memory_kb;
use super::{Fixture, LIMITS, k};
use crate::compat::wire::SHOULD_RATE_LIMIT;
use crate::support::waiting::{PATIENCE, until};

/// The bodies of one attack: 400 MiB.
const BODIES: usize = 400;

/// The default of `listen.max_message`.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// The default of `listen.max_body_memory`.
const BUDGET_BYTES: u64 = 64 << 20;

/// The budget, and twice as much for the buffers of connections and for bodies that grow.
const MAX_GROWTH_KB: u64 = 3 * (BUDGET_BYTES >> 10);

const IN_FLIGHT: &str = "sluicegate_body_memory_bytes";
const REFUSED: &str = "sluicegate_bodies_refused_total";

const GOOD: &[u8] = br#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"good"}]}]}"#;

#[test]
fn unfinished_json_bodies_take_bounded_memory_and_end() {
    let fixture = Fixture::with(LIMITS, &[]);
    assert_bounded(&fixture, |fixture| {
        let http = fixture.service.http;
        (0..BODIES).map(|_| send_unfinished_json(http)).collect::<Vec<_>>()
    });
}

#[test]
fn unfinished_grpc_messages_take_bounded_memory_and_end() {
    let fixture = Fixture::with(LIMITS, &[]);
    let codes = assert_bounded(&fixture, |fixture| {
        let endpoint = Endpoint::from_shared(format!("http://{}", fixture.service.grpc)).unwrap();
        let channel = fixture.runtime.block_on(endpoint.connect()).unwrap();
        let call = |_| fixture.runtime.spawn(send_unfinished_grpc(channel.clone()));
        (0..BODIES).map(call).collect::<Vec<_>>()
    });
    let codes = codes.into_iter().map(|call| fixture.runtime.block_on(call).unwrap());
    let codes: Vec<_> = codes.collect();
    let refused = codes.iter().filter(|code| **code == Code::ResourceExhausted).count();
    assert!(BODIES / 2 < refused && refused < BODIES, "{refused}: {codes:?}");
}

/// Asserts the guarantees of this module while the bodies of `attack` are in flight. Returns what
/// `attack` returned, after the bodies ended.
fn assert_bounded<T>(fixture: &Fixture, attack: impl FnOnce(&Fixture) -> T) -> T {
    assert_eq!(fixture.json(GOOD).status, 200);
    let before = memory_kb(fixture, "VmRSS:");
    let attackers = attack(fixture);
    until("a full budget", || match fixture.metric(REFUSED) {
        0 => Err(fixture.service.log()),
        _ => Ok(()),
    })
    .unwrap();
    assert_eq!(fixture.json(GOOD).status, 200, "a small check");
    fixture.check(vec![k("good")]);
    assert!(fixture.metric(IN_FLIGHT) <= BUDGET_BYTES);
    until("the end of the bodies", || match fixture.metric(IN_FLIGHT) {
        0 => Ok(()),
        bytes => Err(format!("{bytes} bytes in flight")),
    })
    .unwrap();
    let grown = memory_kb(fixture, "VmHWM:").saturating_sub(before);
    assert!(grown < MAX_GROWTH_KB, "{grown} kB more than {before} kB");
    let log = fixture.service.log();
    let lines = log.matches("listen.max_body_memory").count();
    assert!((1..=2).contains(&lines), "{log}");
    attackers
}

/// Sends all bytes of the largest body but one, and keeps the connection open.
fn send_unfinished_json(http: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect_timeout(&http, PATIENCE).unwrap();
    let head =
        format!("POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: {MAX_MESSAGE_BYTES}\r\n\r\n");
    // Fails if the service refused the body and closed the connection.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&vec![b' '; MAX_MESSAGE_BYTES - 1]);
    stream
}

/// Sends all bytes of the largest message but one, and returns the code of the reply.
async fn send_unfinished_grpc(mut channel: Channel) -> Code {
    let mut message = vec![0; 5 + MAX_MESSAGE_BYTES - 1];
    message[1..5].copy_from_slice(&u32::try_from(MAX_MESSAGE_BYTES).unwrap().to_be_bytes());
    let frame = Ok::<_, Infallible>(Frame::data(Bytes::from(message)));
    let body = StreamBody::new(tokio_stream::once(frame).chain(tokio_stream::pending()));
    let request = Request::post(SHOULD_RATE_LIMIT)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(body))
        .unwrap();
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    let reply = channel.call(request).await.unwrap();
    Status::from_header_map(reply.headers()).map_or(Code::Ok, |status| status.code())
}
