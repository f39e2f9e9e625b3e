//! The rules that this proxy knows, by descriptor.
//!
//! Guarantees:
//! - At most [`MAX_RULES`] rules. Rules without a request are forgotten first.
//! - A lookup allocates no memory, and takes the lock of one of [`SHARDS`] shards.
//!
//! Each shard has a young and an old map. When the young map is full, it replaces the old one. A
//! rule that is found in the old map moves to the young one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::request::DescriptorHash;
use crate::rule::KnownRule;

const SHARDS: usize = 128;

/// The largest number of rules: 2^20 young and 2^20 old ones, about 600 bytes each.
pub(crate) const MAX_RULES: usize = 2 << 20;

const YOUNG_PER_SHARD: usize = MAX_RULES / 2 / SHARDS;

type RuleMap = HashMap<DescriptorHash, Arc<KnownRule>, BuildHasherDefault<HalfHasher>>;

#[derive(Debug, Default)]
struct Shard {
    young: RuleMap,
    old: RuleMap,
}

/// All known rules.
#[derive(Debug)]
pub(crate) struct RuleTable(Box<[RwLock<Shard>]>);

impl RuleTable {
    pub(crate) fn new() -> Self {
        Self((0..SHARDS).map(|_| RwLock::default()).collect())
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
        shard.insert(hash, Arc::clone(&rule));
        Some(rule)
    }

    pub(crate) fn insert(&self, hash: DescriptorHash, rule: Arc<KnownRule>) {
        if let Some(shard) = self.shard(hash) {
            shard.write().insert(hash, rule);
        }
    }

    fn shard(&self, hash: DescriptorHash) -> Option<&RwLock<Shard>> {
        let index = usize::try_from(hash[0] % SHARDS as u64).ok()?;
        self.0.get(index)
    }
}

impl Shard {
    fn insert(&mut self, hash: DescriptorHash, rule: Arc<KnownRule>) {
        if YOUNG_PER_SHARD <= self.young.len() {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, rule);
    }
}

/// Hashes a [`DescriptorHash`], which is already a hash, by taking its second half.
#[derive(Debug, Default)]
pub(crate) struct HalfHasher(u64);

impl Hasher for HalfHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    /// An array of integers is written as its bytes, not by `write_u64`.
    fn write(&mut self, bytes: &[u8]) {
        if let Some(half) = bytes.last_chunk() {
            self.0 = u64::from_ne_bytes(*half);
        }
    }
}

#[cfg(test)]
mod tests;
