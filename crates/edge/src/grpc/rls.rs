//! Serves `envoy.service.ratelimit.v3.RateLimitService`: rate limit checks from Envoy.
//!
//! Guarantees:
//! - Each call gets one decision or one error.
//! - If the call has a `grpc-timeout`, the reply is sent before this timeout.

use std::net::IpAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::metadata::MetadataMap;
use tonic::{Response, Status};

use super::call_timeout::caller_timeout;
use super::reserved_keys::{ReleaseCall, RequestEnd, RequestStart, ReservedCall};
use super::{convert, reserved_keys};
use crate::engine::concurrency::with_queue_time;
use crate::engine::fleet::forwarding::PermitUpdate;
use crate::engine::{AdmissionOutcome, CheckError, Decision, Engine};
use crate::kernel::decision::{Check, Verdict};
use crate::kernel::units::Nanos;
use crate::mirror::Mirror;
use crate::permits::{Holder, Permits, ReservedPart, covered_part};
use crate::telemetry::event::{CheckAnswered, EdgeOutcome, Event as _, Protocol, RequestCompleted};
use crate::telemetry::stats::TimedMethod;
use crate::telemetry::trace;
use crate::{ReplyOptions, check_error_outcome, count_check_error};

/// The gRPC header of a peek, which `sluicegate ask --peek` sends. Its value is ignored.
pub const PEEK_HEADER: &str = "x-sluicegate-peek";

pub(crate) type RlsReply = Result<(RateLimitResponse, EdgeOutcome), CheckError>;

/// The gRPC service `RateLimitService`, for the connection of one client.
#[derive(Clone, Debug)]
pub struct RateLimitService {
    engine: Arc<Engine>,
    reporting: Arc<ReplyOptions>,
    source: Option<IpAddr>,
    mirror: Option<Mirror>,
}

impl RateLimitService {
    /// Creates the service for a client with an unknown address.
    #[must_use]
    pub fn new(engine: Arc<Engine>, reporting: ReplyOptions) -> Self {
        Self { engine, reporting: Arc::new(reporting), source: None, mirror: None }
    }

    /// Sends a sample of checks to another rate limit service too.
    #[must_use]
    pub fn with_mirror(self, mirror: Option<Mirror>) -> Self {
        Self { mirror, ..self }
    }

    /// Returns the same service for a client with the IP address `source`.
    #[must_use]
    pub fn for_source(&self, source: Option<IpAddr>) -> Self {
        Self { source, ..self.clone() }
    }

