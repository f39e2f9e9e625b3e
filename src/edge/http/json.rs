//! Serves `/json`: one check as proto3 JSON in the body, one decision as the reply.
//!
//! Guarantees:
//! - A body means the same as the equivalent gRPC message, or it is rejected.
//! - A body above the limit is rejected before it is in memory.
//! - Statuses match envoyproxy/ratelimit: 200 allow, 429 deny, 400 invalid check.
//! - Status 500 means that JSON cannot express the decision.
//!
//! Not covered:
//! - The method and the content type, which envoyproxy/ratelimit ignores too.

mod read;
mod write;

use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokio_stream::StreamExt as _;

use super::{Ask, text};
use crate::edge::grpc::convert;
use crate::edge::{outcome, tell};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Answered, Asked, Outcome, Protocol};

pub use read::{Unreadable, request};
pub use write::{Inexpressible, response};

/// The largest body in bytes. Equal to the largest gRPC message.
pub const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// The timeout for receiving and deciding a check. Limits
/// the time for which a slow client can occupy a connection.
const DEADLINE: Duration = Duration::from_secs(10);

pub(super) async fn answer(ask: &Ask, body: Body) -> Response {
    let answered = tokio::time::timeout(DEADLINE, decide(ask, body)).await;
    let (outcome, response) = answered.unwrap_or_else(|_| refused(Refused::Late));
    Asked { protocol: Protocol::Json, outcome }.emit();
    response
}

async fn decide(ask: &Ask, body: Body) -> (Outcome, Response) {
    let request = match whole(body).await.and_then(|bytes| read(&bytes)) {
        Ok(request) => request,
        Err(why) => return refused(why),
    };
    let decoded = ask.engine.clock().now();
    let answer = match convert::question(&request, &ask.reporting) {
        Ok(question) => ask.engine.decide(&question).await,
        Err(refusal) => Err(refusal),
    };
    let outcome = outcome(&answer);
    let shown = match answer {
        Ok(answer) => {
            show(&convert::reply(&request, &answer, &ask.reporting), answer.verdict, outcome)
        }
        Err(refusal) => {
            tell(&ask.engine, &refusal);
            (outcome, text(StatusCode::BAD_REQUEST))
        }
    };
    Answered { came: decoded, at: ask.engine.clock().now(), queued: Nanos(0) }.emit();
    shown
}

fn show(reply: &RateLimitResponse, verdict: Verdict, outcome: Outcome) -> (Outcome, Response) {
    let status = match verdict {
        Verdict::Admit => StatusCode::OK,
        Verdict::Deny => StatusCode::TOO_MANY_REQUESTS,
    };
    match response(reply) {
        Ok(body) => (outcome, (status, super::JSON, body).into_response()),
        Err(Inexpressible) => (Outcome::Inexpressible, text(StatusCode::INTERNAL_SERVER_ERROR)),
    }
}

#[derive(Clone, Copy)]
enum Refused {
    Malformed,
    TooLarge,
    /// The body has more objects than the largest valid check.
    TooMany,
    Late,
}

fn refused(why: Refused) -> (Outcome, Response) {
    match why {
        Refused::Malformed => (Outcome::Malformed, text(StatusCode::BAD_REQUEST)),
        Refused::TooLarge => (Outcome::TooLarge, text(StatusCode::PAYLOAD_TOO_LARGE)),
        Refused::TooMany => (Outcome::TooManyEntries, text(StatusCode::BAD_REQUEST)),
        Refused::Late => (Outcome::Late, text(StatusCode::REQUEST_TIMEOUT)),
    }
}

fn read(bytes: &[u8]) -> Result<RateLimitRequest, Refused> {
    request(bytes).map_err(|unreadable| match unreadable {
        Unreadable::Malformed(_) => Refused::Malformed,
        Unreadable::TooManyObjects(_) => Refused::TooMany,
    })
}

/// Reads the whole body. Rejects a declared length above the limit without reading.
async fn whole(body: Body) -> Result<Vec<u8>, Refused> {
    if MAX_BODY_BYTES < usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX) {
        return Err(Refused::TooLarge);
    }
    let mut bytes = Vec::new();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Refused::Malformed)?;
        if MAX_BODY_BYTES - bytes.len() < chunk.len() {
            return Err(Refused::TooLarge);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
