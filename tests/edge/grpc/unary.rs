//! Unary calls in HTTP/2 frames: messages, replies, calls that wait, and clients that misbehave.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use hyper::body::Bytes;
use prost::Message as _;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::grpc::rls::RateLimitService;
use sluicegate::edge::health::Readiness;
use tokio::net::TcpStream;
use tonic::Code;
use tonic::codegen::http::request::Builder;
use tonic::codegen::http::{HeaderMap, Request};
use tonic::metadata::MetadataMap;

use super::{METHOD, Served, framed, limited, served};
use crate::edge::{descriptor, engine, engine_with_concurrency, request, two_a_minute};
use crate::support::waiting::soon;

/// A client with this window for each reply, in bytes.
async fn client(served: &Served, window: u32) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(served.address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    // With the default window, h2 refuses a burst of some hundred small replies.
    builder.initial_connection_window_size(1 << 20);
    let (client, connection) =
        builder.initial_window_size(window).handshake::<_, Bytes>(stream).await.unwrap();
    tokio::spawn(connection);
    client
}

fn head() -> Builder {
    let uri = format!("http://service{METHOD}");
    Request::post(uri).header("content-type", "application/grpc").header("te", "trailers")
}

/// Starts a call, without its message.
async fn open(client: &SendRequest<Bytes>, head: Builder) -> (ResponseFuture, SendStream<Bytes>) {
    let mut client = client.clone().ready().await.unwrap();
    client.send_request(head.body(()).unwrap(), false).unwrap()
}

struct Reply {
    headers: HeaderMap,
    frames: Vec<u8>,
    trailers: HeaderMap,
}

impl Reply {
    fn code(&self) -> Code {
        let status = self.trailers.get("grpc-status").or_else(|| self.headers.get("grpc-status"));
        Code::from_bytes(status.expect("a status").as_bytes())
    }

    fn remaining(&self) -> u32 {
        RateLimitResponse::decode(&self.frames[5..]).unwrap().statuses[0].limit_remaining
    }
}

async fn read(reply: ResponseFuture) -> Reply {
    let reading = async {
        let (head, mut body) = reply.await.unwrap().into_parts();
        assert_eq!(head.status, 200);
        let mut frames = Vec::new();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            frames.extend_from_slice(&data);
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        let trailers = body.trailers().await.unwrap().unwrap_or_default();
        Reply { headers: head.headers, frames, trailers }
    };
    soon("the reply", reading).await
}

async fn call(client: &SendRequest<Bytes>, head: Builder, body: Vec<u8>) -> Reply {
    let (reply, mut message) = open(client, head).await;
    message.send_data(body.into(), true).unwrap();
    read(reply).await
}

fn check() -> Vec<u8> {
    framed(&request(vec![descriptor("k", "v")]).encode_to_vec())
}

#[tokio::test]
async fn a_reply_has_one_message_and_the_trailers_of_grpc() {
    let served = limited().await;
    let reply = call(&client(&served, 65_535).await, head(), check()).await;
    assert_eq!(reply.headers.len(), 1, "{:?}", reply.headers);
    assert_eq!(reply.headers["content-type"], "application/grpc");
    assert_eq!((reply.trailers.len(), reply.code()), (1, Code::Ok));
    let length = u32::try_from(reply.frames.len() - 5).unwrap();
    assert_eq!(reply.frames[..5], [&[0][..], &length.to_be_bytes()].concat());
    assert_eq!(reply.remaining(), 1);
}

