//! Writes the decision of a check from the outcomes of its charges.
//!
//! Guarantees:
//! - Each decision is counted once in the metrics.
//!
//! Not covered:
//! - The fallback for charges without a store reply (see [`super::fallback`]).

use crate::engine::Engine;
use crate::engine::decide::fallback;
use crate::engine::decide::fallback::ChargeDecision;
use crate::engine::decide::plan::{CheckPlan, DescriptorPlan, enforcement_of};
use crate::engine::decide::rule_stats::near_limit_threshold;
use crate::engine::decide::{decision_log, retry_after};
use crate::engine::{CheckError, Decision, LimitStatus};
use crate::kernel::decision::{
    DescriptorDecision, Reason, Verdict, VoteGroup, binding_index, combine,
};
use crate::kernel::rate::{CounterDecision, Headroom};
use crate::kernel::units::{Hits, Nanos, Revision};
use crate::store::{Charge, ChargeOutcome};
use crate::telemetry::event::{CheckDecided, Event as _};
use crate::telemetry::stats::StatCounter;

impl Engine {
    /// Decides a check from `outcomes`. Failed charges get the fallback of their limit.
    pub(in crate::engine) fn decide_from_outcomes(
        &self,
        plan: &CheckPlan<'_>,
        outcomes: &[ChargeOutcome],
        at: (Revision, Nanos),
    ) -> Result<Decision, CheckError> {
        if fallback::is_needed(outcomes) {
            let quota_for_all = self.policy.planning.quota_for_all;
            let settled = fallback::apply_fallback(
                plan,
                outcomes,
                self.local_fallback(),
                at.1,
                quota_for_all,
            )?;
            return Ok(self.write_decision(plan, settled.into_iter(), at));
        }
        Ok(self.write_decision(plan, outcomes.iter().copied().map(ChargeDecision::Store), at))
    }

    /// Writes the decision of `plan`, and counts it in the metrics. `at` is its revision and
    /// instant.
    pub(in crate::engine) fn write_decision(
        &self,
        plan: &CheckPlan<'_>,
        settled: impl Iterator<Item = ChargeDecision>,
        at: (Revision, Nanos),
    ) -> Decision {
        let mut decision = Decision::allow(at.0, at.1);
        let near = self.write_statuses(plan, settled, &mut decision);
        let quota_for_all = self.policy.planning.quota_for_all;
        let descriptor_decisions = || decision.statuses.iter().map(|status| &status.decision);
        let votes =
            descriptor_decisions().map(|finding| (finding.enforcement.group, finding.verdict));
        let denied = combine(votes, quota_for_all) == Verdict::Deny;
        decision.binding = binding_index(descriptor_decisions(), quota_for_all);
        decision.is_shadowed = self.policy.is_shadow && denied;
        if denied && !decision.is_shadowed {
            decision.verdict = Verdict::Deny;
            decision.retry_after = retry_after::retry_after(
                plan,
                &decision.statuses,
                self.local_fallback(),
                quota_for_all,
            );
        }
        let reasons = decision.statuses.iter().map(|status| status.decision.reason);
        CheckDecided {
            verdict: decision.verdict,
            is_shadowed: decision.is_shadowed,
            reasons,
            near_limit: near,
        }
        .emit();
        if let (true, Some(stats)) = (decision.is_shadowed, &self.stats) {
            stats.add(StatCounter::GlobalShadowMode, 1);
        }
        decision_log::log_decision(plan, &decision, &self.clock);
        decision
    }

    /// Writes one status for each descriptor. Returns the number of limits that are nearly used up.
    fn write_statuses(
        &self,
        plan: &CheckPlan<'_>,
        settled: impl Iterator<Item = ChargeDecision>,
        decision: &mut Decision,
    ) -> u64 {
        let mut charged = plan.charges.list.iter().zip(settled);
        let (mut rule_stats, mut near) = (plan.stats.iter(), 0);
        for part in &plan.descriptors {
            let mut max_at_once = 0;
            let next = || {
                let (charge, settled) = charged.next()?;
                if let Some(counted) = rule_stats.next() {
                    counted.count(charge.cost, &settled, self.policy.near_limit_ratio);
                }
                max_at_once = charge.strategy.max_at_once();
                Some((charge, settled))
            };
            decision.statuses.push(LimitStatus::UNLIMITED);
            let Some(status) = decision.statuses.last_mut() else { continue };
            write_status(status, part, next);
            near += u64::from(self.is_near_limit(&status.decision, max_at_once));
        }
        near
    }

    /// Returns `true` if the limit allowed the hits and is nearly used up. `max_at_once` is the
    /// number of hits that an empty counter allows at once.
    fn is_near_limit(&self, finding: &DescriptorDecision, max_at_once: u32) -> bool {
        let used = u64::from(max_at_once).saturating_sub(finding.headroom.remaining.0);
        finding.reason == Reason::WithinLimit
            && near_limit_threshold(max_at_once, self.policy.near_limit_ratio) < used
    }
}

/// Writes the status of one descriptor. `next` returns the charge of a charged descriptor, and its
/// outcome.
fn write_status<'p>(
    status: &mut LimitStatus,
    part: &DescriptorPlan<'_>,
    next: impl FnOnce() -> Option<(&'p Charge, ChargeDecision)>,
) {
    let LimitStatus { decision: finding, metadata } = status;
    match part {
        DescriptorPlan::NoRule => {}
        DescriptorPlan::Unlimited(_) => {
            *finding = DescriptorDecision::uncounted(Reason::Unlimited, VoteGroup::Unlimited);
        }
        DescriptorPlan::Replaced => finding.reason = Reason::Replaced,
        DescriptorPlan::Forced(rule, _, verdict) => {
            metadata.clone_from(&rule.metadata);
            (finding.limit, finding.enforcement) = (part.applied_limit(), enforcement_of(rule));
            finding.set_verdict(*verdict, Reason::Forced);
        }
        DescriptorPlan::Charged(..) | DescriptorPlan::Override(..) => {
            *metadata = part.rule().and_then(|rule| rule.metadata.clone());
            let Some((charge, settled)) = next() else { return };
            (finding.limit, finding.enforcement) = (part.applied_limit(), charge.standing);
            write_settled(finding, settled);
        }
    }
}

fn write_settled(finding: &mut DescriptorDecision, settled: ChargeDecision) {
    match settled {
        ChargeDecision::Store(outcome) => write_outcome(finding, outcome),
        ChargeDecision::Fallback(verdict, reason) => finding.set_verdict(verdict, reason),
        ChargeDecision::NotCharged => {
            *finding = DescriptorDecision::uncounted(Reason::Skipped, finding.enforcement.group);
        }
        ChargeDecision::Local(outcome) => {
            write_outcome(finding, outcome);
            finding.reason = Reason::StoreDownLocal;
        }
    }
}

#[inline]
fn write_outcome(finding: &mut DescriptorDecision, outcome: ChargeOutcome) {
    match outcome {
        ChargeOutcome::Decided(step) | ChargeOutcome::Counted(step, _) => {
            finding.apply_counter(step);
        }
        ChargeOutcome::Refunded(step) => {
            finding.apply_counter(CounterDecision::Allow(headroom_in(step)));
            finding.reason = Reason::Refunded;
        }
        ChargeOutcome::StoreFull(verdict) => finding.set_verdict(verdict, Reason::StoreFull),
        // `fallback::apply_fallback` replaces stale and failed outcomes before. A denial is the
        // safe result.
        ChargeOutcome::Stale(_) | ChargeOutcome::Failed(_) => {
            finding.set_verdict(Verdict::Deny, Reason::StoreDownDenied);
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
