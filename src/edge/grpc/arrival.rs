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

/// The fields of a message that have a length, each with its number. It ends where the bytes are no message, at which
/// decoding ends as well; what of them no decoder takes is counted all the same.
struct Fields<'m> {
    rest: &'m [u8],
    /// Groups that are open. What is in one is in nobody's schema and skipped.
    groups: usize,
}

impl<'m> Fields<'m> {
    const fn of(message: &'m [u8]) -> Self {
        Self { rest: message, groups: 0 }
    }

    /// Seven bits a byte, the lowest first, for at most ten bytes.
    fn varint(&mut self) -> Option<u64> {
        let length = 1 + self.rest.iter().take(10).position(|byte| byte & 0x80 == 0)?;
        let bytes = self.skip(length)?.iter().rev();
        Some(bytes.fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f)))
    }

    fn skip(&mut self, length: usize) -> Option<&'m [u8]> {
        let (skipped, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(skipped)
    }
}

impl<'m> Iterator for Fields<'m> {
    type Item = (u64, &'m [u8]);

    fn next(&mut self) -> Option<(u64, &'m [u8])> {
        loop {
            let key = self.varint()?;
            match key & 7 {
                0 => drop(self.varint()?),
                1 => drop(self.skip(8)?),
                2 => {
                    let length = usize::try_from(self.varint()?).ok()?;
                    let field = self.skip(length)?;
                    if self.groups == 0 {
                        return Some((key >> 3, field));
                    }
                }
                3 => self.groups += 1,
                4 => self.groups = self.groups.checked_sub(1)?,
                5 => drop(self.skip(4)?),
                _ => return None,
            }
        }
    }
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
