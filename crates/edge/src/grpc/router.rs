//! Routes the calls of one connection: rate limit checks directly to their service, which saves the
//! allocations of tonic's router; other calls through that router.
//!
//! Guarantees:
//! - An unknown service or method gets `UNIMPLEMENTED`.
//! - Each message has a size limit and a time limit ([`BoundedBody`]).
//! - All messages in flight take at most `listen.max_body_memory`.
//!
//! Not covered: a caller's `grpc-timeout`, which each service applies itself.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service as _};
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;

use super::bounded_body::{BoundedBody, MAX_MESSAGE_BYTES, MessageBounds};
use super::incoming::{ClientIdentity, ShortIdleHandle};
use super::rls::RateLimitService;
use super::rls_codec::RateLimitEndpoint;
use super::status_codes::{MappedResponse, StatusCodeMapper};
use crate::body_memory::{BodyLimits, BodyMemory};
use crate::telemetry::event::Protocol;

/// The streaming methods: path, largest message in bytes, and `true` if the stream's end releases
/// permits.
const STREAMING_METHODS: [(&str, usize, bool); 6] = [
    ("/envoy.service.ext_proc.v3.ExternalProcessor/Process", MAX_MESSAGE_BYTES, true),
    // Access log entries are decoded one at a time.
    ("/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs", MAX_LOG_BYTES, false),
    ("/sluicegate.v1.Permits/Session", MAX_MESSAGE_BYTES, true),
    ("/sluicegate.v1.Leases/Exchange", MAX_MESSAGE_BYTES, false),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", MAX_MESSAGE_BYTES, false),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", MAX_MESSAGE_BYTES, false),
];

/// The largest message with access log entries, in bytes: tonic's limit.
const MAX_LOG_BYTES: usize = 4 << 20;

#[derive(Clone, Debug)]
pub(super) struct ConnectionRouter {
    rate_limits: StatusCodeMapper<RateLimitEndpoint>,
    routes: Routes,
    peer: TcpConnectInfo,
    client: ClientIdentity,
    idle_handle: ShortIdleHandle,
    message_timeout: Duration,
    bodies: BodyLimits,
}

impl ConnectionRouter {
    /// Creates the router for the connection of one client. `idle_handle` shortens the connection's
    /// idle timeout while it has permit streams.
    pub(super) fn new(
        rate_limits: &RateLimitService,
        others: &Routes,
        (peer, client, idle_handle): (TcpConnectInfo, ClientIdentity, ShortIdleHandle),
        (message_timeout, bodies): (Duration, BodyLimits),
    ) -> Self {
        let rate_limits = rate_limits.for_source(peer.remote_addr().map(|address| address.ip()));
        let rate_limits = StatusCodeMapper(RateLimitEndpoint::new(rate_limits), Protocol::Grpc);
        let routes = others.clone();
        Self { rate_limits, routes, peer, client, idle_handle, message_timeout, bodies }
    }

    fn route(
        &self,
        mut request: Request<Incoming>,
        memory: Arc<BodyMemory>,
    ) -> BoxFuture<Response<Body>, Infallible> {
        request.extensions_mut().insert(self.peer.clone());
        request.extensions_mut().insert(self.client.clone());
        let stream = STREAMING_METHODS.into_iter().find(|(path, ..)| *path == request.uri().path());
        let request = request.map(|body| {
            let Some((_, max_bytes, is_permit_stream)) = stream else {
                let max_bytes = MAX_MESSAGE_BYTES.min(self.bodies.max_message);
                return BoundedBody::unary(body, self.bounds(max_bytes, memory));
            };
            let guard = is_permit_stream.then(|| self.idle_handle.create_guard()).flatten();
            BoundedBody::stream(body, self.bounds(max_bytes, memory), guard)
        });
        Box::pin(self.routes.clone().call(request))
    }

    const fn bounds(&self, max_bytes: usize, memory: Arc<BodyMemory>) -> MessageBounds {
        MessageBounds { max_bytes, timeout: self.message_timeout, memory }
    }
}

impl hyper::service::Service<Request<Incoming>> for ConnectionRouter {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = RouteFuture;

    fn call(&self, request: Request<Incoming>) -> RouteFuture {
        let memory = self.bodies.open_account();
        let held = Arc::clone(&memory);
        let service = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        let reply = if service.is_some_and(|(service, _)| service == SERVICE_NAME) {
            let bounds = self.bounds(self.bodies.max_message, memory);
            let request = request.map(|body| BoundedBody::unary(body, bounds));
            RoutedReply::RateLimit(self.rate_limits.clone().call(request))
        } else {
            RoutedReply::Other(self.route(request, memory))
        };
        RouteFuture { reply, _memory: held }
    }
}

/// The reply to a call. The memory of the call's body stays charged until then.
pub(super) struct RouteFuture {
    reply: RoutedReply,
    _memory: Arc<BodyMemory>,
}

enum RoutedReply {
    RateLimit(MappedResponse<Body>),
    Other(BoxFuture<Response<Body>, Infallible>),
}

impl Future for RouteFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().reply {
            RoutedReply::RateLimit(response) => Pin::new(response).poll(cx),
            RoutedReply::Other(response) => response.as_mut().poll(cx),
        }
    }
}
