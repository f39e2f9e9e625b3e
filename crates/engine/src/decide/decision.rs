//! Writes the decision of a check from the outcomes of its charges.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::Engine;
use crate::decide::charge_decision::ChargeDecision;
use crate::decide::fallback;
use crate::decide::limit_plan::{LimitPlan, enforcement_of};
use crate::decide::path::{CheckPurpose, PreparedCheck};
use crate::decide::plan::CheckPlan;
use crate::decide::record::DecisionRecord;
use crate::decide::retry_after;
use crate::kernel::decision::{
    DescriptorDecision, Reason, Verdict, VoteGroup, binding_index, combine,
};
use crate::kernel::rate::{CounterDecision, Headroom};
use crate::kernel::units::{Hits, Nanos};
use crate::store::{Charge, ChargeOutcome};
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

    /// Derives the decision of a check from one decision for each charge. Publishes it, unless an
    /// operator only reads a counter ([`CheckPurpose::Inspect`]).
    pub(crate) fn write_decision(
        &self,
        prepared: &PreparedCheck<'_, '_>,
        charge_decisions: impl Iterator<Item = ChargeDecision>,
    ) -> Decision {
        let plan = &prepared.plan;
        let mut decision = Decision::allow(prepared.config.revision, prepared.now);
        let mut counted = SmallVec::new();
        write_statuses(plan, charge_decisions, &mut decision, &mut counted);
        plan.fold_statuses(&mut decision);
        let quota_for_all = self.policy.planning.quota_for_all;
        let descriptor_decisions = || decision.statuses.iter().map(|status| &status.decision);
        let votes =
            descriptor_decisions().map(|decision| (decision.enforcement.group, decision.verdict));
        // A ban denies the check alone, also in the quota group.
        let ban = longest_ban(plan, &decision);
        let denied = ban.is_some() || combine(votes, quota_for_all) == Verdict::Deny;
        decision.binding = binding_index(descriptor_decisions(), quota_for_all);
        decision.is_shadowed = denied && self.is_shadow();
        decision.shadow_denied_by = shadow_denying_rule(plan, &decision);
        if denied && !decision.is_shadowed {
            decision.verdict = Verdict::Deny;
            decision.denied_by = denying_rule(plan, &decision);
            decision.retry_after = match ban {
                Some((left, _)) => Some(left),
                None => retry_after::retry_after(
                    plan,
                    decision.all_limits(),
                    self.local_fallback(),
                    quota_for_all,
                ),
            };
            decision.ban_status = ban.map(|(_, status)| status);
        }
        if prepared.purpose == CheckPurpose::Decide {
            self.publish_decision(&DecisionRecord {
                prepared,
                decision: &decision,
                charge_decisions: &counted,
            });
        }
        decision
    }
}

/// Appends one status for each limit, and copies the charge decisions if the plan has statistics for them.
fn write_statuses(
    plan: &CheckPlan<'_>,
    charge_decisions: impl Iterator<Item = ChargeDecision>,
    decision: &mut Decision,
    counted: &mut SmallVec<[ChargeDecision; 2]>,
) {
    let mut charged = plan.charges.list.iter().zip(charge_decisions);
    for limit_plan in &plan.limits {
        let next = || {
            let next = charged.next()?;
            if !plan.stats.is_empty() {
                counted.push(next.1);
            }
            Some(next)
        };
        decision.statuses.push(LimitStatus::UNLIMITED);
        let Some(status) = decision.statuses.last_mut() else { continue };
        write_status(status, limit_plan, next);
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

/// Returns the rest of the longest ban of a check, and the status of its limit.
#[inline]
fn longest_ban(plan: &CheckPlan<'_>, decision: &Decision) -> Option<(Nanos, u16)> {
    let bans = plan.limits.iter().zip(decision.all_limits()).filter_map(|(limit, status)| {
        let is_banned = status.decision.reason == Reason::Banned;
        let left = status.decision.retry_after.filter(|_| is_banned)?;
        Some((left, limit.penalty()?.status))
    });
    bans.max_by_key(|(left, _)| *left)
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
        ChargeDecision::Banned(left) => decision.ban(left),
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
