//! Serves `/json`: one check as proto3 JSON in the body, one decision as the reply.
//!
//! Guarantees:
//! - A valid body gets the same decision as the equivalent gRPC message, also with reserved keys.
//! - A body above `listen.max_message` is rejected before all of it is in memory.
//! - All bodies in flight take at most `listen.max_body_memory`; others get status 429.
//! - Statuses match envoyproxy/ratelimit: 200 allow, 429 deny, 400 invalid check.
//! - Status 500 means that the decision contains infinity or NaN, which JSON cannot express.
//! - Any method and content type is accepted, as in envoyproxy/ratelimit.
//! - The log contains the reason of a status 400, because the reply contains none.

mod read;
mod write;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use super::check_port::CheckPort;
use super::response::{JSON, status_response, text_response};
use crate::body_memory::{BodyBuffer, BodyMemoryFull};
use crate::engine::AdmissionOutcome;
use crate::engine::concurrency::with_queue_time;
use crate::grpc::convert;
use crate::grpc::reserved_keys::{ReservedCall, take_reserved};
use crate::grpc::rls::{RateLimitService, RlsReply};
use crate::permits::{Holder, Permits, outcome_of_admission};
use crate::telemetry::event::{CheckAnswered, EdgeOutcome, Event as _, Protocol, RequestCompleted};
use crate::telemetry::reason_log::{DueLine, ReasonLog};
use crate::{check_error_outcome, count_check_error};

pub use read::{JsonRequestError, parse_request};
pub use write::{NotExpressibleInJson, to_json_text};

/// The timeout for receiving and deciding a check, so that a slow client occupies a connection only
/// for a limited time.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest part of a reason that is logged, in bytes.
const MAX_REASON_BYTES: usize = 200;

static REJECTIONS: Mutex<ReasonLog> = Mutex::new(ReasonLog::new());

pub(super) async fn reply_to_check(port: &CheckPort, body: Body) -> Response {
    let result = tokio::time::timeout(CHECK_TIMEOUT, decide(port, body)).await;
    let (outcome, response) = result.unwrap_or_else(|_| body_error_response(&BodyError::TimedOut));
    RequestCompleted { protocol: Protocol::Json, outcome }.emit();
    response
}

async fn decide(port: &CheckPort, body: Body) -> (EdgeOutcome, Response) {
    // Stays charged until the reply.
    let mut buffer = BodyBuffer::new(port.bodies.max_message, port.bodies.open_account());
    let body = read_body(body, port.bodies.max_message, &mut buffer).await;
    let mut request = match body.and_then(|()| Ok(parse_request(&buffer.bytes)?)) {
        Ok(request) => request,
        Err(error) => {
            let (outcome, response) = body_error_response(&error);
            if response.status() == StatusCode::BAD_REQUEST {
                log_rejection(&error);
            }
            return (outcome, response);
        }
    };
    let received_at = port.engine.clock().now();
    let (result, queue_time) = with_queue_time(answer(port, &mut request)).await;
    let reply = match result {
        Ok((reply, outcome)) => decision_response(&reply, outcome),
        Err(error) => {
            count_check_error(&port.engine, &error);
            log_rejection(&error);
            (check_error_outcome(&error), status_response(StatusCode::BAD_REQUEST))
        }
    };
    CheckAnswered { received_at, replied_at: port.engine.clock().now(), queue_time }.emit();
    reply
}

/// Decides a check, or starts or ends a request as the gRPC port does.
async fn answer(port: &CheckPort, request: &mut RateLimitRequest) -> RlsReply {
    let call = take_reserved(request)?;
    if call != ReservedCall::Plain {
        let service = RateLimitService::new(Arc::clone(&port.engine), port.reporting.clone());
        return Box::pin(service.resolve((call, request), None)).await;
    }
    let permits = Permits::new(&port.engine, &port.reporting, Protocol::Json);
    let admitted = permits.acquire(request, Holder::Nobody, None).await?;
    let reply = match &admitted {
        AdmissionOutcome::Decided(decision, _) => {
            convert::to_response(request, decision, &port.reporting)
        }
        AdmissionOutcome::Rejected(rejection) => {
            let all: Vec<_> = (0..request.descriptors.len()).collect();
            convert::rejection_response(request, &all, rejection, &port.reporting)
        }
    };
    Ok((reply, outcome_of_admission(&admitted)))
}

fn decision_response(reply: &RateLimitResponse, outcome: EdgeOutcome) -> (EdgeOutcome, Response) {
    let status = match outcome {
        EdgeOutcome::Deny => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::OK,
    };
    match to_json_text(reply) {
        Ok(body) => (outcome, (status, JSON, body).into_response()),
        Err(NotExpressibleInJson) => {
            (EdgeOutcome::Unrepresentable, status_response(StatusCode::INTERNAL_SERVER_ERROR))
        }
    }
}

/// Logs the reason of a status 400.
fn log_rejection(error: &dyn fmt::Display) {
    let error = error.to_string();
    let error = (0..=MAX_REASON_BYTES).rev().find_map(|end| error.get(..end)).unwrap_or_default();
    let due = REJECTIONS.lock().count(error, Instant::now());
    if let Some(DueLine { times }) = due {
        tracing::warn!(error, times, "check on /json failed with status 400");
    }
}

#[derive(Debug, thiserror::Error)]
enum BodyError {
    #[error("{0}")]
    Invalid(#[from] JsonRequestError),
    #[error("the body is larger than listen.max_message")]
    TooLarge,
    #[error("{0}")]
    MemoryFull(#[from] BodyMemoryFull),
    #[error("the connection failed before the end of the body")]
    Incomplete,
    #[error("the body did not arrive in time")]
    TimedOut,
}

fn body_error_response(error: &BodyError) -> (EdgeOutcome, Response) {
    let (outcome, status) = match error {
        BodyError::Invalid(JsonRequestError::Malformed(_)) | BodyError::Incomplete => {
            (EdgeOutcome::Malformed, StatusCode::BAD_REQUEST)
        }
        BodyError::Invalid(JsonRequestError::TooManyObjects(_)) => {
            (EdgeOutcome::TooManyEntries, StatusCode::BAD_REQUEST)
        }
        BodyError::TooLarge => (EdgeOutcome::TooLarge, StatusCode::PAYLOAD_TOO_LARGE),
        BodyError::MemoryFull(full) => {
            let response = text_response(StatusCode::TOO_MANY_REQUESTS, full);
            return (EdgeOutcome::TooManyRequests, response);
        }
        BodyError::TimedOut => (EdgeOutcome::ReadTimeout, StatusCode::REQUEST_TIMEOUT),
    };
    (outcome, status_response(status))
}

/// Reads the whole body into `buffer`. Returns an error without reading if `Content-Length` is above
/// `max_bytes`.
async fn read_body(body: Body, max_bytes: usize, buffer: &mut BodyBuffer) -> Result<(), BodyError> {
    if max_bytes < usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX) {
        return Err(BodyError::TooLarge);
    }
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| BodyError::Incomplete)?;
        if max_bytes - buffer.bytes.len() < chunk.len() {
            return Err(BodyError::TooLarge);
        }
        buffer.append(&chunk)?;
    }
    Ok(())
}
