//! Serves `envoy.service.auth.v3.Authorization`: checks from Envoy's `ext_authz` filter.
//!
//! Guarantees:
//! - A denial by a rate limit is a 429 with the configured rate limit headers.
//! - A denial by a ban has the `status` of the `penalty`.
//! - A denial by a concurrency limit is the response that its field `reject` configures.
//! - A check that fails gets the gRPC code that `ShouldRateLimit` returns for the same error.
//! - A caller's `grpc-timeout` also limits the time in queues.
//! - Concurrency limits apply only to requests with an id ([`hook::ID`]).
//! - A request that waits in a queue keeps only its check in memory.
//!
//! Not covered: releases of permits (see [`access_log`](super::access_log)).

mod attributes;

use std::borrow::Cow;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::auth::v3::authorization_server::Authorization;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{
    CheckRequest, CheckResponse, DeniedHttpResponse, OkHttpResponse,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::rpc;
use tonic::{Code, Request, Response, Status};

use super::{call_timeout, convert, metadata};
use crate::ReplyOptions;
use crate::config::concurrency::RejectReply;
use crate::config::hooks::Hooks;
use crate::engine::{AdmissionOutcome, Decision, Engine, Rejection};
use crate::headers::RETRY_AFTER;
use crate::hook::{self, HookError};
use crate::kernel::decision::Verdict;
use crate::permits::{Holder, Permits};
use crate::telemetry::event::Protocol;
use crate::telemetry::trace;
use attributes::envoy_request_id;
pub use attributes::rate_limit_request;

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

    fn rejection_response(&self, rejection: &Rejection) -> CheckResponse {
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
            Verdict::Deny => {
                (Code::ResourceExhausted, denied_response(decision.deny_status(), headers))
            }
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
        let timeout = call_timeout::caller_timeout(request.metadata());
        let context = request.into_inner().attributes.unwrap_or_default();
        let (request, id) = (
            rate_limit_request(&self.hooks, &context),
            envoy_request_id(&context).map(Cow::into_owned),
        );
        // Frees the decoded message, many times its encoded size, before waiting in a queue.
        drop(context);
        let holder = id.as_deref().map_or(Holder::Nobody, Holder::of_id);
        let reply = |result| match (request.as_ref(), result) {
            (Ok(request), Ok(admitted)) => Ok(self.to_response(request, admitted)),
            (_, Err(HookError::NoDescriptors)) => {
                Ok(to_check_response(Code::Ok, ok_response(Vec::new())))
            }
            (_, Err(error)) => Err(error_status(&error)),
            (Err(error), Ok(_)) => Err(error_status(error)),
        };
        let permits = Permits::new(&self.engine, &self.reporting, Protocol::ExtAuthz);
        let how = (holder, timeout);
        let mut reply = hook::decide(permits, request.as_ref(), how, reply).await?;
        if let Some(owner) = self.engine.owner().filter(|_| id.is_some()) {
            add_owner(&mut reply, owner);
        }
        Ok(Response::new(reply))
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

fn denied_response(status: u16, headers: Vec<HeaderValueOption>) -> HttpResponse {
    let status = Some(HttpStatus { code: status.into() });
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
