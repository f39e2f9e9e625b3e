//! Splits the charges of a check into parts that are charged independently, such as the slots of a
//! Redis Cluster.
//!
//! Guarantees:
//! - The parts of an all-or-nothing check are charged as with `charge: each`.

use smallvec::SmallVec;

use crate::{ChargeMode, ChargeOutcome, Charges, Outcomes, StoreFailure};

pub(super) struct SlotPart {
    pub(super) slot: u16,
    pub(super) charges: Charges,
    indexes: SmallVec<[usize; 2]>,
}

impl SlotPart {
    pub(super) fn write_to(&self, part_outcomes: Outcomes, outcomes: &mut [ChargeOutcome]) {
        for (&index, part_outcome) in self.indexes.iter().zip(part_outcomes) {
            if let Some(outcome) = outcomes.get_mut(index) {
                *outcome = part_outcome;
            }
        }
    }
}

pub(super) fn split_by_slot(charges: &Charges, slots: &[u16]) -> Vec<SlotPart> {
    let mut parts: Vec<SlotPart> = Vec::new();
    for (index, (charge, &slot)) in charges.list.iter().zip(slots).enumerate() {
        let part_index = parts.iter().position(|part| part.slot == slot).unwrap_or_else(|| {
            let charges = Charges { mode: mode_of_parts(charges.mode), ..Charges::default() };
            parts.push(SlotPart { slot, charges, indexes: SmallVec::new() });
            parts.len() - 1
        });
        parts[part_index].charges.list.push(charge.clone());
        parts[part_index].indexes.push(index);
    }
    parts
}

/// Returns the charge mode of the parts of a check. If parts decided all-or-nothing, a quota group that
/// denies in one part would leave the enforced limits of this part uncharged, although the check is
/// allowed.
pub(super) const fn mode_of_parts(mode: ChargeMode) -> ChargeMode {
    match mode {
        ChargeMode::AllOrNothing { .. } => ChargeMode::Each,
        ChargeMode::Each | ChargeMode::Preview => mode,
    }
}

/// Fails the stale charges of an all-or-nothing check with several parts. Otherwise the engine would
/// send the whole check again, although its other parts were charged.
pub(super) fn fail_stale_parts(mode: ChargeMode, outcomes: &mut Outcomes) {
    let is_stale = |outcome: &&mut ChargeOutcome| matches!(outcome, ChargeOutcome::Stale(_));
    if matches!(mode, ChargeMode::AllOrNothing { .. }) {
        for outcome in outcomes.iter_mut().filter(is_stale) {
            *outcome = ChargeOutcome::Failed(StoreFailure::OutsideWindows);
        }
    }
}
