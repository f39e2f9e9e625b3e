//! Selects the charges to send again after a stale charge: one that was planned for a calendar
//! window that is not open by the store's clock.
//!
//! Guarantees:
//! - A charge that the store made is never repeated.
//! - Pure: no I/O and no clock.

use smallvec::SmallVec;

use crate::engine::decide::excess;
use crate::kernel::decision::{Cost, Enforcement, Verdict, VoteGroup, combine};
use crate::kernel::units::Nanos;
use crate::store::{ChargeMode, ChargeOutcome, Charges, Outcomes, StoreFailure};

/// Returns the store's time if a charge was stale.
pub(in crate::engine) fn store_now(outcomes: &[ChargeOutcome]) -> Option<Nanos> {
    outcomes.iter().find_map(|outcome| match outcome {
        ChargeOutcome::Stale(store_now) => Some(*store_now),
        _ => None,
    })
}

/// Marks charges as failed that are stale even after the second store call.
pub(in crate::engine) fn fail_stale(outcomes: &mut [ChargeOutcome]) {
    for outcome in outcomes.iter_mut().filter(|outcome| matches!(outcome, ChargeOutcome::Stale(_)))
    {
        *outcome = ChargeOutcome::Failed(StoreFailure::OutsideWindows);
    }
}

/// A subset of a check's charges, with their indexes in the check.
pub(in crate::engine) struct ChargeSubset {
    pub(in crate::engine) charges: Charges,
    indexes: SmallVec<[usize; 2]>,
}

impl ChargeSubset {
    pub(in crate::engine) fn select(
        charges: &Charges,
        is_missing: impl Fn(usize) -> bool,
        mode: ChargeMode,
    ) -> Self {
        let indexes: SmallVec<[usize; 2]> =
            (0..charges.list.len()).filter(|&index| is_missing(index)).collect();
        let list = indexes.iter().map(|&index| charges.list[index].clone()).collect();
        Self { charges: Charges { list, mode }, indexes }
    }

    pub(in crate::engine) fn contains(&self, index: usize) -> bool {
        self.indexes.contains(&index)
    }

    /// Returns the elements of `all` at the indexes of these charges.
    pub(in crate::engine) fn select_from<T: Copy>(&self, all: &[T]) -> SmallVec<[T; 2]>
    where
        [T; 2]: smallvec::Array<Item = T>,
    {
        self.indexes.iter().filter_map(|&index| all.get(index).copied()).collect()
    }

    /// Copies `new_outcomes` of this subset to their indexes in `outcomes`, which has all charges
    /// of the check.
    pub(in crate::engine) fn copy_outcomes(&self, new_outcomes: Outcomes, outcomes: &mut Outcomes) {
        for (&index, new_outcome) in self.indexes.iter().zip(new_outcomes) {
            if let Some(outcome) = outcomes.get_mut(index) {
                *outcome = new_outcome;
            }
        }
    }
}

/// Selects the charges of the new plan `replanned` to send, after a charge in `sent` was stale.
///
/// - `charge: all_or_nothing`: a stale charge counts as a denial. If it denied the check, the store
///   charged nothing except refunds and excess hits, so all other charges are sent again.
/// - Otherwise only the stale charges are sent again.
pub(in crate::engine) fn charges_to_repeat(
    sent: &Charges,
    outcomes: &[ChargeOutcome],
    replanned: &Charges,
) -> ChargeSubset {
    let was_denied =
        matches!(sent.mode, ChargeMode::AllOrNothing { .. }) && is_check_denied(sent, outcomes);
    let is_missing = |index: usize| {
        let is_stale = matches!(outcomes.get(index), Some(ChargeOutcome::Stale(_)));
        let is_charge = matches!(sent.list.get(index).map(|c| c.cost), Some(Cost::Charge(_)));
        is_stale || was_denied && is_charge && !excess::is_always_charged(&sent.list[index])
    };
    let mode = match sent.mode {
        ChargeMode::AllOrNothing { .. } if excess::denies(sent, outcomes) => ChargeMode::Preview,
        ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny } if was_denied => {
            // A refund is not repeated, but still counts as an allow in the quota group.
            let allows_quota_group =
                |index: usize| match sent.list.get(index).map(|c| c.standing.group) {
                    Some(VoteGroup::Quota) => true,
                    Some(VoteGroup::Enforced) => quota_for_all,
                    Some(VoteGroup::Unlimited) | None => false,
                };
            let is_allowed = |index: usize| outcomes.get(index).is_some_and(|o| !o.is_denial());
            let has_allowing_refund = (0..sent.list.len())
                .any(|index| !is_missing(index) && is_allowed(index) && allows_quota_group(index));
            ChargeMode::AllOrNothing {
                quota_for_all,
                quota_cannot_deny: quota_cannot_deny || has_allowing_refund,
            }
        }
        ChargeMode::Preview => ChargeMode::Preview,
        ChargeMode::Each | ChargeMode::AllOrNothing { .. } => ChargeMode::Each,
    };
    ChargeSubset::select(replanned, is_missing, mode)
}

/// Returns `true` if the store denied the whole check, and thus charged nothing except refunds.
pub(in crate::engine) fn is_check_denied(sent: &Charges, outcomes: &[ChargeOutcome]) -> bool {
    let (quota_for_all, quota_cannot_deny) = match sent.mode {
        ChargeMode::Each => return false,
        ChargeMode::Preview => return true,
        ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny } => {
            (quota_for_all, quota_cannot_deny)
        }
    };
    let votes = sent.list.iter().zip(outcomes).map(|(charge, outcome)| {
        (charge.standing.group, charge.standing.enforced_verdict(outcome.is_denial()))
    });
    let quota_allow = quota_cannot_deny.then_some((VoteGroup::Quota, Verdict::Allow));
    combine(votes.chain(quota_allow), quota_for_all) == Verdict::Deny
}

/// Returns the charge mode for the charges that have no outcome yet. If the known outcomes deny the
/// check, these charges must not be made.
pub(in crate::engine) fn remaining_mode(
    charges: &Charges,
    outcomes: &Outcomes,
    is_decided: &[bool],
) -> ChargeMode {
    let ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny } = charges.mode else {
        return charges.mode;
    };
    if is_check_denied(charges, outcomes) {
        return ChargeMode::Preview;
    }
    let allows_quota_group = |index: usize| {
        let Enforcement { group, shadow } = charges.list[index].standing;
        let in_quota = group == VoteGroup::Quota || quota_for_all && group == VoteGroup::Enforced;
        in_quota && (shadow || !outcomes[index].is_denial())
    };
    let quota_cannot_deny = quota_cannot_deny
        || (0..is_decided.len()).any(|index| is_decided[index] && allows_quota_group(index));
    ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny }
}

/// Returns one outcome for each charge that has none yet. It does not count as a denial.
pub(in crate::engine) fn placeholders(charges: &Charges) -> Outcomes {
    charges.list.iter().map(|_| ChargeOutcome::Failed(StoreFailure::InvalidReply)).collect()
}
