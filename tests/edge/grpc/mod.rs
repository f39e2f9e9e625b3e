//! Tests of the gRPC port over a real connection: status codes, message limits, health and
//! shutdown.

mod access_log;
mod connections;
mod convert;
mod ext_authz;
mod ext_proc;
mod metadata;
mod permits;
mod permits_code;
mod reflection;
mod rls_codec;

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpHeaders, ProcessingRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures_util::future::join_all;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use prost::Message as _;
use prost::bytes::{Buf as _, BufMut as _};
use sluicegate::config::hooks::Hooks;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::grpc::incoming::GrpcListener;
use sluicegate::edge::grpc::{GrpcPort, serve};
use sluicegate::edge::health::{Health, Readiness};
use sluicegate::engine::Engine;
use sluicegate::kernel::concurrency::RequestOutcome;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::Service as _;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::http::nginx::hooks;
use super::{
    descriptor, empty_engine, engine, engine_with_concurrency, overridden, request, two_a_minute,
};
use crate::support::waiting::{PATIENCE, soon};

pub(super) const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
pub(super) const AUTHORIZATION: &str = "envoy.service.auth.v3.Authorization";
const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub(super) const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
pub(super) const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const LOGS: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";
const ACQUIRE: &str = "/sluicegate.v1.Permits/Acquire";
const HOLD: &str = "/sluicegate.v1.Permits/Hold";

/// A running gRPC server and a channel to it.
pub(crate) struct Served {
    pub(super) channel: Channel,
    pub(crate) address: SocketAddr,
    health: Health,
    stop: oneshot::Sender<()>,
    server: tokio::task::JoinHandle<Result<(), sluicegate::edge::grpc::GrpcPortError>>,
}

async fn served(engine: Arc<Engine>, ready: Readiness) -> Served {
    served_with(engine, ready, Hooks::default()).await
}

pub(crate) async fn served_with(engine: Arc<Engine>, ready: Readiness, hooks: Hooks) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let health = Health::new(ready);
    let (stop, stopped) = oneshot::channel::<()>();
    let grpc = GrpcPort {
        engine,
        reporting: ReplyOptions::default(),
        health: health.clone(),
        hooks: Arc::new(hooks),
        reflection: true,
        tls: None,
        connection_age: None,
    };
    let until: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(async move { drop(stopped.await) });
    let server = tokio::spawn(serve(GrpcListener::Tcp(listener), grpc, until));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    // The call timeout is long enough for a request that waits in a concurrency queue.
    let endpoint = endpoint.timeout(3 * PATIENCE);
    Served { channel: endpoint.connect().await.unwrap(), address, health, stop, server }
}

pub(super) async fn limited() -> Served {
    served(engine(two_a_minute()), Readiness::Ready).await
}

impl Served {
    /// Stops the server and returns its result.
    pub(super) async fn shut_down(self) -> Result<(), sluicegate::edge::grpc::GrpcPortError> {
        self.stop.send(()).unwrap();
        soon("the end of the server", self.server).await.unwrap()
    }

    async fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        client.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    async fn send(&self, path: &'static str, bytes: Vec<u8>) -> Result<Vec<u8>, Status> {
        let mut client =
            tonic::client::Grpc::new(self.channel.clone()).max_encoding_message_size(usize::MAX);
        client.ready().await.unwrap();
        let path = PathAndQuery::from_static(path);
        let reply = client.unary(Request::new(bytes), path, Bytes).await;
        reply.map(tonic::Response::into_inner)
    }

    pub(super) async fn code(&self, path: &'static str, bytes: Vec<u8>) -> Code {
        self.send(path, bytes).await.map_or_else(|status| status.code(), |_| Code::Ok)
    }

    pub(super) async fn open(
        &self,
        path: &'static str,
        messages: impl Stream<Item = Vec<u8>> + Send + 'static,
    ) -> Result<Streaming<Vec<u8>>, Status> {
        let mut client =
            tonic::client::Grpc::new(self.channel.clone()).max_encoding_message_size(usize::MAX);
        client.ready().await.unwrap();
        let path = PathAndQuery::from_static(path);
        let replies = client.streaming(Request::new(messages), path, Bytes).await;
        replies.map(tonic::Response::into_inner)
    }

