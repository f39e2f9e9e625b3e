//! Computes the retry-after of a denied check.
//!
//! Guarantees:
//! - The same check, sent again after the wait, is allowed if no other check came.
//! - The wait includes the hits that the denied check itself was charged.
//! - A check whose hits on one counter can never be allowed together has no retry-after.
//! - Limits that were not charged because of a cached denial count as allowed.
//!
//! Not covered:
//! - The retry-after of one limit: see `kernel::rate`.
//! - The limits that must allow a check: see `kernel::decision`.
//!
//! Cost: no allocation for up to two descriptors.

use smallvec::SmallVec;

use crate::engine::LimitStatuses;
use crate::engine::decide::local_fallback::LocalFallback;
use crate::engine::decide::plan::{CheckPlan, DescriptorPlan};
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

/// Returns the wait after which `plan`, with the decisions `statuses`,
/// would be allowed if no other check came. `None` if no wait helps.
pub(in crate::engine) fn retry_after(
    plan: &CheckPlan<'_>,
    statuses: &LimitStatuses,
    local: Option<&LocalFallback>,
    quota_for_all: bool,
) -> Option<Nanos> {
    let findings = statuses.iter().map(|status| &status.decision);
    let mut waits: SmallVec<[_; 2]> =
        findings.map(|finding| (finding.enforcement.group, finding.time_until_allowed())).collect();
    // Not needed otherwise: a denied all-or-nothing check charged nothing, and a single charge
    // follows no other.
    if matches!(plan.charges.mode, ChargeMode::Each) && 1 < plan.charges.list.len() {
        let mut charged = decided_charges(plan, statuses, local);
        charged.sort_by(|a, b| a.charge.key.as_bytes().cmp(b.charge.key.as_bytes()));
        for same in charged.chunk_by(|a, b| a.charge.key == b.charge.key) {
            correct_waits(same, |place, wait| {
                if let Some((_, waits)) = waits.get_mut(place) {
                    *waits = wait;
                }
            });
        }
    }
    decision::combined_wait(waits.into_iter(), quota_for_all)
}

fn decided_charges<'p>(
    plan: &'p CheckPlan<'_>,
    statuses: &'p LimitStatuses,
    local: Option<&LocalFallback>,
) -> SmallVec<[DecidedCharge<'p>; 2]> {
    let places = plan.descriptors.iter().zip(statuses).enumerate();
    let places = places.filter(|(_, (part, _))| DescriptorPlan::is_charged(part));
    let charged = places.zip(&plan.charges.list).map(|((place, (_, status)), charge)| {
        let finding = &status.decision;
        let strategy = match finding.reason {
            Reason::StoreDownLocal => local.and_then(|local| local.local_share_of(charge)),
            _ => finding.is_counted().then_some(charge.strategy),
        };
        DecidedCharge { index: place, charge, decision: finding, strategy }
    });
    charged.collect()
}

/// Calls `set_wait` with the wait of each charge in `same`, all to one counter. The wait of a
/// charge includes the hits of the earlier charges.
fn correct_waits(same: &[DecidedCharge<'_>], mut set_wait: impl FnMut(usize, Option<Nanos>)) {
    let counted = |one: &DecidedCharge<'_>| Some((one.strategy?, one.decision.headroom));
    let Some(last) = same.iter().rev().find_map(counted) else { return };
    let is_over = same
        .iter()
        .any(|one| matches!(one.decision.reason, Reason::OverLimit | Reason::LargerThanLimit));
    let mut earlier_hits = Hits(0);
    for decided in same {
        let Some(strategy) = decided.strategy else { continue };
        let hits = match decided.charge.cost {
            Cost::Charge(hits) => hits,
            Cost::Refund(hits) => {
                earlier_hits = earlier_hits.less(hits);
                continue;
            }
        };
        let together = earlier_hits.plus(hits);
        let wait = match strategy {
            // A fixed window counts denied hits. Until its end it denies even a check of 0 hits.
            Strategy::FixedWindow(_) if is_over && together == Hits(0) => Some(last.1.reset_after),
            _ => strategy.time_until_allowed(room_for(last, strategy), together),
        };
        // Hits that can never fit are not charged, except in a fixed window.
        if wait.is_some() || matches!(strategy, Strategy::FixedWindow(_)) {
            earlier_hits = together;
        }
        let own = decided.decision.time_until_allowed();
        // The counter's own retry-after is more exact than one derived from its remaining hits.
        let is_known = same.len() == 1 && decided.decision.verdict == Verdict::Deny;
        if !decided.decision.enforcement.shadow && !is_known {
            set_wait(decided.index, own.zip(wait).map(|(own, wait)| own.max(wait)));
        }
    }
}

/// Returns the headroom of the counter after its last charge, which had the strategy `last`. A
/// different `strategy` gets zero remaining hits, because its count is unknown.
fn room_for((last, room): (Strategy, Headroom), strategy: Strategy) -> Headroom {
    if last == strategy { room } else { Headroom { remaining: Hits(0), ..room } }
}
