//! `envoy.service.ext_proc.v3.ExternalProcessor`: Envoy asks about a request, and the stream it asks
//! on is the request's permit.
//!
//! Guarantees: whatever ends the stream gives the permits back: its request's end, a client or an
//! upstream that goes, a proxy that dies. While a request waits in a queue, Envoy is told for how
//! long. A stream that holds nothing is ended at once, and so are all when this process goes.
//! Leaves out: bodies, which are never asked for; how latency divides into the upstream's and the
//! client's: the time that counts is the stream's.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessor;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Asked;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Said;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyResponse, HeaderMutation, HeadersResponse, HttpHeaders, ImmediateResponse,
    ProcessingRequest, ProcessingResponse, TrailersResponse,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Duration as Wire, Struct, Value};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::convert;
use crate::config::hooks::{Attributes, Hook, Hooks, MetadataKey};
use crate::edge::{Reporting, outcome};
use crate::engine::{Admitted, Answer, Engine, Permits, Refusal, Rejection};
use crate::kernel::concurrency::Outcome;
use crate::kernel::decision::{Cost, Descriptor, Question, Verdict};
use crate::kernel::units::{Hits, Nanos};
use crate::telemetry::event::{self, Answered, Protocol};

/// The gRPC header that names a hook; Envoy's configuration sets it, for a filter or for a route.
pub const HOOK: &str = "x-sluicegate-hook";

/// How long an answer may take before Envoy is told that the request waits in a queue: well within
/// Envoy's own patience, 200 ms by default, and longer than any answer without a queue.
const SOON: Duration = Duration::from_millis(50);

/// What is added to the longest wait in queues, for the store and the way back.
const MARGIN: Nanos = Nanos(500 * Nanos::MILLI.0);

/// The service.
#[derive(Clone, Debug)]
pub struct Processor {
    engine: Arc<Engine>,
    reporting: Arc<Reporting>,
    hooks: Arc<Hooks>,
    /// True once this process goes.
    leaving: watch::Receiver<bool>,
}

type Replies = mpsc::Sender<Result<ProcessingResponse, Status>>;

/// Keys and values of descriptors.
type Entries = Vec<Vec<(String, String)>>;

