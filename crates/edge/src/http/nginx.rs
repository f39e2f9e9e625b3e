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
//! - If a header that NGINX must set appears twice, the reply is 400: one may be the client's.
//! - Concurrency limits apply to requests with an id; [`crate::syslog`] releases the permit.
//! - Requests in queues and on [`acquire`] share a maximum, so that others find a connection.
//!
//! Not covered:
//! - Setting the headers. NGINX must set `X-Hook`, `X-Original-URI`,
//!   `X-Original-Method`, `X-Real-IP` and `X-Sluicegate-Id`.

pub(super) mod acquire;
pub(super) mod long_requests;

use std::borrow::Cow;
use std::net::IpAddr;

use axum::body::Body;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

use super::check_port::CheckPort;
use super::response::text_response;
use crate::config::hooks::address::ClientAddress;
use crate::config::hooks::{Hooks, RequestAttributes};
use crate::engine::concurrency::{with_queue_slots, with_queue_time};
use crate::engine::{AdmissionOutcome, CheckError, ConcurrencyRejection, Decision};
use crate::headers::HeaderPair;
use crate::hook::{self, HookError};
use crate::kernel::decision::Verdict;
use crate::telemetry::event::{CheckAnswered, EdgeOutcome, Event as _, Protocol, RequestCompleted};
use long_requests::LongRequestSlots;

/// The header with the name of the hook. If it is absent or empty, the first hook applies.
const HOOK_HEADER: &str = "x-hook";
const URI_HEADER: &str = "x-original-uri";
const METHOD_HEADER: &str = "x-original-method";
const ADDRESS_HEADER: &str = "x-real-ip";
const DENY_STATUS_HEADER: HeaderName = HeaderName::from_static("x-deny-status");
/// The header with the body that NGINX sends to a denied client. NGINX discards the
/// body of the `auth_request` reply.
const DENY_BODY_HEADER: HeaderName = HeaderName::from_static("x-deny-body");

/// The value of `$remote_addr` for a client on a Unix socket.
const UNIX_SOCKET_ADDRESS: &str = "unix:";

pub(super) async fn reply_to_check(
    port: &CheckPort,
    slots: &LongRequestSlots,
    headers: &HeaderMap,
) -> Response {
    let started = port.engine.clock().now();
    let reply_future = async {
        match OriginalRequest::from_headers(headers) {
            Ok(original) => check_within_slots(port, slots, headers, &original).await,
            Err(wrong) => (EdgeOutcome::Malformed, text_response(StatusCode::BAD_REQUEST, &wrong)),
        }
    };
    let ((outcome, response), queued) = with_queue_time(reply_future).await;
    RequestCompleted { protocol: Protocol::Nginx, outcome }.emit();
    CheckAnswered {
        received_at: started,
        replied_at: port.engine.clock().now(),
        queue_time: queued,
    }
    .emit();
    response
}

async fn check_within_slots(
    port: &CheckPort,
    slots: &LongRequestSlots,
    headers: &HeaderMap,
    original: &OriginalRequest<'_>,
) -> (EdgeOutcome, Response) {
    let decision = decide(port, headers, original);
    let Some(result) = with_queue_slots(decision, || slots.try_acquire()).await else {
        return slots.full_reply();
    };
    let mut response = hook_response(port, result.as_ref());
    let passes = matches!(result, Ok(_) | Err(HookError::NoDescriptors));
    if passes && original.id.is_some() {
        add_owner(port, response.headers_mut());
    }
    (hook::admission_outcome(&result), response)
}

async fn decide(
    port: &CheckPort,
    headers: &HeaderMap,
    original: &OriginalRequest<'_>,
) -> Result<AdmissionOutcome, HookError> {
    let (request, id) =
        (original.to_rate_limit_request(&port.hooks, headers), original.id.as_deref());
    // No timeout: the limit's queue timeout or NGINX's disconnect ends a wait in a queue.
    hook::decide(&port.engine, &port.reporting, request.as_ref(), id, None).await
}

