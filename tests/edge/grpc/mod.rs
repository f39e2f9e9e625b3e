//! Tests of the gRPC port over a real connection: status codes, message limits, health and
//! shutdown.

mod access_log;
mod budgets;
mod connections;
mod convert;
mod denied_by;
mod ext_authz;
mod ext_proc;
mod leases;
mod limiter;
mod metadata;
mod permits;
mod permits_code;
mod reflection;
mod rls;
mod rls_codec;
mod timeouts;
mod unary;
mod waiting_memory;

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpHeaders, ProcessingRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use prost::Message as _;
use prost::bytes::{Buf as _, BufMut as _};
use sluicegate::config::hooks::Hooks;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::body_memory::BodyLimits;
use sluicegate::edge::grpc::incoming::GrpcListener;
use sluicegate::edge::grpc::{GrpcPort, GrpcTimeouts, serve_with_timeouts};
use sluicegate::edge::health::{Health, Readiness};
use sluicegate::engine::Engine;
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
use super::{descriptor, empty_engine, engine, engine_with_concurrency, request, two_a_minute};
use crate::support::waiting::{PATIENCE, soon};

pub(super) const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

pub(super) const AUTHORIZATION: &str = "envoy.service.auth.v3.Authorization";

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub(super) const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

pub(super) const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

const SESSION: &str = "/sluicegate.v1.Permits/Session";

/// A running gRPC server and a channel to it.
pub(crate) struct Served {
    pub(super) channel: Channel,
    pub(crate) address: SocketAddr,
    bodies: BodyLimits,
    health: Health,
    stop: oneshot::Sender<()>,
    server: tokio::task::JoinHandle<Result<(), sluicegate::edge::grpc::GrpcPortError>>,
}

async fn served(engine: Arc<Engine>, ready: Readiness) -> Served {
    served_with(engine, ready, Hooks::default()).await
}

pub(crate) async fn served_with(engine: Arc<Engine>, ready: Readiness, hooks: Hooks) -> Served {
    served_with_options(engine, ready, (hooks, ReplyOptions::default())).await
}

async fn served_with_options(
    engine: Arc<Engine>,
    ready: Readiness,
    options: (Hooks, ReplyOptions),
) -> Served {
    start(engine, ready, options, GrpcTimeouts::default()).await
}

async fn start(
    engine: Arc<Engine>,
    ready: Readiness,
    (hooks, reporting): (Hooks, ReplyOptions),
    timeouts: GrpcTimeouts,
) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let health = Health::new(ready);
    let (stop, stopped) = oneshot::channel::<()>();
    let bodies = BodyLimits::default();
    let grpc = GrpcPort {
        engine,
        reporting,
        health: health.clone(),
        hooks: Arc::new(hooks),
        reflection: true,
        tls: None,
        max_connections: 4_096,
        connection_age: None,
        mirror: None,
        proxies: sluicegate::config::settings::ProxyAccess::Auto,
        bodies: bodies.clone(),
    };
    let until: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(async move { drop(stopped.await) });
    let listener = GrpcListener::Tcp(listener);
    let server = tokio::spawn(serve_with_timeouts(listener, grpc, timeouts, until));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    // The call timeout is long enough for a request that waits in a concurrency queue.
    let endpoint = endpoint.timeout(3 * PATIENCE);
    Served { channel: endpoint.connect().await.unwrap(), address, bodies, health, stop, server }
}

pub(super) async fn limited() -> Served {
    limited_with(GrpcTimeouts::default()).await
}

/// [`limited`] with these timeouts.
async fn limited_with(timeouts: GrpcTimeouts) -> Served {
    let options = (Hooks::default(), ReplyOptions::default());
    start(engine(two_a_minute()), Readiness::Ready, options, timeouts).await
}

impl Served {
    /// Stops the server and returns its result.
    pub(super) async fn shut_down(self) -> Result<(), sluicegate::edge::grpc::GrpcPortError> {
        self.stop.send(()).unwrap();
        soon("the end of the server", self.server).await.unwrap()
    }

    async fn ask(
        &self,
        request: impl tonic::IntoRequest<RateLimitRequest>,
    ) -> Result<RateLimitResponse, Status> {
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

/// Pads `message` to `size` bytes with an unknown field. Its length is a four-byte varint.
fn padded(mut message: Vec<u8>, size: usize) -> Vec<u8> {
    let rest = u32::try_from(size - message.len() - 6).unwrap();
    message.extend([0xa2, 0x06]);
    message.extend([0, 7, 14].map(|shift| u8::try_from(rest >> shift & 0x7f).unwrap() | 0x80));
    message.push(u8::try_from(rest >> 21).unwrap());
    message.resize(size, 0);
    message
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

/// The protocol `grpc.health.v1` demands it, so that clients may watch before a service exists.
#[tokio::test]
async fn a_watch_of_an_unknown_service_stays_open() {
    let served = served(empty_engine(), Readiness::NoConfig).await;
    let mut watch = HealthClient::new(served.channel.clone());
    let asked = HealthCheckRequest { service: "other".into() };
    let mut changes = watch.watch(asked).await.unwrap().into_inner();
    let first = changes.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::ServiceUnknown);
    served.health.set_readiness(Readiness::Ready);
    assert_eq!(served.serving("ratelimit").await, Ok(ServingStatus::Serving));
    assert!(changes.message().now_or_never().is_none(), "one status only, and no end");
    served.shut_down().await.unwrap();
    assert!(changes.message().await.unwrap().is_none());
}

#[tokio::test]
async fn a_health_watch_does_not_delay_shutdown() {
    let served = limited().await;
    let mut watch = HealthClient::new(served.channel.clone());
    let mut changes = watch.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert!(changes.message().await.unwrap().is_some());
    served.shut_down().await.unwrap();
}

/// Takes one second, the timeout of the HTTP/2 handshake in this test.
#[tokio::test]
async fn client_with_an_incomplete_http2_preface_is_disconnected() {
    let handshake = Duration::from_secs(1);
    let served = limited_with(GrpcTimeouts { handshake, ..GrpcTimeouts::default() }).await;
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

/// Adds the gRPC prefix of a message: the compression flag and the length.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), message].concat()
}
