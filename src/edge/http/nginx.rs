//! Serves `/check`: decides requests of NGINX's `auth_request` directive.
//!
//! | status | meaning |
//! |---|---|
//! | 200 | allowed |
//! | 403 | denied, with the client's status in `X-Deny-Status` and the body in `X-Deny-Body` |
//! | 400, 501 | configuration error |
//! | 503 | no decision; the NGINX configuration allows or denies the request |
//!
//! Guarantees:
//! - A header of NGINX that appears twice is an error: one may be the client's.
//! - Concurrency limits apply if there is an id; [`crate::edge::syslog`] releases the permit.
//! - Queued requests share the slots of [`hold`], so that other requests find a connection.
//!
//! Not covered:
//! - The headers themselves. NGINX must set `X-Hook`, `X-Original-URI`,
//!   `X-Original-Method`, `X-Real-IP` and `X-Sluicegate-Id`.

pub(super) mod hold;

use std::borrow::Cow;
use std::net::IpAddr;

use axum::body::Body;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

use super::{Ask, NO_SNIFFING, PLAIN};
use crate::config::hooks::{Attributes, Hooks};
use crate::edge::hook::{self, Unanswered};
use crate::engine::admit::{with_places, with_wait};
use crate::engine::{Admitted, Answer, Refusal, Rejection};
use crate::kernel::decision::Verdict;
use crate::telemetry::event::{Answered, Asked, Outcome, Protocol};
use hold::Holds;

/// The name of the hook. The first hook applies if the header is absent or empty.
const HOOK: &str = "x-hook";
const URI: &str = "x-original-uri";
const METHOD: &str = "x-original-method";
const ADDRESS: &str = "x-real-ip";
const DENY_STATUS: HeaderName = HeaderName::from_static("x-deny-status");
/// The body for the client. NGINX discards the body of the subrequest itself.
const DENY_BODY: HeaderName = HeaderName::from_static("x-deny-body");

/// The value of `$remote_addr` for a client on a Unix socket.
const NO_ADDRESS: &str = "unix:";

pub(super) async fn answer(ask: &Ask, holds: &Holds, headers: &HeaderMap) -> Response {
    let began = ask.engine.clock().now();
    let answering = async {
        match Original::of(headers) {
            Ok(original) => checked(ask, holds, headers, &original).await,
            Err(wrong) => (Outcome::Malformed, explained(StatusCode::BAD_REQUEST, &wrong)),
        }
    };
    let ((outcome, response), queued) = with_wait(answering).await;
    Asked { protocol: Protocol::Nginx, outcome }.emit();
    Answered { came: began, at: ask.engine.clock().now(), queued }.emit();
    response
}

async fn checked(
    ask: &Ask,
    holds: &Holds,
    headers: &HeaderMap,
    original: &Original<'_>,
) -> (Outcome, Response) {
    let decided = decide(ask, headers, original);
    let Some(admitted) = with_places(decided, || holds.place()).await else { return holds.full() };
    let mut response = show(ask, admitted.as_ref());
    let passes = matches!(admitted, Ok(_) | Err(Unanswered::NothingToAsk));
    if passes && original.id.is_some() {
        name_owner(ask, response.headers_mut());
    }
    (hook::counted(&admitted), response)
}

async fn decide(
    ask: &Ask,
    headers: &HeaderMap,
    original: &Original<'_>,
) -> Result<Admitted, Unanswered> {
    let (request, id) = (original.asked(&ask.hooks, headers), original.id.as_deref());
    // The limit's queue timeout and NGINX's disconnect already end a wait.
    hook::ask(&ask.engine, &ask.reporting, request.as_ref(), id, None).await
}

/// The client's request, as NGINX describes it.
struct Original<'h> {
    hook: Option<Cow<'h, str>>,
    uri: Cow<'h, str>,
    method: Cow<'h, str>,
    address: Option<Cow<'h, str>>,
    id: Option<Cow<'h, str>>,
}

impl<'h> Original<'h> {
    fn of(headers: &'h HeaderMap) -> Result<Self, Wrong> {
        Ok(Self {
            hook: once(headers, HOOK)?.filter(|name| !name.is_empty()),
            uri: once(headers, URI)?.ok_or(Wrong::Missing(URI))?,
            method: once(headers, METHOD)?.ok_or(Wrong::Missing(METHOD))?,
            address: address(once(headers, ADDRESS)?.ok_or(Wrong::Missing(ADDRESS))?)?,
            id: once(headers, hook::ID)?,
        })
    }

