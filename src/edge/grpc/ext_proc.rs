//! `envoy.service.ext_proc.v3.ExternalProcessor`: checks from Envoy, with one stream per request.
//!
//! Guarantees:
//! - The stream's end releases the permits, also if the client, upstream or proxy fails.
//! - During a drain, permits of shared limits stay counted until `max_duration`.
//! - While a request waits in a queue, Envoy's message timeout is extended.
//! - A stream without permits ends at once and skips the later messages.
//! - A drain ends all streams.
//! - A waiting request keeps its check and permits; its decoded message is freed.
//!
//! Not covered:
//! - Bodies, which are never requested.
//! - The upstream's own latency: the measured time is that of the stream.

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
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Said;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyResponse, HeaderMutation, HeadersResponse, HttpHeaders, ImmediateResponse,
    ProcessingRequest, ProcessingResponse, TrailersResponse,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::Duration as Wire;
use envoy_types::pb::google::protobuf::value::Kind;
use futures_util::FutureExt as _;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::convert;
use super::ext_authz::refusal;
use super::prompt::unread;
use crate::config::hooks::{Attributes, Hooks};
use crate::edge::Reporting;
use crate::edge::hook::{self, Unanswered};
use crate::engine::admit::with_wait;
use crate::engine::{Admitted, Answer, Engine, Permits, Refusal, Rejection};
use crate::kernel::concurrency::Outcome;
use crate::kernel::decision::{Question, Verdict};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Answered, Asked, Protocol};
use crate::telemetry::trace;

/// The gRPC header with the name of the hook. Envoy's
/// configuration sets it per filter or per route.
pub const HOOK: &str = "x-sluicegate-hook";

/// The attribute with the name of the hook, used if the header is missing.
///
/// It is the route's own metadata, which no client can set. Envoy
/// uses the expression as the key, so only this spelling is read.
pub const ROUTE_HOOK: &str = "xds.route_metadata.filter_metadata.sluicegate.hook";

/// The delay after which a queued request gets a longer message timeout in Envoy. It is
/// well below Envoy's default timeout of 200 ms, and above the usual time of a decision.
const SOON: Duration = Duration::from_millis(50);

/// The time for the store call and the reply, added to the longest time in queues.
const MARGIN: Nanos = Nanos(500 * Nanos::MILLI.0);

/// The service that processes `ext_proc` streams.
#[derive(Clone, Debug)]
pub struct Processor {
    engine: Arc<Engine>,
    reporting: Arc<Reporting>,
    hooks: Arc<Hooks>,
    leaving: watch::Receiver<bool>,
}

type Replies = mpsc::Sender<Result<ProcessingResponse, Status>>;

impl Processor {
    /// Creates the service over `engine`, which ends its streams when `leaving` becomes true.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        reporting: Reporting,
        hooks: Arc<Hooks>,
        leaving: watch::Receiver<bool>,
    ) -> Self {
        Self { engine, reporting: Arc::new(reporting), hooks, leaving }
    }
}

#[tonic::async_trait]
impl ExternalProcessor for Processor {
    type ProcessStream = ReceiverStream<Result<ProcessingResponse, Status>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let name = request.metadata().get(HOOK).and_then(|name| name.to_str().ok());
        let name = name.map(str::to_owned);
        let header = |name: &str| request.metadata().get(name)?.to_str().ok();
        let span = trace::question(Protocol::ExtProc, &header);
        let (service, messages) = (self.clone(), request.into_inner());
        let (replies, stream) = mpsc::channel(1);
        tokio::spawn(async move { service.run((name.as_deref(), span), messages, &replies).await });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

impl Processor {
    async fn run(
        &self,
        asking: (Option<&str>, trace::Span),
        mut messages: Streaming<ProcessingRequest>,
        replies: &Replies,
    ) {
        let permits = tokio::select! {
            // Envoy closed the stream. Dropping the other branch releases the permits.
            () = replies.closed() => return,
            permits = self.ask(asking, &mut messages, replies) => permits,
        };
        if !permits.is_empty() {
            self.hold(permits, messages, replies).await;
        }
    }

