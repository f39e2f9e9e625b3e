//! Writes the decision of a check from the outcomes of its charges, and counts it once.

use std::sync::Arc;

use crate::Engine;
use crate::decide::fallback;
use crate::decide::fallback::ChargeDecision;
use crate::decide::path::{CheckPurpose, PreparedCheck};
use crate::decide::plan::{CheckPlan, LimitPlan, enforcement_of};
use crate::decide::retry_after;
use crate::decide::rule_stats::near_limit_threshold;
use crate::kernel::decision::{
    DescriptorDecision, Reason, Verdict, VoteGroup, binding_index, combine,
};
use crate::kernel::rate::{CounterDecision, Headroom};
use crate::kernel::units::{Hits, Nanos};
use crate::rule_counters::RuleCounters;
use crate::store::{Charge, ChargeOutcome};
use crate::telemetry::event::{CheckDecided, Event as _};
use crate::telemetry::stats::StatCounter;
use crate::{CheckError, Decision, LimitStatus};

impl Engine {
    /// Decides a check from `outcomes`, one for each charge of its plan. A failed charge gets the
    /// fallback of its limit.
    pub(crate) fn decide_from_outcomes(
        &self,
        prepared: &PreparedCheck<'_, '_>,
        outcomes: &[ChargeOutcome],
    ) -> Result<Decision, CheckError> {
        if fallback::is_needed(outcomes) {
            let quota_for_all = self.policy.planning.quota_for_all;
            let charge_decisions = fallback::apply_fallback(
                &prepared.plan,
                outcomes,
                self.local_fallback(),
                prepared.now,
                quota_for_all,
            );
            let charge_decisions =
                charge_decisions.inspect_err(|error| self.log_error(prepared.check, error))?;
            return Ok(self.write_decision(prepared, charge_decisions.into_iter()));
        }
        Ok(self.write_decision(prepared, outcomes.iter().copied().map(ChargeDecision::Store)))
    }

    /// Writes the decision of a check from one decision for each charge, and counts it in the
    /// metrics.
    pub(crate) fn write_decision(
        &self,
        prepared: &PreparedCheck<'_, '_>,
        charge_decisions: impl Iterator<Item = ChargeDecision>,
    ) -> Decision {
        let plan = &prepared.plan;
        let mut decision = Decision::allow(prepared.config.revision, prepared.now);
        let near_limit = self.write_statuses(prepared, charge_decisions, &mut decision);
        let is_counted = prepared.purpose == CheckPurpose::Decide;
        if is_counted {
            self.log_charges(prepared, &decision);
        }
        if let Some(events) = self.events.as_ref().filter(|_| is_counted) {
            events.offer_limits(prepared, &decision);
        }
        plan.fold_statuses(&mut decision);
        let quota_for_all = self.policy.planning.quota_for_all;
        let descriptor_decisions = || decision.statuses.iter().map(|status| &status.decision);
        let votes =
            descriptor_decisions().map(|decision| (decision.enforcement.group, decision.verdict));
        let denied = combine(votes, quota_for_all) == Verdict::Deny;
        decision.binding = binding_index(descriptor_decisions(), quota_for_all);
        decision.is_shadowed = denied && self.is_shadow();
        decision.shadow_denied_by = shadow_denying_rule(plan, &decision);
        if denied && !decision.is_shadowed {
            decision.verdict = Verdict::Deny;
            decision.denied_by = denying_rule(plan, &decision);
            decision.retry_after = retry_after::retry_after(
                plan,
                decision.all_limits(),
                self.local_fallback(),
                quota_for_all,
            );
        }
        if is_counted {
            self.count_decision(prepared, &decision, near_limit);
        }
        decision
    }

    /// Counts and logs the decision of a check.
    #[inline]
    fn count_decision(
        &self,
        prepared: &PreparedCheck<'_, '_>,
        decision: &Decision,
        near_limit: u64,
    ) {
        let reasons = decision.statuses.iter().map(|status| status.decision.reason);
        CheckDecided {
            verdict: decision.verdict,
            is_shadowed: decision.is_shadowed,
            reasons,
            near_limit,
        }
        .emit();
        prepared.config.counters.count_decision(&prepared.plan, decision);
        self.count_top_keys(prepared, decision);
        if let (true, Some(stats)) = (decision.is_shadowed, &self.stats) {
            stats.add(StatCounter::GlobalShadowMode, 1);
        }
        self.log_check(prepared, decision);
    }

    /// Appends one status for each limit. Returns the number of limits that are nearly used up.
    fn write_statuses(
        &self,
        PreparedCheck { config, plan, .. }: &PreparedCheck<'_, '_>,
        charge_decisions: impl Iterator<Item = ChargeDecision>,
        decision: &mut Decision,
    ) -> u64 {
        let mut charged = plan.charges.list.iter().zip(charge_decisions);
        let (mut rule_stats, mut near_limit_count) = (plan.stats.iter(), 0);
        for limit_plan in &plan.limits {
            let mut max_at_once = 0;
            let next = || {
                let (charge, charge_decisions) = charged.next()?;
                if let Some(rule) = rule_stats.next() {
                    rule.count(charge.cost, &charge_decisions, self.policy.near_limit_ratio);
                }
                max_at_once = charge.strategy.max_at_once();
                Some((charge, charge_decisions))
            };
            decision.statuses.push(LimitStatus::UNLIMITED);
            let Some(status) = decision.statuses.last_mut() else { continue };
            write_status(status, limit_plan, next);
            near_limit_count += u64::from(self.is_near_limit(&status.decision, max_at_once));
            record_used(&config.counters, limit_plan, (&status.decision, max_at_once));
        }
        near_limit_count
    }

