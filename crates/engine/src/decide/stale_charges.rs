//! Selects the charges to send again after a stale charge: one that was planned for a calendar
//! window that is not open by the store's clock.
//!
//! Guarantees:
//! - A charge that the store made is never repeated.
//! - Pure: no I/O and no clock.

use sluicegate_lease::charge_subset::{ChargeSubset, is_check_denied};

use crate::decide::excess;
use crate::kernel::decision::{Cost, VoteGroup};
use crate::kernel::units::Nanos;
use crate::store::{ChargeMode, ChargeOutcome, Charges, StoreFailure};

/// Returns the store's time if a charge was stale.
pub(crate) fn store_now(outcomes: &[ChargeOutcome]) -> Option<Nanos> {
    outcomes.iter().find_map(|outcome| match outcome {
        ChargeOutcome::Stale(store_now) => Some(*store_now),
        _ => None,
    })
}

/// Marks charges as failed that are stale even after the second store call.
pub(crate) fn fail_stale(outcomes: &mut [ChargeOutcome]) {
    for outcome in outcomes.iter_mut().filter(|outcome| matches!(outcome, ChargeOutcome::Stale(_)))
    {
        *outcome = ChargeOutcome::Failed(StoreFailure::OutsideWindows);
    }
}

/// Selects the charges of the new plan `replanned` to send, after a charge in `sent` was stale.
///
/// - `charge: all_or_nothing`: a stale charge counts as a denial. If it denied the check, the store
///   charged nothing except refunds and excess hits, so all other charges are sent again.
/// - Otherwise only the stale charges are sent again.
pub(crate) fn charges_to_repeat(
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
