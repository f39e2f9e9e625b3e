//! Reads and answers the calls of `RateLimitService`, without tonic's codec and its allocations.
//!
//! Guarantees:
//! - A decoded request has at most [`MAX_DESCRIPTORS`] descriptors and [`MAX_ENTRIES`] entries. Both are
//!   counted before decoding. Otherwise, 4 MiB with two million empty descriptors would take 100 MiB.
//! - A compressed message gets `UNIMPLEMENTED`, or `INTERNAL` if the call names no encoding.
//! - A call without a message, or with more than one, gets `INTERNAL`.
//! - Unreadable calls appear in the metrics of requests.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use prost::{DecodeError, Message as _};
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use super::bounded_body::{BoundedBody, FRAME_HEADER_BYTES, count_unreadable};
use super::convert::{MAX_DESCRIPTORS, MAX_ENTRIES, check_counts};
use super::protobuf_fields::ProtobufFields;
use super::reply_body::ReplyBody;
use super::rls::RateLimitService;
use crate::engine::CheckError;
use crate::telemetry::event::Protocol;

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

/// Answers a call of the service.
pub(super) async fn answer(
    service: Arc<RateLimitService>,
    call: Request<BoundedBody>,
) -> Response<ReplyBody> {
    if call.uri().path() != METHOD {
        return Status::new(Code::Unimplemented, "").into_http();
    }
    let (head, body) = call.into_parts();
    let reply = match read_request(&head.headers, body).await {
        Ok(Ok(request)) => {
            service.decide_call(&MetadataMap::from_headers(head.headers), request).await
        }
        Ok(Err(too_many)) => service.reject(too_many),
        Err(status) => Err(count_unreadable(&status, Protocol::Grpc)),
    };
    match reply {
        Ok(reply) => encode(reply.get_ref()),
        Err(status) => status.into_http(),
    }
}

async fn read_request(
    headers: &HeaderMap,
    mut body: BoundedBody,
) -> Result<BoundedRequest, Status> {
    check_encoding(headers)?;
    // `BoundedBody::unary` joins all data into one frame.
    let frame = body.frame().await.ok_or_else(|| Status::internal("Missing request message."))?;
    let data = frame.map_err(Status::from_error)?.into_data().unwrap_or_default();
    let message = whole_message(&data)?;
    decode_request(message).map_err(|error| Status::internal(error.to_string()))
}

/// Refuses a call with compressed messages.
fn check_encoding(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get("grpc-encoding") {
        None => Ok(()),
        Some(encoding) if encoding == "identity" => Ok(()),
        Some(encoding) => {
            let text = format!("the encoding {encoding:?} of the message is not supported");
            let mut status = Status::unimplemented(text);
            let accepted = MetadataValue::from_static("identity");
            status.metadata_mut().insert("grpc-accept-encoding", accepted);
            Err(status)
        }
    }
}

/// Returns the only message of `data`, without its header: a compression flag and the length.
fn whole_message(data: &Bytes) -> Result<&[u8], Status> {
    let incomplete = || Status::internal("Unexpected EOF decoding stream.");
    let (header, message) = data.split_at_checked(FRAME_HEADER_BYTES).ok_or_else(incomplete)?;
    let [flag, length @ ..] = header else { return Err(incomplete()) };
    let length = length.iter().fold(0, |sum: usize, byte| sum << 8 | usize::from(*byte));
    match flag {
        0 if message.len() == length => Ok(message),
        0 if message.len() < length => Err(incomplete()),
        0 => Err(Status::internal("a unary call has one message")),
        1 => Err(Status::internal("the message is compressed, but the call names no encoding")),
        other => Err(Status::internal(format!("the compression flag {other} is not 0 or 1"))),
    }
}

fn encode(reply: &RateLimitResponse) -> Response<ReplyBody> {
    let length = reply.encoded_len();
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES.saturating_add(length));
    frame.push(0);
    // A reply is far smaller than 4 GiB: it has a bounded number of statuses.
    frame.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    reply.encode_raw(&mut frame);
    ReplyBody::response(frame.into())
}
