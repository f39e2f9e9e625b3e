//! Converts the engine's results to replies to proxies, without I/O.
//!
//! Guarantees:
//! - Times until hits are allowed are rounded up, times of validity down.
//!
//! Not covered:
//! - The ids of replies (see [`super::lease_stream`]).

use tonic::Status;

use super::api::counter_decision::Verdict as CounterVerdict;
use super::api::lease_failure::Cause;
use super::api::lease_sizes::Sizes;
use super::api::leased_limit::OnFailure;
use super::api::rate_strategy::Kind;
use super::api::rule_reply::Handling;
use super::api::{
    BorrowReply, BorrowResult, ChargeResult, CheckDecision, CheckResult, CounterDecision,
    LeaseEntry, LeaseFailure, LeaseSizes, LeasedLimit, RateStrategy, ReportedLimit, RuleReply,
    borrow_result, charge_result, check_result,
};
use crate::config::FallbackMode;
use crate::config::tree::KeyEntries;
use crate::engine::proxies::{
    ChargeOutcome, LeaseOutcome, ProxyCallError, ProxyHandling, ProxyLimit, ProxyRule,
};
use crate::engine::{CheckError, Decision};
use crate::kernel::decision::{DescriptorDecision, StoreFailure, Verdict};
use crate::kernel::lease::sizer::LeaseSizing;
use crate::kernel::lease::{self, Overshoot};
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::rate::{self, Headroom, Strategy};
use crate::kernel::units::Nanos;

/// Converts to microseconds, rounded up.
const fn micros_up(time: Nanos) -> u64 {
    time.0.div_ceil(Nanos::MICRO.0)
}

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
        counter: entries(rule.counter),
        leased: rule.leased.into_iter().map(leased_limit).collect(),
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

fn entries(entries: KeyEntries) -> Vec<LeaseEntry> {
    let entry =
        |(key, value): (Box<str>, Box<str>)| LeaseEntry { key: key.into(), value: value.into() };
    entries.into_iter().map(entry).collect()
}

fn leased_limit(limit: ProxyLimit) -> LeasedLimit {
    let ProxyLimit { name, requests, period, strategy, terms, on_store_failure } = limit;
    let max_overshoot = match terms.overshoot {
        Overshoot::AtMost(hits) => Some(hits.0),
        Overshoot::InWindow => None,
    };
    LeasedLimit {
        name: name.map_or_else(String::new, |name| name.to_string()),
        requests,
        period_ns: period.0,
        strategy: Some(rate_strategy(&strategy, (requests, period))),
        max_overshoot,
        duration_us: micros_down(terms.duration),
        sizes: Some(LeaseSizes { sizes: Some(sizes(terms.sizing)) }),
        on_failure: on_failure(on_store_failure).into(),
    }
}

