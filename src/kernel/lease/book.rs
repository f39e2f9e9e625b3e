//! The store's table of leases for one key: each replica's hits and their expiry.
//!
//! Example: a budget of 100, 40 left by the limit, demand
//! 30 here and 10 elsewhere, 20 outstanding elsewhere.
//!
//! | formula | worked row |
//! |---|---|
//! | by limit: ⌊left·demand / total demand⌋ | ⌊40·30/40⌋ = 30 |
//! | by budget: ⌊budget·demand / total⌋ − kept, at most budget − outstanding | 75, at most 80 |
//! | granted = the minimum of both and `want` | 30 |
//!
//! Guarantees:
//! - Outstanding hits were charged and never exceed the budget.
//! - A repeated message gets a reply again and is charged once.
//! - A superseded message charges nothing.
//! - Only listed hits can be returned, where [`Counter::refund`] finds them.
//! - A check's own hits need no budget: they are never outstanding.
//!
//! Not covered:
//! - The clock, which is the store's and must not jump forward.
//!
//! If the clock steps back, leases last longer. This costs room; the bound stays valid.

use super::counter::{Counter, Mark, room};
use super::{Answer, Borrow, Member, Number, Overshoot, Terms};
use crate::kernel::rate::limit::Tick;
use crate::kernel::rate::{Room, Step};
use crate::kernel::units::{Hits, Nanos};

/// The most replicas listed for one key. Further
/// replicas are charged their own hits and get no lease.
///
/// Four times the largest fleet that was measured.
pub const MOST_MEMBERS: usize = 2_048;

/// The cap on a replica's demand, so that demand times any number of hits is exact in a double.
pub const MOST_DEMAND: Hits = Hits(1 << 20);

/// The leases of one key. The default lists none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Book {
    /// Sorted by replica.
    records: Vec<Record>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Record {
    member: Member,
    number: Number,
    /// `true` if the check's own hits of that message were allowed.
    passed: bool,
    granted: Hits,
    /// The last message with a grant.
    lease: Number,
    /// The most hits that the replica may still spend.
    held: Hits,
    /// The expiry of `held`.
    until: Nanos,
    /// The newest part of `held`, and the location of its charge. The oldest hits count as
    /// spent first, so the remaining ones belong to the newest charge as far as possible.
    fresh: (Mark, Hits),
    demand: Hits,
    /// The instant at which the record is deleted; not before `until`.
    kept_until: Nanos,
}

impl Book {
    /// Applies a message: the report, the returned hits, the check's own hits, and a grant.
    ///
    /// Returns `None` if a later message of this replica was applied
    /// before. Then nothing is charged, and no caller waits for the
    /// reply. Cost: O(listed replicas); allocates for a new replica.
    pub fn step(
        &mut self,
        counter: &mut Counter,
        terms: &Terms,
        now: Nanos,
        member: Member,
        borrow: &Borrow,
    ) -> Option<Answer> {
        let now = Tick::Micro.nanos(Tick::Micro.floor(now));
        if counter.ask(now, Hits(0)) == Step::Stale {
            return Some(blank(borrow, Step::Stale));
        }
        self.forget(now);
        let mut record = self.take(member);
        if borrow.number < record.number {
            self.put(record);
            return None;
        }
        let mut answer = if record.number == borrow.number {
            repeat(&mut record, counter, now, borrow)
        } else {
            self.turn(&mut record, counter, terms, now, borrow)
        };
        answer.parked = self.out(now);
        self.put(record);
        Some(answer)
    }

    /// Returns the outstanding hits of all replicas.
    #[must_use]
    pub fn out(&self, now: Nanos) -> Hits {
        self.records.iter().map(|record| record.held_at(now)).fold(Hits(0), Hits::plus)
    }

    /// Returns the outstanding hits of `member`.
    #[must_use]
    pub fn held_by(&self, member: Member, now: Nanos) -> Hits {
        let found = self.records.binary_search_by_key(&member, |record| record.member).ok();
        found.and_then(|at| self.records.get(at)).map_or(Hits(0), |record| record.held_at(now))
    }

    /// Returns `true` if the book has no record left and can be deleted.
    #[must_use]
    pub fn is_blank(&self, now: Nanos) -> bool {
        self.records.iter().all(|record| record.kept_until <= now)
    }

    fn forget(&mut self, now: Nanos) {
        self.records.retain(|record| now < record.kept_until);
    }

    /// Removes and returns the record of `member`; creates one if there is none.
    fn take(&mut self, member: Member) -> Record {
        match self.records.binary_search_by_key(&member, |record| record.member) {
            Ok(at) => self.records.remove(at),
            Err(_) => Record { member, ..Record::default() },
        }
    }

    fn put(&mut self, record: Record) {
        if self.records.len() < MOST_MEMBERS {
            let at = self.records.partition_point(|other| other.member < record.member);
            self.records.insert(at, record);
        }
    }

