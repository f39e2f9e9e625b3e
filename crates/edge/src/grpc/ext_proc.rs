//! Serves `envoy.service.ext_proc.v3.ExternalProcessor`: checks from Envoy's `ext_proc` filter,
//! which opens one stream per HTTP request.
//!
//! Guarantees:
//! - The stream's end releases the permits and settles the budgets, also if the client, upstream or
//!   proxy fails.
//! - During a drain, permits of shared limits stay counted until `max_duration`.
//! - While a request waits in a queue, Envoy's message timeout is extended.
//! - If a request has no permits, the first reply tells Envoy to send no more messages.
//! - A drain ends all streams.
//! - A request that waits in a queue keeps only its check in memory. All that wait take at most
//!   `listen.max_body_memory`; more are refused.
//!
//! Not covered: the upstream's own latency. The measured latency is the duration of the stream.

mod budgets;
mod first_message;
mod header_lines;
mod replies;
mod request_end;
mod started_request;
mod upstream_answer;

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessor;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{HeadersResponse, ProcessingRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::bounded_body::{count_unreadable, memory_full};
use super::convert;
use super::ext_authz::error_status;
use crate::ReplyOptions;
use crate::body_memory::BodyLimits;
use crate::config::hooks::Hooks;
use crate::engine::budgets::RequestUsage;
use crate::engine::{AdmissionOutcome, Engine, RequestPermits};
use crate::hook::{self, HookError};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;
use crate::permits::{Holder, Permits, ReservedPart, wait_until_drained};
use crate::telemetry::event::Protocol;
use crate::telemetry::trace;
use budgets::{ResponseUsage, StreamHolds};
pub use first_message::ROUTE_HOOK_ATTRIBUTE;
use first_message::hook_request;
pub use replies::FENCED_HEADER;
use replies::{
    ProcessingReply, ProcessingReplySender, denied_reply, extend_timeout, final_response,
    rejected_reply, to_processing_response,
};
use request_end::reply_until_end;
use started_request::{StartedRequest, renew, with_holds};

/// The gRPC metadata key with the name of the hook, set by Envoy's `ext_proc` configuration.
pub const HOOK_HEADER: &str = "x-sluicegate-hook";

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
    type ProcessStream = ReceiverStream<ProcessingReply>;

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
        let started = tokio::select! {
            // Envoy closed the stream. Dropping the other branch releases the permits.
            () = replies.closed() => return,
            started = self.decide_and_reply(hook_and_span, &mut messages, replies) => started,
        };
        if !started.is_empty() {
            self.await_request_end(started, messages, replies).await;
        }
    }

    /// Decides the first message, sends the reply and returns what the request has.
    async fn decide_and_reply(
        &self,
        (hook, span): (Option<&str>, trace::TraceSpan),
        messages: &mut Streaming<ProcessingRequest>,
        replies: &ProcessingReplySender,
    ) -> StartedRequest {
        let mut draining = self.draining.clone();
        let first_message = tokio::select! {
            first_message = messages.message() => first_message,
            // Otherwise a stream without a first message would delay the shutdown.
            _ = draining.wait_for(|is_draining| *is_draining) => return StartedRequest::default(),
        };
        let result = match first_message {
            Ok(Some(first_message)) => span.scope(self.decide(hook, first_message, replies)).await,
            Ok(None) => return StartedRequest::default(),
            Err(status) => Err(count_unreadable(&status, Protocol::ExtProc)),
        };
        let (reply, mut started) = match result {
            Ok((reply, started)) if started.is_empty() => (Ok(final_response(reply)), started),
            Ok((reply, started)) => (Ok(to_processing_response(reply)), started),
            Err(status) => (Err(status), StartedRequest::default()),
        };
        // If the send fails, Envoy has closed the stream, so everything is released.
        if replies.send(reply).await.is_err() {
            return StartedRequest::default();
        }
        if let Some(holds) = &mut started.holds {
            holds.usage = Some(RequestUsage::Unknown);
        }
        started
    }

    async fn decide(
        &self,
        hook: Option<&str>,
        first_message: ProcessingRequest,
        replies: &ProcessingReplySender,
    ) -> Result<(Reply, StartedRequest), Status> {
        let request = hook_request(&self.hooks, hook, &first_message)?;
        // Frees the decoded message, many times its encoded size, before waiting in a queue.
        drop(first_message);
        let bytes = request.as_ref().map_or(0, convert::memory_bytes);
        let _memory = self.bodies.charge(bytes).map_err(memory_full)?;
        let holds = match &request {
            Ok(request) => {
                StreamHolds::new((&self.engine, &self.reporting), request, &self.bodies)?
            }
            Err(_) => None,
        };
        let reserve = holds.as_ref().map(StreamHolds::reserve);
        let reply = self.decide_request(request.as_ref(), reserve, replies).await?;
        Ok(with_holds(reply, holds))
    }

    /// Decides a request, and extends Envoy's timeout if it waits.
    async fn decide_request(
        &self,
        request: Result<&RateLimitRequest, &HookError>,
        reserve: Option<ReservedPart<'_>>,
        replies: &ProcessingReplySender,
    ) -> Result<(Reply, Option<RequestPermits>), Status> {
        let permits = Permits::new(&self.engine, &self.reporting, Protocol::ExtProc);
        let (permits, how) = (permits.reserving(reserve), (Holder::Caller, None));
        let decided = hook::decide(permits, request, how, |result| self.to_reply(result));
        let mut decided = std::pin::pin!(decided);
        tokio::select! {
            biased;
            decided = &mut decided => return decided,
            () = tokio::time::sleep(QUEUE_NOTICE_DELAY) => {}
        }
        let wait = request.map_or(Nanos(0), |request| permits.longest_queue_wait(request));
        if Nanos(0) < wait {
            // If the send fails, Envoy has closed the stream, and the caller ends this request.
            let _sent = replies.send(Ok(extend_timeout(wait.plus(WAIT_MARGIN)))).await;
        }
        decided.await
    }

    /// Returns the reply, and the permits of a request that may pass.
    fn to_reply(
        &self,
        result: Result<AdmissionOutcome, HookError>,
    ) -> Result<(Reply, Option<RequestPermits>), Status> {
        let headers = &self.reporting.headers;
        let unchanged = Reply::RequestHeaders(HeadersResponse::default());
        match result {
            Ok(AdmissionOutcome::Rejected(rejection)) => {
                Ok((rejected_reply(headers, &rejection), None))
            }
            Ok(AdmissionOutcome::Decided(decision, permits)) => match decision.verdict {
                Verdict::Allow => Ok((unchanged, Some(permits))),
                Verdict::Deny => Ok((denied_reply(headers, &decision), None)),
            },
            Err(HookError::NoDescriptors) => Ok((unchanged, None)),
            Err(error) => Err(error_status(&error)),
        }
    }

    /// Replies to Envoy's later messages until the request ends, then releases and settles.
    async fn await_request_end(
        &self,
        started: StartedRequest,
        mut messages: Streaming<ProcessingRequest>,
        replies: &ProcessingReplySender,
    ) {
        let StartedRequest { permits, mut holds } = started;
        let (mut draining, mut usage) = (self.draining.clone(), ResponseUsage::default());
        let outcome = tokio::select! {
            biased;
            outcome = reply_until_end(&permits, &mut usage, &mut messages, replies) => outcome,
            () = wait_until_drained(&mut draining, Some(&permits)) => {
                if let Some(holds) = &mut holds {
                    holds.usage = None;
                }
                return permits.leave_to_deadlines();
            }
            () = renew(holds.as_ref()) => None,
        };
        if let Some(holds) = &mut holds {
            holds.usage = Some(usage.usage());
        }
        if let Some(outcome) = outcome {
            permits.release(outcome, None);
        }
    }
}