const fn sizes(sizing: LeaseSizing) -> Sizes {
    match sizing {
        LeaseSizing::Fixed(hits) => Sizes::Fixed(hits.0),
        LeaseSizing::Recent => Sizes::Recent(true),
        LeaseSizing::Learned => Sizes::Learned(true),
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

fn rate_strategy(strategy: &Strategy, (hits, period): (u32, Nanos)) -> RateStrategy {
    let (kind, burst, window_starts_us) = match strategy {
        Strategy::Gcra(gcra) => (Kind::Gcra, gcra.burst(), Vec::new()),
        Strategy::SlidingWindow(_) => (Kind::SlidingWindow, 0, Vec::new()),
        Strategy::SlidingLog(_) => (Kind::SlidingLog, 0, Vec::new()),
        Strategy::FixedWindow(window) => match window.windows() {
            Windows::Every(_) => (Kind::FixedWindow, 0, Vec::new()),
            Windows::Calendar { starts } => {
                (Kind::CalendarWindow, 0, starts.iter().copied().map(micros_down).collect())
            }
        },
    };
    RateStrategy {
        kind: kind.into(),
        hits,
        period_ns: if kind == Kind::CalendarWindow { 0 } else { period.0 },
        burst,
        charges_excess: strategy.on_excess().is_charge(),
        window_starts_us,
    }
}

pub(super) fn borrow(outcome: Result<LeaseOutcome, ProxyCallError>) -> BorrowResult {
    use borrow_result::Result as Borrowed;
    let result = match outcome {
        Ok(LeaseOutcome::Applied(reply)) => Borrowed::Applied(borrow_reply(&reply)),
        Ok(LeaseOutcome::Superseded) => Borrowed::Superseded(true),
        Ok(LeaseOutcome::StoreFull(verdict)) => Borrowed::StoreFull(verdict == Verdict::Allow),
        Ok(LeaseOutcome::Stale(_)) => Borrowed::Failure(failure(StoreFailure::OutsideWindows)),
        Ok(LeaseOutcome::Failed(cause)) => Borrowed::Failure(failure(cause)),
        Err(ProxyCallError::LimitChanged) => Borrowed::LimitChanged(true),
        Err(ProxyCallError::NoConfig) => Borrowed::Failure(no_limits()),
    };
    BorrowResult { result: Some(result) }
}

fn borrow_reply(reply: &lease::BorrowReply) -> BorrowReply {
    BorrowReply {
        decision: Some(counter_decision(reply.decision)),
        granted: reply.granted.0,
        kept: reply.kept.0,
        outstanding_elsewhere: reply.outstanding_elsewhere.0,
        valid_for_us: micros_down(reply.valid_for),
    }
}

pub(super) fn charge(outcome: Result<ChargeOutcome, ProxyCallError>) -> ChargeResult {
    use charge_result::Result as Charged;
    let result = match outcome {
        Ok(
            ChargeOutcome::Decided(decision)
            | ChargeOutcome::Counted(decision, _)
            | ChargeOutcome::Refunded(decision),
        ) => Charged::Decision(counter_decision(decision)),
        Ok(ChargeOutcome::StoreFull(verdict)) => Charged::StoreFull(verdict == Verdict::Allow),
        Ok(ChargeOutcome::Stale(_)) => Charged::Failure(failure(StoreFailure::OutsideWindows)),
        Ok(ChargeOutcome::Failed(cause)) => Charged::Failure(failure(cause)),
        Err(ProxyCallError::LimitChanged) => Charged::LimitChanged(true),
        Err(ProxyCallError::NoConfig) => Charged::Failure(no_limits()),
    };
    ChargeResult { result: Some(result) }
}

fn counter_decision(decision: rate::CounterDecision) -> CounterDecision {
    let (verdict, Headroom { remaining, reset_after }, retry_after) = match decision {
        rate::CounterDecision::Allow(room) => (CounterVerdict::Allow, room, Nanos(0)),
        rate::CounterDecision::Deny { retry_after, headroom } => {
            (CounterVerdict::Deny, headroom, retry_after)
        }
        rate::CounterDecision::ExceedsLimit(room) => (CounterVerdict::ExceedsLimit, room, Nanos(0)),
        rate::CounterDecision::OutsideWindows => {
            (CounterVerdict::OutsideWindows, Headroom::default(), Nanos(0))
        }
    };
    CounterDecision {
        verdict: verdict.into(),
        remaining: remaining.0,
        reset_after_us: micros_up(reset_after),
        retry_after_us: micros_up(retry_after),
    }
}

/// Converts the result of a check. An invalid check ends the stream.
pub(super) fn check(decided: Result<Decision, CheckError>) -> Result<CheckResult, Status> {
    use check_result::Result as Checked;
    let result = match decided {
        Ok(decision) => Checked::Decision(check_decision(&decision)),
        Err(CheckError::NoConfig) => Checked::Failure(no_limits()),
        Err(CheckError::StoreUnavailable(cause)) => Checked::Failure(failure(cause)),
        Err(error) => return Err(Status::invalid_argument(error.to_string())),
    };
    Ok(CheckResult { result: Some(result) })
}

fn check_decision(decision: &Decision) -> CheckDecision {
    let binding = decision.binding.and_then(|index| decision.statuses.get(index));
    CheckDecision {
        allowed: decision.verdict == Verdict::Allow,
        denied_by: decision.denied_by.as_deref().unwrap_or_default().to_owned(),
        retry_after_us: decision.retry_after.map(micros_up),
        reported: binding.and_then(|status| reported_limit(&status.decision)),
    }
}

fn reported_limit(decision: &DescriptorDecision) -> Option<ReportedLimit> {
    let limit = decision.header_limit()?;
    Some(ReportedLimit {
        requests: limit.requests,
        period_ns: limit.period.0,
        remaining: decision.headroom.remaining.0,
        reset_after_us: micros_up(decision.headroom.reset_after),
    })
}

fn no_limits() -> LeaseFailure {
    LeaseFailure { cause: Cause::NoLimits.into() }
}

/// Converts a failure. Only a message that was certainly not sent gets `OVERLOADED`, because the
/// proxy may then spend the returned hits again.
fn failure(failure: StoreFailure) -> LeaseFailure {
    let cause = match failure {
        StoreFailure::TimedOut => Cause::TimedOut,
        StoreFailure::Unreachable | StoreFailure::ConnectionLost => Cause::Unreachable,
        StoreFailure::Overloaded | StoreFailure::BreakerOpen => Cause::Overloaded,
        _ => Cause::StoreFailed,
    };
    LeaseFailure { cause: cause.into() }
}
