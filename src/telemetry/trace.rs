//! Spans of questions, for whoever collects traces.
//!
//! Guarantees: while nobody collects (see [`super::otlp`]) a question costs a load of a pointer that is null for each of its spans,
//! for its outcome and for its exemplar, and nothing else (`benches/tracing.rs`); the caller's trace goes on where it sends W3C's or B3's headers; no key and no value of a question is in a span; a dropped question
//! ends its spans.
//! Leaves out: who collects, and which traces are sampled: the SDK's own `OTEL_TRACES_SAMPLER`.

mod parent;

use std::sync::OnceLock;

use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

use super::event::{Outcome, Protocol};
use super::metrics::Traced;
pub use parent::{Headers, Propagators};

/// Who collects, if anybody does.
static LISTENER: OnceLock<Listener> = OnceLock::new();

tokio::task_local! {
    /// The span of the question that this task answers.
    static QUESTION: Context;
}

#[derive(Debug)]
struct Listener {
    tracer: SdkTracer,
    propagators: Propagators,
}

/// Who collects. The feature, which nobody ships, is what `benches/tracing.rs` compares with: a service that has no spans.
#[inline]
fn listener() -> Option<&'static Listener> {
    if cfg!(feature = "no_spans") { None } else { LISTENER.get() }
}

/// From now on questions are told to `tracer`. A second call changes nothing.
pub(super) fn tell(tracer: SdkTracer, propagators: Propagators) {
    // Who listens is settled at the start; in tests, by the first of them.
    drop(LISTENER.set(Listener { tracer, propagators }));
}

/// The span of one question, or nothing while nobody listens.
#[derive(Debug)]
#[must_use = "a span is about the work that it is around"]
pub struct Span(Option<Context>);

/// Begins the span of a question that came by `protocol` with these headers.
#[inline]
pub fn question(protocol: Protocol, headers: Headers<'_>) -> Span {
    operation((protocol, called(protocol)), headers)
}

/// The same of one that holds its place as long as its connection lasts.
pub fn hold(headers: Headers<'_>) -> Span {
    operation((Protocol::Nginx, "GET /hold"), headers)
}

#[inline]
fn operation(operation: (Protocol, &'static str), headers: Headers<'_>) -> Span {
    listener().map_or(Span(None), |listener| listener.operation(operation, headers))
}

impl Listener {
    // Apart from the question whether anybody listens, so that this alone is in the path of each question.
    #[cold]
    fn operation(&self, (protocol, name): (Protocol, &'static str), headers: Headers<'_>) -> Span {
        let Some(parent) = parent::of(self.propagators, headers) else { return Span(None) };
        let span = self
            .tracer
            .span_builder(name)
            .with_kind(SpanKind::Server)
            .with_attributes([KeyValue::new("sluicegate.protocol", protocol.as_str())])
            .start_with_context(&self.tracer, &parent);
        Span(Some(parent.with_span(span)))
    }

    #[cold]
    fn part(&self, part: Part) -> Span {
        let begun = QUESTION.try_with(|context| {
            let kind = if part == Part::Backend { SpanKind::Client } else { SpanKind::Internal };
            let builder = self.tracer.span_builder(part.as_str()).with_kind(kind);
            context.with_span(builder.start_with_context(&self.tracer, context))
        });
        Span(begun.ok())
    }
}

impl Span {
    /// Does `work` within this span, which goes on.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(context) => QUESTION.sync_scope(context.clone(), work),
            None => work(),
        }
    }

    /// Does `work` within this span, and ends it.
    pub async fn around<T>(self, work: impl Future<Output = T>) -> T {
        match self.0 {
            Some(context) => QUESTION.scope(context, work).await,
            None => work.await,
        }
    }
}

/// Says what came of the question that this task answers.
pub(super) fn outcome(outcome: Outcome) {
    if listener().is_none() {
        return;
    }
    let _outside = QUESTION.try_with(|context| {
        let span = context.span();
        span.set_attribute(KeyValue::new("sluicegate.outcome", outcome.as_str()));
        if !matches!(outcome, Outcome::Admit | Outcome::Deny | Outcome::NothingToAsk) {
            span.set_status(Status::error(outcome.as_str()));
        }
    });
}

/// The span of the question that this task answers, if it is sampled.
#[inline]
pub(super) fn sampled() -> Option<Traced> {
    listener()?;
    QUESTION.try_with(traced).ok().flatten()
}

fn traced(context: &Context) -> Option<Traced> {
    let span = context.span();
    let own = span.span_context();
    own.is_sampled().then(|| Traced {
        trace: u128::from_be_bytes(own.trace_id().to_bytes()),
        span: u64::from_be_bytes(own.span_id().to_bytes()),
    })
}

/// What a question is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Finding the limits.
    Plan,
    /// Waiting for the shared store.
    Backend,
    /// Waiting for a place under a ceiling.
    Queue,
}

impl Part {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Backend => "backend",
            Self::Queue => "queue",
        }
    }
}

/// Begins the span of a part of the question that this task answers; it ends when it is dropped.
#[inline]
pub fn part(part: Part) -> Span {
    listener().map_or(Span(None), |listener| listener.part(part))
}

/// Names of operations, as the conventions for RPC and HTTP have them.
const fn called(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Grpc => "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        Protocol::ExtAuthz => "envoy.service.auth.v3.Authorization/Check",
        Protocol::ExtProc => "envoy.service.ext_proc.v3.ExternalProcessor/Process",
        Protocol::Json => "POST /json",
        Protocol::Nginx => "GET /check",
        Protocol::AccessLog => "envoy.service.accesslog.v3.AccessLogService",
        Protocol::Permits => "sluicegate.v1.Permits/Acquire",
    }
}