    /// Decides the first message, sends the reply and returns the acquired permits.
    async fn ask(
        &self,
        (hook, span): (Option<&str>, trace::Span),
        messages: &mut Streaming<ProcessingRequest>,
        replies: &Replies,
    ) -> Permits {
        let mut leaving = self.leaving.clone();
        let first = tokio::select! {
            first = messages.message() => first,
            // An idle stream must not delay the shutdown.
            _ = leaving.wait_for(|leaving| *leaving) => return Permits::default(),
        };
        let answered = match first {
            Ok(Some(first)) => span.around(self.timed(hook, first, replies)).await,
            Ok(None) => return Permits::default(),
            Err(status) => Err(unread(&status, Protocol::ExtProc)),
        };
        let (reply, permits) = match answered {
            Ok((said, permits)) if permits.is_empty() => (Ok(last(said)), permits),
            Ok((said, permits)) => (Ok(reply(said)), permits),
            Err(status) => (Err(status), Permits::default()),
        };
        // If Envoy does not read the reply, the permits are released.
        if replies.send(reply).await.is_ok() { permits } else { Permits::default() }
    }

    async fn timed(
        &self,
        hook: Option<&str>,
        first: ProcessingRequest,
        replies: &Replies,
    ) -> Result<(Said, Permits), Status> {
        let asked = self.engine.clock().now();
        let (answered, queued) = with_wait(self.answer(hook, first, replies)).await;
        Answered { came: asked, at: self.engine.clock().now(), queued }.emit();
        answered
    }

    async fn answer(
        &self,
        hook: Option<&str>,
        first: ProcessingRequest,
        replies: &Replies,
    ) -> Result<(Said, Permits), Status> {
        let request = self.asked(hook, &first)?;
        // Frees the decoded message, which is many times
        // its encoded size, before waiting in a queue.
        drop(first);
        let admitted = self.admitted(&request, replies).await;
        Asked { protocol: Protocol::ExtProc, outcome: hook::counted(&admitted) }.emit();
        let passes = Said::RequestHeaders(HeadersResponse::default());
        match admitted {
            Ok(Admitted::Rejected(rejection)) => Ok((rejected(rejection), Permits::default())),
            Ok(Admitted::Decided(answer, permits)) if answer.verdict == Verdict::Admit => {
                Ok((passes, permits))
            }
            Ok(Admitted::Decided(answer, _)) => Ok((self.denied(&answer), Permits::default())),
            Err(Unanswered::NothingToAsk) => Ok((passes, Permits::default())),
            Err(why) => Err(refusal(&why)),
        }
    }

    fn asked(
        &self,
        hook: Option<&str>,
        first: &ProcessingRequest,
    ) -> Result<Result<RateLimitRequest, Unanswered>, Status> {
        let headers = headers(first)?;
        let hook = hook.map_or_else(|| hook_of_route(first), |named| Ok(Some(named)))?;
        let remote_address = match attribute(first, "source.address") {
            Some(Kind::StringValue(address)) => Some(without_port(address)),
            _ => None,
        };
        let attributes = Attributes {
            header: &|name| headers.get(name).map(|lines| Cow::Borrowed(lines.first())),
            joined: &|name| headers.get(name).map(|lines| Cow::Borrowed(&*lines.joined)),
            path: headers.get(":path").map_or("", Lines::first),
            remote_address,
            metadata: &|key| hook::text_at(first.metadata_context.as_ref(), key),
        };
        Ok(hook::request(&self.hooks, hook, &attributes))
    }

    async fn admitted(
        &self,
        request: &Result<RateLimitRequest, Unanswered>,
        replies: &Replies,
    ) -> Result<Admitted, Unanswered> {
        let request = request.as_ref().map_err(Unanswered::clone)?;
        let question = convert::question(request, &self.reporting)?;
        Ok(self.admit(&question, replies).await?)
    }

