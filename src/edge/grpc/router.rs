//! Routes the calls of one connection: rate limit checks directly to their service, which saves the
//! allocations of tonic's router; other calls through that router.
//!
//! Guarantees:
//! - An unknown service or method gets `UNIMPLEMENTED`.
//! - Each message has a size limit and a time limit ([`BoundedBody`]).
//!
//! Not covered: a caller's `grpc-timeout`, which each service applies itself.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service as _};
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;

use super::bounded_body::{BoundedBody, MAX_MESSAGE_BYTES};
use super::incoming::{ClientIdentity, ShortIdleHandle};
use super::rls::RateLimitService;
use super::rls_codec::RateLimitEndpoint;
use super::status_codes::{MappedResponse, StatusCodeMapper};
use crate::telemetry::event::Protocol;

/// The streaming methods: path, largest message in bytes, and `true` if the stream's end releases
/// permits.
const STREAMING_METHODS: [(&str, usize, bool); 6] = [
    ("/envoy.service.ext_proc.v3.ExternalProcessor/Process", MAX_MESSAGE_BYTES, true),
    // Access log entries are decoded one at a time, so tonic's limit of 4 MiB is enough.
    ("/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs", usize::MAX, false),
    ("/sluicegate.v1.Permits/Session", MAX_MESSAGE_BYTES, true),
    ("/sluicegate.v1.Leases/Exchange", MAX_MESSAGE_BYTES, false),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", MAX_MESSAGE_BYTES, false),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", MAX_MESSAGE_BYTES, false),
];

#[derive(Clone, Debug)]
pub(super) struct ConnectionRouter {
    rate_limits: StatusCodeMapper<RateLimitEndpoint>,
    routes: Routes,
    peer: TcpConnectInfo,
    client: ClientIdentity,
    idle_handle: ShortIdleHandle,
    message_timeout: Duration,
}

impl ConnectionRouter {
    /// Creates the router for the connection of one client. `idle_handle` shortens the connection's
    /// idle timeout while it has permit streams.
    pub(super) fn new(
        rate_limits: &RateLimitService,
        others: &Routes,
        (peer, client, idle_handle): (TcpConnectInfo, ClientIdentity, ShortIdleHandle),
        message_timeout: Duration,
    ) -> Self {
        let rate_limits = rate_limits.for_source(peer.remote_addr().map(|address| address.ip()));
        let rate_limits = StatusCodeMapper(RateLimitEndpoint::new(rate_limits), Protocol::Grpc);
        Self { rate_limits, routes: others.clone(), peer, client, idle_handle, message_timeout }
    }

    fn route(&self, mut request: Request<Incoming>) -> BoxFuture<Response<Body>, Infallible> {
        request.extensions_mut().insert(self.peer.clone());
        request.extensions_mut().insert(self.client.clone());
        let stream = STREAMING_METHODS.into_iter().find(|(path, ..)| *path == request.uri().path());
        let request = request.map(|body| match stream {
            Some((_, max_bytes, is_permit_stream)) => {
                let guard = is_permit_stream.then(|| self.idle_handle.create_guard()).flatten();
                BoundedBody::stream(body, max_bytes, guard, self.message_timeout)
            }
            None => BoundedBody::buffered(body, self.message_timeout),
        });
        Box::pin(self.routes.clone().call(request))
    }
}

impl hyper::service::Service<Request<Incoming>> for ConnectionRouter {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = RouteFuture;

    fn call(&self, request: Request<Incoming>) -> RouteFuture {
        let service = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        if service.is_some_and(|(service, _)| service == SERVICE_NAME) {
            let request = request.map(|body| BoundedBody::unbuffered(body, self.message_timeout));
            return RouteFuture::RateLimit(self.rate_limits.clone().call(request));
        }
        RouteFuture::Routed(self.route(request))
    }
}

pub(super) enum RouteFuture {
    RateLimit(MappedResponse<Body>),
    Routed(BoxFuture<Response<Body>, Infallible>),
}

impl Future for RouteFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::RateLimit(response) => Pin::new(response).poll(cx),
            Self::Routed(response) => response.as_mut().poll(cx),
        }
    }
}
