//! The leases of one shard of the [`LeaseManager`](super::LeaseManager).
//!
//! Guarantees:
//! - A largest number of leases, and [`BYTES_PER_KEY`] times as many bytes of keys.
//! - A full shard evicts the leases without a check for the longest time.
//! - A shard evicts no lease if that does not make enough room for the new one.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use smallvec::SmallVec;

use super::key_lease::KeyLease;
use crate::half_hasher::HalfHasher;

/// The largest total size of the keys in a shard, for each lease that it may have.
pub(super) const BYTES_PER_KEY: usize = 512;

/// A keyed hash of a counter key. Its first half selects the shard.
pub(super) type LeaseKeyHash = [u64; 2];

#[derive(Debug)]
pub(super) struct LeaseShard {
    max_leases: usize,
    leases: HashMap<LeaseKeyHash, KeyLease, BuildHasherDefault<HalfHasher>>,
    key_bytes: usize,
}

impl LeaseShard {
    pub(super) fn new(max_leases: usize) -> Self {
        Self { max_leases, leases: HashMap::default(), key_bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    pub(super) fn get(&self, key_hash: &LeaseKeyHash) -> Option<&KeyLease> {
        self.leases.get(key_hash)
    }

    pub(super) fn get_mut(&mut self, key_hash: &LeaseKeyHash) -> Option<&mut KeyLease> {
        self.leases.get_mut(key_hash)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &KeyLease> {
        self.leases.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut KeyLease> {
        self.leases.values_mut()
    }

    pub(super) fn remove(&mut self, key_hash: &LeaseKeyHash) -> Option<KeyLease> {
        let removed = self.leases.remove(key_hash)?;
        self.key_bytes -= key_bytes(&removed);
        Some(removed)
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&KeyLease) -> bool) {
        let total_bytes = &mut self.key_bytes;
        self.leases.retain(|_, lease| {
            let is_kept = keep(lease);
            *total_bytes -= if is_kept { 0 } else { key_bytes(lease) };
            is_kept
        });
    }

    /// Inserts the lease of a new key, and returns the leases evicted for it. If eviction cannot
    /// make enough room, evicts nothing and drops `new`.
    pub(super) fn insert(
        &mut self,
        key_hash: LeaseKeyHash,
        new: KeyLease,
    ) -> SmallVec<[KeyLease; 1]> {
        let (mut evicted, new_bytes) = (SmallVec::new(), key_bytes(&new));
        if !self.can_make_room(new_bytes) {
            return evicted;
        }
        while !self.has_room(self.len(), self.key_bytes, new_bytes) {
            let idle = self
                .leases
                .iter()
                .filter_map(|(key_hash, lease)| Some((lease.evictable_since()?, *key_hash)));
            let Some((_, longest_idle)) = idle.min() else { return evicted };
            evicted.extend(self.remove(&longest_idle));
        }
        self.key_bytes += new_bytes;
        self.leases.insert(key_hash, new);
        evicted
    }

    /// Returns `true` if a key of `bytes` bytes fits after evicting all leases without a pending
    /// reply.
    fn can_make_room(&self, bytes: usize) -> bool {
        if self.has_room(self.len(), self.key_bytes, bytes) {
            return true;
        }
        let pending = self.leases.values().filter(|lease| lease.evictable_since().is_none());
        let (lease_count, used_bytes) =
            pending.fold((0, 0), |(count, sum), lease| (count + 1, sum + key_bytes(lease)));
        self.has_room(lease_count, used_bytes, bytes)
    }

    const fn has_room(&self, lease_count: usize, used_bytes: usize, bytes: usize) -> bool {
        let max_bytes = self.max_leases.saturating_mul(BYTES_PER_KEY);
        lease_count < self.max_leases && used_bytes.saturating_add(bytes) <= max_bytes
    }
}

fn key_bytes(lease: &KeyLease) -> usize {
    lease.charge.key.as_bytes().len()
}

#[cfg(test)]
mod tests;
