//! The deadlines of slots, soonest first.
//!
//! Guarantees:
//! - A slot has at most one deadline. Equal deadlines are ordered by slot.
//! - Cost: O(log n) per operation; no allocation below the largest previous slot count.
//!
//! Not covered:
//! - The content of a slot; see [`super::in_flight`].

use crate::kernel::units::Nanos;

const NOWHERE: u32 = u32::MAX;

/// A binary heap with an index from slot to heap position, so that any slot can be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Deadlines {
    heap: Vec<(Nanos, u32)>,
    /// The position of each slot in `heap`, or [`NOWHERE`].
    places: Vec<u32>,
}

impl Deadlines {
    pub(super) fn first(&self) -> Option<(Nanos, u32)> {
        self.heap.first().copied()
    }

    /// Sets or replaces the deadline of `slot`.
    pub(super) fn set(&mut self, slot: u32, until: Nanos) {
        let place = self.place_of(slot).unwrap_or_else(|| {
            let place = self.heap.len();
            self.heap.push((until, slot));
            place
        });
        self.put(place, (until, slot));
        self.settle(place);
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let Some(place) = self.place_of(slot) else { return };
        let Some(last) = self.heap.pop() else { return };
        if let Some(its) = usize::try_from(slot).ok().and_then(|slot| self.places.get_mut(slot)) {
            *its = NOWHERE;
        }
        if place < self.heap.len() {
            self.put(place, last);
            self.settle(place);
        }
    }

    fn place_of(&self, slot: u32) -> Option<usize> {
        let place = *self.places.get(usize::try_from(slot).ok()?)?;
        usize::try_from(place).ok().filter(|_| place != NOWHERE)
    }

    fn settle(&mut self, place: usize) {
        let place = self.rise(place);
        self.sink(place);
    }

    fn rise(&mut self, mut place: usize) -> usize {
        while let Some(above) = place.checked_sub(1).map(|place| place / 2)
            && self.heap.get(place) < self.heap.get(above)
        {
            self.swap(place, above);
            place = above;
        }
        place
    }

    fn sink(&mut self, mut place: usize) {
        while let Some(below) = self.sooner_below(place)
            && self.heap.get(below) < self.heap.get(place)
        {
            self.swap(place, below);
            place = below;
        }
    }

    fn sooner_below(&self, place: usize) -> Option<usize> {
        let left = place.checked_mul(2)?.checked_add(1)?;
        let right = left.checked_add(1)?;
        let first = self.heap.get(left)?;
        Some(if self.heap.get(right).is_some_and(|second| second < first) { right } else { left })
    }

    fn swap(&mut self, one: usize, other: usize) {
        let (Some(&first), Some(&second)) = (self.heap.get(one), self.heap.get(other)) else {
            return;
        };
        self.put(one, second);
        self.put(other, first);
    }

    fn put(&mut self, place: usize, entry: (Nanos, u32)) {
        let slot = usize::try_from(entry.1).unwrap_or(usize::MAX);
        if self.places.len() <= slot {
            // Slots are numbered consecutively, so this usually adds one element.
            self.places.resize(slot.saturating_add(1), NOWHERE);
        }
        if let (Some(at), Some(its)) = (self.heap.get_mut(place), self.places.get_mut(slot)) {
            *at = entry;
            *its = u32::try_from(place).unwrap_or(NOWHERE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Deadlines, Nanos};

    /// Slots, deadlines and operations from a Lehmer generator with full period.
    fn acts(seed: u64) -> impl Iterator<Item = (u32, Nanos, bool)> {
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
            let (mut tried, mut law) = (Deadlines::default(), BTreeMap::new());
            for (slot, until, goes) in acts(seed).take(300) {
                if goes {
                    tried.remove(slot);
                    law.remove(&slot);
                } else {
                    tried.set(slot, until);
                    law.insert(slot, until);
                }
                let soonest = law.iter().map(|(&slot, &until)| (until, slot)).min();
                assert_eq!(tried.first(), soonest, "seed {seed}");
            }
        }
    }
}
