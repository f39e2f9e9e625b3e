//! Converts the engine's results to replies to proxies, without I/O.
//!
//! Guarantees:
//! - Times until hits are allowed are rounded up, times of validity down.
//!
//! Not covered:
//! - The ids of replies (see [`super::lease_stream`]).

use sluicegate_lease_protocol as wire;
use sluicegate_lease_protocol::api::lease_failure::Cause;
use sluicegate_lease_protocol::api::leased_limit::OnFailure;
use sluicegate_lease_protocol::api::rate_strategy::Kind;
use sluicegate_lease_protocol::api::rule_reply::Handling;
use sluicegate_lease_protocol::api::{
    self as api, BorrowResult, ChargeResult, CheckDecision, CheckResult, FleetReportResult,
    LeaseFailure, LeasedLimit, RateStrategy, ReportedLimit, RuleReply, borrow_result,
    charge_result, check_result,
};
use sluicegate_lease_protocol::concurrency::{ConcurrencyRule, Rejection, Sharing};
use tonic::Status;

use crate::config::FallbackMode;
use crate::config::concurrency::ConcurrencyMode;
use crate::engine::proxies::{
    ChargeOutcome, LeaseOutcome, ProxyCallError, ProxyConcurrencyLimit, ProxyHandling, ProxyLimit,
    ProxyReply, ProxyRule,
};
use crate::engine::{CheckError, Decision};
use crate::kernel::decision::{DescriptorDecision, StoreFailure, Verdict};
use crate::kernel::rate::Strategy;
use crate::kernel::units::Nanos;

/// Converts to microseconds, rounded down.
const fn micros_down(time: Nanos) -> u64 {
    time.0 / Nanos::MICRO.0
}

pub(super) fn rule(rule: ProxyRule) -> RuleReply {
    RuleReply {
        handling: handling(rule.handling).into(),
        limits: rule.limits,
        valid_for_us: rule.valid_for.map(micros_down),
        any_values: rule.is_for_any_values,
        rule: rule.path.map_or_else(String::new, |path| path.to_string()),
        shadow: rule.is_shadow,
        counter: wire::entries(rule.counter.iter().map(|(key, value)| (&**key, &**value))),
        leased: rule.leased.into_iter().map(leased_limit).collect(),
        concurrency: rule.concurrency.map(concurrency_limit),
    }
}

fn concurrency_limit(found: ProxyConcurrencyLimit) -> api::ConcurrencyLimit {
    let ProxyConcurrencyLimit { limit, bucket } = found;
    wire::concurrency::concurrency_message(&ConcurrencyRule {
        path: (*limit.path).into(),
        bucket,
        sharing: match limit.mode {
            Some(ConcurrencyMode::Local) => Sharing::Local,
            Some(ConcurrencyMode::Strict) => Sharing::Strict,
            Some(ConcurrencyMode::Shared) | None => Sharing::Shared,
        },
        rules: limit.rules,
        aggregate: limit.aggregate,
        max_duration: limit.max_duration,
        on_failure: limit.on_store_failure,
        reject: Rejection {
            status: limit.reject.status,
            retry_after: limit.reject.retry_after,
            body: (*limit.reject.body).into(),
        },
        is_shadow: limit.shadow,
    })
}

/// Converts the store's reply to the parts of `report`.
pub(super) fn report(reply: &ProxyReply) -> FleetReportResult {
    FleetReportResult {
        shares: reply.shares.as_ref().map(wire::shares::share_round_result_message),
        permits: reply.permits.as_ref().map(wire::permits::permit_report_result_message),
    }
}

const fn handling(handling: ProxyHandling) -> Handling {
    match handling {
        ProxyHandling::Unlimited => Handling::Unlimited,
        ProxyHandling::Leased => Handling::Leased,
        ProxyHandling::Ask => Handling::Ask,
        ProxyHandling::AskTogether => Handling::AskTogether,
        ProxyHandling::Forced(Verdict::Allow) => Handling::ForcedAllow,
        ProxyHandling::Forced(Verdict::Deny) => Handling::ForcedDeny,
    }
}

fn leased_limit(limit: ProxyLimit) -> LeasedLimit {
    let ProxyLimit { name, requests, period, strategy, terms, on_store_failure } = limit;
    let (sizes, max_overshoot) = wire::terms_messages(&terms);
    LeasedLimit {
        name: name.map_or_else(String::new, |name| name.to_string()),
        requests,
        period_ns: period.0,
        strategy: Some(readable_strategy(&strategy, (requests, period))),
        max_overshoot,
        duration_us: micros_down(terms.duration),
        sizes: Some(sizes),
        on_failure: on_failure(on_store_failure).into(),
    }
}

/// Returns the message of a strategy with the numbers of the limits file, which the strategy may
/// have reduced.
fn readable_strategy(strategy: &Strategy, (hits, period): (u32, Nanos)) -> RateStrategy {
    let message = wire::strategy_message(strategy);
    match message.kind() {
        Kind::CalendarWindow => message,
        _ => RateStrategy { hits, period_ns: period.0, ..message },
    }
}

/// Returns the decision of a proxy without hits and without a reply. A local share needs the
/// replica, so the failure rule of the proxy replaces it.
const fn on_failure(mode: FallbackMode) -> OnFailure {
    match mode {
        FallbackMode::Error | FallbackMode::Local => OnFailure::Unspecified,
        FallbackMode::Allow => OnFailure::Allow,
        FallbackMode::Deny => OnFailure::Deny,
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
