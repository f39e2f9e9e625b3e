//! The store's table of leases for one key: each replica's hits and their expiry.
//!
//! Example: `max_overshoot` (the budget) is 100, and the limit has 40 hits left. The replica has
//! demand 30. The other replicas have demand 10 and 20 outstanding hits.
//!
//! | formula | worked row |
//! |---|---|
//! | by limit: ⌊left·demand / total demand⌋ | ⌊40·30/40⌋ = 30 |
//! | by budget: ⌊budget·demand / total⌋ − kept, at most budget − outstanding | 75, at most 80 |
//! | granted = the minimum of both and `wanted` | 30 |
//!
//! Guarantees:
//! - Outstanding hits were charged and never exceed the budget.
//! - A repeated message gets a reply again and is charged once.
//! - A superseded message charges nothing.
//! - Only hits that the table lists are refunded, and only if [`AnyCounter::refund`] finds their
//!   charge.
//! - The budget does not limit the hits of a check itself: they are spent at once, never
//!   outstanding.
//!
//! Not covered:
//! - The clock, which is the store's and must not jump forward.
//!
//! If the store's clock steps back, leases last longer: their hits stay outstanding for longer, and
//! the bound stays valid.

use serde::{Deserialize, Serialize};

use super::counter::{AnyCounter, ChargeLocation, headroom_of, with_headroom};
use super::{BorrowReply, BorrowRequest, LeaseTerms, MessageNumber, Overshoot, ReplicaIncarnation};
use crate::rate::limit::Tick;
use crate::rate::{CounterDecision, Headroom};
use crate::units::{Hits, Nanos};

/// The most replicas listed for one key. The checks of further replicas are charged, but these
/// replicas get no grant.
///
/// Four times the largest fleet that was measured.
pub const MAX_REPLICAS: usize = 2_048;

/// The cap on a replica's demand, so that demand times hits is exact in Lua, which counts in
/// doubles.
pub const MAX_DEMAND: Hits = Hits(1 << 20);

/// The leases of one key. The default lists none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseTable {
    /// Sorted by replica.
    records: Vec<LeaseRecord>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct LeaseRecord {
    member: ReplicaIncarnation,
    last_message: MessageNumber,
    /// `true` if the check's own hits of that message were allowed.
    is_allowed: bool,
    granted: Hits,
    /// The number of the last message that got a grant.
    last_lease: MessageNumber,
    /// The most hits that the replica may still spend.
    balance: Hits,
    /// The expiry of `balance`.
    expires_at: Nanos,
    /// The newest part of `balance`, and the location of its charge. The oldest hits count as
    /// spent first, so the remaining ones belong to the newest charge as far as possible.
    newest: (ChargeLocation, Hits),
    demand: Hits,
    /// The instant at which the record is deleted; not before `expires_at`.
    forget_at: Nanos,
}

impl LeaseTable {
    /// Applies a message: the report, the returned hits, the hits of the check, and a grant.
    ///
    /// Returns `None` if a later message of this replica was applied
    /// before. Then nothing is charged, and no caller waits for the
    /// reply. Cost: O(listed replicas); allocates for a new replica.
    pub fn apply(
        &mut self,
        counter: &mut AnyCounter,
        terms: &LeaseTerms,
        now: Nanos,
        member: ReplicaIncarnation,
        borrow: &BorrowRequest,
    ) -> Option<BorrowReply> {
        let now = Tick::Micro.nanos(Tick::Micro.floor(now));
        if counter.peek(now, Hits(0)) == CounterDecision::OutsideWindows {
            return Some(reply_without_grant(borrow, CounterDecision::OutsideWindows));
        }
        self.remove_expired(now);
        let mut record = self.take_record(member);
        if borrow.number < record.last_message {
            self.put_record(record);
            return None;
        }
        let mut reply = if record.last_message == borrow.number {
            repeat_reply(&mut record, counter, now, borrow)
        } else {
            self.apply_new(&mut record, counter, terms, now, borrow)
        };
        reply.outstanding_elsewhere = self.outstanding(now);
        self.put_record(record);
        Some(reply)
    }

