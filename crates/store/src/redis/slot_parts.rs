//! Splits the charges of a check by Redis Cluster slot, in order.

use smallvec::SmallVec;

use crate::{ChargeOutcome, Charges, Outcomes};

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
            let charges = Charges { mode: charges.mode, ..Charges::default() };
            parts.push(SlotPart { slot, charges, indexes: SmallVec::new() });
            parts.len() - 1
        });
        parts[part_index].charges.list.push(charge.clone());
        parts[part_index].indexes.push(index);
    }
    parts
}
