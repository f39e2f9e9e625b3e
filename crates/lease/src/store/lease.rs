//! The lease messages of a replica about one counter, and their results.

use super::placement::Placement;
use crate::kernel::decision::{StoreFailure, Verdict};
use crate::kernel::key::CounterKey;
use crate::kernel::lease::{BorrowReply, BorrowRequest, LeaseTerms, ReplicaIncarnation};
use crate::kernel::rate::Strategy;
use crate::kernel::units::Nanos;

/// A lease message about one counter: it reports, borrows and returns hits.
#[derive(Clone, Debug)]
pub struct LeaseMessage {
    /// The counter's key.
    pub key: CounterKey,
    /// The placement of the counter: the choice of its Redis Cluster slot.
    pub placement: Placement,
    /// True if the limit's unit is a second: its counter is in the Redis for limits per second, if
    /// one is configured.
    pub per_second: bool,
    /// The limit's strategy.
    pub strategy: Strategy,
    /// The lease settings. The budget is at most 2^32 - 1 hits; the duration is below 2^53
    /// microseconds.
    pub terms: LeaseTerms,
    /// The incarnation of the replica that sends the message.
    pub sender: ReplicaIncarnation,
    /// The report, the returned hits, the charge and the hits to borrow, all below 2^53.
    pub borrow: BorrowRequest,
}

/// The result of a lease message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// The store applied the message; the reply contains the grant and the listed balance.
    Applied(BorrowReply),
    /// The store had already applied a later message of this replica. Nothing was charged.
    Superseded,
    /// Nothing was charged: the key is new, the store is full, and `store.when_full` chose this verdict.
    StoreFull(Verdict),
    /// Nothing was charged: at this instant of the store's clock, no calendar window is open.
    Stale(Nanos),
    /// The store did not reply and may have applied the message. The same message can be sent
    /// again, because the store counts it only once.
    Failed(StoreFailure),
}
