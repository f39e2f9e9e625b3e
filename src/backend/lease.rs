//! A message about one leased key, and what became of it.
//!
//! Guarantees: pure.
//! Leaves out: what a message means ([`crate::kernel::lease`]), and who sends which.

use super::Home;
use crate::kernel::decision::{Cause, Verdict};
use crate::kernel::key::CounterKey;
use crate::kernel::lease::{Answer, Borrow, Member, Terms};
use crate::kernel::rate::Strategy;
use crate::kernel::units::Nanos;

/// What a member says and asks about one key: borrows and gives back.
#[derive(Clone, Debug)]
pub struct Message {
    /// Which counter.
    pub key: CounterKey,
    /// Where it lives in a store of several nodes.
    pub home: Home,
    /// Whether its unit is a second: such counters may live in a store of their own.
    pub per_second: bool,
    /// How it counts.
    pub strategy: Strategy,
    /// What leases of it are granted under; a budget of at most 2^32 - 1 hits, a term below 2^53
    /// microseconds.
    pub terms: Terms,
    /// Who asks.
    pub member: Member,
    /// What; its numbers are below 2^53.
    pub borrow: Borrow,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// It was taken: what the ledger settles with.
    Answered(Answer),
    /// A later one of this member was taken before: nothing was charged.
    Superseded,
    /// The key is new and there is no room for it; nothing was charged, and this verdict was chosen
    /// for that case.
    Full(Verdict),
    /// Nothing was charged: at this instant of the store's clock none of the calendar windows that
    /// the message brought is open.
    Stale(Nanos),
    /// The store did not answer. Whether it took the message is not known: sent again unchanged,
    /// it counts once.
    Failed(Cause),
}