    /// Returns the outstanding hits of all replicas.
    #[must_use]
    pub fn outstanding(&self, now: Nanos) -> Hits {
        self.records.iter().map(|record| record.balance_at(now)).fold(Hits(0), Hits::plus)
    }

    /// Returns the outstanding hits of `member`.
    #[must_use]
    pub fn outstanding_of(&self, member: ReplicaIncarnation, now: Nanos) -> Hits {
        let found = self.records.binary_search_by_key(&member, |record| record.member).ok();
        found.and_then(|at| self.records.get(at)).map_or(Hits(0), |record| record.balance_at(now))
    }

    /// Returns `true` if the table has no record left and can be deleted.
    #[must_use]
    pub fn is_expired(&self, now: Nanos) -> bool {
        self.records.iter().all(|record| record.forget_at <= now)
    }

    /// The instant from which the table can be deleted; 0 without records.
    #[must_use]
    pub fn expires_at(&self) -> Nanos {
        self.records.iter().map(|record| record.forget_at).max().unwrap_or_default()
    }

    fn remove_expired(&mut self, now: Nanos) {
        self.records.retain(|record| now < record.forget_at);
    }

    /// Removes and returns the record of `member`; creates one if there is none.
    fn take_record(&mut self, member: ReplicaIncarnation) -> LeaseRecord {
        match self.records.binary_search_by_key(&member, |record| record.member) {
            Ok(at) => self.records.remove(at),
            Err(_) => LeaseRecord { member, ..LeaseRecord::default() },
        }
    }

    fn put_record(&mut self, record: LeaseRecord) {
        if self.records.len() < MAX_REPLICAS {
            let at = self.records.partition_point(|other| other.member < record.member);
            self.records.insert(at, record);
        }
    }

    fn apply_new(
        &self,
        record: &mut LeaseRecord,
        counter: &mut AnyCounter,
        terms: &LeaseTerms,
        now: Nanos,
        borrow: &BorrowRequest,
    ) -> BorrowReply {
        record.apply_report(counter, now, borrow);
        let kept = record.balance;
        let mut step = counter.charge(now, borrow.hits);
        record.is_allowed = borrow.hits.0 == 0 || matches!(step, CounterDecision::Allow(_));
        record.granted = Hits(0);
        if record.is_allowed {
            let most = self.max_grant(record, terms, now, headroom_of(step).remaining, counter);
            if let Some(room) = record.grant(counter, now, borrow.wanted.min(most)) {
                step = with_headroom(step, room);
            }
        }
        let valid_for = lease_duration(terms, counter, headroom_of(step));
        record.expires_at = now.plus(valid_for);
        record.forget_at = now.plus(terms.duration);
        BorrowReply {
            granted: record.granted,
            kept,
            valid_for,
            ..reply_without_grant(borrow, step)
        }
    }

    /// Returns the largest grant to one replica if the limit has `left` hits.
    fn max_grant(
        &self,
        record: &LeaseRecord,
        terms: &LeaseTerms,
        now: Nanos,
        left: Hits,
        counter: &AnyCounter,
    ) -> Hits {
        // A full table has no room to list the grant.
        if MAX_REPLICAS <= self.records.len() {
            return Hits(0);
        }
        let others = self.records.iter().map(|other| other.demand).fold(Hits(0), Hits::plus);
        let by_limit = proportional_share(left, record.demand, others);
        match terms.overshoot {
            Overshoot::InWindow if counter.has_windows() => by_limit,
            Overshoot::InWindow => Hits(0),
            Overshoot::AtMost(budget) => {
                let unused = budget.less(self.outstanding(now)).less(record.balance);
                let by_budget =
                    proportional_share(budget, record.demand, others).less(record.balance);
                by_limit.min(by_budget).min(unused)
            }
        }
    }
}

