//! Converts the engine's results to replies to proxies, without I/O.
//!
//! Guarantees:
//! - Times until hits are allowed are rounded up.
//!
//! Not covered:
//! - The ids of replies (see [`super::lease_stream`]).

use sluicegate_lease_protocol as wire;
use sluicegate_lease_protocol::api::lease_failure::Cause;
use sluicegate_lease_protocol::api::{
    BorrowResult, ChargeResult, CheckDecision, CheckResult, FleetReportResult, LeaseFailure,
    ReportedLimit, borrow_result, charge_result, check_result,
};
use tonic::Status;

use crate::engine::proxies::{ChargeOutcome, LeaseOutcome, ProxyCallError, ProxyReply};
use crate::engine::{CheckError, Decision};
use crate::kernel::decision::{DescriptorDecision, StoreFailure, Verdict};

/// Converts the store's reply to the parts of `report`.
pub(super) fn report(reply: &ProxyReply) -> FleetReportResult {
    FleetReportResult {
        shares: reply.shares.as_ref().map(wire::shares::share_round_result_message),
        permits: reply.permits.as_ref().map(wire::permits::permit_report_result_message),
    }
}

pub(super) fn borrow(outcome: Result<LeaseOutcome, ProxyCallError>) -> BorrowResult {
    use borrow_result::Result as Borrowed;
    let result = match outcome {
        Ok(LeaseOutcome::Applied(reply)) => Borrowed::Applied(wire::borrow_reply_message(&reply)),
        Ok(LeaseOutcome::Superseded) => Borrowed::Superseded(true),
        Ok(LeaseOutcome::StoreFull(verdict)) => Borrowed::StoreFull(verdict == Verdict::Allow),
        Ok(LeaseOutcome::Stale(_)) => {
            Borrowed::Failure(wire::failure_message(StoreFailure::OutsideWindows))
        }
        Ok(LeaseOutcome::Failed(cause)) => Borrowed::Failure(wire::failure_message(cause)),
        Err(ProxyCallError::LimitChanged) => Borrowed::LimitChanged(true),
        Err(ProxyCallError::NoConfig) => Borrowed::Failure(no_limits()),
    };
    BorrowResult { result: Some(result) }
}

pub(super) fn charge(outcome: Result<ChargeOutcome, ProxyCallError>) -> ChargeResult {
    use charge_result::Result as Charged;
    let result = match outcome {
        Ok(
            ChargeOutcome::Decided(decision)
            | ChargeOutcome::Counted(decision, _)
            | ChargeOutcome::Refunded(decision),
        ) => Charged::Decision(wire::decision_message(decision)),
        Ok(ChargeOutcome::StoreFull(verdict)) => Charged::StoreFull(verdict == Verdict::Allow),
        Ok(ChargeOutcome::Stale(_)) => {
            Charged::Failure(wire::failure_message(StoreFailure::OutsideWindows))
        }
        Ok(ChargeOutcome::Failed(cause)) => Charged::Failure(wire::failure_message(cause)),
        Err(ProxyCallError::LimitChanged) => Charged::LimitChanged(true),
        Err(ProxyCallError::NoConfig) => Charged::Failure(no_limits()),
    };
    ChargeResult { result: Some(result) }
}

/// Converts the result of a check. An invalid check ends the stream.
pub(super) fn check(decided: Result<Decision, CheckError>) -> Result<CheckResult, Status> {
    use check_result::Result as Checked;
    let result = match decided {
        Ok(decision) => Checked::Decision(check_decision(&decision)),
        Err(CheckError::NoConfig) => Checked::Failure(no_limits()),
        Err(CheckError::StoreUnavailable(cause)) => Checked::Failure(wire::failure_message(cause)),
        Err(error) => return Err(Status::invalid_argument(error.to_string())),
    };
    Ok(CheckResult { result: Some(result) })
}

fn check_decision(decision: &Decision) -> CheckDecision {
    let binding = decision.binding.and_then(|index| decision.statuses.get(index));
    CheckDecision {
        allowed: decision.verdict == Verdict::Allow,
        denied_by: decision.denied_by.as_deref().unwrap_or_default().to_owned(),
        retry_after_us: decision.retry_after.map(wire::micros),
        reported: binding.and_then(|status| reported_limit(&status.decision)),
        ban_status: decision.ban_status.map(Into::into),
    }
}

fn reported_limit(decision: &DescriptorDecision) -> Option<ReportedLimit> {
    let limit = decision.header_limit()?;
    Some(ReportedLimit {
        requests: limit.requests,
        period_ns: limit.period.0,
        remaining: decision.headroom.remaining.0,
        reset_after_us: wire::micros(decision.headroom.reset_after),
    })
}

fn no_limits() -> LeaseFailure {
    LeaseFailure { cause: Cause::NoLimits.into() }
}
