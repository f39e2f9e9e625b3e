//! The record of a decision: written once, and read by everything that counts, logs or sends decisions.
//!
//! | reader | reads |
//! |---|---|
//! | metrics | the verdict, and the reason of each descriptor |
//! | rule counters, top keys | the verdict of each rule, its key and the used part of its limit |
//! | statistics of envoyproxy/ratelimit | the outcome of each charge |
//! | events | limits that denied or are nearly used up |
//! | log | a line for each check at `debug`, and one for each charge at `trace` |
//!
//! Guarantees:
//! - Each decision is published once. A check that an operator made to read a counter is not published.
//! - A rejection by a concurrency limit is published by its rule, its bucket and its reason.
//!
//! Not covered:
//! - The recorder, which needs the order of the decisions, so it locks around them (see [`super::path`]).
//! - Decisions of proxies, which arrive as sums (see [`crate::proxies`]).

use crate::active_config::ActiveConfig;
use crate::config::concurrency::ConcurrencyLimit;
use crate::decide::charge_decision::ChargeDecision;
use crate::decide::charge_stats::near_limit_threshold;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::path::PreparedCheck;
use crate::kernel::decision::{Check, DescriptorDecision, Reason, Verdict};
use crate::store::Charge;
use crate::telemetry::event::{CheckDecided, ConcurrencyLimitExceeded, Event as _, RuleVerdict};
use crate::telemetry::stats::StatCounter;
use crate::{Decision, Engine, Rejection};

/// A decision, with its check and the outcomes of its charges.
pub(crate) struct DecisionRecord<'r, 'c, 'q> {
    pub(crate) prepared: &'r PreparedCheck<'c, 'q>,
    pub(crate) decision: &'r Decision,
    /// One for each charge; empty without the statistics of envoyproxy/ratelimit.
    pub(crate) charge_decisions: &'r [ChargeDecision],
}

impl Engine {
    /// Counts, logs and sends a decision.
    #[inline]
    pub(crate) fn publish_decision(&self, record: &DecisionRecord<'_, '_, '_>) {
        let DecisionRecord { prepared, decision, charge_decisions } = record;
        let PreparedCheck { config, plan, .. } = prepared;
        let near_limit = self.publish_charges(record);
        let reasons = decision.statuses.iter().map(|status| status.decision.reason);
        let Decision { verdict, is_shadowed, .. } = **decision;
        CheckDecided { verdict, is_shadowed, reasons, near_limit }.emit();
        config.counters.count_decision(plan, decision);
        self.count_top_keys(prepared, decision);
        if let Some(stats) = &self.stats {
            let charged = plan.stats.iter().zip(&plan.charges.list).zip(*charge_decisions);
            for ((rule, charge), charge_decision) in charged {
                rule.count(charge.cost, charge_decision, self.policy.near_limit_ratio);
            }
            stats.add(StatCounter::GlobalShadowMode, is_shadowed.into());
        }
        self.log_charges(prepared, decision);
        self.log_check(prepared, decision);
    }

    /// Records the used part of each limit, and sends events. Returns the number of allowed limits that
    /// are nearly used up.
    #[inline]
    fn publish_charges(
        &self,
        DecisionRecord { prepared, decision, .. }: &DecisionRecord<'_, '_, '_>,
    ) -> u64 {
        let plan = &prepared.plan;
        let (mut charges, mut near_limit_count) = (plan.charges.list.iter(), 0);
        for (index, (limit, status)) in plan.limits.iter().zip(decision.all_limits()).enumerate() {
            if !limit.is_charged() {
                continue;
            }
            let Some(charge) = charges.next() else { break };
            near_limit_count += u64::from(self.is_near_limit(&status.decision, charge));
            if decision.verdict == Verdict::Deny {
                self.count_strike(prepared, (index, &status.decision), charge);
            }
            record_used(prepared.config, limit, (&status.decision, charge));
            if let Some(events) = &self.events {
                events.offer_limit_event(prepared, (index, &status.decision), charge);
            }
        }
        near_limit_count
    }

    /// Returns `true` if the limit allowed the hits and is nearly used up.
    #[inline]
    fn is_near_limit(&self, decision: &DescriptorDecision, charge: &Charge) -> bool {
        decision.reason == Reason::WithinLimit
            && near_limit_threshold(charge.strategy.max_at_once(), self.policy.near_limit_ratio)
                < used_hits(decision, charge)
    }

    /// Counts, logs and sends the rejection of a check by a concurrency limit.
    pub(crate) fn publish_rejection(
        &self,
        check: &Check<'_>,
        (config, limit): (&ActiveConfig, &ConcurrencyLimit),
        bucket: &[u8],
        rejection: &Rejection,
    ) {
        let (path, reason) = (&*limit.path, rejection.reason);
        config.counters.count(limit.number, RuleVerdict::Deny);
        let class = limit.requesters.as_ref().and_then(|rule| rule.keys.class_name(check));
        ConcurrencyLimitExceeded { limit: path, class, reason, is_enforced: true, count: 1 }.emit();
        self.count_rejected_key(&config.counters, limit.number, bucket);
        self.publish_rejected_check(check, rejection, class);
    }

    /// Counts, logs and sends the rejection of a check. `class` is its class in the limit, if there is
    /// one.
    pub(crate) fn publish_rejected_check(
        &self,
        check: &Check<'_>,
        rejection: &Rejection,
        class: Option<&str>,
    ) {
        let (verdict, reasons) = (Verdict::Deny, std::iter::once(rejection.reason));
        CheckDecided { verdict, is_shadowed: false, reasons, near_limit: 0 }.emit();
        self.log_rejection(check, rejection);
        self.send_rejection(check, rejection, class);
    }
}

/// Returns the hits that the decision leaves in use. An empty counter allows `max_at_once` hits.
#[inline]
fn used_hits(decision: &DescriptorDecision, charge: &Charge) -> u64 {
    u64::from(charge.strategy.max_at_once()).saturating_sub(decision.headroom.remaining.0)
}

/// Records the share of a charged limit that its key has used.
#[inline]
fn record_used(
    config: &ActiveConfig,
    limit_plan: &LimitPlan<'_>,
    (decision, charge): (&DescriptorDecision, &Charge),
) {
    let LimitPlan::Charged(rule, _) = limit_plan else { return };
    if let (true, Some(counter)) = (decision.is_counted(), config.counters.counter(rule.number)) {
        counter.record_used(used_hits(decision, charge), charge.strategy.max_at_once().into());
    }
}