    /// Admits the request. Extends Envoy's message timeout if the request waits in a queue.
    async fn admit(&self, question: &Question<'_>, replies: &Replies) -> Result<Admitted, Refusal> {
        let mut admitted = std::pin::pin!(self.engine.admit(question, None));
        tokio::select! {
            biased;
            admitted = &mut admitted => return admitted,
            () = tokio::time::sleep(SOON) => {}
        }
        let wait = self.engine.longest_wait(question);
        if Nanos(0) < wait {
            // If this fails, Envoy has closed the stream, and the request ends with it.
            let _told = replies.send(Ok(patience(wait.plus(MARGIN)))).await;
        }
        admitted.await
    }

    /// Replies to the later messages until the request ends, then releases the permits.
    async fn hold(
        &self,
        permits: Permits,
        mut messages: Streaming<ProcessingRequest>,
        replies: &Replies,
    ) {
        let mut leaving = self.leaving.clone();
        let mut outcome = Outcome::Success;
        loop {
            let message = tokio::select! {
                biased;
                message = messages.message() => message,
                // Envoy's last message has arrived by then.
                () = replies.closed() => match messages.message().now_or_never() {
                    Some(message) => message,
                    None => return,
                },
                () = hook::may_go(&mut leaving, Some(&permits)) => return permits.go_on(),
            };
            match message {
                Ok(None) => return permits.finish(outcome, None),
                // Envoy resets the stream at the end of most requests, complete or not.
                Err(status) if is_reset(&status) => return permits.finish(outcome, None),
                Err(status) => return refuse(&status, replies),
                Ok(Some(message)) => {
                    outcome = ended_as(&message).unwrap_or(outcome);
                    let said = untouched(&message);
                    // Frees the decoded message, because sending may wait for Envoy.
                    drop(message);
                    let Some(said) = said else { return };
                    tokio::select! {
                        // A failed send means that the request has
                        // ended; the next message shows the outcome.
                        _taken = replies.send(Ok(reply(said))) => {}
                        () = hook::may_go(&mut leaving, Some(&permits)) => return permits.go_on(),
                    }
                }
            }
        }
    }

    fn denied(&self, answer: &Answer) -> Said {
        let headers = self.reporting.headers.of(answer);
        let headers = headers.into_iter().map(|(name, value)| header(name, value)).collect();
        immediate(429, headers, Vec::new(), "sluicegate_over_limit")
    }
}

/// Returns true if Envoy reset this stream and its connection is still open.
fn is_reset(status: &Status) -> bool {
    let reset = |error: &h2::Error| error.is_reset() && error.is_remote();
    causes(status).any(|cause| cause.downcast_ref().is_some_and(reset))
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(status.source(), |&cause| cause.source())
}

/// Counts and reports an invalid later message. A broken connection is not counted.
fn refuse(status: &Status, replies: &Replies) {
    if !causes(status).any(<dyn std::error::Error>::is::<hyper::Error>) {
        // The error is dropped if Envoy does not read the earlier reply.
        let _told = replies.try_send(Err(unread(status, Protocol::ExtProc)));
    }
}

/// Returns the request's headers by name. The first message must contain them.
fn headers(first: &ProcessingRequest) -> Result<HashMap<&str, Lines>, Status> {
    let Some(Message::RequestHeaders(headers)) = &first.request else {
        let message = "the first message has no request headers: request_header_mode must be SEND";
        return Err(Status::invalid_argument(message));
    };
    if first.observability_mode {
        let message = "observability_mode waits for no answer, so that nothing could be denied";
        return Err(Status::invalid_argument(message));
    }
    Ok(by_name(headers))
}

struct Lines {
    joined: String,
    /// The length of the first value in `joined`, in bytes.
    first: usize,
}

impl Lines {
    fn first(&self) -> &str {
        &self.joined[..self.first]
    }
}

fn by_name(headers: &HttpHeaders) -> HashMap<&str, Lines> {
    let mut named: HashMap<&str, Lines> = HashMap::new();
    for header in headers.headers.iter().flat_map(|headers| &headers.headers) {
        let raw = String::from_utf8_lossy(&header.raw_value);
        let value = if header.value.is_empty() { &*raw } else { &*header.value };
        named
            .entry(&header.key)
            .and_modify(|lines| {
                lines.joined.push(',');
                lines.joined.push_str(value);
            })
            .or_insert_with(|| Lines { joined: value.to_owned(), first: value.len() });
    }
    named
}

fn hook_of_route(request: &ProcessingRequest) -> Result<Option<&str>, Status> {
    match attribute(request, ROUTE_HOOK) {
        None => Ok(None),
        Some(Kind::StringValue(name)) => Ok(Some(name)),
        // The first hook is no substitute: the route's intention is unknown.
        Some(_) => {
            let message = format!("the attribute {ROUTE_HOOK} names a hook, and is no text");
            Err(Status::invalid_argument(message))
        }
    }
}

/// Returns an attribute of the request. Envoy sends those in its `request_attributes`.
fn attribute<'r>(request: &'r ProcessingRequest, name: &str) -> Option<&'r Kind> {
    let found = request.attributes.values().find_map(|attributes| attributes.fields.get(name))?;
    found.kind.as_ref()
}

