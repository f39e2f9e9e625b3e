//! A hash table that stores each counter beside the hash of its key.
//!
//! With a million counters, a decision mostly waits for memory. A lookup in this table waits for
//! one cache line; in a table with separate tags, for two in sequence.
//!
//! Guarantees:
//! - A table with more than a few counters is 53 % to 80 % full.
//! - A lookup examines three slots on average.
//!
//! The hash function must be keyed, so that clients cannot force long searches.

use super::change_list::ChangeList;
use super::key_hash::{HasKeyHash, KeyHash};

/// A table of entries by hash, with open addressing and linear probing.
#[derive(Debug)]
pub(super) struct CounterTable<E> {
    /// An entry is in its home slot or later, with no empty slot between; the last slot precedes
    /// the first.
    slots: Box<[Option<E>]>,
    len: usize,
    /// The changed entries; `None` if nobody collects them.
    changes: Option<Box<ChangeList>>,
}

const MIN_SLOTS: usize = 4;

const MIN_SLOTS_TO_SHRINK: usize = 64;

impl<E> Default for CounterTable<E> {
    fn default() -> Self {
        Self { slots: Box::default(), len: 0, changes: None }
    }
}

impl<E: HasKeyHash> CounterTable<E> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Lists all changes from now on, for [`CounterTable::take_changes`].
    pub(super) fn track_changes(&mut self) {
        self.changes = Some(Box::default());
    }

    /// Lists the entry of `hash` as changed. Only for entries in the table.
    pub(super) fn mark_changed(&mut self, hash: KeyHash) {
        if let Some(changes) = &mut self.changes {
            changes.push(hash);
        }
    }

    /// Calls `visit` for each changed entry that is still in the table, and empties the list of changes.
    pub(super) fn take_changes(&mut self, mut visit: impl FnMut(&E)) {
        let Some(mut changes) = self.changes.take() else { return };
        for hash in changes.drain() {
            if let Some(entry) = self.get(hash) {
                visit(entry);
            }
        }
        self.changes = Some(changes);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &E> {
        self.slots.iter().flatten()
    }

    pub(super) fn get(&self, hash: KeyHash) -> Option<&E> {
        let (before, after) = self.slots.split_at(self.home_slot(hash));
        let found = after.iter().chain(before).map_while(Option::as_ref);
        found.into_iter().find(|entry| entry.hash() == hash)
    }

    pub(super) fn get_mut(&mut self, hash: KeyHash) -> Option<&mut E> {
        let (before, after) = self.slots.split_at_mut(self.home_slot(hash));
        let found = after.iter_mut().chain(before).map_while(Option::as_mut);
        found.into_iter().find(|entry| entry.hash() == hash)
    }

    /// Inserts an entry, whose hash must be new, and lists it as changed. Cost: O(1), or O(entries)
    /// when the table grows.
    pub(super) fn insert(&mut self, entry: E) {
        if self.slots.len() * 4 < (self.len + 1) * 5 {
            self.resize(slots_for(self.slots.len() + 1));
        }
        self.mark_changed(entry.hash());
        self.insert_unchecked(entry);
        self.len += 1;
    }

    /// Drops the entries for which `keep`, which may be called twice for an entry, returns false. An entry that is
    /// listed as changed stays: its last change must be collected, or a restart would return to the state before.
    /// Shrinks a table that is less than a quarter full. Cost: O(slots).
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        let mut changes = self.changes.take();
        let listed = changes.as_deref_mut().map_or(&[][..], ChangeList::sorted);
        let is_listed = |hash| ChangeList::contains(listed, hash);
        let mut index = 0;
        while let Some(slot) = self.slots.get(index) {
            match slot {
                // Do not advance: the removal may move a later entry into this slot.
                Some(entry) if !is_listed(entry.hash()) && !keep(entry) => self.remove(index),
                Some(_) | None => index += 1,
            }
        }
        self.changes = changes;
        if MIN_SLOTS_TO_SHRINK < self.slots.len() && self.len < self.slots.len() / 4 {
            self.resize(slots_for(self.len * 3 / 2));
        }
    }

    /// Returns the slot where the search for `hash` begins: a hash at half of its range starts at
    /// half of the table.
    fn home_slot(&self, hash: KeyHash) -> usize {
        let scaled = u128::from(hash.position) * self.slots.len() as u128;
        usize::try_from(scaled >> u64::BITS).unwrap_or(0)
    }

    fn insert_unchecked(&mut self, entry: E) {
        let (before, after) = self.slots.split_at_mut(self.home_slot(entry.hash()));
        if let Some(slot) = after.iter_mut().chain(before).find(|slot| slot.is_none()) {
            *slot = Some(entry);
        }
    }

    fn resize(&mut self, slots: usize) {
        let empty = (0..slots).map(|_| None).collect();
        std::mem::replace(&mut self.slots, empty)
            .into_iter()
            .flatten()
            .for_each(|entry| self.insert_unchecked(entry));
    }

    /// Empties the slot at `gap`, and moves later entries so that no search ends too early.
    fn remove(&mut self, mut gap: usize) {
        let slots = self.slots.len();
        let next = |index: usize| if index + 1 == slots { 0 } else { index + 1 };
        let distance =
            |from: usize, to: usize| if from <= to { to - from } else { to + slots - from };
        self.slots[gap] = None;
        self.len -= 1;
        let mut index = next(gap);
        while let Some(entry) = &self.slots[index] {
            if distance(gap, index) <= distance(self.home_slot(entry.hash()), index) {
                self.slots.swap(gap, index);
                gap = index;
            }
            index = next(index);
        }
    }
}

