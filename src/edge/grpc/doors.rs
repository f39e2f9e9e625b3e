//! Routes the calls of one connection: rate limits
//! by a fast path, other services by tonic's router.
//!
//! Guarantees:
//! - An unknown service or method gets `UNIMPLEMENTED`.
//! - A message has a size limit and a time limit ([`Prompt`]).
//!
//! Not covered:
//! - A caller's `grpc-timeout`, which each service applies itself.
//!
//! The fast path saves the router's allocations and the map that would contain the peer's address.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service as _};
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;

use super::arrival::Limits;
use super::incoming::Holding;
use super::prompt::{MOST, Prompt};
use super::rls::RateLimits;
use super::surface::{Recoded, Surface};
use crate::telemetry::event::Protocol;

/// Streaming methods: the path, the largest message in bytes, and true if its end releases permits.
const STREAMS: [(&str, usize, bool); 5] = [
    ("/envoy.service.ext_proc.v3.ExternalProcessor/Process", MOST, true),
    // Entries are decoded one at a time, so only tonic's own message limit applies.
    ("/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs", usize::MAX, false),
    ("/sluicegate.v1.Permits/Hold", MOST, true),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", MOST, false),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", MOST, false),
];

#[derive(Clone, Debug)]
pub(super) struct Doors {
    limits: Surface<Limits>,
    others: Routes,
    peer: TcpConnectInfo,
    holding: Holding,
}

impl Doors {
    /// Creates the router for a client at `peer`. `holding` creates the guards of permit streams.
    pub(super) fn new(
        limits: &RateLimits,
        others: &Routes,
        (peer, holding): (TcpConnectInfo, Holding),
    ) -> Self {
        let limits = limits.asked_by(peer.remote_addr().map(|address| address.ip()));
        let limits = Surface(Limits::new(limits), Protocol::Grpc);
        Self { limits, others: others.clone(), peer, holding }
    }

    fn other(&self, mut request: Request<Incoming>) -> BoxFuture<Response<Body>, Infallible> {
        request.extensions_mut().insert(self.peer.clone());
        let stream = STREAMS.into_iter().find(|(path, ..)| *path == request.uri().path());
        let request = request.map(|body| match stream {
            Some((_, most, holds)) => {
                let held = holds.then(|| self.holding.hold()).flatten();
                Prompt::stream(body, most, held)
            }
            None => Prompt::whole(body),
        });
        Box::pin(self.others.clone().call(request))
    }
}

impl hyper::service::Service<Request<Incoming>> for Doors {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let service = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        if service.is_some_and(|(service, _)| service == SERVICE_NAME) {
            return Answer::Limits(self.limits.clone().call(request.map(Prompt::message)));
        }
        Answer::Other(self.other(request))
    }
}

pub(super) enum Answer {
    Limits(Recoded<Body>),
    Other(BoxFuture<Response<Body>, Infallible>),
}

impl Future for Answer {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Limits(answer) => Pin::new(answer).poll(cx),
            Self::Other(answer) => answer.as_mut().poll(cx),
        }
    }
}
