//! Decodes rate limit requests; counts their descriptors and entries before decoding.
//!
//! Guarantees:
//! - A decoded request has at most [`MAX_DESCRIPTORS`] descriptors and [`MAX_ENTRIES`] entries.
//! - Decoding takes little more memory than the message itself. Without the count, a message of 4
//!   MiB with two million empty descriptors would take 100 MiB.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll};

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use prost::bytes::Buf as _;
use prost::{DecodeError, Message as _};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};
use tonic_prost::ProstEncoder;

use super::bounded_body::BoundedBody;
use super::convert::{MAX_DESCRIPTORS, MAX_ENTRIES, check_counts};
use super::protobuf_fields::ProtobufFields;
use super::rls::RateLimitService;
use crate::engine::CheckError;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The smallest encoded size of a descriptor or an entry: a tag and a length of zero.
const MIN_FIELD_BYTES: usize = 2;
const DESCRIPTORS_FIELD: u64 = 2;
const ENTRIES_FIELD: u64 = 1;

/// A decoded request, or the error if it has too many descriptors or entries.
pub type BoundedRequest = Result<RateLimitRequest, CheckError>;

/// Decodes `message`. The inner result is an error if the request has too many descriptors or
/// entries.
///
/// # Errors
/// `message` is not a valid `RateLimitRequest`.
pub fn decode_request(message: &[u8]) -> Result<BoundedRequest, DecodeError> {
    match check_bounds(message) {
        Ok(()) => RateLimitRequest::decode(message).map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

fn check_bounds(message: &[u8]) -> Result<(), CheckError> {
    if message.len() <= MIN_FIELD_BYTES * MAX_DESCRIPTORS.min(MAX_ENTRIES) {
        return Ok(());
    }
    let (mut descriptors, mut entries) = (0, 0);
    for (_, descriptor) in
        ProtobufFields::new(message).filter(|(number, _)| *number == DESCRIPTORS_FIELD)
    {
        descriptors += 1;
        entries +=
            ProtobufFields::new(descriptor).filter(|(number, _)| *number == ENTRIES_FIELD).count();
    }
    check_counts(descriptors, entries)
}

#[derive(Clone, Copy, Debug)]
struct RlsCodec;

impl Codec for RlsCodec {
    type Encode = RateLimitResponse;
    type Decode = BoundedRequest;
    type Encoder = ProstEncoder<RateLimitResponse>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Decoder for RlsCodec {
    type Item = BoundedRequest;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<BoundedRequest>, Status> {
        // tonic passes the whole message in one chunk.
        let request =
            decode_request(from.chunk()).map_err(|error| Status::internal(error.to_string()))?;
        from.advance(from.remaining());
        Ok(Some(request))
    }
}

/// The rate limit service at the path of its gRPC method. Unlike tonic's generated service, it
/// counts descriptors and entries before decoding.
#[derive(Clone, Debug)]
pub(super) struct RateLimitEndpoint(Arc<RateLimitService>);

impl RateLimitEndpoint {
    pub(super) fn new(service: RateLimitService) -> Self {
        Self(Arc::new(service))
    }
}

impl Service<Request<BoundedBody>> for RateLimitEndpoint {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<BoundedBody>) -> Self::Future {
        if request.uri().path() != METHOD {
            return Box::pin(ready(Ok(Status::new(Code::Unimplemented, "").into_http())));
        }
        let service = self.clone();
        Box::pin(async move { Ok(Grpc::new(RlsCodec).unary(service, request).await) })
    }
}

impl UnaryService<BoundedRequest> for RateLimitEndpoint {
    type Response = RateLimitResponse;
    type Future = BoxFuture<tonic::Response<RateLimitResponse>, Status>;

    fn call(&mut self, request: tonic::Request<BoundedRequest>) -> Self::Future {
        let Self(service) = self.clone();
        let (metadata, _, decoded) = request.into_parts();
        match decoded {
            Ok(request) => Box::pin(async move { service.decide_call(&metadata, request).await }),
            Err(error) => Box::pin(ready(service.reject(error))),
        }
    }
}