/// Returns at least `wanted` slots: a power of two, or one and a half times a power of two.
/// Allocators serve these sizes without waste.
fn slots_for(wanted: usize) -> usize {
    let power = wanted.next_power_of_two().max(MIN_SLOTS);
    let smaller = power / 4 * 3;
    if wanted <= smaller && MIN_SLOTS <= smaller { smaller } else { power }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::num::NonZeroU64;

    use super::*;

    impl HasKeyHash for (KeyHash, u32) {
        fn hash(&self) -> KeyHash {
            self.0
        }
    }

    /// Returns a hash with one of seven home slots, so that entries collide and wrap around.
    fn hash(number: u64) -> KeyHash {
        let position = (number % 7).wrapping_mul(u64::MAX / 6);
        KeyHash { position, tag: NonZeroU64::MIN.saturating_add(number) }
    }

    #[test]
    fn table_capacity_grows_by_half_then_a_third() {
        let mut sizes = vec![slots_for(0)];
        while sizes.len() < 9 {
            sizes.push(slots_for(sizes[sizes.len() - 1] + 1));
        }
        assert_eq!(sizes, [4, 6, 8, 12, 16, 24, 32, 48, 64]);
        assert_eq!([5, 6, 7, 13].map(slots_for), [6, 6, 8, 16]);
    }

    #[test]
    fn counter_table_behaves_like_a_hash_map() {
        let (mut table, mut model) = (CounterTable::default(), HashMap::new());
        for round in 0_u32..200 {
            for number in (0..40).map(|n| n * u64::from(round % 5 + 1)) {
                let hash = hash(number);
                if table.get(hash).is_none() {
                    table.insert((hash, round));
                }
                model.entry(number).or_insert(round);
            }
            table.retain(|(hash, _)| hash.tag.get() % 11 != u64::from(round % 11));
            model.retain(|number, _| (number + 1) % 11 != u64::from(round % 11));
            assert_eq!(table.len(), model.len());
            for number in 0..250 {
                let found = table.get_mut(hash(number)).map(|&mut (_, round)| round);
                assert_eq!(found, model.get(&number).copied(), "round {round}, number {number}");
            }
        }
    }

    #[test]
    fn a_listed_entry_stays_until_its_change_is_collected() {
        let mut table = CounterTable::default();
        table.track_changes();
        (0..40).for_each(|number| table.insert((hash(number), 0)));
        table.retain(|_| false);
        assert_eq!(table.len(), 40);
        let mut collected = 0;
        table.take_changes(|_| collected += 1);
        table.mark_changed(hash(7));
        table.retain(|_| false);
        assert_eq!((collected, table.len()), (40, 1));
        assert!(table.get(hash(7)).is_some());
    }

    #[test]
    fn load_factor_is_bounded_and_sparse_tables_shrink() {
        let mut table = CounterTable::default();
        for number in 0..2_000 {
            table.insert((hash(number), 0));
            assert!(table.len() * 5 <= table.slots.len() * 4);
        }
        table.retain(|(hash, _)| hash.tag.get() <= 10);
        assert_eq!(table.len(), 10);
        assert!(table.slots.len() < MIN_SLOTS_TO_SHRINK);
    }
}
