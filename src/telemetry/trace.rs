//! The spans of checks.
//!
//! Without a collector, each span, each outcome and each exemplar costs one load of a null pointer
//! (measured by `benches/tracing.rs`).
//!
//! Guarantees:
//! - A check continues the caller's trace if it has W3C or B3 headers.
//! - A span contains no descriptor key and no descriptor value.
//! - The spans of a canceled check end at once.
//!
//! Not covered:
//! - Exporters (see [`super::otlp`]).
//! - Sampling: the SDK reads `OTEL_TRACES_SAMPLER`.

mod parent;

use std::sync::OnceLock;

use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

use super::event::{Outcome, Protocol};
use super::metrics::Traced;
pub use parent::{Headers, Propagators};

/// The tracer. Empty without a collector.
static LISTENER: OnceLock<Listener> = OnceLock::new();

tokio::task_local! {
    /// The span of the check that this task decides.
    static QUESTION: Context;
}

#[derive(Debug)]
struct Listener {
    tracer: SdkTracer,
    propagators: Propagators,
}

/// Returns the tracer. The feature `no_spans` exists only as the baseline of `benches/tracing.rs`.
#[inline]
fn listener() -> Option<&'static Listener> {
    if cfg!(feature = "no_spans") { None } else { LISTENER.get() }
}

/// Sends the spans of all later checks to `tracer`. Only the first call has an effect.
pub(super) fn tell(tracer: SdkTracer, propagators: Propagators) {
    // An error is a second call, which happens only in tests.
    drop(LISTENER.set(Listener { tracer, propagators }));
}

/// The span of a check or of one stage. Empty without a collector.
#[derive(Debug)]
#[must_use = "a span is about the work that it is around"]
pub struct Span(Option<Context>);

/// Starts the span of a check that arrived over `protocol` with these headers.
#[inline]
pub fn question(protocol: Protocol, headers: Headers<'_>) -> Span {
    operation((protocol, called(protocol)), headers)
}

/// Starts the span of a `/hold` request, whose permit lasts as long as its connection.
pub fn hold(headers: Headers<'_>) -> Span {
    operation((Protocol::Nginx, "GET /hold"), headers)
}

#[inline]
fn operation(operation: (Protocol, &'static str), headers: Headers<'_>) -> Span {
    listener().map_or(Span(None), |listener| listener.operation(operation, headers))
}

impl Listener {
    // A separate cold function, so that only the test for a tracer is inlined into every check.
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
    /// Runs `work` within this span. The span stays open.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(context) => QUESTION.sync_scope(context.clone(), work),
            None => work(),
        }
    }

    /// Runs `work` within this span and then ends the span.
    pub async fn around<T>(self, work: impl Future<Output = T>) -> T {
        match self.0 {
            Some(context) => QUESTION.scope(context, work).await,
            None => work.await,
        }
    }
}

/// Sets the outcome of the check that this task decides.
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

/// Returns the identity of this task's check span if it is sampled.
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

/// A stage of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Finding the limits.
    Plan,
    /// Waiting for the store.
    Backend,
    /// Waiting in the queue of a concurrency limit.
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

/// Starts the span of a stage of this task's check. The span ends when it is dropped.
#[inline]
pub fn part(part: Part) -> Span {
    listener().map_or(Span(None), |listener| listener.part(part))
}

/// Returns the operation name according to OpenTelemetry's conventions for RPC and HTTP.
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
