//! Splits the charges of a check by Redis Cluster slot.
//!
//! Guarantees:
//! - The charges of one slot stay together and in order.
//! - Every charge is in exactly one part.
//!
//! Not covered:
//! - The store calls for each slot.
//! - Joint decisions of several slots ([`super::joint_decision`]).

use smallvec::SmallVec;

use crate::store::{ChargeOutcome, Charges, Outcomes};

pub(super) struct SlotPart {
    pub(super) slot: u16,
    pub(super) charges: Charges,
    indexes: SmallVec<[usize; 2]>,
}

impl SlotPart {
    /// Writes the outcomes of this part into the outcomes of the whole check.
    pub(super) fn write_to(&self, answered: Outcomes, outcomes: &mut [ChargeOutcome]) {
        for (&place, answer) in self.indexes.iter().zip(answered) {
            if let Some(outcome) = outcomes.get_mut(place) {
                *outcome = answer;
            }
        }
    }
}

pub(super) fn split_by_slot(charges: &Charges, slots: &[u16]) -> Vec<SlotPart> {
    let mut parts: Vec<SlotPart> = Vec::new();
    for (place, (charge, &slot)) in charges.list.iter().zip(slots).enumerate() {
        let at = parts.iter().position(|part| part.slot == slot).unwrap_or_else(|| {
            let charges = Charges { mode: charges.mode, ..Charges::default() };
            parts.push(SlotPart { slot, charges, indexes: SmallVec::new() });
            parts.len() - 1
        });
        parts[at].charges.list.push(charge.clone());
        parts[at].indexes.push(place);
    }
    parts
}
