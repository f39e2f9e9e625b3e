//! The lease tables of one shard, by the key of their counter.
//!
//! Guarantees:
//! - A lease table counts toward `max_keys`, as a counter does.
//! - A lease table stays while a lease is valid; a sweep drops it once all its leases expired.
//!
//! Not covered:
//! - The rules for lending hits ([`LeaseTable`]).

use super::counters::{CounterCapacity, PlaceSource as _};
use super::table::{CounterTable, HasKeyHash, KeyHash};
use crate::kernel::lease::table::LeaseTable;
use crate::kernel::lease::{LeaseTerms, Overshoot};
use crate::kernel::units::{Hits, Nanos};

#[derive(Debug, Default)]
pub(super) struct LeaseLists(CounterTable<LeaseListEntry>);

#[derive(Debug)]
struct LeaseListEntry {
    hash: KeyHash,
    book: LeaseTable,
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
    /// The lease settings for this message. They lend no hits if the store has no capacity for the
    /// lease table.
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
    /// Removes and returns the lease table of `hash`, or creates one. If the store is full, the new
    /// lease table is temporary and lends no hits.
    pub(super) fn take_or_create(
        &mut self,
        hash: KeyHash,
        terms: &LeaseTerms,
        counters: &CounterCapacity,
    ) -> OpenLeaseList {
        let old = self.0.get_mut(hash).map(|listed| std::mem::take(&mut listed.book));
        let place = match &old {
            Some(_) => ListOrigin::Stored,
            None if counters.try_take() => ListOrigin::Created,
            None => ListOrigin::Temporary,
        };
        let nothing = LeaseTerms { overshoot: Overshoot::AtMost(Hits(0)), ..*terms };
        let terms = if place == ListOrigin::Temporary { nothing } else { *terms };
        OpenLeaseList { hash, leases: old.unwrap_or_default(), terms, origin: place }
    }

    /// Stores the lease table again. Drops a new lease table that stayed empty, and frees its
    /// capacity.
    pub(super) fn put_back(&mut self, open: OpenLeaseList, now: Nanos, counters: &CounterCapacity) {
        let OpenLeaseList { hash, leases: book, origin: place, .. } = open;
        match place {
            ListOrigin::Temporary => {}
            ListOrigin::Stored => {
                if let Some(listed) = self.0.get_mut(hash) {
                    listed.book = book;
                }
            }
            ListOrigin::Created if book.is_expired(now) => counters.release(1),
            ListOrigin::Created => self.0.insert(LeaseListEntry { hash, book }),
        }
    }

    /// Drops the lease tables in which every lease has expired.
    pub(super) fn drop_expired(&mut self, now: Nanos) {
        self.0.retain(|listed| !listed.book.is_expired(now));
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }
}
