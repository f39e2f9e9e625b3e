//! Serves `envoy.service.ext_proc.v3.ExternalProcessor`: checks from Envoy's `ext_proc` filter,
//! which opens one stream per HTTP request.
//!
//! Guarantees:
//! - The stream's end releases the permits, also if the client, upstream or proxy fails.
//! - During a drain, permits of shared limits stay counted until `max_duration`.
//! - While a request waits in a queue, Envoy's message timeout is extended.
//! - If a request has no permits, the first reply tells Envoy to send no more messages.
//! - The response headers of a request with fenced permits have [`FENCED_HEADER`].
//! - A drain ends all streams.
//! - A request that waits in a queue keeps only its check in memory. All that wait take at most
//!   `listen.max_body_memory`; more are refused.
//!
//! Not covered: the upstream's own latency. The measured latency is the duration of the stream.

mod header_lines;
mod upstream_answer;

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::ProcessingMode;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::HeaderSendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessor;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ImmediateResponse,
    ProcessingRequest, ProcessingResponse, TrailersResponse,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::Duration as ProtoDuration;
use envoy_types::pb::google::protobuf::value::Kind;
use futures_util::FutureExt as _;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::bounded_body::{count_unreadable, memory_full};
use super::convert;
use super::ext_authz::error_status;
use crate::ReplyOptions;
use crate::body_memory::BodyLimits;
use crate::config::hooks::address::ClientAddress;
use crate::config::hooks::{Hooks, RequestAttributes};
use crate::engine::concurrency::with_queue_time;
use crate::engine::{
    AdmissionOutcome, CheckError, ConcurrencyRejection, Decision, Engine, RequestPermits,
};
use crate::hook::{self, HookError};
use crate::kernel::concurrency::{ReportedOutcome, RequestOutcome};
use crate::kernel::decision::{Check, Verdict};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{CheckAnswered, Event as _, Protocol, RequestCompleted};
use crate::telemetry::trace;
use header_lines::{HeaderLines, headers_by_name};
use upstream_answer::response_outcome;

/// The gRPC metadata key with the name of the hook, set by Envoy's `ext_proc` configuration.
pub const HOOK_HEADER: &str = "x-sluicegate-hook";

/// The Envoy attribute with the name of the hook, used if [`HOOK_HEADER`] is missing.
///
/// It is route metadata, which no client can set. The filter's field `request_attributes` must
/// contain it in exactly this spelling.
pub const ROUTE_HOOK_ATTRIBUTE: &str = "xds.route_metadata.filter_metadata.sluicegate.hook";

/// The header of a response whose request ran under a share that expired.
pub const FENCED_HEADER: &str = "x-sluicegate-fenced";

/// The time in a queue after which Envoy's message timeout is extended: below Envoy's default
/// timeout of 200 ms, above the usual time of a decision.
const QUEUE_NOTICE_DELAY: Duration = Duration::from_millis(50);

/// The time for the store call and the reply. The extended message timeout adds it to the longest
/// time in queues.
const WAIT_MARGIN: Nanos = Nanos(500 * Nanos::MILLI.0);

/// The gRPC service that decides the requests of Envoy's `ext_proc` filter.
#[derive(Clone, Debug)]
pub struct ExtProcService {
    engine: Arc<Engine>,
    reporting: Arc<ReplyOptions>,
    hooks: Arc<Hooks>,
    bodies: BodyLimits,
    draining: watch::Receiver<bool>,
}

type ProcessingReplySender = mpsc::Sender<Result<ProcessingResponse, Status>>;

impl ExtProcService {
    /// Creates the service. It decides with `engine`. Requests that wait take memory of `bodies`.
    /// The service ends all streams when the process drains.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        (reporting, hooks): (ReplyOptions, Arc<Hooks>),
        bodies: BodyLimits,
        draining: watch::Receiver<bool>,
    ) -> Self {
        Self { engine, reporting: Arc::new(reporting), hooks, bodies, draining }
    }
}

