//! A question as it arrives: counted byte by byte before anything is made of it.
//!
//! Guarantees: what is decoded is at most [`MAX_DESCRIPTORS`] descriptors and [`MAX_ENTRIES`] entries, so that one message
//! takes little more memory than its bytes: two million empty descriptors fit 4 MiB, and decoded they are a hundred.
//! Leaves out: what the question means; other services' messages. Cost: nothing for a message that is too short to hold too
//! many of anything.

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

/// The one method.
const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The least bytes of a descriptor or an entry: a tag and a length of zero.
const LEAST: usize = 2;
/// Field numbers: a request's descriptors, and a descriptor's entries.
const DESCRIPTORS: u64 = 2;
const ENTRIES: u64 = 1;

/// A question, or why it holds too much to be decoded.
pub type Arrived = Result<RateLimitRequest, Refusal>;

/// The question that `message` holds.
///
/// # Errors
/// The bytes are no such message.
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

/// Messages of the service: questions counted before they are decoded, answers as they are.
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
        // One piece holds the whole message; of several, the first alone would not be one.
        let arrived = arrived(from.chunk()).map_err(|error| Status::internal(error.to_string()))?;
        from.advance(from.remaining());
        Ok(Some(arrived))
    }
}

/// The service at its path. By hand: the one that is made of the proto decodes whatever comes.
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
