//! Converts the requests of a proxy to calls of the engine, and the results to replies.
//!
//! Guarantees:
//! - A request with an invalid field is refused before any counter changes.

use sluicegate_lease_protocol as wire;
use sluicegate_lease_protocol::api::lease_failure::Cause;
use sluicegate_lease_protocol::api::leased_limit::OnFailure;
use sluicegate_lease_protocol::api::rule_reply::Handling;
use sluicegate_lease_protocol::api::{self, borrow_result, charge_result, check_result};
use smallvec::SmallVec;
use tonic::Status;

use crate::edge::check_outcome;
use crate::edge::grpc::convert::{MAX_DESCRIPTORS, MAX_ENTRIES, MAX_ENTRY_BYTES};
use crate::engine::proxies::rule::{ProxyHandling, ProxyLimit, ProxyRule};
use crate::engine::proxies::usage::ProxyUsage;
use crate::engine::proxies::{ChargeOutcome, LeaseOutcome, ProxyCounter, ProxyRefusal};
use crate::engine::{CheckError, Decision, Engine};
use crate::kernel::decision::{Check, Cost, Descriptor, StoreFailure, Verdict};
use crate::kernel::lease::ReplicaIncarnation;
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::Hits;
use crate::telemetry::event::{Event as _, Protocol, RequestCompleted};

type Pairs<'m> = SmallVec<[(&'m str, &'m str); 4]>;

pub(super) fn rule(engine: &Engine, request: &api::RuleRequest) -> Result<api::RuleReply, Status> {
    let entries = pairs(&request.entries)?;
    match engine.rule_for_proxy(&request.domain, &entries) {
        Some(rule) => Ok(rule_reply(&rule)),
        // The proxy asks again when the limits are loaded.
        None => Err(Status::unavailable(CheckError::NoConfig.to_string())),
    }
}

pub(super) async fn borrow(
    engine: &Engine,
    proxy: ReplicaIncarnation,
    message: &api::BorrowMessage,
) -> Result<api::BorrowResult, Status> {
    let named = message.counter.as_ref().ok_or_else(|| missing("borrow.counter"))?;
    let entries = pairs(&named.entries)?;
    let counter = counter(named, &entries)?;
    let numbers = [message.hits, message.wanted, message.balance, message.returned, message.number];
    numbers.iter().try_for_each(|number| exact(*number))?;
    let borrow = wire::borrow_request(message);
    let result = match engine.exchange_for_proxy(&counter, proxy, borrow).await {
        Ok(LeaseOutcome::Applied(reply)) => {
            borrow_result::Result::Applied(wire::borrow_reply_message(&reply))
        }
        Ok(LeaseOutcome::Superseded) => borrow_result::Result::Superseded(true),
        Ok(LeaseOutcome::StoreFull(verdict)) => {
            borrow_result::Result::StoreFull(verdict == Verdict::Allow)
        }
        // The window has ended, so the proxy fetches the rule with the next one.
        Ok(LeaseOutcome::Stale(_)) | Err(ProxyRefusal::LimitChanged) => {
            borrow_result::Result::LimitChanged(true)
        }
        Ok(LeaseOutcome::Failed(cause)) => borrow_result::Result::Failure(failure(cause)),
        Err(ProxyRefusal::NoConfig) => borrow_result::Result::Failure(no_limits()),
    };
    Ok(api::BorrowResult { result: Some(result) })
}

