//! Splits a check by Cluster slot.
//!
//! Guarantees:
//! - The charges of one slot stay together and in order.
//! - Every charge is in exactly one part.
//!
//! Not covered:
//! - Calling the slots.
//! - Joint decisions of several slots ([`super::steps`]).

use smallvec::SmallVec;

use crate::backend::{Charges, Outcome, Outcomes};

pub(super) struct Part {
    pub(super) slot: u16,
    pub(super) charges: Charges,
    places: SmallVec<[usize; 2]>,
}

impl Part {
    /// Writes the outcomes of this part to their positions in the check.
    pub(super) fn put(&self, answered: Outcomes, outcomes: &mut [Outcome]) {
        for (&place, answer) in self.places.iter().zip(answered) {
            if let Some(outcome) = outcomes.get_mut(place) {
                *outcome = answer;
            }
        }
    }
}

pub(super) fn by_slot(charges: &Charges, slots: &[u16]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (place, (charge, &slot)) in charges.list.iter().zip(slots).enumerate() {
        let at = parts.iter().position(|part| part.slot == slot).unwrap_or_else(|| {
            let charges = Charges { rule: charges.rule, ..Charges::default() };
            parts.push(Part { slot, charges, places: SmallVec::new() });
            parts.len() - 1
        });
        parts[at].charges.list.push(charge.clone());
        parts[at].places.push(place);
    }
    parts
}
