//! The one path on which the requests of all protocols acquire permits and use budgets.
//!
//! Guarantees:
//! - All protocols count and time their calls in the same way.
//! - If a request with an id has no valid check, the engine records that the id has no permits. Its release is no
//!   early release then.
//! - Acquires can be canceled at any time, and then have no permits.
//!
//! Not covered:
//! - Releases and renewals by id (see [`PermitUpdate`](crate::engine::fleet::forwarding::PermitUpdate)).
//! - Envoys with the module, which decide themselves (see [`super::grpc::leases`]).

pub(crate) mod session;

use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tokio::sync::watch;

use super::ReplyOptions;
use super::grpc::convert;
use super::{check_error_outcome, verdict_outcome};
use crate::engine::budgets::{BudgetUse, Reserve};
use crate::engine::concurrency::with_queue_time;
use crate::engine::{
    AdmissionOutcome, CheckError, Engine, PermitLifetime, RequestPermits, RequestStart, validate_id,
};
use crate::kernel::decision::Check;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{CheckAnswered, EdgeOutcome, Event as _, Protocol, RequestCompleted};

/// The interval at which a draining process checks whether its queues are empty.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Acquires permits for one protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permits<'e> {
    pub(crate) engine: &'e Engine,
    options: &'e ReplyOptions,
    protocol: Protocol,
    /// The reserve of the request. Without one, a check charges its hits to its budgets.
    reserve: Option<ReservedPart<'e>>,
}

/// The part of the process that keeps the permits of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Holder<'h> {
    /// Nobody: only rate limits apply.
    Nobody,
    /// The engine, under the request id, until the release or the deadline.
    Id {
        /// The request id.
        id: &'h str,
        /// The indexes of the descriptors that need permits; `None`: all.
        covered: Option<&'h [usize]>,
    },
    /// The caller, until it drops them. They have no deadline, because it always detects the end of
    /// the request.
    Caller,
    /// The caller, until it drops them. Without a renewal, they expire after `max_duration`.
    CallerWithDeadline,
}

impl<'h> Holder<'h> {
    /// Creates the holder of a request whose descriptors all need permits.
    pub(crate) const fn of_id(id: &'h str) -> Self {
        Self::Id { id, covered: None }
    }
}

/// The reserve of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservedPart<'h> {
    /// The request id.
    pub(crate) id: &'h str,
    /// The indexes of the descriptors whose budgets are reserved; `None`: all.
    pub(crate) budgets: Option<&'h [usize]>,
    /// The largest number of tokens that the request may use, if the proxy knows it.
    pub(crate) tokens: Option<u64>,
}

impl<'e> Permits<'e> {
    pub(crate) const fn new(
        engine: &'e Engine,
        options: &'e ReplyOptions,
        protocol: Protocol,
    ) -> Self {
        Self { engine, options, protocol, reserve: None }
    }

    /// Returns the same with a reserve of the request.
    pub(crate) const fn reserving(self, reserve: Option<ReservedPart<'e>>) -> Self {
        Self { reserve, ..self }
    }

    /// Acquires the permits of a request, uses its budgets, and decides its rate limits, within `timeout`.
    pub(crate) async fn acquire(
        self,
        request: &RateLimitRequest,
        holder: Holder<'_>,
        timeout: Option<Nanos>,
    ) -> Result<AdmissionOutcome, CheckError> {
        let check = self.to_check(request);
        let check = check.inspect_err(|_| self.record_without_permits(holder))?;
        let Some(part) = self.reserve else {
            if matches!(holder, Holder::Nobody) && !self.engine.has_budgets() {
                let decision = self.engine.decide_within(&check, timeout).await?;
                return Ok(AdmissionOutcome::Decided(decision, RequestPermits::default()));
            }
            return self.start((&check, holder), BudgetUse::Charge, timeout).await;
        };
        let ReservedPart { id, budgets, tokens } = part;
        let descriptor = budgets.and_then(<[_]>::first).copied().unwrap_or_default();
        validate_id(id).map_err(|why| CheckError::BadId { descriptor, why })?;
        let covered = budgets.map(|budgets| covered_part(&check, budgets));
        let covered = covered.as_ref().unwrap_or(&check);
        let reserve = BudgetUse::Reserve(Reserve { id, covered, tokens });
        self.start((&check, holder), reserve, timeout).await
    }

