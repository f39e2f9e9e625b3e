//! The hash by which the memory store knows a counter.

use std::num::NonZeroU64;

/// The 128-bit hash of a counter's key. Counters with equal hashes are the same counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash {
    /// The first half of the hash. The low bits select the shard, the high bits the slot in its
    /// table.
    pub(crate) position: u64,
    /// The second half of the hash. It is never zero, so that an empty slot needs no flag.
    pub(crate) tag: NonZeroU64,
}

pub(super) trait HasKeyHash {
    fn hash(&self) -> KeyHash;
}