    /// Decides a call of `ShouldRateLimit`, or applies the end of its request. `metadata` has the
    /// headers of the call.
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
        let is_peek = metadata.contains_key(PEEK_HEADER);
        // A peek without its reserved keys: it acquires, reserves and settles nothing.
        if call == Ok(ReservedCall::Plain) || is_peek && call.is_ok() {
            let decision = async {
                let timeout = caller_timeout(metadata);
                let reply = if is_peek {
                    Box::pin(self.peek(&request, timeout)).await
                } else {
                    self.check(&request, timeout).await
                };
                self.finish(reply, (received_at, Nanos(0)))
            };
            return span.scope(decision).await;
        }
        // Boxed, because the future is large and most calls have returned above.
        Box::pin(span.scope(async {
            let (reply, queue_time) = match call {
                Ok(call) => {
                    with_queue_time(self.resolve((call, &request), caller_timeout(metadata))).await
                }
                Err(error) => {
                    self.engine.log_refusal(&request.domain, &error);
                    (Err(error), Nanos(0))
                }
            };
            self.finish(reply, (received_at, queue_time))
        }))
        .await
    }

    pub(super) fn reject(&self, error: CheckError) -> Result<Response<RateLimitResponse>, Status> {
        self.finish(Err(error), (self.engine.clock().now(), Nanos(0)))
    }

    /// Decides a check without reserved keys.
    async fn check(&self, request: &RateLimitRequest, timeout: Option<Nanos>) -> RlsReply {
        let reply = if self.engine.has_budgets() {
            Box::pin(self.check_and_charge(request, timeout)).await?
        } else {
            let check = self.to_check(request)?;
            let decision = self.engine.decide_within(&check, timeout).await?;
            self.to_reply(request, &decision)
        };
        if let Some(mirror) = &self.mirror {
            mirror.offer(request, &reply.0);
        }
        Ok(reply)
    }

    /// Decides a check, and charges its hits to its budgets.
    async fn check_and_charge(
        &self,
        request: &RateLimitRequest,
        timeout: Option<Nanos>,
    ) -> RlsReply {
        let permits = Permits::new(&self.engine, &self.reporting, Protocol::Grpc);
        let admitted = permits.acquire(request, Holder::Nobody, timeout).await?;
        let covered: Vec<_> = (0..request.descriptors.len()).collect();
        Ok(self.admission_reply(request, &covered, &admitted))
    }

    /// Decides a check as if each descriptor had one hit, and charges nothing.
    async fn peek(&self, request: &RateLimitRequest, timeout: Option<Nanos>) -> RlsReply {
        let check = self.to_check(request)?;
        let decision = self.engine.peek(check, timeout).await?;
        let (mut reply, outcome) = self.to_reply(request, &decision);
        convert::add_retry_after(&mut reply, decision.retry_after);
        Ok((reply, outcome))
    }

    /// Decides a check, starts a request or ends it, within `timeout`.
    pub(crate) async fn resolve(
        &self,
        (call, request): (ReservedCall, &RateLimitRequest),
        timeout: Option<Nanos>,
    ) -> RlsReply {
        match call {
            ReservedCall::Plain => self.check(request, timeout).await,
            ReservedCall::Start(start) => {
                let mut reply = self.start(request, &start, timeout).await?;
                if let Some(owner) = self.engine.owner().filter(|_| !start.permits.is_empty()) {
                    convert::add_owner(&mut reply.0, owner);
                }
                Ok(reply)
            }
            ReservedCall::End(RequestEnd { id, release, budgets, usage }) => {
                if let Some(ReleaseCall { owner, outcome, rtt }) = release {
                    let update = PermitUpdate::release(&id, self.source, outcome, rtt);
                    self.engine.apply_or_forward(update, owner.as_deref());
                }
                if !budgets.is_empty() {
                    let check = covered_part(&self.to_check(request)?, &budgets);
                    self.engine.settle(&check, &id, usage, timeout).await?;
                }
                Ok((convert::release_response(request), EdgeOutcome::Allow))
            }
        }
    }

    /// Acquires permits and reserves in budgets, then decides the rate limits.
    async fn start(
        &self,
        request: &RateLimitRequest,
        start: &RequestStart,
        timeout: Option<Nanos>,
    ) -> RlsReply {
        let RequestStart { id, permits, budgets, tokens } = start;
        let (indexes, tokens) = (Some(&budgets[..]), *tokens);
        let part = ReservedPart { id, budgets: indexes, tokens };
        let edge = Permits::new(&self.engine, &self.reporting, Protocol::Grpc)
            .reserving((!budgets.is_empty()).then_some(part));
        let holder = Holder::Id { id, covered: Some(permits) };
        let covered = [&permits[..], &budgets[..]].concat();
        let admitted = edge.acquire(request, holder, timeout).await?;
        Ok(self.admission_reply(request, &covered, &admitted))
    }

    fn admission_reply(
        &self,
        request: &RateLimitRequest,
        covered: &[usize],
        admitted: &AdmissionOutcome,
    ) -> (RateLimitResponse, EdgeOutcome) {
        match admitted {
            AdmissionOutcome::Decided(decision, _) => self.to_reply(request, decision),
            AdmissionOutcome::Rejected(rejection) => (
                convert::rejection_response(request, covered, rejection, &self.reporting),
                EdgeOutcome::Deny,
            ),
        }
    }

    fn to_check<'r>(&self, request: &'r RateLimitRequest) -> Result<Check<'r>, CheckError> {
        let check = convert::to_check(request, &self.reporting);
        check.inspect_err(|error| self.engine.log_refusal(&request.domain, error))
    }

    fn to_reply(
        &self,
        request: &RateLimitRequest,
        decision: &Decision,
    ) -> (RateLimitResponse, EdgeOutcome) {
        let outcome = match decision.verdict {
            Verdict::Allow => EdgeOutcome::Allow,
            Verdict::Deny => EdgeOutcome::Deny,
        };
        (convert::to_response(request, decision, &self.reporting), outcome)
    }

    /// Counts and times a call, and converts its reply.
    fn finish(
        &self,
        result: RlsReply,
        (received_at, queue_time): (Nanos, Nanos),
    ) -> Result<Response<RateLimitResponse>, Status> {
        let (reply, outcome) = match result {
            Ok((reply, outcome)) => (Ok(Response::new(reply)), outcome),
            Err(error) => {
                count_check_error(&self.engine, &error);
                (Err(convert::error_status(&error)), check_error_outcome(&error))
            }
        };
        RequestCompleted { protocol: Protocol::Grpc, outcome }.emit();
        let now = self.engine.clock().now();
        CheckAnswered { received_at, replied_at: now, queue_time }.emit();
        if let Some(stats) = self.engine.stats() {
            stats.record_call(TimedMethod::ShouldRateLimit, now, now.since(received_at));
        }
        reply
    }
}
