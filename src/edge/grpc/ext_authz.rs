//! `envoy.service.auth.v3.Authorization`: Envoy's `ext_authz` filter asks about a request.
//!
//! Guarantees: the route says which hook and where the address is (`context_extensions`), never the request; a denial by a
//! rate limit is a 429 with the headers of all protocols, one by a ceiling what its `reject` says; an error carries no
//! answer and has the code that `ShouldRateLimit` gives it; a caller's `grpc-timeout` is kept, in queues as well.
//! Ceilings are asked where the request has an id ([`hook::ID`]), which the access log gives back. A request that waits
//! keeps its question, and nothing else of its message.
//! Leaves out: the request's body, and what to do when nobody answers, which is the filter's.

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

/// What of `context_extensions` names the hook.
const HOOK: &str = "hook";

/// What of `context_extensions` names the request header that holds the client's address. Without it the
/// address is that of Envoy's peer, which behind a load balancer is the balancer's.
const ADDRESS_HEADER: &str = "remote_address_header";

/// When a client that a ceiling turned away may try again, in seconds.
const RETRY_AFTER: &str = "Retry-After";

/// What a denied client reads.
const DENIED: &str = "rate limited\n";

/// The service.
#[derive(Debug)]
pub struct Authorizations {
    engine: Arc<Engine>,
    reporting: Reporting,
    hooks: Arc<Hooks>,
}

impl Authorizations {
    /// The service over `engine`, asking by `hooks`.
    #[must_use]
    pub const fn new(engine: Arc<Engine>, reporting: Reporting, hooks: Arc<Hooks>) -> Self {
        Self { engine, reporting, hooks }
    }

    fn reply(&self, request: &RateLimitRequest, admitted: Admitted) -> CheckResponse {
        match admitted {
            // The id holds the permits, or there are none.
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
        // It takes many times the bytes that came, and the request may wait in a queue.
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

/// A status of the gRPC protocol; as of `ShouldRateLimit` where that can say it too.
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

/// The question that the route's hook makes of a request.
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

/// The id that Envoy minted for the request, where it did.
fn id_of(context: &AttributeContext) -> Option<Cow<'_, str>> {
    header_of(context.request.as_ref()?.http.as_ref()?, hook::ID)
}

/// The first line of that name; all of them where Envoy has joined them.
fn first_of<'r>(http: &'r HttpRequest, name: &str) -> Option<Cow<'r, str>> {
    lines_of(http, name).next()
}

/// All lines of that name, joined as Envoy does.
fn header_of<'r>(http: &'r HttpRequest, name: &str) -> Option<Cow<'r, str>> {
    lines_of(http, name).reduce(|all, next| {
        // In the place of the first: thousands of headers may have one name.
        let mut all = all.into_owned();
        all.push(',');
        all.push_str(&next);
        Cow::Owned(all)
    })
}

/// `encode_raw_headers` moves all headers from the first to the second, where they stand one by one.
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

/// Names the replica that answers with `reply`, in a header and in metadata.
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

/// Takes the place of the upstream's header of that name: two would be read as two limits.
fn header((name, value): crate::edge::headers::Header<'_>) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: name.to_owned(), value, raw_value: Vec::new() }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}
