//! Charges limits with `on_excess: charge`, even if the check is denied.
//!
//! With `charge: all_or_nothing`, a denied check charges no limit except these: their hits were
//! used. They are charged first. Then the other limits are charged all-or-nothing, unless one of
//! the first denies the check.
//!
//! Guarantees:
//! - A limit with `on_excess: charge` is charged once, whatever the other limits decide.
//! - If it denies the check, the other limits are not charged.
//!
//! Cost: two store calls if the check also has other limits, otherwise one.

use crate::kernel::decision::{Cost, Verdict, VoteGroup};
use crate::store::{Charge, ChargeMode, ChargeOutcome, Charges, Outcomes};
use sluicegate_lease::charge_subset::{ChargeSubset, remaining_mode};

/// Returns `true` if `charge` is made even if its check is denied.
pub(crate) const fn is_always_charged(charge: &Charge) -> bool {
    matches!(charge.cost, Cost::Charge(_)) && charge.strategy.on_excess().is_charge()
}

/// Returns `true` if all `charges` are made even if the check is denied.
pub(crate) fn charges_all(charges: &[Charge]) -> bool {
    charges.iter().any(is_always_charged)
        && charges
            .iter()
            .all(|charge| is_always_charged(charge) || matches!(charge.cost, Cost::Refund(_)))
}

/// Returns `true` if a denial of the check keeps some of `charges` from being made, but not all.
pub(crate) fn needs_two_steps(charges: &Charges) -> bool {
    !matches!(charges.mode, ChargeMode::Each) && charges.list.iter().any(is_always_charged)
}

/// Returns `true` if a limit that is always charged denies the check by itself.
pub(crate) fn denies(charges: &Charges, outcomes: &[ChargeOutcome]) -> bool {
    charges.list.iter().zip(outcomes).any(|(charge, outcome)| {
        is_always_charged(charge)
            && charge.standing.group == VoteGroup::Enforced
            && charge.standing.enforced_verdict(outcome.is_denial()) == Verdict::Deny
    })
}

/// Returns the charges that are always made.
pub(crate) fn first_step(charges: &Charges) -> ChargeSubset {
    ChargeSubset::select(charges, |at| is_always_charged(&charges.list[at]), ChargeMode::Each)
}

/// Returns the other charges, with the mode that follows from the `outcomes` of the first step.
pub(crate) fn second_step(charges: &Charges, outcomes: &Outcomes) -> ChargeSubset {
    let is_decided: Vec<bool> = charges.list.iter().map(is_always_charged).collect();
    let mode = remaining_mode(charges, outcomes, &is_decided);
    ChargeSubset::select(charges, |index| !is_decided[index], mode)
}
