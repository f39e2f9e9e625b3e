//! Records the OpenTelemetry spans of checks.
//!
//! Guarantees:
//! - A check continues the caller's trace if it has W3C or B3 headers.
//! - A span contains no descriptor key and no descriptor value.
//! - The spans of a canceled check end at once.
//! - Without a collector, each function only loads a null pointer (see `benches/tracing.rs`).
//!
//! Not covered:
//! - The choice of sampled checks: the SDK reads `OTEL_TRACES_SAMPLER`.

mod parent;

use std::sync::OnceLock;

use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

use super::label::{EdgeOutcome, Protocol};
use super::metrics::SpanIds;
pub use parent::{HeaderLookup, Propagators};

/// Empty without a collector.
static CHECK_TRACER: OnceLock<CheckTracer> = OnceLock::new();

tokio::task_local! {
    /// The span of the check that this task decides.
    static CHECK_CONTEXT: Context;
}

#[derive(Debug)]
struct CheckTracer {
    tracer: SdkTracer,
    propagators: Propagators,
}

/// The feature `no_spans` is the baseline of `benches/tracing.rs`.
#[inline]
fn check_tracer() -> Option<&'static CheckTracer> {
    if cfg!(feature = "no_spans") { None } else { CHECK_TRACER.get() }
}

/// Sends the spans of all later checks to `tracer`. Only the first call has an effect.
pub(super) fn install_tracer(tracer: SdkTracer, propagators: Propagators) {
    // Ignore the error of a second call, which only tests make.
    drop(CHECK_TRACER.set(CheckTracer { tracer, propagators }));
}

/// The span of a check, or of one stage of a check. Empty without a collector.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub struct TraceSpan(Option<Context>);

/// Starts the span of a check that arrived over `protocol` with the request headers `headers`.
#[inline]
pub fn check_span(protocol: Protocol, headers: HeaderLookup<'_>) -> TraceSpan {
    operation_span((protocol, operation_name(protocol)), headers)
}

/// Starts the span of a `/acquire` request, whose permit is released when the connection ends.
pub fn acquire(headers: HeaderLookup<'_>) -> TraceSpan {
    operation_span((Protocol::Nginx, "GET /acquire"), headers)
}

#[inline]
fn operation_span(operation: (Protocol, &'static str), headers: HeaderLookup<'_>) -> TraceSpan {
    check_tracer().map_or(TraceSpan(None), |tracer| tracer.start_operation(operation, headers))
}

impl CheckTracer {
    // Cold, so that only the test for a tracer is inlined into every check.
    #[cold]
    fn start_operation(
        &self,
        (protocol, name): (Protocol, &'static str),
        headers: HeaderLookup<'_>,
    ) -> TraceSpan {
        let Some(parent) = parent::parent_context(self.propagators, headers) else {
            return TraceSpan(None);
        };
        let span = self
            .tracer
            .span_builder(name)
            .with_kind(SpanKind::Server)
            .with_attributes([KeyValue::new("sluicegate.protocol", protocol.as_str())])
            .start_with_context(&self.tracer, &parent);
        TraceSpan(Some(parent.with_span(span)))
    }

    #[cold]
    fn start_stage(&self, stage: CheckStage) -> TraceSpan {
        let stage_context = CHECK_CONTEXT.try_with(|context| {
            let kind =
                if stage == CheckStage::Store { SpanKind::Client } else { SpanKind::Internal };
            let builder = self.tracer.span_builder(stage.as_str()).with_kind(kind);
            context.with_span(builder.start_with_context(&self.tracer, context))
        });
        TraceSpan(stage_context.ok())
    }
}

impl TraceSpan {
    /// Runs `work` within this span, which stays open afterwards.
    pub fn sync_scope<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(context) => CHECK_CONTEXT.sync_scope(context.clone(), work),
            None => work(),
        }
    }

    /// Runs `work` within this span, and then ends the span.
    pub async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        match self.0 {
            Some(context) => CHECK_CONTEXT.scope(context, work).await,
            None => work.await,
        }
    }
}

pub(super) fn set_outcome(outcome: EdgeOutcome) {
    if check_tracer().is_none() {
        return;
    }
    let _without_span = CHECK_CONTEXT.try_with(|context| {
        let span = context.span();
        span.set_attribute(KeyValue::new("sluicegate.outcome", outcome.as_str()));
        if !matches!(outcome, EdgeOutcome::Allow | EdgeOutcome::Deny | EdgeOutcome::NothingToCheck)
        {
            span.set_status(Status::error(outcome.as_str()));
        }
    });
}

/// Returns the IDs of the span of this task's check, if the span is sampled.
#[inline]
pub(super) fn sampled_span_ids() -> Option<SpanIds> {
    check_tracer()?;
    CHECK_CONTEXT.try_with(ids_if_sampled).ok().flatten()
}

fn ids_if_sampled(context: &Context) -> Option<SpanIds> {
    let span = context.span();
    let ids = span.span_context();
    ids.is_sampled().then(|| SpanIds {
        trace_id: u128::from_be_bytes(ids.trace_id().to_bytes()),
        span_id: u64::from_be_bytes(ids.span_id().to_bytes()),
    })
}

/// A stage of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckStage {
    /// Finding the limits of the check.
    Plan,
    /// Waiting for the reply of the store.
    Store,
    /// Waiting in the queue of a concurrency limit.
    Queue,
}

impl CheckStage {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Store => "store",
            Self::Queue => "queue",
        }
    }
}

/// Starts the span of a stage of this task's check. The span ends when it is dropped.
#[inline]
pub fn stage_span(stage: CheckStage) -> TraceSpan {
    check_tracer().map_or(TraceSpan(None), |tracer| tracer.start_stage(stage))
}

/// Returns the name of a check's span, by OpenTelemetry's conventions for RPC and HTTP.
const fn operation_name(protocol: Protocol) -> &'static str {
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
