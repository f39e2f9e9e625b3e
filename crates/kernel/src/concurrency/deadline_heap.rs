//! The deadlines of permit slots, soonest first.
//!
//! Guarantees:
//! - A slot has at most one deadline. Equal deadlines are ordered by slot number.
//! - Cost: O(log n) per operation; no allocation below the largest previous slot count.
//!
//! Not covered:
//! - The permit in a slot; see [`super::in_flight`].

use crate::units::Nanos;

const NOT_IN_HEAP: u32 = u32::MAX;

/// A binary heap with an index from slot to heap position, so that any slot can be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct DeadlineHeap {
    heap: Vec<(Nanos, u32)>,
    /// The position of each slot in `heap`, or [`NOT_IN_HEAP`].
    positions: Vec<u32>,
}

impl DeadlineHeap {
    pub(super) fn first(&self) -> Option<(Nanos, u32)> {
        self.heap.first().copied()
    }

    /// Sets or replaces the deadline of `slot`.
    pub(super) fn set(&mut self, slot: u32, until: Nanos) {
        let place = self.position_of(slot).unwrap_or_else(|| {
            let place = self.heap.len();
            self.heap.push((until, slot));
            place
        });
        self.set_entry(place, (until, slot));
        self.restore_order(place);
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let Some(place) = self.position_of(slot) else { return };
        let Some(last) = self.heap.pop() else { return };
        if let Some(its) = usize::try_from(slot).ok().and_then(|slot| self.positions.get_mut(slot))
        {
            *its = NOT_IN_HEAP;
        }
        if place < self.heap.len() {
            self.set_entry(place, last);
            self.restore_order(place);
        }
    }

    fn position_of(&self, slot: u32) -> Option<usize> {
        let place = *self.positions.get(usize::try_from(slot).ok()?)?;
        usize::try_from(place).ok().filter(|_| place != NOT_IN_HEAP)
    }

    fn restore_order(&mut self, place: usize) {
        let place = self.sift_up(place);
        self.sift_down(place);
    }

    fn sift_up(&mut self, mut place: usize) -> usize {
        while let Some(above) = place.checked_sub(1).map(|place| place / 2)
            && self.heap.get(place) < self.heap.get(above)
        {
            self.swap(place, above);
            place = above;
        }
        place
    }

    fn sift_down(&mut self, mut place: usize) {
        while let Some(below) = self.sooner_child(place)
            && self.heap.get(below) < self.heap.get(place)
        {
            self.swap(place, below);
            place = below;
        }
    }

    fn sooner_child(&self, place: usize) -> Option<usize> {
        let left = place.checked_mul(2)?.checked_add(1)?;
        let right = left.checked_add(1)?;
        let first = self.heap.get(left)?;
        Some(if self.heap.get(right).is_some_and(|second| second < first) { right } else { left })
    }

    fn swap(&mut self, one: usize, other: usize) {
        let (Some(&first), Some(&second)) = (self.heap.get(one), self.heap.get(other)) else {
            return;
        };
        self.set_entry(one, second);
        self.set_entry(other, first);
    }

    fn set_entry(&mut self, place: usize, entry: (Nanos, u32)) {
        let slot = usize::try_from(entry.1).unwrap_or(usize::MAX);
        if self.positions.len() <= slot {
            // Slots are numbered consecutively, so this usually adds one element.
            self.positions.resize(slot.saturating_add(1), NOT_IN_HEAP);
        }
        if let (Some(at), Some(its)) = (self.heap.get_mut(place), self.positions.get_mut(slot)) {
            *at = entry;
            *its = u32::try_from(place).unwrap_or(NOT_IN_HEAP);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{DeadlineHeap, Nanos};

    /// Slots, deadlines, and `true` to remove the slot, from a Lehmer generator with full period.
    fn operations(seed: u64) -> impl Iterator<Item = (u32, Nanos, bool)> {
        const MODULUS: u64 = 1_000_003;
        std::iter::successors(Some(seed), |state| state.checked_mul(48_271)?.checked_rem(MODULUS))
            .map(|state| {
                let slot = u32::try_from(state % 24).unwrap();
                (slot, Nanos(state / 24 % 40), state / 1_000 % 3 == 0)
            })
    }

    #[test]
    fn first_returns_the_earliest_deadline_after_any_changes() {
        for seed in 1..200 {
            let (mut heap, mut model) = (DeadlineHeap::default(), BTreeMap::new());
            for (slot, until, goes) in operations(seed).take(300) {
                if goes {
                    heap.remove(slot);
                    model.remove(&slot);
                } else {
                    heap.set(slot, until);
                    model.insert(slot, until);
                }
                let soonest = model.iter().map(|(&slot, &until)| (until, slot)).min();
                assert_eq!(heap.first(), soonest, "seed {seed}");
            }
        }
    }
}
