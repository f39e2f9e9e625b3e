//! Peeks: the decision that one hit would get now, without charging it.
//!
//! Guarantees:
//! - Charges nothing, with every strategy and store.
//! - A limit without remaining hits denies; the check of 0 hits itself may allow.
//! - After the retry-after, one hit is allowed if no other traffic came.
//!
//! Not covered:
//! - Two descriptors of one counter: each is decided for one hit alone.
//! - The retry-after of sliding strategies may be too long, at most until the counter is empty.

use crate::active_config::ActiveConfig;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::plan::CheckPlan;
use crate::kernel::decision::{
    Check, Cost, DescriptorDecision, Reason, Verdict, combine, combined_wait,
};
use crate::kernel::rate::{CounterDecision, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::{CheckError, Decision, Engine, LimitStatus};

impl Engine {
    /// Decides `check` as if each descriptor had one hit, and charges nothing.
    ///
    /// # Errors
    /// As [`Engine::decide_within`].
    pub async fn peek(
        &self,
        mut check: Check<'_>,
        timeout: Option<Nanos>,
    ) -> Result<Decision, CheckError> {
        for descriptor in &mut check.descriptors {
            descriptor.cost = Cost::Charge(Hits(0));
        }
        let mut decision = self.decide_within(&check, timeout).await?;
        let config = self.active.load();
        let mut plan = CheckPlan::default();
        let is_same = |config: &&ActiveConfig| config.revision == decision.revision;
        // After a reload in between, the decision of the old configuration stays as it is.
        let Some(config) = config.as_deref().filter(is_same) else { return Ok(decision) };
        plan.fill(config, &check, self.policy.planning, decision.now);
        if !decision.limit_statuses.is_empty() {
            decision.statuses = std::mem::take(&mut decision.limit_statuses).into();
        }
        let mut charges = plan.charges.list.iter();
        for (descriptor, status) in plan.limits.iter().zip(&mut decision.statuses) {
            if LimitPlan::is_charged(descriptor)
                && let Some(charge) = charges.next()
            {
                deny_without_room(status, &charge.strategy);
            }
        }
        plan.fold_statuses(&mut decision);
        self.combine_statuses(&plan, &mut decision);
        Ok(decision)
    }

    fn combine_statuses(&self, plan: &CheckPlan<'_>, decision: &mut Decision) {
        let quota_for_all = self.policy.planning.quota_for_all;
        let votes = decision.statuses.iter().map(|status| &status.decision);
        let groups = votes.map(|vote| (vote.enforcement.group, vote.verdict));
        let limits = decision.all_limits().iter().map(|status| &status.decision);
        let waits = limits.map(|limit| (limit.enforcement.group, limit.time_until_allowed()));
        let waits = plan.fold_waits(waits.collect()).into_iter();
        if combine(groups, quota_for_all) == Verdict::Deny && !self.is_shadow() {
            decision.retry_after = combined_wait(waits, quota_for_all);
            decision.verdict = Verdict::Deny;
        }
    }
}

/// Denies if the limit allowed 0 hits but has none remaining.
fn deny_without_room(status: &mut LimitStatus, strategy: &Strategy) {
    let DescriptorDecision { reason, headroom, .. } = status.decision;
    if reason == Reason::WithinLimit && headroom.remaining == Hits(0) {
        let wait = strategy.time_until_allowed(headroom, Hits(1));
        let step = wait.map_or(CounterDecision::ExceedsLimit(headroom), |retry_after| {
            CounterDecision::Deny { retry_after, headroom }
        });
        status.decision.apply_counter(step);
    }
}
