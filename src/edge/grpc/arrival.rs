//! The codec of the rate limit service: it counts a request's parts before it decodes them.
//!
//! Guarantees:
//! - A decoded request has at most [`MAX_DESCRIPTORS`] descriptors and [`MAX_ENTRIES`] entries.
//! - Decoding takes little more memory than the message itself.
//!
//! Not covered:
//! - The meaning of a request.
//! - Messages of other services.
//!
//! Two million empty descriptors fit in a message of 4 MiB, and take about 100 MiB when
//! decoded. A message that is too short to exceed a bound is not counted, so it costs nothing.

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

use super::convert::{MAX_DESCRIPTORS, MAX_ENTRIES, check_counts};
use super::fields::Fields;
use super::prompt::Prompt;
use super::rls::RateLimits;
use crate::engine::Refusal;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The smallest size of a descriptor or an entry, in bytes: a tag and a length of zero.
const LEAST: usize = 2;
const DESCRIPTORS: u64 = 2;
const ENTRIES: u64 = 1;

/// A request, or the error for a request that has too many parts to decode.
pub type Arrived = Result<RateLimitRequest, Refusal>;

/// Decodes `message`; the inner error means that it has too many descriptors or entries.
///
/// # Errors
/// `message` is not a valid `RateLimitRequest`.
pub fn arrived(message: &[u8]) -> Result<Arrived, DecodeError> {
    match check(message) {
        Ok(()) => RateLimitRequest::decode(message).map(Ok),
        Err(refusal) => Ok(Err(refusal)),
    }
}

fn check(message: &[u8]) -> Result<(), Refusal> {
    if message.len() <= LEAST * MAX_DESCRIPTORS.min(MAX_ENTRIES) {
        return Ok(());
    }
    let (mut descriptors, mut entries) = (0, 0);
    for (_, descriptor) in Fields::of(message).filter(|(number, _)| *number == DESCRIPTORS) {
        descriptors += 1;
        entries += Fields::of(descriptor).filter(|(number, _)| *number == ENTRIES).count();
    }
    check_counts(descriptors, entries)
}

#[derive(Clone, Copy, Debug)]
struct Letters;

impl Codec for Letters {
    type Encode = RateLimitResponse;
    type Decode = Arrived;
    type Encoder = ProstEncoder<RateLimitResponse>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Decoder for Letters {
    type Item = Arrived;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Arrived>, Status> {
        // tonic passes the whole message in one chunk.
        let arrived = arrived(from.chunk()).map_err(|error| Status::internal(error.to_string()))?;
        from.advance(from.remaining());
        Ok(Some(arrived))
    }
}

/// The service at its path. tonic's generated service would decode every message without counting.
#[derive(Clone, Debug)]
pub(super) struct Limits(Arc<RateLimits>);

impl Limits {
    pub(super) fn new(limits: RateLimits) -> Self {
        Self(Arc::new(limits))
    }
}

impl Service<Request<Prompt>> for Limits {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Prompt>) -> Self::Future {
        if request.uri().path() != METHOD {
            return Box::pin(ready(Ok(Status::new(Code::Unimplemented, "").into_http())));
        }
        let limits = self.clone();
        Box::pin(async move { Ok(Grpc::new(Letters).unary(limits, request).await) })
    }
}

impl UnaryService<Arrived> for Limits {
    type Response = RateLimitResponse;
    type Future = BoxFuture<tonic::Response<RateLimitResponse>, Status>;

    fn call(&mut self, request: tonic::Request<Arrived>) -> Self::Future {
        let Self(limits) = self.clone();
        let (metadata, _, arrived) = request.into_parts();
        match arrived {
            Ok(request) => Box::pin(async move { limits.answer(&metadata, request).await }),
            Err(refusal) => Box::pin(ready(limits.refuse(refusal))),
        }
    }
}