#[tonic::async_trait]
impl ExternalProcessor for ExtProcService {
    type ProcessStream = ReceiverStream<Result<ProcessingResponse, Status>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let hook_name = request.metadata().get(HOOK_HEADER).and_then(|name| name.to_str().ok());
        let hook_name = hook_name.map(str::to_owned);
        let header = |name: &str| request.metadata().get(name)?.to_str().ok();
        let span = trace::check_span(Protocol::ExtProc, &header);
        let (service, messages) = (self.clone(), request.into_inner());
        let (replies, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            service.serve_request((hook_name.as_deref(), span), messages, &replies).await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

impl ExtProcService {
    async fn serve_request(
        &self,
        hook_and_span: (Option<&str>, trace::TraceSpan),
        mut messages: Streaming<ProcessingRequest>,
        replies: &ProcessingReplySender,
    ) {
        let permits = tokio::select! {
            // Envoy closed the stream. Dropping the other branch releases the permits.
            () = replies.closed() => return,
            permits = self.decide_and_reply(hook_and_span, &mut messages, replies) => permits,
        };
        if !permits.is_empty() {
            self.await_request_end(permits, messages, replies).await;
        }
    }

    /// Decides the first message, sends the reply and returns the acquired permits.
    async fn decide_and_reply(
        &self,
        (hook, span): (Option<&str>, trace::TraceSpan),
        messages: &mut Streaming<ProcessingRequest>,
        replies: &ProcessingReplySender,
    ) -> RequestPermits {
        let mut draining = self.draining.clone();
        let first_message = tokio::select! {
            first_message = messages.message() => first_message,
            // Otherwise a stream without a first message would delay the shutdown.
            _ = draining.wait_for(|is_draining| *is_draining) => return RequestPermits::default(),
        };
        let result = match first_message {
            Ok(Some(first_message)) => {
                span.scope(self.decide_timed(hook, first_message, replies)).await
            }
            Ok(None) => return RequestPermits::default(),
            Err(status) => Err(count_unreadable(&status, Protocol::ExtProc)),
        };
        let (reply, permits) = match result {
            Ok((reply, permits)) if permits.is_empty() => (Ok(final_response(reply)), permits),
            Ok((reply, permits)) => (Ok(to_processing_response(reply)), permits),
            Err(status) => (Err(status), RequestPermits::default()),
        };
        // If the send fails, Envoy has closed the stream, so the permits are released.
        if replies.send(reply).await.is_ok() { permits } else { RequestPermits::default() }
    }

    async fn decide_timed(
        &self,
        hook: Option<&str>,
        first_message: ProcessingRequest,
        replies: &ProcessingReplySender,
    ) -> Result<(Reply, RequestPermits), Status> {
        let received_at = self.engine.clock().now();
        let (result, queue_time) = with_queue_time(self.decide(hook, first_message, replies)).await;
        CheckAnswered { received_at, replied_at: self.engine.clock().now(), queue_time }.emit();
        result
    }

    async fn decide(
        &self,
        hook: Option<&str>,
        first_message: ProcessingRequest,
        replies: &ProcessingReplySender,
    ) -> Result<(Reply, RequestPermits), Status> {
        let request = self.hook_request(hook, &first_message)?;
        // Frees the decoded message, many times its encoded size, before waiting in a queue.
        drop(first_message);
        let bytes = request.as_ref().map_or(0, convert::memory_bytes);
        let _memory = self.bodies.charge(bytes).map_err(memory_full)?;
        let result = self.admit_request(&request, replies).await;
        RequestCompleted { protocol: Protocol::ExtProc, outcome: hook::admission_outcome(&result) }
            .emit();
        let continue_reply = Reply::RequestHeaders(HeadersResponse::default());
        match result {
            Ok(AdmissionOutcome::Rejected(rejection)) => {
                Ok((self.rejected_response(&rejection), RequestPermits::default()))
            }
            Ok(AdmissionOutcome::Decided(decision, permits))
                if decision.verdict == Verdict::Allow =>
            {
                Ok((continue_reply, permits))
            }
            Ok(AdmissionOutcome::Decided(decision, _)) => {
                Ok((self.denied_response(&decision), RequestPermits::default()))
            }
            Err(HookError::NoDescriptors) => Ok((continue_reply, RequestPermits::default())),
            Err(error) => Err(error_status(&error)),
        }
    }

    fn hook_request(
        &self,
        hook: Option<&str>,
        first_message: &ProcessingRequest,
    ) -> Result<Result<RateLimitRequest, HookError>, Status> {
        let headers = request_headers(first_message)?;
        let hook = hook.map_or_else(|| route_hook(first_message), |hook| Ok(Some(hook)))?;
        let remote_address = match attribute(first_message, "source.address") {
            Some(Kind::StringValue(address)) => ClientAddress::parse(address),
            _ => None,
        };
        let attributes = RequestAttributes {
            first_header_value: &|name| headers.get(name).map(|lines| Cow::Borrowed(lines.first())),
            joined_header_values: &|name| {
                headers.get(name).map(|lines| Cow::Borrowed(&*lines.joined))
            },
            path: headers.get(":path").map_or("", HeaderLines::first),
            remote_address,
            metadata: &|key| hook::metadata_string(first_message.metadata_context.as_ref(), key),
        };
        Ok(hook::build_request(&self.hooks, hook, &attributes))
    }

    async fn admit_request(
        &self,
        request: &Result<RateLimitRequest, HookError>,
        replies: &ProcessingReplySender,
    ) -> Result<AdmissionOutcome, HookError> {
        let request = request.as_ref().map_err(HookError::clone)?;
        let check = convert::to_check(request, &self.reporting);
        let check = check.inspect_err(|error| self.engine.log_refusal(&request.domain, error))?;
        Ok(self.admit_with_notice(&check, replies).await?)
    }

    /// Decides the check and acquires permits. If the request waits in a queue, extends Envoy's
    /// message timeout.
    async fn admit_with_notice(
        &self,
        check: &Check<'_>,
        replies: &ProcessingReplySender,
    ) -> Result<AdmissionOutcome, CheckError> {
        let mut admitted = std::pin::pin!(self.engine.admit(check, None));
        tokio::select! {
            biased;
            admitted = &mut admitted => return admitted,
            () = tokio::time::sleep(QUEUE_NOTICE_DELAY) => {}
        }
        let wait = self.engine.longest_queue_wait(check);
        if Nanos(0) < wait {
            // If the send fails, Envoy has closed the stream, and the caller ends this request.
            let _sent = replies.send(Ok(extend_timeout(wait.plus(WAIT_MARGIN)))).await;
        }
        admitted.await
    }

    /// Replies to Envoy's later messages until the request ends, then releases the permits.
    async fn await_request_end(
        &self,
        permits: RequestPermits,
        mut messages: Streaming<ProcessingRequest>,
        replies: &ProcessingReplySender,
    ) {
        let mut draining = self.draining.clone();
        let mut outcome = ReportedOutcome::Known(RequestOutcome::Success);
        loop {
            let message = tokio::select! {
                biased;
                message = messages.message() => message,
                // Envoy closed the stream. Its last message, if any, has arrived already.
                () = replies.closed() => match messages.message().now_or_never() {
                    Some(message) => message,
                    None => return,
                },
                () = hook::wait_until_drained(&mut draining, Some(&permits)) => return permits.leave_to_deadlines(),
            };
            match message {
                Ok(None) => return permits.release(outcome, None),
                // Envoy resets the stream at the end of most requests, even complete ones.
                Err(status) if is_remote_reset(&status) => return permits.release(outcome, None),
                Err(status) => return report_invalid(&status, replies),
                Ok(Some(message)) => {
                    outcome = response_outcome(outcome, &message);
                    let reply = unchanged_reply(&message);
                    let reply = reply.map(|reply| with_fence_header(reply, &permits));
                    // Frees the decoded message before sending, which may wait for Envoy.
                    drop(message);
                    let Some(reply) = reply else { return };
                    tokio::select! {
                        // If the send fails, the request has ended, and the next message shows the
                        // outcome.
                        _is_sent = replies.send(Ok(to_processing_response(reply))) => {}
                        () = hook::wait_until_drained(&mut draining, Some(&permits)) => return permits.leave_to_deadlines(),
                    }
                }
            }
        }
    }

    fn denied_response(&self, decision: &Decision) -> Reply {
        let headers = self.reporting.headers.for_decision(decision);
        let headers = headers.into_iter().map(|(name, value)| header_option(name, value)).collect();
        immediate_response(429, headers, Vec::new(), "sluicegate_over_limit")
    }

    fn rejected_response(&self, rejection: &ConcurrencyRejection) -> Reply {
        let reject = &rejection.reject;
        let wait = reject.retry_after.map(|wait| wait.as_secs_ceil().max(1).to_string());
        let wait = wait.map(|wait| ("retry-after", wait));
        let headers = wait.into_iter().chain(self.reporting.headers.for_rejection(rejection));
        let headers = headers.map(|(name, value)| header_option(name, value)).collect();
        let details = format!("sluicegate_{}", rejection.reason.as_str());
        immediate_response(reject.status, headers, reject.body.as_bytes().to_vec(), &details)
    }
}

/// Returns `true` if Envoy reset this one stream, `false` for a lost connection.
fn is_remote_reset(status: &Status) -> bool {
    let is_reset = |error: &h2::Error| error.is_reset() && error.is_remote();
    causes(status).any(|cause| cause.downcast_ref().is_some_and(is_reset))
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(status.source(), |&cause| cause.source())
}

/// Counts an invalid message that follows the first message of a stream, and sends the error to
/// Envoy. Ignores a lost connection.
fn report_invalid(status: &Status, replies: &ProcessingReplySender) {
    if !causes(status).any(<dyn std::error::Error>::is::<hyper::Error>) {
        // The error is dropped if Envoy has not read the previous reply.
        let _sent = replies.try_send(Err(count_unreadable(status, Protocol::ExtProc)));
    }
}

/// Returns the request's headers by name. The first message must contain them.
fn request_headers(
    first_message: &ProcessingRequest,
) -> Result<HashMap<&str, HeaderLines>, Status> {
    let Some(Message::RequestHeaders(headers)) = &first_message.request else {
        let message = "the first message has no request headers: request_header_mode must be SEND";
        return Err(Status::invalid_argument(message));
    };
    if first_message.observability_mode {
        let message = "observability_mode must be off, because Envoy would ignore a denial";
        return Err(Status::invalid_argument(message));
    }
    Ok(headers_by_name(headers.headers.as_ref()))
}

fn route_hook(request: &ProcessingRequest) -> Result<Option<&str>, Status> {
    match attribute(request, ROUTE_HOOK_ATTRIBUTE) {
        None => Ok(None),
        Some(Kind::StringValue(name)) => Ok(Some(name)),
        // An error, because the first hook may not be the one that the route means.
        Some(_) => {
            let message = format!(
                "the attribute {ROUTE_HOOK_ATTRIBUTE} must be a string: the name of a hook"
            );
            Err(Status::invalid_argument(message))
        }
    }
}

/// Returns an Envoy attribute of the request. The filter's field `request_attributes` must list it.
fn attribute<'r>(request: &'r ProcessingRequest, name: &str) -> Option<&'r Kind> {
    let value = request.attributes.values().find_map(|attributes| attributes.fields.get(name))?;
    value.kind.as_ref()
}

