//! The memory of a limiter: one budget in bytes, divided over its tables.
//!
//! | part | sixteenths | if it is full |
//! |---|---|---|
//! | waiting requests and their calls | 3 | the failure rule decides new ones, which are counted |
//! | rules | 5 | rules without a request are forgotten |
//! | leased keys | 5 | the longest idle key returns its hits |
//! | concurrency buckets | 2 | requests of new buckets are rejected |
//! | decisions to report | 1 | decisions about more descriptors are reported later |
//!
//! Guarantees:
//! - An item counts its texts and a constant size.
//!
//! Not covered:
//! - The connection, and the threads of the proxy.
//! - Messages that the connection has not sent when their calls end, at most a few MiB.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The default budget: 64 MiB.
pub const DEFAULT_MEMORY_BYTES: usize = 64 << 20;

/// The constant size of a waiting request: its task, its answer and its permits.
const REQUEST_BYTES: usize = 1_024;

/// The constant size of a call for a rule: its task, and its entries in tables.
const CALL_BYTES: usize = 1_024;

/// The constant size of a lease, with a call.
const LEASE_BYTES: usize = 800;

/// The mean size of a lease's key, which [`sluicegate_lease`] bounds for all keys together.
const LEASE_KEY_BYTES: usize = 512;

/// The size of a bucket with its name, its counts, and its entries in tables.
const BUCKET_BYTES: usize = 2_048;

/// The largest number of buckets, however large the budget is.
const MAX_BUCKETS: usize = 10_000;

/// The budget of one limiter, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryBudget(pub(crate) usize);

impl MemoryBudget {
    pub(crate) fn request_part(self) -> Arc<MemoryPart> {
        let max = self.sixteenths(3);
        Arc::new(MemoryPart { max, used: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    pub(crate) const fn rule_bytes(self) -> usize {
        self.sixteenths(5)
    }

    pub(crate) const fn leased_keys(self) -> usize {
        self.sixteenths(5) / (LEASE_BYTES + LEASE_KEY_BYTES)
    }

    pub(crate) fn buckets(self) -> usize {
        (self.sixteenths(2) / BUCKET_BYTES).min(MAX_BUCKETS)
    }

    pub(crate) const fn usage_bytes(self) -> usize {
        self.sixteenths(1)
    }

    const fn sixteenths(self, count: usize) -> usize {
        self.0 / 16 * count
    }
}

/// The part of the budget for waiting requests and their calls.
#[derive(Debug)]
pub(crate) struct MemoryPart {
    max: usize,
    used: AtomicUsize,
    refused: AtomicU64,
}

/// Reserved bytes. They are free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ReservedMemory {
    part: Arc<MemoryPart>,
    bytes: usize,
}

impl MemoryPart {
    /// Reserves the memory of a waiting request with `text_bytes` of texts. `None`, and counted, if
    /// too little is free.
    pub(crate) fn reserve_request(self: &Arc<Self>, text_bytes: usize) -> Option<ReservedMemory> {
        self.reserve(text_bytes.saturating_add(REQUEST_BYTES))
    }

    /// Reserves the memory of a call for a rule: its message, and the encoded message.
    pub(crate) fn reserve_call(self: &Arc<Self>, text_bytes: usize) -> Option<ReservedMemory> {
        self.reserve(text_bytes.saturating_mul(2).saturating_add(CALL_BYTES))
    }

    /// Returns the number of refused reservations since the last call.
    pub(crate) fn take_refused(&self) -> u64 {
        // Most callers only read: a write would move the cache line between the cores.
        if self.refused.load(Relaxed) == 0 { 0 } else { self.refused.swap(0, Relaxed) }
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    fn reserve(self: &Arc<Self>, bytes: usize) -> Option<ReservedMemory> {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.max);
        if self.used.fetch_update(Relaxed, Relaxed, add).is_err() {
            self.refused.fetch_add(1, Relaxed);
            return None;
        }
        Some(ReservedMemory { part: Arc::clone(self), bytes })
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        self.part.used.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryBudget;

    #[test]
    fn dropped_reservations_are_free_again_and_refused_ones_are_counted() {
        let part = MemoryBudget(1 << 20).request_part();
        let fill = || (0..).map_while(|_| part.reserve_request(4_096)).collect::<Vec<_>>();
        let first = fill();
        assert!(first.len() * 4_096 <= 3 << 16, "{}", first.len());
        assert_eq!((part.take_refused(), part.take_refused()), (1, 0));
        let count = first.len();
        drop(first);
        assert_eq!(fill().len(), count);
    }

    #[test]
    fn all_parts_together_are_the_budget() {
        let budget = MemoryBudget(64 << 20);
        let parts = [budget.request_part().max, budget.rule_bytes(), budget.usage_bytes()];
        let leases = budget.leased_keys() * 1_312;
        let sum = parts.iter().sum::<usize>() + leases + budget.buckets() * 2_048;
        assert!((63 << 20..=64 << 20).contains(&sum), "{sum}");
    }
}