impl Processor {
    /// The service over `engine`, which holds no stream any longer once `leaving` is true.
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
        let hook = self.hooks.named(name).ok_or_else(|| self.unknown(name))?.clone();
        let (service, messages) = (self.clone(), request.into_inner());
        let (replies, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            tokio::select! {
                // The other side of the stream is gone, and with it whatever is held here.
                () = replies.closed() => {}
                () = service.run(&hook, messages, &replies) => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

impl Processor {
    fn unknown(&self, name: Option<&str>) -> Status {
        let name = name.filter(|_| !self.hooks.0.is_empty());
        let Some(name) = name else {
            count(event::Outcome::NoHooks);
            let message =
                "no hooks are set, so that nothing says what to ask; see the setting hooks";
            return Status::failed_precondition(message);
        };
        count(event::Outcome::UnknownHook);
        Status::invalid_argument(format!("no hook is named {name:?}; see the setting hooks"))
    }

    /// One request, from its headers to its end.
    async fn run(
        &self,
        hook: &Hook,
        mut messages: Streaming<ProcessingRequest>,
        replies: &Replies,
    ) {
        let Ok(Some(first)) = messages.message().await else { return };
        let asked = self.engine.clock().now();
        let answered = self.answer(hook, &first, replies).await;
        Answered { took: self.engine.clock().now().since(asked) }.emit();
        let (reply, permits) = match answered {
            Ok((said, permits)) => (Ok(reply(said)), permits),
            Err(status) => (Err(status), Permits::default()),
        };
        if replies.send(reply).await.is_ok() && !permits.is_empty() {
            self.hold(permits, messages, replies).await;
        }
    }

    async fn answer(
        &self,
        hook: &Hook,
        first: &ProcessingRequest,
        replies: &Replies,
    ) -> Result<(Said, Permits), Status> {
        let entries = entries(hook, first)?;
        let passes = Said::RequestHeaders(HeadersResponse::default());
        if entries.is_empty() {
            count(event::Outcome::NothingToAsk);
            return Ok((passes, Permits::default()));
        }
        let question = question(hook, &entries).map_err(|refused| refusal(&refused))?;
        let admitted = self.admit(&question, replies).await;
        let outcome = match &admitted {
            Ok(Admitted::Decided(Answer { verdict: Verdict::Admit, .. }, _)) => {
                event::Outcome::Admit
            }
            Ok(_) => event::Outcome::Deny,
            Err(refused) => outcome(&Err(refused.clone())),
        };
        count(outcome);
        match admitted.map_err(|refused| convert::refusal(&refused))? {
            Admitted::Rejected(rejection) => Ok((rejected(rejection), Permits::default())),
            Admitted::Decided(answer, permits) if answer.verdict == Verdict::Admit => {
                Ok((passes, permits))
            }
            Admitted::Decided(answer, permits) => Ok((self.denied(&answer), permits)),
        }
    }

    /// Asks, and tells Envoy where it takes as long as a queue does.
    async fn admit(&self, question: &Question<'_>, replies: &Replies) -> Result<Admitted, Refusal> {
        let mut admitted = std::pin::pin!(self.engine.admit(question, None));
        tokio::select! {
            biased;
            admitted = &mut admitted => return admitted,
            () = tokio::time::sleep(SOON) => {}
        }
        let wait = self.engine.longest_wait(question);
        if Nanos(0) < wait {
            // Where nobody listens any longer, the stream ends of itself.
            let _told = replies.send(Ok(patience(wait.plus(MARGIN)))).await;
        }
        admitted.await
    }

    /// Until the request has ended, as far as Envoy tells.
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
                message = messages.message() => message,
                _ = leaving.wait_for(|leaving| *leaving) => return,
            };
            match message {
                Ok(None) => return permits.finish(outcome, None),
                Err(_) => return,
                Ok(Some(message)) => {
                    outcome = ended_as(&message).unwrap_or(outcome);
                    let Some(said) = untouched(&message) else { return };
                    if replies.send(Ok(reply(said))).await.is_err() {
                        return;
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

/// What the hook asks of the request whose headers are the first message.
fn entries(hook: &Hook, first: &ProcessingRequest) -> Result<Entries, Status> {
    let Some(Asked::RequestHeaders(headers)) = &first.request else {
        let message = "the first message has no request headers: request_header_mode must be SEND";
        return Err(Status::invalid_argument(message));
    };
    if first.observability_mode {
        let message = "observability_mode waits for no answer, so that nothing could be denied";
        return Err(Status::invalid_argument(message));
    }
    let headers = by_name(headers);
    let address = attribute(first, "source.address").map(without_port);
    let request = Attributes {
        header: &|name| headers.get(name).map(|value| Cow::Borrowed(value.as_str())),
        path: headers.get(":path").map_or("", String::as_str),
        remote_address: address,
        metadata: &|key| metadata(first, key),
    };
    let owned = |(key, value): (&str, Cow<'_, str>)| (key.to_owned(), value.into_owned());
    let descriptors = hook.descriptors(&request);
    Ok(descriptors.into_iter().map(|entries| entries.into_iter().map(owned).collect()).collect())
}

/// The headers by their lower-case names; several of one name are joined by commas.
fn by_name(headers: &HttpHeaders) -> HashMap<&str, String> {
    let mut named: HashMap<&str, String> = HashMap::new();
    for header in headers.headers.iter().flat_map(|headers| &headers.headers) {
        let raw = String::from_utf8_lossy(&header.raw_value);
        let value = if header.value.is_empty() { &*raw } else { &*header.value };
        named
            .entry(&header.key)
            .and_modify(|joined| {
                joined.push(',');
                joined.push_str(value);
            })
            .or_insert_with(|| value.to_owned());
    }
    named
}

/// A text among the request's attributes, which Envoy sends where `request_attributes` asks for it.
fn attribute<'r>(request: &'r ProcessingRequest, name: &str) -> Option<&'r str> {
    text(request.attributes.values().find_map(|attributes| attributes.fields.get(name))?)
}

fn metadata(request: &ProcessingRequest, key: &MetadataKey) -> Option<String> {
    let spaces = &request.metadata_context.as_ref()?.filter_metadata;
    let (last, path) = key.path.split_last()?;
    let within = path
        .iter()
        .try_fold(spaces.get(&key.key)?, |at, segment| structure(at.fields.get(&segment.key)?))?;
    text(within.fields.get(&last.key)?).map(str::to_owned)
}

fn structure(value: &Value) -> Option<&Struct> {
    match &value.kind {
        Some(Kind::StructValue(within)) => Some(within),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match &value.kind {
        Some(Kind::StringValue(text)) => Some(text),
        _ => None,
    }
}

/// `10.0.0.1:4711` and `[::1]:4711` without the port.
fn without_port(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn question<'q>(hook: &'q Hook, entries: &'q Entries) -> Result<Question<'q>, Refusal> {
    let most = convert::MAX_ENTRY_BYTES;
    let descriptor = |(index, entries): (usize, &'q Vec<(String, String)>)| {
        let longest = entries.iter().map(|(key, value)| key.len().max(value.len())).max();
        if let Some(got) = longest.filter(|&got| most <= got) {
            return Err(Refusal::EntryTooLong { descriptor: index, got, most });
        }
        let entries = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
        Ok(Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None })
    };
    let descriptors = entries.iter().enumerate().map(descriptor).collect::<Result<_, _>>()?;
    Ok(Question { domain: &hook.domain, descriptors })
}

fn count(outcome: event::Outcome) {
    event::Asked { protocol: Protocol::ExtProc, outcome }.emit();
}

fn refusal(refused: &Refusal) -> Status {
    count(outcome(&Err(refused.clone())));
    convert::refusal(refused)
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

/// How a request ended for its backend, where the message tells.
fn ended_as(message: &ProcessingRequest) -> Option<Outcome> {
    let Some(Asked::ResponseHeaders(headers)) = &message.request else { return None };
    let named = by_name(headers);
    let failed = named.get(":status").is_some_and(|status| status.starts_with('5'));
    Some(if failed { Outcome::Dropped } else { Outcome::Success })
}

/// The reply that changes nothing; `None` to what asks for none.
fn untouched(message: &ProcessingRequest) -> Option<Said> {
    Some(match message.request.as_ref()? {
        Asked::RequestHeaders(_) => Said::RequestHeaders(HeadersResponse::default()),
        Asked::ResponseHeaders(_) => Said::ResponseHeaders(HeadersResponse::default()),
        Asked::RequestBody(_) => Said::RequestBody(BodyResponse::default()),
        Asked::ResponseBody(_) => Said::ResponseBody(BodyResponse::default()),
        Asked::RequestTrailers(_) => Said::RequestTrailers(TrailersResponse::default()),
        Asked::ResponseTrailers(_) => Said::ResponseTrailers(TrailersResponse::default()),
    })
}

fn reply(said: Said) -> ProcessingResponse {
    ProcessingResponse { response: Some(said), ..ProcessingResponse::default() }
}

/// Tells Envoy how long the answer may take yet.
fn patience(wait: Nanos) -> ProcessingResponse {
    let seconds = i64::try_from(wait.0 / Nanos::SECOND.0).unwrap_or(i64::MAX);
    let nanos = i32::try_from(wait.0 % Nanos::SECOND.0).unwrap_or(0);
    ProcessingResponse {
        override_message_timeout: Some(Wire { seconds, nanos }),
        ..ProcessingResponse::default()
    }
}
