//! `/json`: one question as proto3 JSON in the body, one answer back.
//!
//! Guarantees: a body is read whole and means what the gRPC message would, or it is refused; what
//! is too long is refused before it is held in memory; statuses are the reference's: 200 may pass,
//! 429 may not, 400 cannot be asked, 500 decided but not expressible in JSON.
//! Leaves out: the method and the content type, which the reference does not look at either.

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

/// The longest body, in bytes: what a gRPC message may have.
pub const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// How long a question may take to arrive and be answered. A client that sends a byte a second
/// must not hold a connection for a day.
const DEADLINE: Duration = Duration::from_secs(10);

/// Answers one call.
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

/// Why a body is not a question.
#[derive(Clone, Copy)]
enum Refused {
    /// Cannot be read, or ended early.
    Malformed,
    /// Above [`MAX_BODY_BYTES`].
    TooLarge,
    /// Of more objects than any question has.
    TooMany,
    /// Did not arrive in time.
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

/// The whole body. A declared length is believed at once, so that nothing of 100 MB is read.
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
