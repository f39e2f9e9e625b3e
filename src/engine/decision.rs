//! Writes the decision of a check from the outcomes of its charges.
//!
//! Guarantees:
//! - Each decision is counted once.
//!
//! Not covered:
//! - The fallback for charges without a store reply (see [`super::degrade`]).

use super::decide::Engine;
use super::degrade::{self, Settled};
use super::plan::{Part, Plan, standing};
use super::{Answer, Refusal, Status, decisions, retry};
use crate::backend::{Charge, Outcome};
use crate::kernel::decision::{Finding, Group, Reason, Verdict, binding, combine};
use crate::kernel::rate::{Room, Step};
use crate::kernel::units::{Hits, Nanos, Revision};
use crate::telemetry::event::Decided;
use crate::telemetry::stats::Stat;

impl Engine {
    /// Decides a check from `outcomes`. Failed charges get the fallback of their limit.
    pub(super) fn conclude(
        &self,
        plan: &Plan<'_>,
        outcomes: &[Outcome],
        at: (Revision, Nanos),
    ) -> Result<Answer, Refusal> {
        if degrade::is_needed(outcomes) {
            let quota_for_all = self.policy.planning.quota_for_all;
            let settled = degrade::settle(plan, outcomes, self.local(), at.1, quota_for_all)?;
            return Ok(self.write(plan, settled.into_iter(), at));
        }
        Ok(self.write(plan, outcomes.iter().copied().map(Settled::Answered), at))
    }

    /// Writes the decision of `plan`, made at the revision and the instant of `at`, and counts it.
    pub(super) fn write(
        &self,
        plan: &Plan<'_>,
        settled: impl Iterator<Item = Settled>,
        at: (Revision, Nanos),
    ) -> Answer {
        let mut answer = Answer::to_nothing(at.0, at.1);
        let near = self.write_statuses(plan, settled, &mut answer);
        let quota_for_all = self.policy.planning.quota_for_all;
        let findings = || answer.statuses.iter().map(|status| &status.finding);
        let votes = findings().map(|finding| (finding.standing.group, finding.verdict));
        let denied = combine(votes, quota_for_all) == Verdict::Deny;
        answer.binding = binding(findings(), quota_for_all);
        answer.shadowed = self.policy.shadow && denied;
        if denied && !answer.shadowed {
            answer.verdict = Verdict::Deny;
            answer.retry_after = retry::wait(plan, &answer.statuses, self.local(), quota_for_all);
        }
        let reasons = answer.statuses.iter().map(|status| status.finding.reason);
        Decided { verdict: answer.verdict, shadowed: answer.shadowed, reasons, near }.emit();
        if let (true, Some(stats)) = (answer.shadowed, &self.stats) {
            stats.add(Stat::GlobalShadowMode, 1);
        }
        decisions::log(plan, &answer, &self.clock);
        answer
    }

    /// Writes one status for each descriptor. Returns the number of limits that are nearly used up.
    fn write_statuses(
        &self,
        plan: &Plan<'_>,
        settled: impl Iterator<Item = Settled>,
        answer: &mut Answer,
    ) -> u64 {
        let mut charged = plan.charges.list.iter().zip(settled);
        let (mut tally, mut near) = (plan.tally.iter(), 0);
        for part in &plan.parts {
            let mut most = 0;
            let next = || {
                let (charge, settled) = charged.next()?;
                if let Some(counted) = tally.next() {
                    counted.count(charge.cost, &settled, self.policy.near_limit_ratio);
                }
                most = charge.strategy.most();
                Some((charge, settled))
            };
            answer.statuses.push(Status::UNLIMITED);
            let Some(status) = answer.statuses.last_mut() else { continue };
            write_status(status, part, next);
            near += u64::from(self.is_near(&status.finding, most));
        }
        near
    }

    /// Returns `true` if the limit allowed the hits and is nearly used up. `most` is the number of
    /// hits that an empty counter allows at once.
    fn is_near(&self, finding: &Finding, most: u32) -> bool {
        let used = u64::from(most).saturating_sub(finding.room.remaining.0);
        finding.reason == Reason::WithinLimit
            && near_from(most, self.policy.near_limit_ratio) < used
    }
}

/// Returns the hits above which a limit is nearly used up, with the 32-bit floats of
/// envoyproxy/ratelimit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "envoyproxy/ratelimit rounds down; a ratio is 0 to 1"
)]
pub(super) fn near_from(limit: u32, ratio: f32) -> u64 {
    (limit as f32 * ratio) as u64
}

/// Writes the status of one descriptor. `next` returns its charge and the outcome.
fn write_status<'p>(
    status: &mut Status,
    part: &Part<'_>,
    next: impl FnOnce() -> Option<(&'p Charge, Settled)>,
) {
    let Status { finding, metadata } = status;
    match part {
        Part::Nothing => {}
        Part::Unlimited(_) => *finding = Finding::settled(Reason::Unlimited, Group::Aside),
        Part::Replaced => finding.reason = Reason::Replaced,
        Part::Frozen(rule, _, verdict) => {
            metadata.clone_from(&rule.metadata);
            (finding.limit, finding.standing) = (part.shown(), standing(rule));
            finding.rule(*verdict, Reason::Frozen);
        }
        Part::Charged(..) | Part::Override(..) => {
            *metadata = part.rule().and_then(|rule| rule.metadata.clone());
            let Some((charge, settled)) = next() else { return };
            (finding.limit, finding.standing) = (part.shown(), charge.standing);
            write_settled(finding, settled);
        }
    }
}

fn write_settled(finding: &mut Finding, settled: Settled) {
    match settled {
        Settled::Answered(outcome) => write_outcome(finding, outcome),
        Settled::Ruled(verdict, reason) => finding.rule(verdict, reason),
        Settled::NotAsked => {
            *finding = Finding::settled(Reason::NotAsked, finding.standing.group);
        }
        Settled::Local(outcome) => {
            write_outcome(finding, outcome);
            finding.reason = Reason::BackendDownLocal;
        }
    }
}

#[inline]
fn write_outcome(finding: &mut Finding, outcome: Outcome) {
    match outcome {
        Outcome::Stepped(step) | Outcome::Counted(step, _) => finding.learn(step),
        Outcome::Refunded(step) => {
            finding.learn(Step::Admit(room(step)));
            finding.reason = Reason::Refunded;
        }
        Outcome::Full(verdict) => finding.rule(verdict, Reason::StoreFull),
        // `degrade::settle` replaces both before this point. A denial is the safe result.
        Outcome::Stale(_) | Outcome::Failed(_) => {
            finding.rule(Verdict::Deny, Reason::BackendDownDenied);
        }
    }
}

const fn room(step: Step) -> Room {
    match step {
        Step::Admit(room) | Step::Never(room) | Step::Deny { room, .. } => room,
        Step::Stale => Room { remaining: Hits(0), reset_after: Nanos(0) },
    }
}
