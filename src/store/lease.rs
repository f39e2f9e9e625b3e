//! The lease messages of a replica about one counter, and their results.
//!
//! Not covered:
//! - The lease protocol ([`crate::kernel::lease`]).
//! - The sending of messages.

use super::Placement;
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
    /// The counter's place in a store of several nodes.
    pub placement: Placement,
    /// True if the limit's unit is a second: such counters may have a store of their own.
    pub per_second: bool,
    /// The limit's strategy.
    pub strategy: Strategy,
    /// The lease settings: a budget of at most 2^32 - 1 hits, a duration below 2^53 microseconds.
    pub terms: LeaseTerms,
    /// The sender: one incarnation of a replica.
    pub sender: ReplicaIncarnation,
    /// The message. Its numbers are below 2^53.
    pub borrow: BorrowRequest,
}

/// The result of a lease message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// The store applied the message. The reply settles the lease balance.
    Applied(BorrowReply),
    /// The store had already applied a later message of this replica. Nothing was charged.
    Superseded,
    /// The key is new and the store is full. Nothing was charged; `when_full` chose this verdict.
    StoreFull(Verdict),
    /// Nothing was charged: no calendar window in the
    /// message is open at this instant of the store's clock.
    Stale(Nanos),
    /// The store did not reply, so it may have applied the message
    /// or not. The same message can be sent again: it counts once.
    Failed(StoreFailure),
}
