//! Counts and times gRPC health checks for the statistics that envoyproxy/ratelimit emits. `Watch`
//! calls are not counted, because they never end.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

use crate::engine::Engine;
use crate::telemetry::stats::TimedMethod;

/// Wraps a gRPC health service. The statistics of the engine count its calls.
#[derive(Clone, Debug)]
pub(super) struct TimedHealth<S>(pub(super) S, pub(super) Arc<Engine>);

impl<S: NamedService> NamedService for TimedHealth<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B, R> Service<Request<B>> for TimedHealth<S>
where
    S: Service<
            Request<B>,
            Response = Response<R>,
            Error = Infallible,
            Future = BoxFuture<Response<R>, Infallible>,
        >,
    R: 'static,
{
    type Response = Response<R>;
    type Error = Infallible;
    type Future = BoxFuture<Response<R>, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let is_check = request.uri().path().ends_with("/Check");
        let (engine, response) = (Arc::clone(&self.1), self.0.call(request));
        let Some(stats) = engine.stats().filter(|_| is_check).cloned() else { return response };
        Box::pin(async move {
            let started_at = engine.clock().now();
            let response = response.await;
            let now = engine.clock().now();
            stats.record_call(TimedMethod::Check, now, now.since(started_at));
            response
        })
    }
}