    /// Returns a header by its lower-case name: a
    /// pseudo-header from NGINX's description, or `other`.
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

    fn asked(&self, hooks: &Hooks, headers: &HeaderMap) -> Result<RateLimitRequest, Unanswered> {
        let attributes = Attributes {
            header: &|name| self.header(name, |name| headers.get(name).map(text)),
            joined: &|name| self.header(name, |name| joined(headers, name)),
            path: &self.uri,
            remote_address: self.address.as_deref(),
            metadata: &|_| None,
        };
        hook::request(hooks, self.hook.as_deref(), &attributes)
    }
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Wrong {
    #[error("no {0}; NGINX must set it: see config/nginx/rate_limit.conf")]
    Missing(&'static str),
    #[error("{0} twice; NGINX must set it, so that the client's own does not come through")]
    Twice(&'static str),
    #[error("x-real-ip is not an address; NGINX must set it to $remote_addr")]
    NoAddress,
}

fn once<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<Cow<'h, str>>, Wrong> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(text);
    if values.next().is_some() { Err(Wrong::Twice(name)) } else { Ok(first) }
}

fn address(text: Cow<'_, str>) -> Result<Option<Cow<'_, str>>, Wrong> {
    if text == NO_ADDRESS {
        return Ok(None);
    }
    text.parse::<IpAddr>().map(|_| Some(text)).map_err(|_| Wrong::NoAddress)
}

/// Joins several values of a header, as Envoy's matchers do.
fn joined<'h>(headers: &'h HeaderMap, name: &str) -> Option<Cow<'h, str>> {
    let mut values = headers.get_all(name).iter().map(text);
    let first = values.next()?;
    Some(values.fold(first, |all, next| Cow::Owned(format!("{all},{next}"))))
}

/// Replaces bytes that are not UTF-8. Rejecting them would let a client bypass the limits.
fn text(value: &HeaderValue) -> Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

fn show(ask: &Ask, admitted: Result<&Admitted, &Unanswered>) -> Response {
    match admitted {
        Ok(Admitted::Decided(answer, _)) => decided(ask, answer),
        Ok(Admitted::Rejected(rejection)) => rejected(rejection),
        Err(Unanswered::NothingToAsk) => StatusCode::OK.into_response(),
        Err(why @ Unanswered::NoHooks) => explained(StatusCode::NOT_IMPLEMENTED, why),
        Err(why @ Unanswered::Refused(Refusal::NoConfig | Refusal::BackendDown(_))) => {
            explained(StatusCode::SERVICE_UNAVAILABLE, why)
        }
        Err(why) => explained(StatusCode::BAD_REQUEST, why),
    }
}

fn decided(ask: &Ask, answer: &Answer) -> Response {
    let mut response = Response::new(Body::empty());
    if answer.verdict == Verdict::Deny {
        *response.status_mut() = StatusCode::FORBIDDEN;
        let status = HeaderValue::from(StatusCode::TOO_MANY_REQUESTS.as_u16());
        response.headers_mut().insert(DENY_STATUS, status);
    }
    for (name, value) in ask.reporting.headers.of(answer) {
        // envoyproxy/ratelimit can be configured to send a header without a name. HTTP/1 cannot.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

fn name_owner(ask: &Ask, headers: &mut HeaderMap) {
    let owner = ask.engine.owner().and_then(|owner| HeaderValue::from_str(owner).ok());
    if let Some(owner) = owner {
        headers.insert(HeaderName::from_static(hook::OWNER), owner);
    }
}

fn rejected(rejection: &Rejection) -> Response {
    let reject = &rejection.reject;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::FORBIDDEN;
    response.headers_mut().insert(DENY_STATUS, HeaderValue::from(reject.status));
    if let Some(wait) = reject.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs_ceil()));
    }
    // A header cannot contain a body of several lines.
    if let Ok(body) = HeaderValue::from_str(&reject.body)
        && !body.is_empty()
    {
        response.headers_mut().insert(DENY_BODY, body);
    }
    response
}

fn explained(status: StatusCode, why: &impl std::fmt::Display) -> Response {
    (status, PLAIN, NO_SNIFFING, format!("{why}\n")).into_response()
}