impl LeaseRecord {
    fn balance_at(&self, now: Nanos) -> Hits {
        if now < self.expires_at { self.balance } else { Hits(0) }
    }

    /// Applies the replica's report of its balance, and refunds the returned hits.
    fn apply_report(&mut self, counter: &mut AnyCounter, now: Nanos, borrow: &BorrowRequest) {
        let listed = self.balance_at(now);
        let kept = listed.min(borrow.balance);
        let left = listed.min(kept.plus(borrow.returned));
        let (location, fresh) = self.newest;
        let fresh = fresh.min(left);
        // With different numbers, the replica has not settled the newest grant, so it returns older
        // hits.
        let returned =
            if borrow.last_lease == self.last_lease { fresh.min(left.less(kept)) } else { Hits(0) };
        if returned != Hits(0) {
            counter.refund(now, location, returned);
        }
        self.newest = (location, fresh.less(returned).min(kept));
        self.balance = kept;
        self.last_message = borrow.number;
        self.demand = borrow.demand.max(Hits(1)).min(MAX_DEMAND);
    }

    /// Charges a grant and lists it. Returns `None` if nothing was charged.
    fn grant(&mut self, counter: &mut AnyCounter, now: Nanos, hits: Hits) -> Option<Headroom> {
        if hits == Hits(0) {
            return None;
        }
        let CounterDecision::Allow(room) = counter.charge(now, hits) else { return None };
        let location = counter.locate_charge(now);
        let before = if self.newest.0 == location { self.newest.1 } else { Hits(0) };
        self.newest = (location, before.plus(hits));
        self.last_lease = self.last_message;
        self.granted = hits;
        self.balance = self.balance.plus(hits);
        Some(room)
    }
}

/// Replies to a repeated message with the first result, as far as it is still valid.
fn repeat_reply(
    record: &mut LeaseRecord,
    counter: &mut AnyCounter,
    now: Nanos,
    borrow: &BorrowRequest,
) -> BorrowReply {
    let is_valid = now < record.expires_at;
    let granted = if is_valid { record.granted } else { Hits(0) };
    let step = if record.is_allowed {
        CounterDecision::Allow(headroom_of(counter.peek(now, Hits(0))))
    } else {
        // The first denial charged nothing, so the hits are tried again. A second denial is not
        // counted, because a fixed window counted the first one.
        peek_then_charge(record, counter, now, borrow.hits)
    };
    let kept = record.balance_at(now).less(granted);
    BorrowReply {
        granted,
        kept,
        valid_for: record.expires_at.since(now),
        ..reply_without_grant(borrow, step)
    }
}

fn peek_then_charge(
    record: &mut LeaseRecord,
    counter: &mut AnyCounter,
    now: Nanos,
    hits: Hits,
) -> CounterDecision {
    match counter.peek(now, hits) {
        CounterDecision::Allow(_) => {
            record.is_allowed = true;
            counter.charge(now, hits)
        }
        denial => denial,
    }
}

fn lease_duration(terms: &LeaseTerms, counter: &AnyCounter, room: Headroom) -> Nanos {
    match terms.overshoot {
        Overshoot::InWindow if counter.has_windows() => terms.duration.min(room.reset_after),
        _ => terms.duration,
    }
}

/// Returns the part of `whole` that is proportional to one demand among all, rounded down.
fn proportional_share(whole: Hits, demand: Hits, other_demand: Hits) -> Hits {
    let product = u128::from(whole.0).saturating_mul(u128::from(demand.0));
    let part = product.checked_div(u128::from(demand.plus(other_demand).0)).unwrap_or(0);
    Hits(u64::try_from(part).unwrap_or(u64::MAX))
}

const fn reply_without_grant(borrow: &BorrowRequest, step: CounterDecision) -> BorrowReply {
    let (granted, kept, outstanding_elsewhere) = (Hits(0), Hits(0), Hits(0));
    BorrowReply {
        number: borrow.number,
        decision: step,
        granted,
        kept,
        outstanding_elsewhere,
        valid_for: Nanos(0),
    }
}
