//! Records the OpenTelemetry spans of checks.
//!
//! Without a collector, each call of this module only loads a null pointer (measured by
//! `benches/tracing.rs`).
//!
//! Guarantees:
//! - A check continues the caller's trace if it has W3C or B3 headers.
//! - A span contains no descriptor key and no descriptor value.
//! - The spans of a canceled check end at once.
//!
//! Not covered:
//! - Exporters (see [`super::otlp`]).
//! - The choice of sampled checks: the SDK reads `OTEL_TRACES_SAMPLER`.

mod parent;

use std::sync::OnceLock;

use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

use super::label::{EdgeOutcome, Protocol};
use super::metrics::SpanIds;
pub use parent::{HeaderLookup, Propagators};

/// The tracer for the spans of checks. Empty without a collector.
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

/// Returns the tracer for the spans of checks. The feature `no_spans` exists only as the baseline
/// of `benches/tracing.rs`.
#[inline]
fn check_tracer() -> Option<&'static CheckTracer> {
    if cfg!(feature = "no_spans") { None } else { CHECK_TRACER.get() }
}

/// Sends the spans of all later checks to `tracer`. Only the first call has an effect.
pub(super) fn install_tracer(tracer: SdkTracer, propagators: Propagators) {
    // Ignore the error of a second call, which happens only in tests.
    drop(CHECK_TRACER.set(CheckTracer { tracer, propagators }));
}

/// The span of a check, or of one stage of a check. Empty without a collector.
#[derive(Debug)]
#[must_use = "a span is about the work that it is around"]
pub struct TraceSpan(Option<Context>);

/// Starts the span of a check that arrived over `protocol` with the request headers `headers`.
#[inline]
pub fn check_span(protocol: Protocol, headers: HeaderLookup<'_>) -> TraceSpan {
    operation_span((protocol, operation_name(protocol)), headers)
}

/// Starts the span of a `/acquire` request, whose permit lasts as long as its connection.
pub fn acquire(headers: HeaderLookup<'_>) -> TraceSpan {
    operation_span((Protocol::Nginx, "GET /acquire"), headers)
}

#[inline]
fn operation_span(operation: (Protocol, &'static str), headers: HeaderLookup<'_>) -> TraceSpan {
    check_tracer().map_or(TraceSpan(None), |listener| listener.start_operation(operation, headers))
}

impl CheckTracer {
    // A separate cold function, so that only the test for a tracer is inlined into every check.
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
    fn start_stage(&self, part: CheckStage) -> TraceSpan {
        let begun = CHECK_CONTEXT.try_with(|context| {
            let kind =
                if part == CheckStage::Store { SpanKind::Client } else { SpanKind::Internal };
            let builder = self.tracer.span_builder(part.as_str()).with_kind(kind);
            context.with_span(builder.start_with_context(&self.tracer, context))
        });
        TraceSpan(begun.ok())
    }
}

impl TraceSpan {
    /// Returns `true` if the span is recorded.
    #[must_use]
    pub const fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Runs `work` within this span and then ends the span.
    pub async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        match self.0 {
            Some(context) => CHECK_CONTEXT.scope(context, work).await,
            None => work.await,
        }
    }
}

/// Sets the outcome of the check that this task decides.
pub(super) fn set_outcome(outcome: EdgeOutcome) {
    if check_tracer().is_none() {
        return;
    }
    let _outside = CHECK_CONTEXT.try_with(|context| {
        let span = context.span();
        span.set_attribute(KeyValue::new("sluicegate.outcome", outcome.as_str()));
        if !matches!(outcome, EdgeOutcome::Allow | EdgeOutcome::Deny | EdgeOutcome::NothingToCheck)
        {
            span.set_status(Status::error(outcome.as_str()));
        }
    });
}

/// Returns the identity of the span of this task's check, if the span is sampled.
#[inline]
pub(super) fn sampled_span_ids() -> Option<SpanIds> {
    check_tracer()?;
    CHECK_CONTEXT.try_with(ids_if_sampled).ok().flatten()
}

fn ids_if_sampled(context: &Context) -> Option<SpanIds> {
    let span = context.span();
    let own = span.span_context();
    own.is_sampled().then(|| SpanIds {
        trace_id: u128::from_be_bytes(own.trace_id().to_bytes()),
        span_id: u64::from_be_bytes(own.span_id().to_bytes()),
    })
}

crate::kernel::named_enum! {
    /// A stage of a check.
    pub enum CheckStage {
        /// Finding the limits of the check.
        Plan = "plan",
        /// Waiting for the reply of the store.
        Store = "store",
        /// Waiting in the queue of a concurrency limit.
        Queue = "queue",
    }
}

/// Starts the span of a stage of this task's check. The span ends when it is dropped.
#[inline]
pub fn stage_span(part: CheckStage) -> TraceSpan {
    check_tracer().map_or(TraceSpan(None), |listener| listener.start_stage(part))
}

/// Returns the name of a check's span, according to OpenTelemetry's conventions for RPC and HTTP.
const fn operation_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Grpc => "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        Protocol::ExtAuthz => "envoy.service.auth.v3.Authorization/Check",
        Protocol::ExtProc => "envoy.service.ext_proc.v3.ExternalProcessor/Process",
        Protocol::Json => "POST /json",
        Protocol::Nginx => "GET /check",
        Protocol::AccessLog => "envoy.service.accesslog.v3.AccessLogService",
        Protocol::Permits => "sluicegate.v1.Permits/Acquire",
        Protocol::Leases => "sluicegate.v1.Leases/Exchange",
        Protocol::Budgets => "sluicegate.v1.Budgets/Reserve",
    }
}
