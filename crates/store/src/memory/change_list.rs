//! The list of the counters of one hash table that changed since the last collection.
//!
//! Guarantees:
//! - The list has at most twice as many entries as counters changed, plus a few.
//! - Cost of a change: amortized O(log of the list's length), mostly one write to memory.

use std::num::NonZeroU64;

use super::key_hash::KeyHash;

/// The smallest capacity that is worth an allocation.
const MIN_CAPACITY: usize = 4;

#[derive(Debug, Default)]
pub(super) struct ChangeList(Vec<KeyHash>);

impl ChangeList {
    pub(super) fn push(&mut self, hash: KeyHash) {
        // A counter is often charged several times in sequence.
        if self.0.last() == Some(&hash) {
            return;
        }
        if self.0.len() == self.0.capacity() {
            self.make_room();
        }
        self.0.push(hash);
    }

    /// Returns the changed counters, each once, in the order that [`ChangeList::contains`] needs.
    pub(super) fn sorted(&mut self) -> &[KeyHash] {
        self.remove_duplicates();
        &self.0
    }

    /// Returns whether a sorted list contains `hash`. Cost: O(log of the list's length).
    pub(super) fn contains(sorted: &[KeyHash], hash: KeyHash) -> bool {
        sorted.binary_search_by_key(&order(&hash), order).is_ok()
    }

    /// Returns the changed counters, each at least once, and empties the list.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = KeyHash> + '_ {
        self.remove_duplicates();
        self.0.drain(..)
    }

    /// Removes duplicates. Grows the list if it is still more than half full.
    #[cold]
    fn make_room(&mut self) {
        self.remove_duplicates();
        if self.0.capacity() <= self.0.len() * 2 {
            self.0.reserve_exact(self.0.len().max(MIN_CAPACITY));
        }
    }

    fn remove_duplicates(&mut self) {
        self.0.sort_unstable_by_key(order);
        self.0.dedup();
    }
}

const fn order(hash: &KeyHash) -> (u64, NonZeroU64) {
    (hash.position, hash.tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> KeyHash {
        KeyHash { position: number, tag: NonZeroU64::MIN }
    }

    #[test]
    fn change_list_returns_each_changed_counter_once() {
        let mut list = ChangeList::default();
        (0..10_000).for_each(|number| list.push(hash(number % 7)));
        assert!(list.0.capacity() <= 16, "{}", list.0.capacity());
        let positions: Vec<_> = list.drain().map(|hash| hash.position).collect();
        assert_eq!(positions, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(list.drain().count(), 0);
    }
}