    /// Returns `true` if the limit allowed the hits and is nearly used up. An empty counter allows
    /// `max_at_once` hits.
    fn is_near_limit(&self, decision: &DescriptorDecision, max_at_once: u32) -> bool {
        let used = u64::from(max_at_once).saturating_sub(decision.headroom.remaining.0);
        decision.reason == Reason::WithinLimit
            && near_limit_threshold(max_at_once, self.policy.near_limit_ratio) < used
    }
}

/// Records the share of a charged limit that its key has used. An empty counter allows
/// `max_at_once` hits.
fn record_used(
    counters: &RuleCounters,
    limit_plan: &LimitPlan<'_>,
    (decision, max_at_once): (&DescriptorDecision, u32),
) {
    let LimitPlan::Charged(rule, _) = limit_plan else { return };
    if let (true, Some(counter)) = (decision.is_counted(), counters.counter(rule.number)) {
        let used = u64::from(max_at_once).saturating_sub(decision.headroom.remaining.0);
        counter.record_used(used, max_at_once);
    }
}

/// Returns the path of the rule that denied: the rule that the headers report if it denied, or else
/// the first rule that denied.
fn denying_rule(plan: &CheckPlan<'_>, decision: &Decision) -> Option<Arc<str>> {
    let has_denied = |index: &usize| {
        decision.statuses.get(*index).is_some_and(|one| one.decision.verdict == Verdict::Deny)
    };
    let mut all = 0..decision.statuses.len();
    let index = decision.binding.filter(has_denied).or_else(|| all.find(has_denied))?;
    plan.rules().nth(index)?.map(|rule| Arc::clone(&rule.path))
}

/// Returns the path of the first rule that would have denied without shadow mode.
#[inline]
fn shadow_denying_rule(plan: &CheckPlan<'_>, decision: &Decision) -> Option<Arc<str>> {
    let is_shadow_denial = |one: &LimitStatus| {
        one.decision.is_denied && (decision.is_shadowed || one.decision.enforcement.shadow)
    };
    let index = decision.all_limits().iter().position(is_shadow_denial)?;
    plan.limits.get(index)?.rule().map(|rule| Arc::clone(&rule.path))
}

/// Writes the status of one limit. `next` returns the charge of a charged limit, and its outcome.
fn write_status<'p>(
    status: &mut LimitStatus,
    limit_plan: &LimitPlan<'_>,
    next_charge: impl FnOnce() -> Option<(&'p Charge, ChargeDecision)>,
) {
    let LimitStatus { decision, metadata } = status;
    match limit_plan {
        LimitPlan::NoRule => {}
        LimitPlan::Unlimited(_) => {
            *decision = DescriptorDecision::uncounted(Reason::Unlimited, VoteGroup::Unlimited);
        }
        LimitPlan::Replaced => decision.reason = Reason::Replaced,
        LimitPlan::Forced(rule, _, verdict) => {
            metadata.clone_from(&rule.metadata);
            (decision.limit, decision.enforcement) =
                (limit_plan.applied_limit(), enforcement_of(rule));
            decision.set_verdict(*verdict, Reason::Forced);
        }
        LimitPlan::Charged(..) | LimitPlan::Override(..) => {
            *metadata = limit_plan.rule().and_then(|rule| rule.metadata.clone());
            let Some((charge, charge_decision)) = next_charge() else { return };
            (decision.limit, decision.enforcement) = (limit_plan.applied_limit(), charge.standing);
            write_charge_decision(decision, charge_decision);
        }
    }
}

fn write_charge_decision(decision: &mut DescriptorDecision, charge_decision: ChargeDecision) {
    match charge_decision {
        ChargeDecision::Store(outcome) => write_outcome(decision, outcome),
        ChargeDecision::Fallback(verdict, reason) => decision.set_verdict(verdict, reason),
        ChargeDecision::NotCharged => {
            *decision = DescriptorDecision::uncounted(Reason::Skipped, decision.enforcement.group);
        }
        ChargeDecision::Local(outcome) => {
            write_outcome(decision, outcome);
            decision.reason = Reason::StoreDownLocal;
        }
    }
}

#[inline]
fn write_outcome(decision: &mut DescriptorDecision, outcome: ChargeOutcome) {
    match outcome {
        ChargeOutcome::Decided(step) | ChargeOutcome::Counted(step, _) => {
            decision.apply_counter(step);
        }
        ChargeOutcome::Refunded(step) => {
            decision.apply_counter(CounterDecision::Allow(headroom_in(step)));
            decision.reason = Reason::Refunded;
        }
        ChargeOutcome::StoreFull(verdict) => decision.set_verdict(verdict, Reason::StoreFull),
        // `fallback::apply_fallback` has replaced these outcomes. A denial is the safe result.
        ChargeOutcome::Stale(_) | ChargeOutcome::Failed(_) => {
            decision.set_verdict(Verdict::Deny, Reason::StoreDownDenied);
        }
    }
}

const fn headroom_in(step: CounterDecision) -> Headroom {
    match step {
        CounterDecision::Allow(room)
        | CounterDecision::ExceedsLimit(room)
        | CounterDecision::Deny { headroom: room, .. } => room,
        CounterDecision::OutsideWindows => Headroom { remaining: Hits(0), reset_after: Nanos(0) },
    }
}
