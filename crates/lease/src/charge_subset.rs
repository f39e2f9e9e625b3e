//! A subset of a check's charges, for a store call that makes only these.
//!
//! Guarantees:
//! - Pure: no I/O and no clock.

use smallvec::SmallVec;

use crate::kernel::decision::{Enforcement, Verdict, VoteGroup, combine};
use crate::store::{ChargeMode, ChargeOutcome, Charges, Outcomes, StoreFailure};

/// A subset of a check's charges, with their indexes in the check.
pub struct ChargeSubset {
    /// The charges of the subset, in the order of the check.
    pub charges: Charges,
    indexes: SmallVec<[usize; 2]>,
}

impl ChargeSubset {
    /// Selects the charges at the indexes for which `is_missing` returns `true`.
    pub fn select(charges: &Charges, is_missing: impl Fn(usize) -> bool, mode: ChargeMode) -> Self {
        let indexes: SmallVec<[usize; 2]> =
            (0..charges.list.len()).filter(|&index| is_missing(index)).collect();
        let list = indexes.iter().map(|&index| charges.list[index].clone()).collect();
        Self { charges: Charges { list, mode }, indexes }
    }

    /// Returns `true` if the charge at `index` of the check is in the subset.
    #[must_use]
    pub fn contains(&self, index: usize) -> bool {
        self.indexes.contains(&index)
    }

    /// Returns the elements of `all` at the indexes of these charges.
    pub fn select_from<T: Copy>(&self, all: &[T]) -> SmallVec<[T; 2]>
    where
        [T; 2]: smallvec::Array<Item = T>,
    {
        self.indexes.iter().filter_map(|&index| all.get(index).copied()).collect()
    }

    /// Copies `new_outcomes` of this subset to their indexes in `outcomes`, which has all charges
    /// of the check.
    pub fn copy_outcomes(&self, new_outcomes: Outcomes, outcomes: &mut Outcomes) {
        for (&index, new_outcome) in self.indexes.iter().zip(new_outcomes) {
            if let Some(outcome) = outcomes.get_mut(index) {
                *outcome = new_outcome;
            }
        }
    }
}

/// Returns `true` if the store denied the whole check. It then charged nothing except refunds, if all
/// counters are in one slot and store.
#[must_use]
pub fn is_check_denied(sent: &Charges, outcomes: &[ChargeOutcome]) -> bool {
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
#[must_use]
pub fn remaining_mode(charges: &Charges, outcomes: &Outcomes, is_decided: &[bool]) -> ChargeMode {
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
#[must_use]
pub fn placeholders(charges: &Charges) -> Outcomes {
    charges.list.iter().map(|_| ChargeOutcome::Failed(StoreFailure::InvalidReply)).collect()
}
