//! Serves `envoy.service.ratelimit.v3.RateLimitService`: rate limit checks from Envoy.
//!
//! Guarantees:
//! - Each call gets one decision or one error.
//! - If the call has a `grpc-timeout`, the reply is sent before this timeout.
//!
//! Not covered:
//! - Reading and writing messages (see [`convert`]); deciding (see [`Engine`]).

use std::net::IpAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::metadata::MetadataMap;
use tonic::{Response, Status};

use super::reserved_keys::ReservedCall;
use super::{convert, reserved_keys};
use crate::edge::{ReplyOptions, check_outcome, count_check_error};
use crate::engine::concurrency::with_queue_time;
use crate::engine::fleet::forwarding::PermitUpdate;
use crate::engine::{AdmissionOutcome, CheckError, Decision, Engine};
use crate::kernel::decision::{Check, Verdict};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{CheckAnswered, EdgeOutcome, Event as _, Protocol, RequestCompleted};
use crate::telemetry::stats::TimedMethod;
use crate::telemetry::trace;

/// The time for sending the reply, subtracted from the caller's `grpc-timeout`.
const REPLY_MARGIN: Nanos = Nanos(2_000_000);

type RlsReply = Result<(RateLimitResponse, EdgeOutcome), CheckError>;

/// The gRPC service `RateLimitService`, for the connection of one client.
#[derive(Clone, Debug)]
pub struct RateLimitService {
    engine: Arc<Engine>,
    reporting: Arc<ReplyOptions>,
    source: Option<IpAddr>,
}

