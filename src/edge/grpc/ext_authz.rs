//! `envoy.service.auth.v3.Authorization`: checks from Envoy's `ext_authz` filter.
//!
//! Guarantees:
//! - The hook and the address header come from the route's
//!   `context_extensions`, never from the request.
//! - A denial by a rate limit is a 429 with the standard headers.
//! - A denial by a concurrency limit is the response of its `reject`.
//! - An error has no decision, and the status code that `ShouldRateLimit` returns.
//! - A caller's `grpc-timeout` also limits the time in queues.
//! - Concurrency limits apply only to requests with an id ([`hook::ID`]).
//! - A waiting request keeps its check; the rest of its message is freed.
//!
//! Not covered:
//! - The request's body.
//! - The filter's behavior when this service is unavailable.
//! - Releases, which arrive in the access log.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::address::Address;
use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::auth::v3::attribute_context::HttpRequest;
use envoy_types::pb::envoy::service::auth::v3::authorization_server::Authorization;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{
    AttributeContext, CheckRequest, CheckResponse, DeniedHttpResponse, OkHttpResponse,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::r#type::v3::{HttpStatus, StatusCode};
use envoy_types::pb::google::rpc;
use tonic::{Code, Request, Response, Status};

use super::{convert, metadata, rls};
use crate::config::concurrency::Reject;
use crate::config::hooks::{Attributes, Hooks};
use crate::edge::Reporting;
use crate::edge::hook::{self, Unanswered};
use crate::engine::admit::with_wait;
use crate::engine::{Admitted, Answer, Engine};
use crate::kernel::decision::Verdict;
use crate::telemetry::event::{Answered, Asked, Protocol};
use crate::telemetry::trace;

/// The key of `context_extensions` that contains the name of the hook.
const HOOK: &str = "hook";

/// The key of `context_extensions` with the name of the header that contains the client's
/// address. Without it, the address is that of Envoy's peer, which may be a load balancer.
const ADDRESS_HEADER: &str = "remote_address_header";

const RETRY_AFTER: &str = "Retry-After";

const DENIED: &str = "rate limited\n";

/// The service that answers `ext_authz` checks.
#[derive(Debug)]
pub struct Authorizations {
    engine: Arc<Engine>,
    reporting: Reporting,
    hooks: Arc<Hooks>,
}

impl Authorizations {
    /// Creates the service over `engine` with these `hooks`.
    #[must_use]
    pub const fn new(engine: Arc<Engine>, reporting: Reporting, hooks: Arc<Hooks>) -> Self {
        Self { engine, reporting, hooks }
    }

    fn reply(&self, request: &RateLimitRequest, admitted: Admitted) -> CheckResponse {
        match admitted {
            // The engine stores permits under the request's id.
            Admitted::Decided(answer, _) => self.decided(request, &answer),
            Admitted::Rejected(rejection) => {
                response_of(Code::ResourceExhausted, rejected(&rejection.reject))
            }
        }
    }

    fn decided(&self, request: &RateLimitRequest, answer: &Answer) -> CheckResponse {
        let headers = self.reporting.headers.of(answer).into_iter().map(header).collect();
        let (code, response) = match answer.verdict {
            Verdict::Admit => (Code::Ok, passed(headers)),
            Verdict::Deny => (Code::ResourceExhausted, denied(headers)),
        };
        CheckResponse {
            dynamic_metadata: self
                .reporting
                .dynamic_metadata
                .then(|| metadata::of(request, answer)),
            ..response_of(code, response)
        }
    }
}

#[tonic::async_trait]
impl Authorization for Authorizations {
    async fn check(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        let header = |name: &str| request.metadata().get(name)?.to_str().ok();
        let span = trace::question(Protocol::ExtAuthz, &header);
        span.around(self.checked(request)).await
    }
}

impl Authorizations {
    async fn checked(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        let patience = rls::patience(request.metadata());
        let (check, decoded) = (request.into_inner(), self.engine.clock().now());
        let context = check.attributes.unwrap_or_default();
        let (request, id) = (asked(&self.hooks, &context), id_of(&context).map(Cow::into_owned));
        // Frees the decoded message, which is many times
        // its encoded size, before waiting in a queue.
        drop(context);
        let (engine, reporting) = (&self.engine, &self.reporting);
        let asking = hook::ask(engine, reporting, request.as_ref(), id.as_deref(), patience);
        let (answer, queued) = with_wait(asking).await;
        Asked { protocol: Protocol::ExtAuthz, outcome: hook::counted(&answer) }.emit();
        let reply = match (request, answer) {
            (Ok(request), Ok(admitted)) => Ok(self.reply(&request, admitted)),
            (_, Err(Unanswered::NothingToAsk)) => Ok(response_of(Code::Ok, passed(Vec::new()))),
            (_, Err(why)) | (Err(why), _) => Err(refusal(&why)),
        };
        Answered { came: decoded, at: engine.clock().now(), queued }.emit();
        reply.map(|mut reply| {
            if let Some(owner) = engine.owner().filter(|_| id.is_some()) {
                name_owner(&mut reply, owner);
            }
            Response::new(reply)
        })
    }
}

/// Converts an error to a gRPC status, with the code
/// of `ShouldRateLimit` where it has the same error.
#[must_use]
pub fn refusal(why: &Unanswered) -> Status {
    match why {
        Unanswered::Refused(refused) => convert::refusal(refused),
        Unanswered::NoHooks => Status::failed_precondition(why.to_string()),
        Unanswered::UnknownHook { .. } | Unanswered::NothingToAsk | Unanswered::BadId(_) => {
            Status::invalid_argument(why.to_string())
        }
    }
}

/// Builds the rate limit request that the route's hook defines.
///
/// # Errors
/// As [`hook::request`].
pub fn asked(hooks: &Hooks, context: &AttributeContext) -> Result<RateLimitRequest, Unanswered> {
    let nothing = HttpRequest::default();
    let http = context.request.as_ref().and_then(|request| request.http.as_ref());
    let http = http.unwrap_or(&nothing);
    let address = address_of(context, http);
    let attributes = Attributes {
        header: &|name| first_of(http, name),
        joined: &|name| header_of(http, name),
        path: &http.path,
        remote_address: address.as_deref(),
        metadata: &|key| hook::text_at(context.metadata_context.as_ref(), key),
    };
    hook::request(hooks, context.context_extensions.get(HOOK).map(String::as_str), &attributes)
}

fn id_of(context: &AttributeContext) -> Option<Cow<'_, str>> {
    header_of(context.request.as_ref()?.http.as_ref()?, hook::ID)
}

