//! Computes the retry-after of a denied check.
//!
//! Guarantees:
//! - The same check, sent again after the wait, is allowed if no other check came.
//! - The wait includes the hits that the denied check itself was charged.
//! - A check whose hits on one counter can never be allowed together has no retry-after.
//! - Limits that were not charged because of a cached denial count as allowed.

use smallvec::SmallVec;

use crate::LimitStatus;
use crate::decide::limit_list::Waits;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::local_fallback::LocalFallback;
use crate::decide::plan::CheckPlan;
use crate::kernel::decision::{self, Cost, DescriptorDecision, Reason, Verdict};
use crate::kernel::rate::{Headroom, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::store::{Charge, ChargeMode};

#[derive(Clone, Copy)]
struct DecidedCharge<'p> {
    index: usize,
    charge: &'p Charge,
    decision: &'p DescriptorDecision,
    /// The strategy that counted the charge. `None` if it was not counted.
    strategy: Option<Strategy>,
}

/// Returns the wait after which the denied check `plan` would be allowed without other traffic.
/// `None` if no wait helps.
pub(crate) fn retry_after(
    plan: &CheckPlan<'_>,
    statuses: &[LimitStatus],
    local: Option<&LocalFallback>,
    quota_for_all: bool,
) -> Option<Nanos> {
    let decisions = statuses.iter().map(|status| &status.decision);
    let mut waits: Waits = decisions
        .map(|decision| (decision.enforcement.group, decision.time_until_allowed()))
        .collect();
    // Only then: a denied all-or-nothing check charged nothing, and a single charge has no earlier
    // hits.
    if matches!(plan.charges.mode, ChargeMode::Each) && 1 < plan.charges.list.len() {
        let mut decided_charges = decided_charges(plan, statuses, local);
        decided_charges.sort_by(|a, b| a.charge.key.as_bytes().cmp(b.charge.key.as_bytes()));
        for same_counter in decided_charges.chunk_by(|a, b| a.charge.key == b.charge.key) {
            correct_waits(same_counter, |index, wait| {
                if let Some((_, wait_of_descriptor)) = waits.get_mut(index) {
                    *wait_of_descriptor = wait;
                }
            });
        }
    }
    decision::combined_wait(plan.fold_waits(waits).into_iter(), quota_for_all)
}

fn decided_charges<'p>(
    plan: &'p CheckPlan<'_>,
    statuses: &'p [LimitStatus],
    local: Option<&LocalFallback>,
) -> SmallVec<[DecidedCharge<'p>; 2]> {
    let descriptors = plan.limits.iter().zip(statuses).enumerate();
    let descriptors = descriptors.filter(|(_, (limit_plan, _))| LimitPlan::is_charged(limit_plan));
    let charged = descriptors.zip(&plan.charges.list).map(|((index, (_, status)), charge)| {
        let decision = &status.decision;
        let strategy = match decision.reason {
            Reason::StoreDownLocal => local.and_then(|local| local.local_share_of(charge)),
            _ => decision.is_counted().then_some(charge.strategy),
        };
        DecidedCharge { index, charge, decision, strategy }
    });
    charged.collect()
}

/// Calls `set_wait(index, wait)` for each charge in `same_counter`. The wait includes the hits of
/// the earlier charges.
fn correct_waits(
    same_counter: &[DecidedCharge<'_>],
    mut set_wait: impl FnMut(usize, Option<Nanos>),
) {
    let strategy_and_headroom = |c: &DecidedCharge<'_>| Some((c.strategy?, c.decision.headroom));
    let Some(last) = same_counter.iter().rev().find_map(strategy_and_headroom) else { return };
    let is_over_limit = same_counter.iter().any(|charge| {
        matches!(charge.decision.reason, Reason::OverLimit | Reason::LargerThanLimit)
    });
    let mut earlier_hits = Hits(0);
    for decided in same_counter {
        let Some(strategy) = decided.strategy else { continue };
        let hits = match decided.charge.cost {
            Cost::Charge(hits) => hits,
            Cost::Refund(hits) => {
                earlier_hits = earlier_hits.less(hits);
                continue;
            }
        };
        let total_hits = earlier_hits.plus(hits);
        let wait = match strategy {
            // A fixed window counts denied hits. Until its end it denies even a check of 0 hits.
            Strategy::FixedWindow(_) if is_over_limit && total_hits == Hits(0) => {
                Some(last.1.reset_after)
            }
            _ => {
                let needed = strategy.on_excess().needed(total_hits);
                strategy.time_until_allowed(room_for(last, strategy), needed)
            }
        };
        // Hits that can never fit are not charged, unless the limit charges denied hits.
        if wait.is_some() || strategy.charges_denied_hits() {
            earlier_hits = total_hits;
        }
        let own_wait = decided.decision.time_until_allowed();
        // The counter's own retry-after is more exact than one derived from its remaining hits.
        let is_known = same_counter.len() == 1 && decided.decision.verdict == Verdict::Deny;
        if !decided.decision.enforcement.shadow && !is_known {
            set_wait(decided.index, own_wait.zip(wait).map(|(own_wait, wait)| own_wait.max(wait)));
        }
    }
}

/// Returns the headroom after the last charge. If that had another strategy, the remaining hits are
/// unknown and count as 0.
fn room_for((last_strategy, room): (Strategy, Headroom), strategy: Strategy) -> Headroom {
    if last_strategy == strategy { room } else { Headroom { remaining: Hits(0), ..room } }
}
