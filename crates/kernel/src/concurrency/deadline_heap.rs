//! The deadlines of permit slots, soonest first.
//!
//! Guarantees:
//! - A slot has at most one deadline. Equal deadlines are ordered by slot number.
//! - Cost: O(log n) per operation; no allocation below the largest previous slot count.

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

    pub(super) fn set(&mut self, slot: u32, deadline: Nanos) {
        let position = self.position_of(slot).unwrap_or_else(|| {
            let position = self.heap.len();
            self.heap.push((deadline, slot));
            position
        });
        self.set_entry(position, (deadline, slot));
        self.restore_order(position);
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let Some(position) = self.position_of(slot) else { return };
        let Some(last) = self.heap.pop() else { return };
        if let Some(slot_position) =
            usize::try_from(slot).ok().and_then(|slot| self.positions.get_mut(slot))
        {
            *slot_position = NOT_IN_HEAP;
        }
        if position < self.heap.len() {
            self.set_entry(position, last);
            self.restore_order(position);
        }
    }

    fn position_of(&self, slot: u32) -> Option<usize> {
        let position = *self.positions.get(usize::try_from(slot).ok()?)?;
        usize::try_from(position).ok().filter(|_| position != NOT_IN_HEAP)
    }

    fn restore_order(&mut self, position: usize) {
        let position = self.sift_up(position);
        self.sift_down(position);
    }

    fn sift_up(&mut self, mut position: usize) -> usize {
        while let Some(parent) = position.checked_sub(1).map(|position| position / 2)
            && self.heap.get(position) < self.heap.get(parent)
        {
            self.swap(position, parent);
            position = parent;
        }
        position
    }

    fn sift_down(&mut self, mut position: usize) {
        while let Some(child) = self.sooner_child(position)
            && self.heap.get(child) < self.heap.get(position)
        {
            self.swap(position, child);
            position = child;
        }
    }

    fn sooner_child(&self, position: usize) -> Option<usize> {
        let left = position.checked_mul(2)?.checked_add(1)?;
        let right = left.checked_add(1)?;
        let left_entry = self.heap.get(left)?;
        Some(if self.heap.get(right).is_some_and(|entry| entry < left_entry) {
            right
        } else {
            left
        })
    }

    fn swap(&mut self, a: usize, b: usize) {
        let (Some(&entry_a), Some(&entry_b)) = (self.heap.get(a), self.heap.get(b)) else {
            return;
        };
        self.set_entry(a, entry_b);
        self.set_entry(b, entry_a);
    }

    fn set_entry(&mut self, position: usize, entry: (Nanos, u32)) {
        let slot = usize::try_from(entry.1).unwrap_or(usize::MAX);
        if self.positions.len() <= slot {
            // Slots are numbered consecutively, so this usually adds one element.
            self.positions.resize(slot.saturating_add(1), NOT_IN_HEAP);
        }
        if let (Some(heap_entry), Some(slot_position)) =
            (self.heap.get_mut(position), self.positions.get_mut(slot))
        {
            *heap_entry = entry;
            *slot_position = u32::try_from(position).unwrap_or(NOT_IN_HEAP);
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
            for (slot, until, removes) in operations(seed).take(300) {
                if removes {
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