/// Returns the first value of a header; all values if Envoy has joined them.
fn first_of<'r>(http: &'r HttpRequest, name: &str) -> Option<Cow<'r, str>> {
    lines_of(http, name).next()
}

/// Returns all values of a header, joined with commas as in Envoy.
fn header_of<'r>(http: &'r HttpRequest, name: &str) -> Option<Cow<'r, str>> {
    lines_of(http, name).reduce(|all, next| {
        // Appends in place, because thousands of headers may have the same name.
        let mut all = all.into_owned();
        all.push(',');
        all.push_str(&next);
        Cow::Owned(all)
    })
}

/// Returns the values of a header. Envoy's `encode_raw_headers` moves
/// all headers from `headers` to `header_map`, which does not join them.
fn lines_of<'r>(http: &'r HttpRequest, name: &str) -> impl Iterator<Item = Cow<'r, str>> {
    let joined = http.headers.get(name).map(|value| Cow::Borrowed(value.as_str()));
    let raw = http.header_map.as_ref().filter(|_| joined.is_none());
    let raw = raw.into_iter().flat_map(|raw| &raw.headers).filter(move |header| header.key == name);
    joined.into_iter().chain(raw.map(value_of))
}

fn value_of(header: &HeaderValue) -> Cow<'_, str> {
    match &*header.raw_value {
        [] => Cow::Borrowed(&*header.value),
        raw => String::from_utf8_lossy(raw),
    }
}

fn address_of<'r>(context: &'r AttributeContext, http: &'r HttpRequest) -> Option<Cow<'r, str>> {
    if let Some(name) = context.context_extensions.get(ADDRESS_HEADER) {
        let named = header_of(http, &name.to_ascii_lowercase());
        return named.filter(|text| text.parse::<IpAddr>().is_ok());
    }
    match context.source.as_ref()?.address.as_ref()?.address.as_ref()? {
        Address::SocketAddress(socket) => Some(Cow::Borrowed(&socket.address)),
        _ => None,
    }
}

fn response_of(code: Code, response: HttpResponse) -> CheckResponse {
    let status = rpc::Status { code: code.into(), ..rpc::Status::default() };
    CheckResponse { status: Some(status), http_response: Some(response), dynamic_metadata: None }
}

fn passed(response_headers_to_add: Vec<HeaderValueOption>) -> HttpResponse {
    HttpResponse::OkResponse(OkHttpResponse {
        response_headers_to_add,
        ..OkHttpResponse::default()
    })
}

fn denied(headers: Vec<HeaderValueOption>) -> HttpResponse {
    let status = Some(HttpStatus { code: StatusCode::TooManyRequests.into() });
    HttpResponse::DeniedResponse(DeniedHttpResponse { status, headers, body: DENIED.to_owned() })
}

fn name_owner(reply: &mut CheckResponse, owner: &str) {
    let named = header((hook::OWNER, owner.to_owned()));
    match &mut reply.http_response {
        Some(HttpResponse::OkResponse(ok)) => ok.response_headers_to_add.push(named),
        Some(HttpResponse::DeniedResponse(denied)) => denied.headers.push(named),
        _ => {}
    }
    metadata::name_owner(&mut reply.dynamic_metadata, owner);
}

fn rejected(reject: &Reject) -> HttpResponse {
    let wait = reject.retry_after.map(|wait| wait.as_secs_ceil().max(1).to_string());
    HttpResponse::DeniedResponse(DeniedHttpResponse {
        status: Some(HttpStatus { code: reject.status.into() }),
        headers: wait.map(|wait| header((RETRY_AFTER, wait))).into_iter().collect(),
        body: reject.body.to_string(),
    })
}

/// Builds a header that replaces the upstream's header
/// of the same name: clients would read two limits.
fn header((name, value): crate::edge::headers::Header<'_>) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: name.to_owned(), value, raw_value: Vec::new() }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}