    fn turn(
        &self,
        record: &mut Record,
        counter: &mut Counter,
        terms: &Terms,
        now: Nanos,
        borrow: &Borrow,
    ) -> Answer {
        record.report(counter, now, borrow);
        let kept = record.held;
        let mut step = counter.step(now, borrow.hits);
        record.passed = borrow.hits.0 == 0 || matches!(step, Step::Admit(_));
        record.granted = Hits(0);
        if record.passed {
            let most = self.may_have(record, terms, now, room(step).remaining, counter);
            if let Some(room) = record.grant(counter, now, borrow.want.min(most)) {
                step = with(step, room);
            }
        }
        let good_for = length(terms, counter, room(step));
        record.until = now.plus(good_for);
        record.kept_until = now.plus(terms.term);
        Answer { granted: record.granted, kept, good_for, ..blank(borrow, step) }
    }

    /// Returns the largest grant for `record` if the limit has `left` hits.
    fn may_have(
        &self,
        record: &Record,
        terms: &Terms,
        now: Nanos,
        left: Hits,
        counter: &Counter,
    ) -> Hits {
        // A full book could not list the grant.
        if MOST_MEMBERS <= self.records.len() {
            return Hits(0);
        }
        let others = self.records.iter().map(|other| other.demand).fold(Hits(0), Hits::plus);
        let of_law = share(left, record.demand, others);
        match terms.overshoot {
            Overshoot::InWindow if counter.has_windows() => of_law,
            Overshoot::InWindow => Hits(0),
            Overshoot::AtMost(budget) => {
                let unused = budget.less(self.out(now)).less(record.held);
                let of_budget = share(budget, record.demand, others).less(record.held);
                of_law.min(of_budget).min(unused)
            }
        }
    }
}

impl Record {
    fn held_at(&self, now: Nanos) -> Hits {
        if now < self.until { self.held } else { Hits(0) }
    }

    /// Applies the replica's report of its balance, and refunds the returned hits.
    fn report(&mut self, counter: &mut Counter, now: Nanos, borrow: &Borrow) {
        let listed = self.held_at(now);
        let kept = listed.min(borrow.held);
        let left = listed.min(kept.plus(borrow.returned));
        let (mark, fresh) = self.fresh;
        let fresh = fresh.min(left);
        // Different numbers mean a later lease: the returned hits are not part of `fresh`.
        let returned =
            if borrow.lease == self.lease { fresh.min(left.less(kept)) } else { Hits(0) };
        if returned != Hits(0) {
            counter.refund(now, mark, returned);
        }
        self.fresh = (mark, fresh.less(returned).min(kept));
        self.held = kept;
        self.number = borrow.number;
        self.demand = borrow.demand.max(Hits(1)).min(MOST_DEMAND);
    }

    /// Charges a grant and lists it. Returns `None` if nothing was charged.
    fn grant(&mut self, counter: &mut Counter, now: Nanos, hits: Hits) -> Option<Room> {
        if hits == Hits(0) {
            return None;
        }
        let Step::Admit(room) = counter.step(now, hits) else { return None };
        let mark = counter.mark(now);
        let before = if self.fresh.0 == mark { self.fresh.1 } else { Hits(0) };
        self.fresh = (mark, before.plus(hits));
        self.lease = self.number;
        self.granted = hits;
        self.held = self.held.plus(hits);
        Some(room)
    }
}

/// Replies to a repeated message with the first result, as far as it is still valid.
fn repeat(record: &mut Record, counter: &mut Counter, now: Nanos, borrow: &Borrow) -> Answer {
    let lives = now < record.until;
    let granted = if lives { record.granted } else { Hits(0) };
    let step = if record.passed {
        Step::Admit(room(counter.ask(now, Hits(0))))
    } else {
        // A denied check charged nothing, so it is tried again. Another
        // denial is not counted: a fixed window counted the first one.
        ask_then_step(record, counter, now, borrow.hits)
    };
    let kept = record.held_at(now).less(granted);
    Answer { granted, kept, good_for: record.until.since(now), ..blank(borrow, step) }
}

fn ask_then_step(record: &mut Record, counter: &mut Counter, now: Nanos, hits: Hits) -> Step {
    match counter.ask(now, hits) {
        Step::Admit(_) => {
            record.passed = true;
            counter.step(now, hits)
        }
        denial => denial,
    }
}

fn length(terms: &Terms, counter: &Counter, room: Room) -> Nanos {
    match terms.overshoot {
        Overshoot::InWindow if counter.has_windows() => terms.term.min(room.reset_after),
        _ => terms.term,
    }
}

/// Divides `whole` in the ratio of `mine` to `mine + others`, rounded down.
fn share(whole: Hits, mine: Hits, others: Hits) -> Hits {
    let product = u128::from(whole.0).saturating_mul(u128::from(mine.0));
    let part = product.checked_div(u128::from(mine.plus(others).0)).unwrap_or(0);
    Hits(u64::try_from(part).unwrap_or(u64::MAX))
}

pub(super) const fn with(step: Step, room: Room) -> Step {
    match step {
        Step::Admit(_) => Step::Admit(room),
        Step::Deny { retry_after, .. } => Step::Deny { retry_after, room },
        Step::Never(_) => Step::Never(room),
        Step::Stale => Step::Stale,
    }
}

const fn blank(borrow: &Borrow, step: Step) -> Answer {
    let (granted, kept, parked) = (Hits(0), Hits(0), Hits(0));
    Answer { number: borrow.number, step, granted, kept, parked, good_for: Nanos(0) }
}
