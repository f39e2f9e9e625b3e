//! Serves `envoy.service.auth.v3.Authorization`: checks from Envoy's `ext_authz` filter.
//!
//! Guarantees:
//! - The names of the hook and of the address header come from the route's `context_extensions`,
//!   never from the request.
//! - A denial by a rate limit is a 429 with the configured rate limit headers.
//! - A denial by a concurrency limit is the response that its field `reject` configures.
//! - A check that fails gets the gRPC code that `ShouldRateLimit` returns for the same error.
//! - A caller's `grpc-timeout` also limits the time in queues.
//! - Concurrency limits apply only to requests with an id ([`hook::ID`]).
//! - A request that waits in a queue keeps only its check in memory.
//!
//! Not covered: releases of permits (see [`access_log`](super::access_log)).

use std::borrow::Cow;
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
use crate::ReplyOptions;
use crate::config::concurrency::RejectReply;
use crate::config::hooks::address::ClientAddress;
use crate::config::hooks::{Hooks, RequestAttributes};
use crate::engine::concurrency::with_queue_time;
use crate::engine::{AdmissionOutcome, ConcurrencyRejection, Decision, Engine};
use crate::headers::RETRY_AFTER;
use crate::hook::{self, HookError};
use crate::kernel::decision::Verdict;
use crate::telemetry::event::{CheckAnswered, Event as _, Protocol, RequestCompleted};
use crate::telemetry::trace;

/// The key in `context_extensions` with the name of the hook.
const HOOK_KEY: &str = "hook";

/// The key in `context_extensions` with the name of the header that contains the client's address.
/// Without it, the address is that of Envoy's peer, which may be a load balancer.
const ADDRESS_HEADER_KEY: &str = "remote_address_header";

const DENIED_BODY: &str = "rate limited\n";

/// The gRPC service that decides the checks of Envoy's `ext_authz` filter.
#[derive(Debug)]
pub struct AuthorizationService {
    engine: Arc<Engine>,
    reporting: ReplyOptions,
    hooks: Arc<Hooks>,
}

impl AuthorizationService {
    /// Creates the service, which builds checks with `hooks` and decides them with `engine`.
    #[must_use]
    pub const fn new(engine: Arc<Engine>, reporting: ReplyOptions, hooks: Arc<Hooks>) -> Self {
        Self { engine, reporting, hooks }
    }

    fn to_response(&self, request: &RateLimitRequest, outcome: AdmissionOutcome) -> CheckResponse {
        match outcome {
            // Drops the permits here: the engine stores them under the request id.
            AdmissionOutcome::Decided(decision, _) => self.decision_response(request, &decision),
            AdmissionOutcome::Rejected(rejection) => self.rejection_response(&rejection),
        }
    }

    fn rejection_response(&self, rejection: &ConcurrencyRejection) -> CheckResponse {
        let denied_by = self.reporting.headers.for_rejection(rejection).map(header_option);
        let response = rejected_response(&rejection.reject, denied_by);
        CheckResponse {
            dynamic_metadata: metadata::for_rejection(rejection, &self.reporting),
            ..to_check_response(Code::ResourceExhausted, response)
        }
    }

    fn decision_response(&self, request: &RateLimitRequest, decision: &Decision) -> CheckResponse {
        let headers =
            self.reporting.headers.for_decision(decision).into_iter().map(header_option).collect();
        let (code, response) = match decision.verdict {
            Verdict::Allow => (Code::Ok, ok_response(headers)),
            Verdict::Deny => (Code::ResourceExhausted, denied_response(headers)),
        };
        CheckResponse {
            dynamic_metadata: metadata::for_reply(request, decision, &self.reporting),
            ..to_check_response(code, response)
        }
    }
}

#[tonic::async_trait]
impl Authorization for AuthorizationService {
    async fn check(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        let header = |name: &str| request.metadata().get(name)?.to_str().ok();
        let span = trace::check_span(Protocol::ExtAuthz, &header);
        span.scope(self.decide(request)).await
    }
}

impl AuthorizationService {
    async fn decide(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        let timeout = rls::caller_timeout(request.metadata());
        let (check, received_at) = (request.into_inner(), self.engine.clock().now());
        let context = check.attributes.unwrap_or_default();
        let (request, id) = (
            rate_limit_request(&self.hooks, &context),
            envoy_request_id(&context).map(Cow::into_owned),
        );
        // Frees the decoded message, many times its encoded size, before waiting in a queue.
        drop(context);
        let (engine, reporting) = (&self.engine, &self.reporting);
        let decision = hook::decide(engine, reporting, request.as_ref(), id.as_deref(), timeout);
        let (result, queue_time) = with_queue_time(decision).await;
        RequestCompleted {
            protocol: Protocol::ExtAuthz,
            outcome: hook::admission_outcome(&result),
        }
        .emit();
        let reply = match (request, result) {
            (Ok(request), Ok(admitted)) => Ok(self.to_response(&request, admitted)),
            (_, Err(HookError::NoDescriptors)) => {
                Ok(to_check_response(Code::Ok, ok_response(Vec::new())))
            }
            (_, Err(error)) | (Err(error), _) => Err(error_status(&error)),
        };
        CheckAnswered { received_at, replied_at: engine.clock().now(), queue_time }.emit();
        reply.map(|mut reply| {
            if let Some(owner) = engine.owner().filter(|_| id.is_some()) {
                add_owner(&mut reply, owner);
            }
            Response::new(reply)
        })
    }
}

