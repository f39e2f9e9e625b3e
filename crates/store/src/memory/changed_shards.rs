//! The set of shards with changed counters, so that a collection locks only these.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct ChangedShards(Box<[AtomicU64]>);

impl ChangedShards {
    pub(super) fn new(shards: usize) -> Self {
        Self((0..shards.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn insert(&self, index: usize) {
        let bit = 1 << (index % 64);
        if let Some(word) = self.0.get(index / 64)
            // Mostly the bit is set already. A read is cheaper than a write, which takes the cache line.
            && word.load(Ordering::Acquire) & bit == 0
        {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Removes every shard from the set, and calls `visit` for each.
    pub(super) fn take(&self, mut visit: impl FnMut(usize)) {
        for (position, word) in self.0.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                visit(position * 64 + usize::try_from(bits.trailing_zeros()).unwrap_or(0));
                bits &= bits - 1;
            }
        }
    }
}