pub(super) async fn charge(
    engine: &Engine,
    message: &api::ChargeMessage,
) -> Result<api::ChargeResult, Status> {
    let named = message.counter.as_ref().ok_or_else(|| missing("charge.counter"))?;
    let entries = pairs(&named.entries)?;
    let counter = counter(named, &entries)?;
    exact(message.hits)?;
    let result = match engine.charge_for_proxy(&counter, Hits(message.hits)).await {
        Ok(
            ChargeOutcome::Decided(decision)
            | ChargeOutcome::Counted(decision, _)
            | ChargeOutcome::Refunded(decision),
        ) => charge_result::Result::Decision(wire::decision_message(decision)),
        Ok(ChargeOutcome::StoreFull(verdict)) => {
            charge_result::Result::StoreFull(verdict == Verdict::Allow)
        }
        Ok(ChargeOutcome::Stale(_)) | Err(ProxyRefusal::LimitChanged) => {
            charge_result::Result::LimitChanged(true)
        }
        Ok(ChargeOutcome::Failed(cause)) => charge_result::Result::Failure(failure(cause)),
        Err(ProxyRefusal::NoConfig) => charge_result::Result::Failure(no_limits()),
    };
    Ok(api::ChargeResult { result: Some(result) })
}

pub(super) async fn check(
    engine: &Engine,
    message: &api::CheckMessage,
) -> Result<api::CheckResult, Status> {
    if MAX_DESCRIPTORS < message.descriptors.len() {
        return Err(Status::invalid_argument("a check must have at most 1,000 descriptors"));
    }
    let descriptor = |descriptor: &api::CheckDescriptor| descriptor.hits;
    message.descriptors.iter().map(descriptor).try_for_each(exact)?;
    let lists: Result<Vec<Pairs<'_>>, Status> =
        message.descriptors.iter().map(|descriptor| pairs(&descriptor.entries)).collect();
    let descriptors = lists?.into_iter().zip(&message.descriptors).map(|(entries, descriptor)| {
        Descriptor { entries, cost: Cost::Charge(Hits(descriptor.hits)), limit: None }
    });
    let check = Check { domain: &message.domain, descriptors: descriptors.collect() };
    let decided = engine.decide_within(&check, message.timeout_us.map(wire::nanos)).await;
    let outcome = check_outcome(&decided);
    RequestCompleted { protocol: Protocol::Leases, outcome }.emit();
    let result = match decided {
        Ok(decision) => check_result::Result::Decision(check_decision(&decision)),
        Err(CheckError::StoreUnavailable(cause)) => check_result::Result::Failure(failure(cause)),
        Err(CheckError::NoConfig) => check_result::Result::Failure(no_limits()),
        Err(error) => return Err(Status::invalid_argument(error.to_string())),
    };
    Ok(api::CheckResult { result: Some(result) })
}

/// Counts one key of a usage report.
pub(super) fn count(engine: &Engine, usage: &api::KeyUsage) -> Result<(), Status> {
    let entries = pairs(&usage.entries)?;
    let decisions = [
        usage.allowed_requests,
        usage.denied_requests,
        usage.shadow_denied_requests,
        usage.fallback_allowed_requests,
        usage.fallback_denied_requests,
    ];
    let (allowed_hits, denied_hits) = (Hits(usage.allowed_hits), Hits(usage.denied_hits));
    let counts = ProxyUsage { decisions, allowed_hits, denied_hits };
    engine.count_proxy_usage(&usage.domain, &entries, &counts);
    Ok(())
}

fn rule_reply(rule: &ProxyRule) -> api::RuleReply {
    let (handling, counter, leased) = match &rule.handling {
        ProxyHandling::Unlimited => (Handling::Unlimited, Vec::new(), Vec::new()),
        ProxyHandling::Forced(Verdict::Allow) => (Handling::ForcedAllow, Vec::new(), Vec::new()),
        ProxyHandling::Forced(Verdict::Deny) => (Handling::ForcedDeny, Vec::new(), Vec::new()),
        ProxyHandling::Ask => (Handling::Ask, Vec::new(), Vec::new()),
        ProxyHandling::AskTogether => (Handling::AskTogether, Vec::new(), Vec::new()),
        ProxyHandling::Leased { counter, limits } => {
            let counter = wire::entries(counter.iter().map(|(key, value)| (&**key, &**value)));
            (Handling::Leased, counter, limits.iter().map(leased_limit).collect())
        }
    };
    api::RuleReply {
        handling: handling.into(),
        limits: rule.limits_number,
        // Rounded down: a proxy must not use the rule for longer.
        valid_for_us: rule.valid_for.map(|time| time.0 / 1_000),
        any_values: rule.any_values,
        rule: rule.path.as_deref().unwrap_or_default().to_owned(),
        shadow: rule.shadow,
        counter,
        leased,
    }
}