#[tokio::test]
async fn messages_that_break_the_protocol_get_its_codes() {
    let served = limited().await;
    let client = client(&served, 65_535).await;
    let mut compressed = check();
    compressed[0] = 1;
    let mut unknown_flag = check();
    unknown_flag[0] = 2;
    for (body, code) in [
        (vec![], Code::Internal),
        (vec![0, 0, 0], Code::Internal),
        (check()[..9].to_vec(), Code::Internal),
        ([check(), check()].concat(), Code::Internal),
        (compressed.clone(), Code::Internal),
        (unknown_flag, Code::Internal),
    ] {
        let reply = call(&client, head(), body.clone()).await;
        assert_eq!(reply.code(), code, "{body:?}");
        assert!(reply.frames.is_empty() && reply.trailers.is_empty(), "headers only: {body:?}");
    }
    let gzip = call(&client, head().header("grpc-encoding", "gzip"), compressed).await;
    assert_eq!(gzip.code(), Code::Unimplemented);
    assert_eq!(gzip.headers["grpc-accept-encoding"], "identity");
    let plain = call(&client, head().header("grpc-encoding", "identity"), check()).await;
    assert_eq!((plain.code(), plain.remaining()), (Code::Ok, 1), "nothing else was charged");
}

#[tokio::test]
async fn a_message_may_come_byte_by_byte() {
    let served = limited().await;
    let client = client(&served, 65_535).await;
    let (reply, mut message) = open(&client, head()).await;
    for byte in check() {
        message.send_data(vec![byte].into(), false).unwrap();
        tokio::task::yield_now().await;
    }
    message.send_trailers(HeaderMap::new()).unwrap();
    assert_eq!(read(reply).await.remaining(), 1);
}

#[tokio::test]
async fn a_reply_waits_for_the_window_of_its_client() {
    let served = limited().await;
    // The window has one byte. The client opens it byte by byte.
    let reply = call(&client(&served, 1).await, head(), check()).await;
    assert_eq!((reply.code(), reply.remaining()), (Code::Ok, 1));
}

