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
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use hyper::body::Incoming;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service as _};
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;

use super::bounded_body::{BoundedBody, MAX_MESSAGE_BYTES, MessageBounds, memory_full};
use super::incoming::{ClientIdentity, ShortIdleHandle};
use super::reply_body::ReplyBody;
use super::rls::RateLimitService;
use super::rls_codec;
use crate::body_memory::{BodyLimits, BodyMemory};

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

/// A future reply. Until it is ready, the memory of the call's body stays charged.
type RoutedCall = BoxFuture<Response<ReplyBody>, Infallible>;

#[derive(Clone, Debug)]
pub(super) struct ConnectionRouter {
    rate_limits: Arc<RateLimitService>,
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
        let rate_limits = Arc::new(rate_limits);
        let routes = others.clone();
        Self { rate_limits, routes, peer, client, idle_handle, message_timeout, bodies }
    }

    fn route(&self, mut request: Request<Incoming>, memory: Arc<BodyMemory>) -> RoutedCall {
        let account = Arc::clone(&memory);
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
        let reply = self.routes.clone().call(request);
        Box::pin(async move {
            let reply = reply.await?;
            drop(account);
            Ok(reply.map(ReplyBody::from))
        })
    }

    const fn bounds(&self, max_bytes: usize, memory: Arc<BodyMemory>) -> MessageBounds {
        MessageBounds { max_bytes, timeout: self.message_timeout, memory }
    }
}

impl hyper::service::Service<Request<Incoming>> for ConnectionRouter {
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = RoutedCall;

    fn call(&self, request: Request<Incoming>) -> RoutedCall {
        let memory = self.bodies.open_account();
        let service = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        if service.is_none_or(|(service, _)| service != SERVICE_NAME) {
            return self.route(request, memory);
        }
        let account = Arc::clone(&memory);
        let bounds = self.bounds(self.bodies.max_message, memory);
        let request = request.map(|body| BoundedBody::unary(body, bounds));
        let service = Arc::clone(&self.rate_limits);
        Box::pin(async move {
            let mut reply = rls_codec::answer(service, request).await;
            if let Err(error) = reply.body_mut().charge(account) {
                return Ok(memory_full(error).into_http());
            }
            Ok(reply)
        })
    }
}