fn immediate_response(
    status: u16,
    headers: Vec<HeaderValueOption>,
    body: Vec<u8>,
    details: &str,
) -> Reply {
    Reply::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus { code: status.into() }),
        headers: Some(HeaderMutation { set_headers: headers, remove_headers: Vec::new() }),
        body,
        details: details.to_owned(),
        ..ImmediateResponse::default()
    })
}

fn header_option(name: &str, value: String) -> HeaderValueOption {
    let header = HeaderValue {
        key: name.to_ascii_lowercase(),
        raw_value: value.into_bytes(),
        ..HeaderValue::default()
    };
    HeaderValueOption {
        header: Some(header),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}

/// Returns the reply that tells Envoy to continue unchanged, or `None` if `message` needs no reply.
fn unchanged_reply(message: &ProcessingRequest) -> Option<Reply> {
    Some(match message.request.as_ref()? {
        Message::RequestHeaders(_) => Reply::RequestHeaders(HeadersResponse::default()),
        Message::ResponseHeaders(_) => Reply::ResponseHeaders(HeadersResponse::default()),
        Message::RequestBody(_) => Reply::RequestBody(BodyResponse::default()),
        Message::ResponseBody(_) => Reply::ResponseBody(BodyResponse::default()),
        Message::RequestTrailers(_) => Reply::RequestTrailers(TrailersResponse::default()),
        Message::ResponseTrailers(_) => Reply::ResponseTrailers(TrailersResponse::default()),
    })
}

/// Adds [`FENCED_HEADER`] to the response of a request whose permits are fenced.
fn with_fence_header(reply: Reply, permits: &RequestPermits) -> Reply {
    match reply {
        Reply::ResponseHeaders(_) if permits.is_fenced() => {
            let set_headers = vec![header_option(FENCED_HEADER, "true".to_owned())];
            let mutation = HeaderMutation { set_headers, remove_headers: Vec::new() };
            let common = CommonResponse { header_mutation: Some(mutation), ..Default::default() };
            Reply::ResponseHeaders(HeadersResponse { response: Some(common) })
        }
        reply => reply,
    }
}

fn to_processing_response(reply: Reply) -> ProcessingResponse {
    ProcessingResponse { response: Some(reply), ..ProcessingResponse::default() }
}

/// Builds the last reply of a stream: Envoy then sends no more messages.
fn final_response(reply: Reply) -> ProcessingResponse {
    let skip = HeaderSendMode::Skip.into();
    let mode_override = ProcessingMode {
        response_header_mode: skip,
        response_trailer_mode: skip,
        ..ProcessingMode::default()
    };
    ProcessingResponse { mode_override: Some(mode_override), ..to_processing_response(reply) }
}

fn extend_timeout(wait: Nanos) -> ProcessingResponse {
    let seconds = i64::try_from(wait.0 / Nanos::SECOND.0).unwrap_or(i64::MAX);
    let nanos = i32::try_from(wait.0 % Nanos::SECOND.0).unwrap_or(0);
    ProcessingResponse {
        override_message_timeout: Some(ProtoDuration { seconds, nanos }),
        ..ProcessingResponse::default()
    }
}
