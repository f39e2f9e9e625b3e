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
//! [Occupying](Overshoot::Occupying) leases occupy the limit. Example: 40 hits are left, and 20 are
//! outstanding. A check for 10 hits is charged, and up to 10 hits are granted. When 20 hits are
//! reported as spent, they are charged.
//!
//! Guarantees:
//! - Outstanding hits were charged or occupy the limit, and never exceed the budget.
//! - A repeated message gets a reply again and is charged once.
//! - A superseded message charges nothing.
//! - Only hits that the table lists are refunded, and only if [`AnyCounter::refund`] finds their
//!   charge.
//! - The budget does not limit the hits of a check itself: they are spent at once, never
//!   outstanding.
//! - The next message for a key charges the hits of its expired occupying leases. The table is kept
//!   until hits charged at the expiry would no longer count.
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
    /// The instant from which the record has no effect; not before `expires_at`.
    forget_at: Nanos,
}

impl LeaseTable {
    /// Applies a message: the report, the returned hits, the hits of the check, and a grant.
    /// A message with number 0 only charges the hits of the check, beside all outstanding hits.
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
            return Some(BorrowReply::without_grant(
                borrow.number,
                CounterDecision::OutsideWindows,
            ));
        }
        self.remove_expired(counter, terms, now);
        if borrow.number == MessageNumber(0) {
            let outstanding_elsewhere = self.outstanding(now);
            let step = charge_own(counter, terms, now, outstanding_elsewhere, borrow.hits);
            return Some(BorrowReply {
                outstanding_elsewhere,
                ..BorrowReply::without_grant(borrow.number, step)
            });
        }
        let mut record = self.take_record(member);
        if borrow.number < record.last_message {
            self.put_record(record);
            return None;
        }
        let mut reply = if record.last_message == borrow.number {
            let outstanding = self.outstanding(now).plus(record.balance_at(now));
            let occupied = if is_occupying(terms, counter) { outstanding } else { Hits(0) };
            repeat_reply(&mut record, counter, terms, now, borrow, occupied)
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

    /// Removes expired records. Charges the hits of occupying leases, which may have been spent.
    fn remove_expired(&mut self, counter: &mut AnyCounter, terms: &LeaseTerms, now: Nanos) {
        let is_occupying = is_occupying(terms, counter);
        let mut spent = Hits(0);
        self.records.retain(|record| {
            let is_kept = now < if is_occupying { record.expires_at } else { record.forget_at };
            if is_occupying && !is_kept && now < record.forget_at {
                spent = spent.plus(record.balance);
            }
            is_kept
        });
        counter.charge_spent(now, spent);
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
        let is_occupying = is_occupying(terms, counter);
        record.apply_report(counter, is_occupying, now, borrow);
        let kept = record.balance;
        let occupied = self.outstanding(now).plus(kept);
        let mut step = charge_own(counter, terms, now, occupied, borrow.hits);
        record.is_allowed = borrow.hits.0 == 0 || is_allowed(step);
        record.granted = Hits(0);
        if record.is_allowed {
            let most = self.max_grant(record, terms, now, headroom_of(step).remaining, counter);
            let hits = borrow.wanted.min(most);
            let room = if is_occupying {
                record.list_grant(hits);
                Some(counter.headroom_beside(now, occupied.plus(hits)))
            } else {
                record.grant(counter, now, hits)
            };
            step = room.map_or(step, |room| with_headroom(step, room));
        }
        let valid_for = lease_duration(terms, counter, headroom_of(step));
        record.expires_at = now.plus(valid_for);
        record.forget_at = now.plus(terms.duration);
        if is_occupying {
            record.forget_at = record.forget_at.plus(counter.longest_reset());
        }
        BorrowReply {
            granted: record.granted,
            kept,
            valid_for,
            ..BorrowReply::without_grant(borrow.number, step)
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
            Overshoot::Occupying(_) if counter.has_windows() => Hits(0),
            Overshoot::AtMost(budget) | Overshoot::Occupying(budget) => {
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

    /// Applies the replica's report of its balance. Refunds the returned hits, or charges the spent
    /// hits of an occupying lease.
    fn apply_report(
        &mut self,
        counter: &mut AnyCounter,
        is_occupying: bool,
        now: Nanos,
        borrow: &BorrowRequest,
    ) {
        let listed = self.balance_at(now);
        let kept = listed.min(borrow.balance);
        let left = listed.min(kept.plus(borrow.returned));
        if is_occupying {
            counter.charge_spent(now, listed.less(left).less(self.unsettled(borrow)));
            self.newest = Default::default();
        } else {
            self.refund_returned(counter, now, borrow, (kept, left));
        }
        self.balance = kept;
        self.last_message = borrow.number;
        self.demand = borrow.demand.max(Hits(1)).min(MAX_DEMAND);
    }

    /// Returns the hits of the newest grant if the replica has not settled it. It ignores the reply
    /// from now on, so they are unspent. A new balance of the same key and replica has settled no
    /// grant; the earlier balance may have spent these hits.
    fn unsettled(&self, borrow: &BorrowRequest) -> Hits {
        let is_new = borrow.last_lease == MessageNumber(0);
        if is_new || borrow.last_lease == self.last_lease { Hits(0) } else { self.granted }
    }

    /// Refunds the returned hits of a lease: those between `kept` and `left` hits.
    fn refund_returned(
        &mut self,
        counter: &mut AnyCounter,
        now: Nanos,
        borrow: &BorrowRequest,
        (kept, left): (Hits, Hits),
    ) {
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
        self.list_grant(hits);
        Some(room)
    }

    fn list_grant(&mut self, hits: Hits) {
        if hits != Hits(0) {
            self.last_lease = self.last_message;
            self.granted = hits;
            self.balance = self.balance.plus(hits);
        }
    }
}

/// Returns `true` for leases whose hits occupy the limit.
const fn is_occupying(terms: &LeaseTerms, counter: &AnyCounter) -> bool {
    matches!(terms.overshoot, Overshoot::Occupying(_)) && !counter.has_windows()
}

/// Charges a check's own hits, beside the `occupied` hits of occupying leases.
fn charge_own(
    counter: &mut AnyCounter,
    terms: &LeaseTerms,
    now: Nanos,
    occupied: Hits,
    own: Hits,
) -> CounterDecision {
    if is_occupying(terms, counter) {
        counter.charge_beside(now, (occupied, terms.duration), own)
    } else {
        counter.charge(now, own)
    }
}

/// Replies to a repeated message with the first result, as far as it is still valid. `occupied` are
/// the outstanding hits of occupying leases.
fn repeat_reply(
    record: &mut LeaseRecord,
    counter: &mut AnyCounter,
    terms: &LeaseTerms,
    now: Nanos,
    borrow: &BorrowRequest,
    occupied: Hits,
) -> BorrowReply {
    let is_valid = now < record.expires_at;
    let granted = if is_valid { record.granted } else { Hits(0) };
    let step = if record.is_allowed {
        CounterDecision::Allow(counter.headroom_beside(now, occupied))
    } else {
        // The first denial charged nothing, so the hits are tried again. A second denial is not
        // counted, because a fixed window counted the first one.
        match counter.peek(now, borrow.hits) {
            denial if occupied == Hits(0) && !is_allowed(denial) => denial,
            _ => charge_own(counter, terms, now, occupied, borrow.hits),
        }
    };
    record.is_allowed = is_allowed(step);
    let kept = record.balance_at(now).less(granted);
    BorrowReply {
        granted,
        kept,
        valid_for: record.expires_at.since(now),
        ..BorrowReply::without_grant(borrow.number, step)
    }
}

const fn is_allowed(step: CounterDecision) -> bool {
    matches!(step, CounterDecision::Allow(_))
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
