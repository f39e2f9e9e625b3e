//! The lease tables of one shard, by the key of their counter.
//!
//! Guarantees:
//! - A lease table counts toward `max_keys`, as a counter does.
//! - A lease table stays while a lease is valid; a sweep drops it once all its leases expired.

use super::counters::{CapacitySource as _, CounterCapacity};
use super::key_hash::{HasKeyHash, KeyHash};
use super::table::CounterTable;
use crate::kernel::lease::table::LeaseTable;
use crate::kernel::lease::{LeaseTerms, Overshoot};
use crate::kernel::units::{Hits, Nanos};

#[derive(Debug, Default)]
pub(super) struct LeaseLists(CounterTable<LeaseListEntry>);

#[derive(Debug)]
struct LeaseListEntry {
    hash: KeyHash,
    table: LeaseTable,
}

impl HasKeyHash for LeaseListEntry {
    fn hash(&self) -> KeyHash {
        self.hash
    }
}

/// The lease table of one counter, removed from [`LeaseLists`] while one lease message is applied.
pub(super) struct OpenLeaseList {
    hash: KeyHash,
    pub(super) leases: LeaseTable,
    /// The lease settings for this message; without capacity for the lease table, they lend
    /// nothing.
    pub(super) terms: LeaseTerms,
    origin: ListOrigin,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListOrigin {
    Stored,
    Created,
    Temporary,
}

impl LeaseLists {
    /// Removes and returns the lease table of `hash`, or creates one. In a full store, the new
    /// lease table is temporary and lends no hits.
    pub(super) fn take_or_create(
        &mut self,
        hash: KeyHash,
        terms: &LeaseTerms,
        counters: &CounterCapacity,
    ) -> OpenLeaseList {
        let stored = self.0.get_mut(hash).map(|entry| std::mem::take(&mut entry.table));
        let origin = match &stored {
            Some(_) => ListOrigin::Stored,
            None if counters.try_take() => ListOrigin::Created,
            None => ListOrigin::Temporary,
        };
        let lending_nothing = LeaseTerms { overshoot: Overshoot::AtMost(Hits(0)), ..*terms };
        let terms = if origin == ListOrigin::Temporary { lending_nothing } else { *terms };
        OpenLeaseList { hash, leases: stored.unwrap_or_default(), terms, origin }
    }

    /// Stores the lease table again, or drops it and frees its capacity if it is new and empty.
    pub(super) fn put_back(&mut self, list: OpenLeaseList, now: Nanos, counters: &CounterCapacity) {
        let OpenLeaseList { hash, leases: table, origin, .. } = list;
        match origin {
            ListOrigin::Temporary => {}
            ListOrigin::Stored => {
                if let Some(entry) = self.0.get_mut(hash) {
                    entry.table = table;
                }
            }
            ListOrigin::Created if table.is_expired(now) => counters.release(1),
            ListOrigin::Created => self.0.insert(LeaseListEntry { hash, table }),
        }
    }

    pub(super) fn drop_expired(&mut self, now: Nanos) {
        self.0.retain(|entry| !entry.table.is_expired(now));
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }
}
