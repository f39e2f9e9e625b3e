//! Requests on streams that wait in a queue take bounded memory.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpHeaders, ProcessingRequest};
use sluicegate::config::hooks::Hooks;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::session_request::Request as StreamRequest;
use sluicegate::edge::grpc::permits::api::session_response::Response as StreamResponse;
use sluicegate::edge::grpc::permits::api::{AcquireRequest, Descriptor, Entry, SessionRequest};
use sluicegate::edge::health::Readiness;
use sluicegate::engine::Engine;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::{Served, served_with};
use crate::edge::engine_with_concurrency;
use crate::edge::http::nginx::hooks;
use crate::support::waiting::soon;

/// The requests of one attack, together twice the budget.
const REQUESTS: usize = 140;

/// The first requests, which the budget covers.
const FIRST: usize = 20;

/// Bytes of the value of each request. The largest message has 1 MiB.
const VALUE_BYTES: usize = 1_000_000;

/// The bytes of each request that are not charged.
const FREE_BYTES: usize = 1_024;

const QUEUE: &str = "limit: 1, queue: {size: 1000, timeout: 1h}";

/// A request for a permit, with a long value of a descriptor without a limit.
fn acquire(number: usize, value: String) -> SessionRequest {
    let descriptor = |key: &str, value: String| Descriptor {
        entries: vec![Entry { key: key.into(), value }],
        hits: None,
    };
    let acquire = AcquireRequest {
        id: format!("waiting-0123456789-{number}"),
        domain: "d".into(),
        descriptors: vec![descriptor("k", "v".into()), descriptor("none", value)],
        max_wait_us: None,
    };
    SessionRequest { request: Some(StreamRequest::Acquire(acquire)) }
}

async fn wait_for(what: &str, is_true: impl Fn() -> bool) {
    let poll = async {
        while !is_true() {
            tokio::task::yield_now().await;
        }
    };
    soon(what, poll).await;
}

fn waiting(engine: &Engine) -> usize {
    engine.concurrency_limits().totals().waiting
}

/// Waits until the first requests are in the queue, and asserts that they are charged.
async fn assert_charged(engine: &Engine, served: &Served) {
    wait_for("the queue", || waiting(engine) == FIRST - 1).await;
    let in_use = served.bodies.in_use();
    assert!((FIRST - 1) * (VALUE_BYTES - FREE_BYTES) <= in_use, "{in_use} bytes");
}

#[tokio::test]
async fn waiting_acquires_of_a_session_take_bounded_memory() {
    let engine = engine_with_concurrency(QUEUE);
    let served = served_with(Arc::clone(&engine), Readiness::Ready, Hooks::default()).await;
    let (requests, stream) = mpsc::channel(1);
    let mut client = PermitsClient::new(served.channel.clone());
    let mut replies = client.session(ReceiverStream::new(stream)).await.unwrap().into_inner();
    for number in 0..FIRST {
        requests.send(acquire(number, "x".repeat(VALUE_BYTES))).await.unwrap();
    }
    assert_charged(&engine, &served).await;
    let rest = async {
        for number in FIRST..REQUESTS {
            // Fails if a refused message has ended the stream.
            let _ = requests.send(acquire(number, "x".repeat(VALUE_BYTES))).await;
        }
    };
    let refusal = async {
        loop {
            match soon("a reply", replies.message()).await {
                Ok(reply) => match reply.unwrap().response.unwrap() {
                    StreamResponse::Acquire(reply) => assert!(reply.has_permits, "{reply:?}"),
                    StreamResponse::Error(error) => return i32::try_from(error.code).unwrap(),
                    other => panic!("{other:?}"),
                },
                Err(status) => return status.code().into(),
            }
            assert!(served.bodies.in_use() <= served.bodies.max());
        }
    };
    let (code, ()) = tokio::join!(refusal, rest);
    assert_eq!(Code::from(code), Code::ResourceExhausted);
    drop((requests, replies));
    wait_for("free memory", || served.bodies.in_use() == 0).await;
}

/// Many small entries take far more memory than their message.
#[tokio::test]
async fn waiting_acquires_are_charged_for_their_entries() {
    let engine = engine_with_concurrency(QUEUE);
    let served = served_with(Arc::clone(&engine), Readiness::Ready, Hooks::default()).await;
    let (requests, stream) = mpsc::channel(4);
    let mut client = PermitsClient::new(served.channel.clone());
    let _replies = client.session(ReceiverStream::new(stream)).await.unwrap().into_inner();
    requests.send(acquire(0, String::new())).await.unwrap();
    let SessionRequest { request: Some(StreamRequest::Acquire(mut many)) } =
        acquire(1, String::new())
    else {
        panic!("no acquire")
    };
    many.descriptors[1].entries = vec![Entry { key: "a".into(), value: String::new() }; 9_000];
    let many = SessionRequest { request: Some(StreamRequest::Acquire(many)) };
    requests.send(many).await.unwrap();
    wait_for("a waiting request", || waiting(&engine) == 1).await;
    let least = 9_000 * size_of::<Entry>();
    assert!(least <= served.bodies.in_use(), "{} bytes", served.bodies.in_use());
}

/// Bytes of a header.
const HEADER_BYTES: usize = 50_000;

/// Sends the headers of a request that does not end, and waits for a refusal.
async fn process(channel: Channel) -> Status {
    let raw_value = vec![b'x'; HEADER_BYTES];
    let header = HeaderValue { key: "x-key".into(), raw_value, ..HeaderValue::default() };
    let headers = Some(HeaderMap { headers: vec![header] });
    let message = Message::RequestHeaders(HttpHeaders { headers, ..HttpHeaders::default() });
    let first = ProcessingRequest { request: Some(message), ..ProcessingRequest::default() };
    // The stream ends with this function.
    let (sender, messages) = mpsc::channel(1);
    sender.send(first).await.unwrap();
    let mut client = ExternalProcessorClient::new(channel);
    let mut replies = match client.process(ReceiverStream::new(messages)).await {
        Ok(replies) => replies.into_inner(),
        Err(status) => return status,
    };
    loop {
        match replies.message().await {
            // Envoy's timeout is extended while the request waits.
            Ok(Some(reply)) if reply.override_message_timeout.is_some() => {}
            Ok(_) => std::future::pending().await,
            Err(status) => return status,
        }
    }
}

#[tokio::test]
async fn waiting_requests_of_ext_proc_are_charged_until_they_end() {
    let engine = engine_with_concurrency(QUEUE);
    let hooks = hooks(r#"{"remote_address": {}}"#);
    let served = served_with(Arc::clone(&engine), Readiness::Ready, hooks).await;
    let open = |_| tokio::spawn(process(served.channel.clone()));
    let streams: Vec<_> = (0..4).map(open).collect();
    wait_for("the queue", || waiting(&engine) == 3).await;
    let in_use = served.bodies.in_use();
    assert!(3 * (HEADER_BYTES - FREE_BYTES) <= in_use, "{in_use} bytes");
    streams.iter().for_each(tokio::task::JoinHandle::abort);
    wait_for("free memory", || served.bodies.in_use() == 0).await;
}