    /// Opens a stream with this message. Returns the status code of the first reply.
    async fn first_reply_code(&self, path: &'static str, message: Vec<u8>) -> Code {
        let reply = match self.open(path, tokio_stream::once(message)).await {
            Ok(mut replies) => soon("an answer", replies.message()).await.map(drop),
            Err(status) => Err(status),
        };
        reply.map_or_else(|status| status.code(), |()| Code::Ok)
    }

    /// Sends `bytes` without finishing the request, and returns the status of the call.
    async fn send_unfinished(&self, path: &'static str, bytes: Vec<u8>) -> Status {
        let frame = Ok::<_, Infallible>(Frame::data(hyper::body::Bytes::from(bytes)));
        let body = StreamBody::new(tokio_stream::once(frame).chain(tokio_stream::pending()));
        let request = tonic::codegen::http::Request::post(path)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::new(body));
        let mut channel = self.channel.clone();
        poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
        let (head, body) = channel.call(request.unwrap()).await.unwrap().into_parts();
        if let Some(status) = Status::from_header_map(&head.headers) {
            return status;
        }
        let ended = soon("the end", body.collect()).await.unwrap();
        Status::from_header_map(ended.trailers().unwrap()).unwrap()
    }

    async fn serving(&self, service: &str) -> Result<ServingStatus, Code> {
        let mut client = HealthClient::new(self.channel.clone());
        let asked = HealthCheckRequest { service: service.into() };
        let reply = client.check(asked).await.map_err(|status| status.code())?;
        Ok(reply.into_inner().status())
    }
}

/// A gRPC codec that sends and receives message bytes without conversion.
#[derive(Clone, Copy)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

#[tokio::test]
async fn the_third_hit_is_over_limit() {
    use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code::{
        Ok, OverLimit,
    };
    let served = limited().await;
    for want in [Ok, Ok, OverLimit] {
        let reply = served.ask(request(vec![descriptor("k", "v")])).await.unwrap();
        assert_eq!(reply.overall_code(), want);
    }
}

#[tokio::test]
async fn rejected_requests_have_documented_codes_and_charge_nothing() {
    let served = limited().await;
    let mut nameless = request(vec![descriptor("k", "v")]);
    nameless.domain.clear();
    let code = async |request| served.ask(request).await.unwrap_err().code();
    assert_eq!(code(nameless).await, Code::Unknown);
    assert_eq!(code(request(vec![])).await, Code::Unknown);
    for unit in [0, 42] {
        let wrong = request(vec![descriptor("k", "v"), overridden(5, unit)]);
        assert_eq!(code(wrong).await, Code::InvalidArgument);
    }
    let many = request(vec![descriptor("k", "v"); 10_000]);
    assert_eq!(code(many).await, Code::InvalidArgument);
    let fresh = served.ask(request(vec![descriptor("k", "v")])).await.unwrap();
    assert_eq!(fresh.statuses[0].limit_remaining, 1, "a counter moved");
}

