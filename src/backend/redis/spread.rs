//! A question whose counters live in several slots of a Cluster.
//!
//! Guarantees: the charges of one slot stay together and in order; every charge has one place.
//! Leaves out: asking each slot, and deciding for several of them together ([`super::steps`]).

use smallvec::SmallVec;

use crate::backend::{Charges, Outcome, Outcomes};

/// The charges of one slot, and their places in the question.
pub(super) struct Part {
    pub(super) slot: u16,
    pub(super) charges: Charges,
    places: SmallVec<[usize; 2]>,
}

impl Part {
    /// Puts what became of them where it belongs.
    pub(super) fn put(&self, answered: Outcomes, outcomes: &mut [Outcome]) {
        for (&place, answer) in self.places.iter().zip(answered) {
            if let Some(outcome) = outcomes.get_mut(place) {
                *outcome = answer;
            }
        }
    }
}

/// `charges` by the slot of each.
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