/// Removes the port from addresses such as `10.0.0.1:4711` and `[::1]:4711`.
fn without_port(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn rejected(rejection: Rejection) -> Said {
    let reject = rejection.reject;
    let wait = reject.retry_after.map(|wait| wait.as_secs_ceil().max(1).to_string());
    let headers = wait.map(|wait| header("retry-after", wait)).into_iter().collect();
    let body = reject.body.as_bytes().to_vec();
    immediate(reject.status, headers, body, &format!("sluicegate_{}", rejection.reason.as_str()))
}

fn immediate(status: u16, headers: Vec<HeaderValueOption>, body: Vec<u8>, details: &str) -> Said {
    Said::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus { code: status.into() }),
        headers: Some(HeaderMutation { set_headers: headers, remove_headers: Vec::new() }),
        body,
        details: details.to_owned(),
        ..ImmediateResponse::default()
    })
}

fn header(name: &str, value: String) -> HeaderValueOption {
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

/// Returns the outcome of the request for its upstream,
/// if the message contains the response's status.
fn ended_as(message: &ProcessingRequest) -> Option<Outcome> {
    let Some(Message::ResponseHeaders(headers)) = &message.request else { return None };
    let named = by_name(headers);
    let failed = named.get(":status").is_some_and(|status| status.first().starts_with('5'));
    Some(if failed { Outcome::Dropped } else { Outcome::Success })
}

/// Returns the reply that changes nothing; `None` if the message needs no reply.
fn untouched(message: &ProcessingRequest) -> Option<Said> {
    Some(match message.request.as_ref()? {
        Message::RequestHeaders(_) => Said::RequestHeaders(HeadersResponse::default()),
        Message::ResponseHeaders(_) => Said::ResponseHeaders(HeadersResponse::default()),
        Message::RequestBody(_) => Said::RequestBody(BodyResponse::default()),
        Message::ResponseBody(_) => Said::ResponseBody(BodyResponse::default()),
        Message::RequestTrailers(_) => Said::RequestTrailers(TrailersResponse::default()),
        Message::ResponseTrailers(_) => Said::ResponseTrailers(TrailersResponse::default()),
    })
}

fn reply(said: Said) -> ProcessingResponse {
    ProcessingResponse { response: Some(said), ..ProcessingResponse::default() }
}

/// Builds the last reply of a stream, after which Envoy sends no more messages.
fn last(said: Said) -> ProcessingResponse {
    let skip = HeaderSendMode::Skip.into();
    let mode_override = ProcessingMode {
        response_header_mode: skip,
        response_trailer_mode: skip,
        ..ProcessingMode::default()
    };
    ProcessingResponse { mode_override: Some(mode_override), ..reply(said) }
}

fn patience(wait: Nanos) -> ProcessingResponse {
    let seconds = i64::try_from(wait.0 / Nanos::SECOND.0).unwrap_or(i64::MAX);
    let nanos = i32::try_from(wait.0 % Nanos::SECOND.0).unwrap_or(0);
    ProcessingResponse {
        override_message_timeout: Some(Wire { seconds, nanos }),
        ..ProcessingResponse::default()
    }
}