/// The client's request, as NGINX's headers describe it.
struct OriginalRequest<'h> {
    hook: Option<Cow<'h, str>>,
    uri: Cow<'h, str>,
    method: Cow<'h, str>,
    /// The text of an address; `None` for a client on a Unix socket.
    address: Option<Cow<'h, str>>,
    id: Option<Cow<'h, str>>,
}

impl<'h> OriginalRequest<'h> {
    fn from_headers(headers: &'h HeaderMap) -> Result<Self, NginxHeaderError> {
        Ok(Self {
            hook: single_header(headers, HOOK_HEADER)?.filter(|name| !name.is_empty()),
            uri: single_header(headers, URI_HEADER)?
                .ok_or(NginxHeaderError::Missing(URI_HEADER))?,
            method: single_header(headers, METHOD_HEADER)?
                .ok_or(NginxHeaderError::Missing(METHOD_HEADER))?,
            address: parse_address(
                single_header(headers, ADDRESS_HEADER)?
                    .ok_or(NginxHeaderError::Missing(ADDRESS_HEADER))?,
            )?,
            id: single_header(headers, hook::ID)?,
        })
    }

    /// Returns the value of a header by its lower-case name. Pseudo-headers come from the
    /// headers that NGINX sets, other names from `other`.
    fn header<'a>(
        &'a self,
        name: &str,
        other: impl FnOnce(&str) -> Option<Cow<'a, str>>,
    ) -> Option<Cow<'a, str>> {
        match name {
            ":path" => Some(Cow::Borrowed(&*self.uri)),
            ":method" => Some(Cow::Borrowed(&*self.method)),
            ":authority" => other("host"),
            name => other(name),
        }
    }

    fn to_rate_limit_request(
        &self,
        hooks: &Hooks,
        headers: &HeaderMap,
    ) -> Result<RateLimitRequest, HookError> {
        let attributes = RequestAttributes {
            first_header_value: &|name| {
                self.header(name, |name| headers.get(name).map(header_text))
            },
            joined_header_values: &|name| self.header(name, |name| joined_header(headers, name)),
            path: &self.uri,
            remote_address: self.address.as_deref().and_then(ClientAddress::parse),
            metadata: &|_| None,
        };
        hook::build_request(hooks, self.hook.as_deref(), &attributes)
    }
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
enum NginxHeaderError {
    #[error("the header {0} is missing; set it in NGINX as in config/nginx/rate_limit.conf")]
    Missing(&'static str),
    #[error(
        "the header {0} is repeated; replace the client's header in NGINX with proxy_set_header"
    )]
    Duplicate(&'static str),
    #[error("the header x-real-ip is not an IP address; set it to $remote_addr in NGINX")]
    InvalidAddress,
}

fn single_header<'h>(
    headers: &'h HeaderMap,
    name: &'static str,
) -> Result<Option<Cow<'h, str>>, NginxHeaderError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(header_text);
    if values.next().is_some() { Err(NginxHeaderError::Duplicate(name)) } else { Ok(first) }
}

fn parse_address(text: Cow<'_, str>) -> Result<Option<Cow<'_, str>>, NginxHeaderError> {
    if text == UNIX_SOCKET_ADDRESS {
        return Ok(None);
    }
    text.parse::<IpAddr>().map(|_| Some(text)).map_err(|_| NginxHeaderError::InvalidAddress)
}

/// Returns all values of a header, joined with commas as Envoy's matchers do.
fn joined_header<'h>(headers: &'h HeaderMap, name: &str) -> Option<Cow<'h, str>> {
    let mut values = headers.get_all(name).iter().map(header_text);
    let first = values.next()?;
    Some(values.fold(first, |all, next| Cow::Owned(format!("{all},{next}"))))
}

/// Returns the header value as text; bytes that are not UTF-8 are replaced. If the value
/// were ignored instead, a client could bypass a limit with such bytes.
fn header_text(value: &HeaderValue) -> Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
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
        let status = HeaderValue::from(StatusCode::TOO_MANY_REQUESTS.as_u16());
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

fn rejection_response(port: &CheckPort, rejection: &ConcurrencyRejection) -> Response {
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