    async fn start<'q>(
        self,
        (check, holder): (&Check<'q>, Holder<'_>),
        budgets: BudgetUse<'_, 'q>,
        timeout: Option<Nanos>,
    ) -> Result<AdmissionOutcome, CheckError> {
        let start = RequestStart { covered: check, budgets };
        let lifetime = match holder {
            Holder::Id { id, covered } if covered.is_none_or(|covered| !covered.is_empty()) => {
                let first = covered.and_then(<[_]>::first).copied().unwrap_or_default();
                validate_id(id).map_err(|why| CheckError::BadId { descriptor: first, why })?;
                let covered = covered.map(|covered| covered_part(check, covered));
                let start = RequestStart { covered: covered.as_ref().unwrap_or(check), ..start };
                return self.engine.acquire_and_use((id, first), start, check, timeout).await;
            }
            Holder::Nobody | Holder::Id { .. } => {
                let covered = &covered_part(check, &[]);
                let start = RequestStart { covered, ..start };
                let lifetime = PermitLifetime::UntilReleased;
                return self.engine.admit_request(start, check, timeout, lifetime).await;
            }
            Holder::Caller => PermitLifetime::UntilReleased,
            Holder::CallerWithDeadline => PermitLifetime::MaxDuration,
        };
        self.engine.admit_request(start, check, timeout, lifetime).await
    }

    /// Records that a request with an id has no permits.
    pub(crate) fn record_without_permits(self, holder: Holder<'_>) {
        if let Holder::Id { id, .. } = holder
            && validate_id(id).is_ok()
        {
            self.engine.record_without_permits(id);
        }
    }

    /// Returns the longest time that the request may wait in queues.
    pub(crate) fn longest_queue_wait(self, request: &RateLimitRequest) -> Nanos {
        let check = convert::to_check(request, self.options);
        check.map_or(Nanos(0), |check| self.engine.longest_queue_wait(&check))
    }

    /// Counts a call without timing it.
    pub(crate) fn count(self, outcome: EdgeOutcome) {
        RequestCompleted { protocol: self.protocol, outcome }.emit();
    }

    /// Counts and times a call.
    pub(crate) fn answer<T>(
        self,
        reply: impl Future<Output = (EdgeOutcome, T)>,
    ) -> impl Future<Output = T> {
        answer((self.engine, self.protocol), reply)
    }

    fn to_check(self, request: &RateLimitRequest) -> Result<Check<'_>, CheckError> {
        let check = convert::to_check(request, self.options);
        check.inspect_err(|error| self.engine.log_refusal(&request.domain, error))
    }
}

/// Counts and times a call of `protocol`.
pub(crate) async fn answer<T>(
    (engine, protocol): (&Engine, Protocol),
    reply: impl Future<Output = (EdgeOutcome, T)>,
) -> T {
    let received_at = engine.clock().now();
    let ((outcome, reply), queue_time) = with_queue_time(reply).await;
    RequestCompleted { protocol, outcome }.emit();
    CheckAnswered { received_at, replied_at: engine.clock().now(), queue_time }.emit();
    reply
}

pub(crate) const fn outcome_of_result(
    admitted: &Result<AdmissionOutcome, CheckError>,
) -> EdgeOutcome {
    match admitted {
        Ok(admitted) => outcome_of_admission(admitted),
        Err(error) => check_error_outcome(error),
    }
}

pub(crate) const fn outcome_of_admission(admitted: &AdmissionOutcome) -> EdgeOutcome {
    match admitted {
        AdmissionOutcome::Decided(decision, _) => verdict_outcome(decision.verdict),
        AdmissionOutcome::Rejected(_) => EdgeOutcome::Deny,
    }
}

pub(crate) fn covered_part<'c>(check: &Check<'c>, covered: &[usize]) -> Check<'c> {
    let descriptors = covered.iter().filter_map(|&index| check.descriptors.get(index).cloned());
    Check { domain: check.domain, descriptors: descriptors.collect() }
}

/// Waits until this process drains and no request waits for the limits of `permits`. Until then the
/// caller must detect the request's end, because its release lets queued requests proceed.
pub(crate) async fn wait_until_drained(
    draining: &mut watch::Receiver<bool>,
    permits: Option<&RequestPermits>,
) {
    // `wait_for` fails if the channel is closed, because the process ends.
    let _is_closed = draining.wait_for(|is_draining| *is_draining).await.is_err();
    while permits.is_some_and(RequestPermits::has_waiters) {
        tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
    }
}
