//! The leases of one shard.
//!
//! Guarantees:
//! - At most [`WAYS`] leases, and at most [`MOST_BYTES`] bytes of keys.
//! - A full shard evicts the leases without a check for the longest time.
//! - It evicts none if that does not make enough room.
//!
//! Not covered:
//! - Returning the hits of an evicted lease.
//! - The choice of the shard.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use smallvec::SmallVec;

use super::held::Held;

pub(super) const WAYS: usize = 256;

/// The largest total size of the keys in a shard, in bytes: 512 for each lease.
pub(super) const MOST_BYTES: usize = 128 << 10;

/// A keyed hash of a counter's key. The first half selects the shard.
pub(super) type Place = [u64; 2];

#[derive(Debug, Default)]
pub(super) struct Ledgers {
    held: HashMap<Place, Held, BuildHasherDefault<Second>>,
    bytes: usize,
}

impl Ledgers {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn get(&self, place: &Place) -> Option<&Held> {
        self.held.get(place)
    }

    pub(super) fn get_mut(&mut self, place: &Place) -> Option<&mut Held> {
        self.held.get_mut(place)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Held> {
        self.held.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.held.values_mut()
    }

    pub(super) fn remove(&mut self, place: &Place) -> Option<Held> {
        let gone = self.held.remove(place)?;
        self.bytes -= size(&gone);
        Some(gone)
    }

    pub(super) fn retain(&mut self, stays: impl Fn(&Held) -> bool) {
        let bytes = &mut self.bytes;
        self.held.retain(|_, held| {
            let stays = stays(held);
            *bytes -= if stays { 0 } else { size(held) };
            stays
        });
    }

    /// Inserts `new` for a key without a lease, and returns the evicted leases.
    /// If eviction cannot make enough room, evicts nothing and drops `new`.
    pub(super) fn insert(&mut self, place: Place, new: Held) -> SmallVec<[Held; 1]> {
        let (mut gone, its) = (SmallVec::new(), size(&new));
        if !self.can_make_room(its) {
            return gone;
        }
        while !has_room(self.len(), self.bytes, its) {
            let idle =
                self.held.iter().filter_map(|(place, held)| Some((held.last_asked()?, *place)));
            let Some((_, longest)) = idle.min() else { return gone };
            gone.extend(self.remove(&longest));
        }
        self.bytes += its;
        self.held.insert(place, new);
        gone
    }

    /// Returns `true` if a key of this size fits after evicting all leases without a pending reply.
    fn can_make_room(&self, bytes: usize) -> bool {
        if has_room(self.len(), self.bytes, bytes) {
            return true;
        }
        let stay = self.held.values().filter(|held| held.last_asked().is_none());
        let (ledgers, held) = stay.fold((0, 0), |(count, sum), held| (count + 1, sum + size(held)));
        has_room(ledgers, held, bytes)
    }
}

const fn has_room(ledgers: usize, held: usize, bytes: usize) -> bool {
    ledgers < WAYS && held.saturating_add(bytes) <= MOST_BYTES
}

fn size(held: &Held) -> usize {
    held.charge.key.as_bytes().len()
}

/// Uses the second half of a [`Place`] as it is, because it is already a hash.
#[derive(Debug, Default)]
pub(super) struct Second(u64);

impl Hasher for Second {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }
}

#[cfg(test)]
mod tests;
