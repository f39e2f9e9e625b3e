//! The rules that this proxy knows, by descriptor.
//!
//! Guarantees:
//! - The rules have a largest size in bytes. Rules without a request are forgotten first.
//! - A rule without a request between two calls of [`RuleTable::age`] is forgotten by the second.
//! - A lookup allocates no memory, and takes the lock of one of [`SHARDS`] shards.
//!
//! Each shard has a young and an old map, of equal largest sizes. When the young map is full, it
//! replaces the old one. A rule that is found in the old map moves to the young one.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use parking_lot::RwLock;
use sluicegate_lease::half_hasher::HalfHasher;

use crate::kernel::units::Nanos;
use crate::request::DescriptorHash;
use crate::rule::KnownRule;

const SHARDS: usize = 128;

type RuleMap = HashMap<DescriptorHash, Arc<KnownRule>, BuildHasherDefault<HalfHasher>>;

#[derive(Debug, Default)]
struct Shard {
    young: RuleMap,
    young_bytes: usize,
    old: RuleMap,
}

/// All known rules.
#[derive(Debug)]
pub(crate) struct RuleTable {
    shards: Box<[RwLock<Shard>]>,
    /// The largest size of the young rules of a shard, in bytes.
    max_young: usize,
    /// The number of calls of [`RuleTable::change_rows`].
    row_changes: AtomicU64,
}

impl RuleTable {
    /// Creates a table of at most `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { shards, max_young: max_bytes / 2 / SHARDS, row_changes: AtomicU64::new(0) }
    }

    /// Records that rows of tables changed, by their hashes. Cost: O(rules).
    pub(crate) fn change_rows(&self, rows: &HashSet<u64>, now: Nanos) {
        self.row_changes.fetch_add(1, SeqCst);
        for shard in &self.shards {
            let shard = shard.read();
            let rules = shard.young.values().chain(shard.old.values());
            rules.filter(|rule| rule.reads_any(rows)).for_each(|rule| rule.mark_changed(now));
        }
    }

    /// Returns the number of changes of rows so far.
    pub(crate) fn row_changes(&self) -> u64 {
        self.row_changes.load(SeqCst)
    }

    pub(crate) fn find(&self, hash: DescriptorHash) -> Option<Arc<KnownRule>> {
        let shard = self.shard(hash)?;
        {
            let shard = shard.read();
            if let Some(rule) = shard.young.get(&hash) {
                return Some(Arc::clone(rule));
            }
            if !shard.old.contains_key(&hash) {
                return None;
            }
        }
        let mut shard = shard.write();
        // Another thread may have promoted or replaced the rule meanwhile.
        if let Some(rule) = shard.young.get(&hash) {
            return Some(Arc::clone(rule));
        }
        let rule = shard.old.remove(&hash)?;
        shard.insert(hash, Arc::clone(&rule), self.max_young);
        Some(rule)
    }

    /// Inserts a rule, unless it is larger than all rules of a shard may be.
    pub(crate) fn insert(&self, hash: DescriptorHash, rule: Arc<KnownRule>) {
        if let Some(shard) = self.shard(hash) {
            shard.write().insert(hash, rule, self.max_young);
        }
    }

    /// Forgets the old rules. The young rules become old.
    pub(crate) fn age(&self) {
        for shard in &self.shards {
            shard.write().age();
        }
    }

    fn shard(&self, hash: DescriptorHash) -> Option<&RwLock<Shard>> {
        let index = usize::try_from(hash[0] % SHARDS as u64).ok()?;
        self.shards.get(index)
    }
}

impl Shard {
    fn insert(&mut self, hash: DescriptorHash, rule: Arc<KnownRule>, max_young: usize) {
        let bytes = rule.memory_bytes();
        if max_young < bytes {
            return;
        }
        if max_young < self.young_bytes.saturating_add(bytes) {
            self.age();
        }
        self.young_bytes += bytes;
        if let Some(replaced) = self.young.insert(hash, rule) {
            self.young_bytes -= replaced.memory_bytes();
        }
    }

    fn age(&mut self) {
        self.old = std::mem::take(&mut self.young);
        self.young_bytes = 0;
    }
}

#[cfg(test)]
mod tests;