#[tokio::test]
async fn checks_return_unknown_before_limits_are_loaded() {
    let served = served(empty_engine(), Readiness::Ready).await;
    let status = served.ask(request(vec![descriptor("k", "v")])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
}

#[tokio::test]
async fn undecodable_messages_return_internal_and_later_calls_succeed() {
    let served = limited().await;
    let invalid_utf8 = b"\n\x01d\x12\x08\n\x06\n\x01k\x12\x01\xff".to_vec();
    let truncated = b"\n\x01d\x12\x08\n\x06\n\x01".to_vec();
    let not_protobuf = b"\xff\xff\xff\xff".to_vec();
    for bytes in [invalid_utf8, truncated, not_protobuf] {
        assert_eq!(served.code(METHOD, bytes).await, Code::Internal);
    }
    assert!(served.ask(request(vec![descriptor("k", "v")])).await.is_ok());
}

#[tokio::test]
async fn unknown_fields_are_ignored_and_the_last_duplicate_wins() {
    let served = limited().await;
    let known = request(vec![descriptor("k", "v")]).encode_to_vec();
    let remaining = async |bytes: Vec<u8>| {
        let reply = served.send(METHOD, bytes).await.unwrap();
        RateLimitResponse::decode(&reply[..]).unwrap().statuses[0].limit_remaining
    };
    let unknown = [&known[..], b"\xa2\x06\x03abc"].concat();
    assert_eq!(remaining(unknown).await, 1);
    let twice = [b"\n\x01x", &known[..]].concat();
    assert_eq!(remaining(twice).await, 0);
}

#[tokio::test]
async fn a_message_with_too_many_descriptors_is_rejected() {
    let served = limited().await;
    let refused = served.send(METHOD, b"\x12\0".repeat(2_000_000)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("2000000 descriptors in one question"), "{refused}");
    assert!(served.ask(request(vec![descriptor("k", "v")])).await.is_ok());
}

#[tokio::test]
async fn should_rate_limit_accepts_at_most_four_mebibytes() {
    let served = limited().await;
    let message = |size| padded(request(vec![descriptor("k", "v")]).encode_to_vec(), size);
    assert_eq!(served.code(METHOD, message(4 * 1024 * 1024)).await, Code::Ok);
    assert_eq!(served.code(METHOD, message(4 * 1024 * 1024 + 1)).await, Code::ResourceExhausted);
}

/// Pads `message` to `size` bytes with an unknown field. Its length is a four-byte varint.
fn padded(mut message: Vec<u8>, size: usize) -> Vec<u8> {
    let rest = u32::try_from(size - message.len() - 6).unwrap();
    message.extend([0xa2, 0x06]);
    message.extend([0, 7, 14].map(|shift| u8::try_from(rest >> shift & 0x7f).unwrap() | 0x80));
    message.push(u8::try_from(rest >> 21).unwrap());
    message.resize(size, 0);
    message
}

/// A message of the maximum size has only an unknown field: it is decoded and then rejected.
#[tokio::test]
async fn other_services_accept_at_most_one_mebibyte() {
    let served = limited().await;
    let (most, more) = (padded(vec![], 1 << 20), padded(vec![], (1 << 20) + 1));
    for (path, lacks) in [(CHECK, Code::FailedPrecondition), (ACQUIRE, Code::InvalidArgument)] {
        assert_eq!(served.code(path, most.clone()).await, lacks, "{path}");
        let refused = served.send(path, more.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{path}: {refused}");
        assert!(refused.message().contains("1048576 bytes"), "{path}: {refused}");
    }
    // On a `Hold` stream, an invalid acquire gets a reply, not an error status.
    for (path, lacks) in [(PROCESS, Code::InvalidArgument), (HOLD, Code::Ok)] {
        assert_eq!(served.first_reply_code(path, most.clone()).await, lacks, "{path}");
        assert_eq!(
            served.first_reply_code(path, more.clone()).await,
            Code::ResourceExhausted,
            "{path}"
        );
        assert_eq!(served.first_reply_code(path, vec![0xff; 9]).await, Code::Internal, "{path}");
    }
}

/// The first `ext_proc` message of a request for which the hook `edge` makes a check.
fn processed() -> Vec<u8> {
    let key = HeaderValue { key: "x-key".into(), value: "v".into(), ..HeaderValue::default() };
    let headers = Some(HeaderMap { headers: vec![key] });
    let request = Some(Message::RequestHeaders(HttpHeaders { headers, ..HttpHeaders::default() }));
    ProcessingRequest { request, ..ProcessingRequest::default() }.encode_to_vec()
}

/// For comparison, the last of the three streams ends normally.
#[tokio::test]
async fn invalid_later_ext_proc_message_releases_the_permit() {
    let engine = engine_with_concurrency("limit: 1");
    let in_flight = || engine.concurrency_limits().totals().in_flight;
    let hooks = hooks(r#"{"remote_address": {}}"#);
    let served = served_with(Arc::clone(&engine), Readiness::Ready, hooks).await;
    let ended = async |later: Option<Vec<u8>>| {
        let (sender, receiver) = mpsc::channel(1);
        let mut replies = served.open(PROCESS, ReceiverStream::new(receiver)).await.unwrap();
        sender.send(processed()).await.unwrap();
        assert!(replies.message().await.unwrap().is_some());
        assert_eq!(in_flight(), 1);
        if let Some(later) = later {
            sender.send(later).await.unwrap();
        }
        drop(sender);
        let ended = replies.message().await.map(|reply| assert!(reply.is_none()));
        while in_flight() != 0 {
            tokio::task::yield_now().await;
        }
        ended.map_or_else(|status| status.code(), |()| Code::Ok)
    };
    let more = padded(vec![], (1 << 20) + 1);
    let all =
        async { [ended(Some(more)).await, ended(Some(vec![0xff; 9])).await, ended(None).await] };
    let codes = tokio::time::timeout(PATIENCE, all).await.expect("all have to end");
    assert_eq!(codes, [Code::ResourceExhausted, Code::Internal, Code::Ok]);
}

#[tokio::test]
async fn unknown_methods_and_services_are_unimplemented() {
    let served = limited().await;
    let paths = [
        "/envoy.service.ratelimit.v3.RateLimitService/Other",
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
        "/pb.lyft.ratelimit.RateLimitService/ShouldRateLimit",
    ];
    for path in paths {
        assert_eq!(served.code(path, vec![]).await, Code::Unimplemented);
    }
}

#[tokio::test]
async fn health_of_four_service_names_follows_readiness() {
    let served = served(empty_engine(), Readiness::NoConfig).await;
    let all = async || {
        let unknown = served.serving("other").await;
        [
            served.serving("ratelimit").await,
            served.serving(SERVICE).await,
            served.serving(AUTHORIZATION).await,
            served.serving("").await,
            unknown,
        ]
    };
    let (yes, no, unknown) =
        (Ok(ServingStatus::Serving), Ok(ServingStatus::NotServing), Err(Code::NotFound));
    assert_eq!(all().await, [no, no, no, yes, unknown]);
    let mut watch = HealthClient::new(served.channel.clone());
    let asked = HealthCheckRequest { service: SERVICE.into() };
    let mut changes = watch.watch(asked).await.unwrap().into_inner();
    let mut next = async || changes.message().await.unwrap().unwrap().status();
    assert_eq!(next().await, ServingStatus::NotServing);
    served.health.set_readiness(Readiness::Ready);
    assert_eq!(next().await, ServingStatus::Serving);
    assert_eq!(served.serving("").await, yes);
    served.health.set_readiness(Readiness::Draining);
    assert_eq!(next().await, ServingStatus::NotServing);
    // The health of service names is updated one at a time. The empty name is updated last.
    let mut unnamed = watch.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    let left = async {
        while unnamed.message().await.unwrap().unwrap().status() != ServingStatus::NotServing {}
    };
    soon("it serves no more", left).await;
    assert_eq!(all().await, [no, no, no, no, unknown]);
}

#[tokio::test]
async fn a_health_watch_does_not_delay_shutdown() {
    let served = limited().await;
    let mut watch = HealthClient::new(served.channel.clone());
    let mut changes = watch.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert!(changes.message().await.unwrap().is_some());
    served.shut_down().await.unwrap();
}

/// Takes 5 seconds, the timeout of the HTTP/2 handshake.
#[tokio::test]
async fn client_with_an_incomplete_http2_preface_is_disconnected() {
    let served = limited().await;
    let mut slow = TcpStream::connect(served.address).await.unwrap();
    slow.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    let mut received = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, slow.read_to_end(&mut received)).await;
    ended.expect("it has to end").ok();
    assert!(served.ask(request(vec![descriptor("k", "v")])).await.is_ok());
    served.shut_down().await.unwrap();
}

/// With `ext_proc`, each request is an open call. By default, hyper allows only 200 calls on a
/// connection.
#[tokio::test]
async fn one_connection_carries_a_thousand_concurrent_calls() {
    let served = limited().await;
    let watch = |_| {
        let mut health = HealthClient::new(served.channel.clone());
        async move { health.watch(HealthCheckRequest::default()).await.unwrap().into_inner() }
    };
    let all = async {
        for mut changes in join_all((0..1_000).map(watch)).await {
            assert!(changes.message().await.unwrap().is_some());
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("all have to be answered");
}

/// Takes 15 seconds, the server's timeout for a complete message.
#[tokio::test]
async fn a_call_without_a_message_times_out() {
    let served = limited().await;
    let mut client = tonic::client::Grpc::new(served.channel.clone());
    client.ready().await.unwrap();
    let (never, path) = (tokio_stream::pending::<Vec<u8>>(), PathAndQuery::from_static(METHOD));
    let call = client.streaming(Request::new(never), path, Bytes);
    let ended = tokio::time::timeout(2 * PATIENCE, call).await.expect("it has to end");
    let refused = ended.map(|_| ()).unwrap_err();
    assert!(refused.message().contains("in time"), "{refused}");
}

/// Takes 15 seconds, the server's timeout for a complete message.
#[tokio::test]
async fn partial_messages_time_out_but_idle_streams_stay_open() {
    let served = limited().await;
    let (sender, receiver) = mpsc::channel(1);
    let mut quiet = served.open(HOLD, ReceiverStream::new(receiver)).await.unwrap();
    let mut gets_reply = async || {
        sender.send(Vec::new()).await.unwrap();
        let reply = tokio::time::timeout(PATIENCE, quiet.message()).await;
        reply.expect("an answer").unwrap().is_some()
    };
    assert!(gets_reply().await);
    let mut cut = framed(&padded(vec![], 1_000));
    cut.pop();
    // On the second stream, a complete message precedes the incomplete one.
    let second = [framed(&[]), cut.clone()].concat();
    let all = async {
        tokio::join!(
            served.send_unfinished(PROCESS, cut.clone()),
            served.send_unfinished(HOLD, second),
            served.send_unfinished(CHECK, cut.clone()),
            served.send_unfinished(LOGS, cut.clone()),
        )
    };
    let ended = tokio::time::timeout(2 * PATIENCE, all).await.expect("all have to end");
    let (process, hold, check, _log) = ended;
    for refused in [process, hold, check] {
        assert!(refused.message().contains("in time"), "{refused}");
    }
    assert!(gets_reply().await, "it has nothing to bring to its end");
}

#[tokio::test]
async fn a_rejected_acquire_stores_no_early_release() {
    let engine = engine_with_concurrency("limit: 1");
    let served = served(Arc::clone(&engine), Readiness::Ready).await;
    let id = "0123456789abcdef";
    let mut asked = descriptor("k", &"v".repeat(1 << 16));
    asked.entries.extend(descriptor("sluicegate.acquire", id).entries);
    let refused = served.ask(request(vec![asked])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(!engine.release(id, None, RequestOutcome::Success, None));
    assert_eq!(engine.early_releases().0, 0, "it takes no room among those that came early");
    served.shut_down().await.unwrap();
}

/// Takes 15 seconds, the server's timeout for a complete message.
#[tokio::test]
async fn an_unfinished_call_is_not_decoded() {
    let served = limited().await;
    let broken = framed(&[0xff; 9]);
    assert_eq!(served.code(CHECK, vec![0xff; 9]).await, Code::Internal);
    let ended = tokio::time::timeout(2 * PATIENCE, served.send_unfinished(CHECK, broken)).await;
    let refused = ended.expect("it has to end");
    assert!(refused.message().contains("in time"), "{refused}");
}

/// Adds the gRPC prefix of a message: the compression flag and the length.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), message].concat()
}
