//! Reads and restores the counters and budgets of the memory store, for the file store.

use super::MemoryStore;
use super::budgets::{ChangedBudget, SavedBudget};
use super::changed_shards::ChangedShards;
use super::counter_record::CounterRecord;
use crate::kernel::units::Nanos;

impl MemoryStore {
    /// Lists all changes from now on, for [`MemoryStore::take_changes`] and
    /// [`MemoryStore::take_changed_budgets`].
    #[must_use]
    pub(crate) fn with_change_tracking(self) -> Self {
        self.shards.iter().for_each(|shard| shard.0.lock().track_changes());
        self.budgets.lock().track_changes();
        Self { changed_shards: Some(ChangedShards::new(Self::SHARDS)), ..self }
    }

    /// Calls `visit` for each counter that changed since the last call, one shard at a time. A change that is
    /// made before the call is included.
    pub(crate) fn take_changes(&self, visit: &mut dyn FnMut(CounterRecord<'_>)) {
        let Some(changed) = &self.changed_shards else { return };
        changed.take(|index| self.lock_shard(index).take_changes(visit));
    }

    /// Calls `visit` for each counter of one shard.
    pub(crate) fn visit_shard(&self, index: usize, visit: &mut dyn FnMut(CounterRecord<'_>)) {
        self.lock_shard(index).visit_counters(visit);
    }

    /// Replaces the state of a counter, or inserts the counter unless it is empty at `now`. Returns `false` if
    /// the store is full.
    pub(crate) fn restore(&self, record: CounterRecord<'_>, now: Nanos) -> bool {
        let mut shard = self.lock_shard(Self::shard_of(record.hash));
        let is_new_and_empty = record.state.is_empty(now) && !shard.has_counter(record.hash);
        is_new_and_empty || shard.restore(record, &self.counters).is_ok()
    }

    /// Returns the budgets that changed since the last call; `None` for one that was removed.
    pub(crate) fn take_changed_budgets(&self) -> Vec<ChangedBudget> {
        self.budgets.lock().take_changes()
    }

    /// Returns all budgets, and forgets which of them changed.
    pub(crate) fn take_all_budgets(&self) -> Vec<ChangedBudget> {
        self.budgets.lock().take_all()
    }

    /// Inserts a saved budget. One that need not be kept at `now` counts as removed. Returns `false`
    /// if more than `max_keys` budgets are in the store.
    pub(crate) fn restore_budget(&self, name: &[u8], saved: SavedBudget, now: Nanos) -> bool {
        let mut budgets = self.budgets.lock();
        budgets.restore(name, saved, now);
        budgets.count() <= self.max_keys()
    }
}