#[tokio::test]
async fn an_unsent_reply_is_charged_until_the_client_accepts_it() {
    let served = limited().await;
    let message = request(vec![descriptor("k", "v"); 900]);
    let (reply, mut call) = open(&client(&served, 1).await, head()).await;
    call.send_data(framed(&message.encode_to_vec()).into(), true).unwrap();
    let reply = soon("the head", reply).await.unwrap();
    // The reply is larger than the part that the HTTP/2 server takes at once.
    let charged = async {
        while served.bodies.in_use() == 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("the charge", charged).await;
    drop(reply);
    call.send_reset(Reason::CANCEL);
    let freed = async {
        while served.bodies.in_use() != 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("the end of the charge", freed).await;
}

#[tokio::test]
async fn each_call_of_a_burst_is_answered() {
    let served = limited().await;
    let client = client(&served, 65_535).await;
    let calls = (0..300).map(|number| {
        let message = request(vec![descriptor("k", &format!("v{number}"))]);
        call(&client, head(), framed(&message.encode_to_vec()))
    });
    for reply in join_all(calls).await {
        assert_eq!((reply.code(), reply.remaining()), (Code::Ok, 1));
    }
}

/// An acquire of the only permit, or one that waits for it.
fn acquire(id: &str) -> Vec<u8> {
    let mut acquire: RateLimitRequest = request(vec![descriptor("k", "v")]);
    acquire.descriptors[0].entries.extend(descriptor("sluicegate.acquire", id).entries);
    framed(&acquire.encode_to_vec())
}

#[tokio::test]
async fn a_waiting_call_delays_no_other_and_ends_with_its_reset() {
    let engine = engine_with_concurrency("limit: 1, queue: {size: 9, timeout: 10m}");
    let served = served(Arc::clone(&engine), Readiness::Ready).await;
    let client = client(&served, 65_535).await;
    assert_eq!(call(&client, head(), acquire("0123456789abcdef")).await.code(), Code::Ok);
    let (waiting, mut message) = open(&client, head()).await;
    message.send_data(acquire("fedcba9876543210").into(), true).unwrap();
    let in_queue = |wanted| {
        let engine = Arc::clone(&engine);
        let reached = async move {
            while engine.concurrency_limits().totals().waiting != wanted {
                tokio::task::yield_now().await;
            }
        };
        async { soon("the queue", reached).await }
    };
    in_queue(1).await;
    // A check without a limit is answered on the same connection.
    let other = framed(&request(vec![descriptor("other", "v")]).encode_to_vec());
    assert_eq!(call(&client, head(), other).await.code(), Code::Ok);
    message.send_reset(Reason::CANCEL);
    in_queue(0).await;
    drop(waiting);
}

/// A paused server finds the calls and their resets in one read.
#[tokio::test]
async fn late_resets_of_many_calls_end_no_other_call() {
    let served = limited().await;
    let client = client(&served, 65_535).await;
    // This runtime has one thread: the server reads nothing until this function waits.
    let mut ready = client.clone().ready().await.unwrap();
    for _ in 0..99 {
        let (_, mut message) = ready.send_request(head().body(()).unwrap(), false).unwrap();
        message.send_reset(Reason::CANCEL);
    }
    let (reply, mut message) = ready.send_request(head().body(()).unwrap(), false).unwrap();
    message.send_data(check().into(), true).unwrap();
    assert_eq!(read(reply).await.code(), Code::Ok);
}

/// The calls take longer than one batch may, so the first reply comes while others have not run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_have_not_run_end_with_their_connection() {
    let engine = engine(two_a_minute());
    let served = served(Arc::clone(&engine), Readiness::Ready).await;
    let stream = std::net::TcpStream::connect(served.address).unwrap();
    let socket = stream.try_clone().unwrap();
    stream.set_nonblocking(true).unwrap();
    let stream = TcpStream::from_std(stream).unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    // After this reply, the server has opened its window for all calls.
    call(&client, head(), check()).await;
    let large = framed(&request(vec![descriptor("k", "v"); 900]).encode_to_vec());
    let mut replies = Vec::new();
    for _ in 0..50 {
        client = client.ready().await.unwrap();
        let (reply, mut message) = client.send_request(head().body(()).unwrap(), false).unwrap();
        message.send_data(large.clone().into(), true).unwrap();
        replies.push(reply);
    }
    soon("the first reply", replies.remove(0)).await.unwrap();
    socket.shutdown(std::net::Shutdown::Both).unwrap();
    soon("the end of the connection", connection).await.unwrap().ok();
    served.shut_down().await.unwrap();
    let released = async {
        while 1 < Arc::strong_count(&engine) {
            tokio::task::yield_now().await;
        }
    };
    soon("the end of the calls, which keep the engine", released).await;
}

#[tokio::test]
async fn a_client_that_resets_all_its_calls_delays_no_other_client() {
    let served = limited().await;
    let rapid = client(&served, 65_535).await;
    for _ in 0..5_000 {
        let Ok(mut ready) = rapid.clone().ready().await else { break };
        let Ok((_, mut message)) = ready.send_request(head().body(()).unwrap(), false) else {
            break;
        };
        drop(message.send_data(check().into(), true));
        message.send_reset(Reason::CANCEL);
        tokio::task::yield_now().await;
    }
    let other = framed(&request(vec![descriptor("k", "w")]).encode_to_vec());
    let reply = call(&client(&served, 65_535).await, head(), other).await;
    assert_eq!(reply.code(), Code::Ok);
    served.shut_down().await.unwrap();
}

/// The two are the list of statuses, and the name of the limit in it.
#[test]
fn a_check_in_memory_allocates_only_its_reply() {
    let service = RateLimitService::new(engine(two_a_minute()), ReplyOptions::default());
    let metadata = MetadataMap::new();
    let decide = |check| {
        let reply = service.decide_call(&metadata, check).now_or_never();
        reply.expect("memory answers at once").unwrap()
    };
    decide(request(vec![descriptor("k", "v")]));
    let check = request(vec![descriptor("k", "v")]);
    let mut replies = Vec::with_capacity(1);
    let made = allocation_counter::measure(|| replies.push(decide(check)));
    assert_eq!(made.count_total, 2, "{made:?}");
}
