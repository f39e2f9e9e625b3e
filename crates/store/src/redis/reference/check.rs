//! One check under envoyproxy/ratelimit's keys, the ways to send its charges, and the replies.
//!
//! Not covered:
//! - The decision (see [`super::charge`]).
//! - The commands to Redis (see [`super::send`]).

use std::time::Duration;

use smallvec::SmallVec;

use super::{CompatCounter, CompatCounters, DecidingStep};
use crate::kernel::units::{Hits, Nanos};
use crate::redis::RedisStore;
use crate::{Charges, StoreFailure};

/// A check with its charges, all under envoyproxy/ratelimit's keys.
pub(super) struct CompatCheck<'c> {
    pub(super) reference: &'c CompatCounters,
    pub(super) redis: &'c RedisStore,
    pub(super) now: Nanos,
    pub(super) charges: &'c Charges,
    pub(super) counters: &'c [CompatCounter],
    pub(super) deciding_step: DecidingStep,
    pub(super) call_timeout: Duration,
}

pub(super) type CounterIndexes = SmallVec<[usize; 2]>;

pub(super) type CounterReplies = SmallVec<[CounterReply; 2]>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SendMode {
    /// Charge in a pipeline, as envoyproxy/ratelimit does.
    Charge,
    /// Charge 0 hits in a pipeline, because the deny cache already denies the check.
    ChargeNothing,
    /// Read the counters in a pipeline, without charging them.
    Read,
    /// Decide and charge in the script `reference.lua`, with this mode argument.
    Script(&'static str),
}

/// The reply of Redis to one charge, with the hits in the counter.
#[derive(Clone, Copy)]
pub(super) enum CounterReply {
    /// The hits were charged.
    Charged(u64),
    /// The hits were not charged.
    Skipped(u64),
    /// The hits were not charged: the limit of this charge denies them.
    OverLimit(u64),
    /// The hits were refunded.
    Refunded(u64),
    /// Redis sent no usable reply.
    Failed(StoreFailure),
}

impl CompatCheck<'_> {
    /// Returns the hits of the charge at `index` and of earlier charges to the same counter.
    pub(super) fn hits_through(&self, index: usize) -> Hits {
        let own = &self.counters[index];
        let earlier = self.counters.iter().take(index);
        let same = earlier.filter(|counter| counter.key == own.key && !counter.is_refund);
        same.fold(own.hits, |sum, counter| sum.plus(counter.hits))
    }
}