impl RateLimitService {
    /// Creates the service for a client with an unknown address. Checks are decided by `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, reporting: ReplyOptions) -> Self {
        Self { engine, reporting: Arc::new(reporting), source: None }
    }

    /// Returns the same service for a client with the IP address `source`.
    #[must_use]
    pub fn for_source(&self, source: Option<IpAddr>) -> Self {
        Self { source, ..self.clone() }
    }

    /// Decides the call `ShouldRateLimit`, or applies its release of permits. `metadata`
    /// contains the headers of the call.
    ///
    /// # Errors
    /// The gRPC status if the request is invalid or the check fails.
    pub async fn decide_call(
        &self,
        metadata: &MetadataMap,
        mut request: RateLimitRequest,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let received_at = self.engine.clock().now();
        let header = |name: &str| metadata.get(name)?.to_str().ok();
        let span = trace::check_span(Protocol::Grpc, &header);
        let call = reserved_keys::take_reserved(&mut request);
        if call == Ok(ReservedCall::Plain) {
            let decided = async {
                let replied = self.check(&request, caller_timeout(metadata)).await;
                self.finish(replied, (received_at, Nanos(0)))
            };
            return span.scope(decided).await;
        }
        // Boxed, because the future is large and most calls have returned above.
        Box::pin(span.scope(async {
            let (replied, queued) = match call {
                Ok(call) => {
                    with_queue_time(self.resolve((call, &request), caller_timeout(metadata))).await
                }
                Err(refusal) => (Err(refusal), Nanos(0)),
            };
            self.finish(replied, (received_at, queued))
        }))
        .await
    }

    pub(super) fn reject(
        &self,
        refusal: CheckError,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.finish(Err(refusal), (self.engine.clock().now(), Nanos(0)))
    }

    /// Decides a check of rate limits only.
    async fn check(&self, request: &RateLimitRequest, timeout: Option<Nanos>) -> RlsReply {
        let check = convert::to_check(request, &self.reporting)?;
        let answer = self.engine.decide_within(&check, timeout).await?;
        Ok(self.to_reply(request, &answer))
    }

    /// Decides a check, acquires permits or applies a release, within the caller's timeout.
    async fn resolve(
        &self,
        (call, request): (ReservedCall, &RateLimitRequest),
        patience: Option<Nanos>,
    ) -> RlsReply {
        match call {
            ReservedCall::Plain => self.check(request, patience).await,
            ReservedCall::Acquire { id, covered } => {
                let mut replied = self.acquire(request, (&id, &covered), patience).await?;
                if let Some(owner) = self.engine.owner() {
                    convert::add_owner(&mut replied.0, owner);
                }
                Ok(replied)
            }
            ReservedCall::Release { id, owner, outcome, rtt } => {
                self.engine.apply_or_forward(
                    PermitUpdate::release(&id, self.source, outcome, rtt),
                    owner.as_deref(),
                );
                Ok((convert::release_response(request), EdgeOutcome::Allow))
            }
        }
    }

    async fn acquire(
        &self,
        request: &RateLimitRequest,
        (id, covered): (&str, &[usize]),
        patience: Option<Nanos>,
    ) -> RlsReply {
        let check = convert::to_check(request, &self.reporting);
        let question = check.inspect_err(|_| self.engine.record_without_permits(id))?;
        let covered_descriptors =
            covered.iter().filter_map(|&index| question.descriptors.get(index).cloned());
        let concurrency_check =
            Check { domain: question.domain, descriptors: covered_descriptors.collect() };
        let first = covered.first().copied().unwrap_or_default();
        match self.engine.acquire((id, first), &concurrency_check, &question, patience).await? {
            AdmissionOutcome::Decided(answer, _) => Ok(self.to_reply(request, &answer)),
            AdmissionOutcome::Rejected(rejection) => {
                Ok((convert::rejection_response(request, covered, &rejection), EdgeOutcome::Deny))
            }
        }
    }

    fn to_reply(
        &self,
        request: &RateLimitRequest,
        answer: &Decision,
    ) -> (RateLimitResponse, EdgeOutcome) {
        let outcome = match answer.verdict {
            Verdict::Allow => EdgeOutcome::Allow,
            Verdict::Deny => EdgeOutcome::Deny,
        };
        (convert::to_response(request, answer, &self.reporting), outcome)
    }

    /// Counts and times the call, and converts its reply. The two times are the
    /// arrival of the call and its time in queues.
    fn finish(
        &self,
        replied: RlsReply,
        (received_at, queued): (Nanos, Nanos),
    ) -> Result<Response<RateLimitResponse>, Status> {
        let (reply, outcome) = match replied {
            Ok((reply, outcome)) => (Ok(Response::new(reply)), outcome),
            Err(refused) => {
                count_check_error(&self.engine, &refused);
                (Err(convert::error_status(&refused)), check_outcome(&Err(refused)))
            }
        };
        RequestCompleted { protocol: Protocol::Grpc, outcome }.emit();
        let now = self.engine.clock().now();
        CheckAnswered { received_at, replied_at: now, queue_time: queued }.emit();
        if let Some(stats) = self.engine.stats() {
            stats.record_call(TimedMethod::ShouldRateLimit, now, now.since(received_at));
        }
        reply
    }
}

/// Returns the time for deciding a call: its `grpc-timeout` minus 2 ms
/// for the reply, but at least half of the `grpc-timeout`.
#[must_use]
pub fn caller_timeout(headers: &MetadataMap) -> Option<Nanos> {
    let whole = parse_timeout(headers.get("grpc-timeout")?.to_str().ok()?)?;
    Some(whole.since(REPLY_MARGIN).max(Nanos(whole.0 / 2)))
}

/// Parses a `grpc-timeout`, such as `20m` for 20 ms: at most eight digits
/// and a unit. Source: the specification "gRPC over HTTP/2".
fn parse_timeout(text: &str) -> Option<Nanos> {
    let (value, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit: u64 = match unit {
        "H" => 3_600_000_000_000,
        "M" => 60_000_000_000,
        "S" => 1_000_000_000,
        "m" => 1_000_000,
        "u" => 1_000,
        "n" => 1,
        _ => return None,
    };
    let value: u64 = Some(value).filter(|value| value.len() <= 8)?.parse().ok()?;
    value.checked_mul(unit).map(Nanos)
}