fn leased_limit(limit: &ProxyLimit) -> api::LeasedLimit {
    let (sizes, max_overshoot) = wire::terms_messages(&limit.terms);
    let on_failure = match limit.verdict_on_failure() {
        None => OnFailure::Unspecified,
        Some(Verdict::Allow) => OnFailure::Allow,
        Some(Verdict::Deny) => OnFailure::Deny,
    };
    api::LeasedLimit {
        name: limit.limit.name.as_deref().unwrap_or_default().to_owned(),
        requests: limit.limit.requests,
        period_ns: limit.limit.window.length().0,
        strategy: Some(wire::strategy_message(&limit.strategy)),
        max_overshoot,
        duration_us: wire::micros(limit.terms.duration),
        sizes: Some(sizes),
        on_failure: on_failure.into(),
    }
}

fn check_decision(decision: &Decision) -> api::CheckDecision {
    let binding = decision.binding.and_then(|index| decision.statuses.get(index));
    let reported = binding.and_then(|status| {
        let (limit, room) = (status.decision.limit.as_ref()?, status.decision.headroom);
        Some(api::ReportedLimit {
            requests: limit.requests,
            period_ns: limit.period.0,
            remaining: room.remaining.0,
            reset_after_us: wire::micros(room.reset_after),
        })
    });
    api::CheckDecision {
        allowed: decision.verdict == Verdict::Allow,
        denied_by: decision.denied_by.as_deref().unwrap_or_default().to_owned(),
        retry_after_us: decision.retry_after.map(wire::micros),
        reported,
    }
}

fn counter<'m>(
    named: &'m api::LeasedCounter,
    entries: &'m [(&'m str, &'m str)],
) -> Result<ProxyCounter<'m>, Status> {
    let strategy = named.strategy.as_ref().ok_or_else(|| missing("counter.strategy"))?;
    let invalid = || Status::invalid_argument("counter.strategy has invalid numbers");
    let strategy = wire::strategy(strategy).ok_or_else(invalid)?;
    Ok(ProxyCounter { domain: &named.domain, entries, limit: &named.limit, strategy })
}

/// Returns the keys and values of a descriptor.
fn pairs(entries: &[api::LeaseEntry]) -> Result<Pairs<'_>, Status> {
    if entries.is_empty() || MAX_ENTRIES < entries.len() {
        return Err(Status::invalid_argument("a descriptor must have 1 to 10,000 entries"));
    }
    let is_long = |text: &str| MAX_ENTRY_BYTES <= text.len();
    if entries.iter().any(|entry| is_long(&entry.key) || is_long(&entry.value)) {
        return Err(Status::invalid_argument("a key or value must have less than 65,536 bytes"));
    }
    Ok(entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect())
}

fn exact(number: u64) -> Result<(), Status> {
    let large = || Status::invalid_argument("a number of hits must be below 2^53");
    (number < EXACT_BOUND).then_some(()).ok_or_else(large)
}

fn missing(field: &str) -> Status {
    Status::invalid_argument(format!("{field} is missing"))
}

const fn no_limits() -> api::LeaseFailure {
    api::LeaseFailure { cause: Cause::NoLimits as i32 }
}

fn failure(cause: StoreFailure) -> api::LeaseFailure {
    let cause = match cause {
        StoreFailure::TimedOut | StoreFailure::ConnectionLost => Cause::TimedOut,
        StoreFailure::Unreachable => Cause::Unreachable,
        StoreFailure::Overloaded | StoreFailure::BreakerOpen | StoreFailure::Unsent => {
            Cause::Overloaded
        }
        _ => Cause::StoreFailed,
    };
    api::LeaseFailure { cause: cause.into() }
}
