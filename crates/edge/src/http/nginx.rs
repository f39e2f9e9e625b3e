//! Serves `/check`: the checks that NGINX's `auth_request` directive sends.
//!
//! | status | meaning |
//! |---|---|
//! | 200 | allowed |
//! | 403 | denied; the client gets the status in `X-Deny-Status` and the body in `X-Deny-Body` |
//! | 400, 501 | an error in the configuration of NGINX or Sluicegate |
//! | 503 | no decision; the NGINX configuration says whether to allow the request |
//!
//! Guarantees:
//! - Concurrency limits apply to requests with an id; [`crate::syslog`] releases the permit.
//! - Requests in queues and on [`acquire`] share a maximum, so that others find a connection.
//!
//! Not covered:
//! - Setting the headers. NGINX must set `X-Hook`, `X-Original-URI`,
//!   `X-Original-Method`, `X-Real-IP` and `X-Sluicegate-Id`.

pub(super) mod acquire;
pub(super) mod long_requests;
mod original_request;

use axum::body::Body;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};

use super::check_port::CheckPort;
use super::response::text_response;
use crate::engine::concurrency::with_queue_slots;
use crate::engine::{AdmissionOutcome, CheckError, Decision, Rejection};
use crate::headers::HeaderPair;
use crate::hook::{self, HookError};
use crate::kernel::decision::Verdict;
use crate::permits::{Holder, Permits};
use crate::telemetry::event::{EdgeOutcome, Protocol};
use long_requests::LongRequestSlots;
use original_request::{NginxHeaderError, OriginalRequest};

const DENY_STATUS_HEADER: HeaderName = HeaderName::from_static("x-deny-status");
/// The header with the body that NGINX sends to a denied client. NGINX discards the
/// body of the `auth_request` reply.
const DENY_BODY_HEADER: HeaderName = HeaderName::from_static("x-deny-body");

pub(super) async fn reply_to_check(
    port: &CheckPort,
    slots: &LongRequestSlots,
    headers: &HeaderMap,
) -> Response {
    let permits = permits_of(port);
    let original = match OriginalRequest::from_headers(headers) {
        Ok(original) => original,
        Err(wrong) => return malformed_response(permits, &wrong).await,
    };
    let (request, id) =
        (original.to_rate_limit_request(&port.hooks, headers), original.id.as_deref());
    let holder = id.map_or(Holder::Nobody, Holder::of_id);
    // No timeout: the limit's queue timeout or NGINX's disconnect ends a wait in a queue.
    let decision = hook::decide(permits, request.as_ref(), (holder, None), |result| {
        let mut response = hook_response(port, result.as_ref());
        let passes = matches!(result, Ok(_) | Err(HookError::NoDescriptors));
        if passes && id.is_some() {
            add_owner(port, response.headers_mut());
        }
        response
    });
    match with_queue_slots(decision, || slots.try_acquire()).await {
        Some(response) => response,
        None => permits.answer(async { slots.full_reply() }).await,
    }
}

fn permits_of(port: &CheckPort) -> Permits<'_> {
    Permits::new(&port.engine, &port.reporting, Protocol::Nginx)
}

async fn malformed_response(permits: Permits<'_>, wrong: &NginxHeaderError) -> Response {
    permits
        .answer(async { (EdgeOutcome::Malformed, text_response(StatusCode::BAD_REQUEST, wrong)) })
        .await
}

fn hook_response(port: &CheckPort, result: Result<&AdmissionOutcome, &HookError>) -> Response {
    match result {
        Ok(AdmissionOutcome::Decided(answer, _)) => decision_response(port, answer),
        Ok(AdmissionOutcome::Rejected(rejection)) => rejection_response(port, rejection),
        Err(HookError::NoDescriptors) => StatusCode::OK.into_response(),
        Err(why @ HookError::NoHooks) => text_response(StatusCode::NOT_IMPLEMENTED, why),
        Err(why @ HookError::Rejected(CheckError::NoConfig | CheckError::StoreUnavailable(_))) => {
            text_response(StatusCode::SERVICE_UNAVAILABLE, why)
        }
        Err(why) => text_response(StatusCode::BAD_REQUEST, why),
    }
}

fn decision_response(port: &CheckPort, decision: &Decision) -> Response {
    let mut response = Response::new(Body::empty());
    if decision.verdict == Verdict::Deny {
        *response.status_mut() = StatusCode::FORBIDDEN;
        let status = HeaderValue::from(decision.deny_status());
        response.headers_mut().insert(DENY_STATUS_HEADER, status);
    }
    append_headers(&mut response, port.reporting.headers.for_decision(decision));
    response
}

fn append_headers<'h>(response: &mut Response, headers: impl IntoIterator<Item = HeaderPair<'h>>) {
    for (name, value) in headers {
        // Skips a header without a name, which the settings allow and HTTP/1 does not.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().append(name, value);
        }
    }
}

fn add_owner(port: &CheckPort, headers: &mut HeaderMap) {
    let owner = port.engine.owner().and_then(|owner| HeaderValue::from_str(owner).ok());
    if let Some(owner) = owner {
        headers.insert(HeaderName::from_static(hook::OWNER_KEY), owner);
    }
}

fn rejection_response(port: &CheckPort, rejection: &Rejection) -> Response {
    let reject = &rejection.reject;
    let mut response = Response::new(Body::empty());
    append_headers(&mut response, port.reporting.headers.for_rejection(rejection));
    *response.status_mut() = StatusCode::FORBIDDEN;
    response.headers_mut().insert(DENY_STATUS_HEADER, HeaderValue::from(reject.status));
    if let Some(wait) = reject.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs_ceil()));
    }
    // A body of several lines is not sent, because a header cannot contain it.
    if let Ok(body) = HeaderValue::from_str(&reject.body)
        && !body.is_empty()
    {
        response.headers_mut().insert(DENY_BODY_HEADER, body);
    }
    response
}