/// Converts an error to a gRPC status, with the same code as `ShouldRateLimit` for the same error.
#[must_use]
pub fn error_status(error: &HookError) -> Status {
    match error {
        HookError::Rejected(check_error) => convert::error_status(check_error),
        HookError::NoHooks => Status::failed_precondition(error.to_string()),
        HookError::UnknownHook { .. } | HookError::NoDescriptors | HookError::BadId(_) => {
            Status::invalid_argument(error.to_string())
        }
    }
}

/// Builds the rate limit request of an `ext_authz` call, with the hook that the route names.
///
/// # Errors
/// The errors of [`hook::build_request`].
pub fn rate_limit_request(
    hooks: &Hooks,
    context: &AttributeContext,
) -> Result<RateLimitRequest, HookError> {
    let no_http = HttpRequest::default();
    let http = context.request.as_ref().and_then(|request| request.http.as_ref());
    let http = http.unwrap_or(&no_http);
    let address = client_address(context, http);
    let attributes = RequestAttributes {
        first_header_value: &|name| first_header(http, name),
        joined_header_values: &|name| joined_header(http, name),
        path: &http.path,
        remote_address: address.as_deref().and_then(ClientAddress::parse),
        metadata: &|key| hook::metadata_string(context.metadata_context.as_ref(), key),
    };
    hook::build_request(
        hooks,
        context.context_extensions.get(HOOK_KEY).map(String::as_str),
        &attributes,
    )
}

fn envoy_request_id(context: &AttributeContext) -> Option<Cow<'_, str>> {
    joined_header(context.request.as_ref()?.http.as_ref()?, hook::ID)
}

/// Returns the first value of a header, or all values if Envoy has joined them.
fn first_header<'r>(http: &'r HttpRequest, name: &str) -> Option<Cow<'r, str>> {
    header_lines(http, name).next()
}

/// Returns all values of a header, joined with commas as in Envoy.
fn joined_header<'r>(http: &'r HttpRequest, name: &str) -> Option<Cow<'r, str>> {
    header_lines(http, name).reduce(|joined, next| {
        // Appends in place, because thousands of headers may have the same name.
        let mut joined = joined.into_owned();
        joined.push(',');
        joined.push_str(&next);
        Cow::Owned(joined)
    })
}

/// Returns the values of a header. They are joined in `headers`, or raw in `header_map` if Envoy's
/// `encode_raw_headers` is set.
fn header_lines<'r>(http: &'r HttpRequest, name: &str) -> impl Iterator<Item = Cow<'r, str>> {
    let joined = http.headers.get(name).map(|value| Cow::Borrowed(value.as_str()));
    let raw = http.header_map.as_ref().filter(|_| joined.is_none());
    let raw = raw.into_iter().flat_map(|raw| &raw.headers).filter(move |header| header.key == name);
    joined.into_iter().chain(raw.map(header_value))
}

fn header_value(header: &HeaderValue) -> Cow<'_, str> {
    match &*header.raw_value {
        [] => Cow::Borrowed(&*header.value),
        raw => String::from_utf8_lossy(raw),
    }
}

fn client_address<'r>(
    context: &'r AttributeContext,
    http: &'r HttpRequest,
) -> Option<Cow<'r, str>> {
    if let Some(name) = context.context_extensions.get(ADDRESS_HEADER_KEY) {
        return joined_header(http, &name.to_ascii_lowercase());
    }
    match context.source.as_ref()?.address.as_ref()?.address.as_ref()? {
        Address::SocketAddress(socket) => Some(Cow::Borrowed(&socket.address)),
        _ => None,
    }
}

fn to_check_response(code: Code, response: HttpResponse) -> CheckResponse {
    let status = rpc::Status { code: code.into(), ..rpc::Status::default() };
    CheckResponse { status: Some(status), http_response: Some(response), dynamic_metadata: None }
}

fn ok_response(response_headers_to_add: Vec<HeaderValueOption>) -> HttpResponse {
    HttpResponse::OkResponse(OkHttpResponse {
        response_headers_to_add,
        ..OkHttpResponse::default()
    })
}

fn denied_response(headers: Vec<HeaderValueOption>) -> HttpResponse {
    let status = Some(HttpStatus { code: StatusCode::TooManyRequests.into() });
    HttpResponse::DeniedResponse(DeniedHttpResponse {
        status,
        headers,
        body: DENIED_BODY.to_owned(),
    })
}

fn add_owner(reply: &mut CheckResponse, owner: &str) {
    let header = header_option((hook::OWNER_KEY, owner.to_owned()));
    match &mut reply.http_response {
        Some(HttpResponse::OkResponse(ok)) => ok.response_headers_to_add.push(header),
        Some(HttpResponse::DeniedResponse(denied)) => denied.headers.push(header),
        _ => {}
    }
    metadata::add_owner(&mut reply.dynamic_metadata, owner);
}

fn rejected_response(reject: &RejectReply, denied_by: Option<HeaderValueOption>) -> HttpResponse {
    let wait = reject.retry_after.map(|wait| wait.as_secs_ceil().max(1).to_string());
    HttpResponse::DeniedResponse(DeniedHttpResponse {
        status: Some(HttpStatus { code: reject.status.into() }),
        headers: wait
            .map(|wait| header_option((RETRY_AFTER, wait)))
            .into_iter()
            .chain(denied_by)
            .collect(),
        body: reject.body.to_string(),
    })
}

/// Builds a response header for Envoy that replaces the upstream's header of the same name.
/// Otherwise the client would see two limits.
fn header_option((name, value): crate::headers::HeaderPair<'_>) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: name.to_owned(), value, raw_value: Vec::new() }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}
