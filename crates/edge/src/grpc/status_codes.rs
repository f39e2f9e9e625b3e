//! Maps tonic's transport errors to the gRPC codes that clients of envoyproxy/ratelimit expect.
//!
//! Guarantees:
//! - A message above the size limit gets `RESOURCE_EXHAUSTED`, where tonic uses `OUT_OF_RANGE`.
//! - A message that cannot be decoded gets `INTERNAL`, an unknown method `UNIMPLEMENTED`.
//! - Messages that are refused or cannot be decoded are counted.
//!
//! Relies on: the services themselves never return `OUT_OF_RANGE` or `INTERNAL`.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tonic::Code;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

use crate::telemetry::event::{EdgeOutcome, Event as _, Protocol, RequestCompleted};

/// Wraps a gRPC service and maps the codes of its transport errors. The protocol is for the
/// metrics.
#[derive(Clone, Debug)]
pub struct StatusCodeMapper<S>(pub S, pub Protocol);

impl<S: NamedService> NamedService for StatusCodeMapper<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B, R> Service<Request<B>> for StatusCodeMapper<S>
where
    S: Service<
            Request<B>,
            Response = Response<R>,
            Error = Infallible,
            Future = BoxFuture<Response<R>, Infallible>,
        >,
{
    type Response = Response<R>;
    type Error = Infallible;
    type Future = MappedResponse<R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        MappedResponse(self.0.call(request), self.1)
    }
}

/// The future of a response whose error code is then mapped.
#[allow(missing_debug_implementations)]
pub struct MappedResponse<R>(BoxFuture<Response<R>, Infallible>, Protocol);

impl<R> Future for MappedResponse<R> {
    type Output = Result<Response<R>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(self.0.as_mut().poll(cx));
        let protocol = self.1;
        Poll::Ready(response.map(|response| map_status_code(response, protocol)))
    }
}

/// Maps the gRPC code in the response headers. Only a response without a message has it there, such
/// as a transport error.
fn map_status_code<R>(mut response: Response<R>, protocol: Protocol) -> Response<R> {
    let Some(code) = response.headers().get("grpc-status") else { return response };
    let outcome = match Code::from_bytes(code.as_bytes()) {
        Code::OutOfRange => EdgeOutcome::TooLarge,
        Code::ResourceExhausted => EdgeOutcome::TooManyRequests,
        Code::Internal => EdgeOutcome::Malformed,
        _ => return response,
    };
    if outcome == EdgeOutcome::TooLarge {
        let mapped_code = HeaderValue::from(Code::ResourceExhausted as i32);
        response.headers_mut().insert("grpc-status", mapped_code);
    }
    RequestCompleted { protocol, outcome }.emit();
    response
}
