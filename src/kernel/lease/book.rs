//! The store's side of one key: what each member holds, and until when.
//!
//! | formula, for a budget of 100, 40 left by the law; demand 30 here and 10 elsewhere; 20 out there | worked row |
//! |---|---|
//! | of the law: ⌊left·demand / all demand⌋ | ⌊40·30/40⌋ = 30 |
//! | of the budget: ⌊budget·demand / all demand⌋ − kept, at most budget − out | 75, at most 80 |
//! | granted = the least of both and what was asked for | 30 |
//!
//! Guarantees: what is out is at most the budget and was charged; a message that comes again is
//! answered again and charged once; one that was superseded charges nothing; what is given back was
//! listed, and is undone only where [`Counter::refund`] finds it. Hits of a question's own are never
//! out, so they need no budget and are decided by the law alone.
//! Leaves out: the clock, which is the store's and must not leap forward. When it steps back leases
//! last longer, which costs room and never the bound.

use super::counter::{Counter, Mark, room};
use super::{Answer, Borrow, Member, Number, Overshoot, Terms};
use crate::kernel::rate::limit::Tick;
use crate::kernel::rate::{Room, Step};
use crate::kernel::units::{Hits, Nanos};

/// The most members that are listed for one key; others are charged their own hits and lent
/// nothing. Four times the largest fleet this was measured with.
pub const MOST_MEMBERS: usize = 2_048;

/// Demand above this counts as this much: 2^20 times any number of hits is exact in a double.
pub const MOST_DEMAND: Hits = Hits(1 << 20);

/// The leases of one key. The default lists none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Book {
    /// In order of their members.
    records: Vec<Record>,
}

/// What is known of one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Record {
    member: Member,
    /// The last message that was taken.
    number: Number,
    /// Whether its own hits passed.
    passed: bool,
    /// What it was granted.
    granted: Hits,
    /// The last message that was granted anything.
    lease: Number,
    /// The most that the member may still spend.
    held: Hits,
    /// When that ends.
    until: Nanos,
    /// The newest part of `held`, and where it was charged. Hits are alike: the oldest are said to
    /// be spent first, so what is left is of the newest charge as far as that goes.
    fresh: (Mark, Hits),
    demand: Hits,
    /// When the record is forgotten; not before `until`.
    kept_until: Nanos,
}

impl Book {
    /// Takes a message: the report, what is given back, the question's own hits, and a grant.
    ///
    /// None when a later message of this member was taken before: this one is superseded, nothing
    /// is charged, and nobody waits for the answer. Cost: O(members listed); allocates for a member
    /// that is new.
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

    /// Hits that members may still spend.
    #[must_use]
    pub fn out(&self, now: Nanos) -> Hits {
        self.records.iter().map(|record| record.held_at(now)).fold(Hits(0), Hits::plus)
    }

    /// Hits that `member` may still spend.
    #[must_use]
    pub fn held_by(&self, member: Member, now: Nanos) -> Hits {
        let found = self.records.binary_search_by_key(&member, |record| record.member).ok();
        found.and_then(|at| self.records.get(at)).map_or(Hits(0), |record| record.held_at(now))
    }

    /// Is this book as good as never written?
    #[must_use]
    pub fn is_blank(&self, now: Nanos) -> bool {
        self.records.iter().all(|record| record.kept_until <= now)
    }

    fn forget(&mut self, now: Nanos) {
        self.records.retain(|record| now < record.kept_until);
    }

    /// The record of `member`, taken out; a new one where there is none.
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

    /// A message that was not seen before.
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

    /// The most that `record` may be granted, where the law has `left`.
    fn may_have(
        &self,
        record: &Record,
        terms: &Terms,
        now: Nanos,
        left: Hits,
        counter: &Counter,
    ) -> Hits {
        // A book that is full would not list the grant.
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

    /// Believes the member that it holds no more than it says, and takes back what it returns.
    fn report(&mut self, counter: &mut Counter, now: Nanos, borrow: &Borrow) {
        let listed = self.held_at(now);
        let kept = listed.min(borrow.held);
        let left = listed.min(kept.plus(borrow.returned));
        let (mark, fresh) = self.fresh;
        let fresh = fresh.min(left);
        // Another lease came between where the numbers differ: what is returned is not of `fresh`.
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

    /// Charges a grant and lists it. None when there was none to charge.
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

/// The answer to a message that was taken before: what it was, as far as it still holds.
fn repeat(record: &mut Record, counter: &mut Counter, now: Nanos, borrow: &Borrow) -> Answer {
    let lives = now < record.until;
    let granted = if lives { record.granted } else { Hits(0) };
    let step = if record.passed {
        Step::Admit(room(counter.ask(now, Hits(0))))
    } else {
        // What was denied charged nothing, so it is put again; a denial stays uncounted, because it
        // was counted where denials are.
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

/// How long a lease is good for.
fn length(terms: &Terms, counter: &Counter, room: Room) -> Nanos {
    match terms.overshoot {
        Overshoot::InWindow if counter.has_windows() => terms.term.min(room.reset_after),
        _ => terms.term,
    }
}

/// The part of `whole` that `mine` is of `mine` and `others`.
fn share(whole: Hits, mine: Hits, others: Hits) -> Hits {
    let product = u128::from(whole.0).saturating_mul(u128::from(mine.0));
    let part = product.checked_div(u128::from(mine.plus(others).0)).unwrap_or(0);
    Hits(u64::try_from(part).unwrap_or(u64::MAX))
}

/// The same verdict, with what is left now.
pub(super) const fn with(step: Step, room: Room) -> Step {
    match step {
        Step::Admit(_) => Step::Admit(room),
        Step::Deny { retry_after, .. } => Step::Deny { retry_after, room },
        Step::Never(_) => Step::Never(room),
        Step::Stale => Step::Stale,
    }
}

/// The answer that lends nothing.
const fn blank(borrow: &Borrow, step: Step) -> Answer {
    let (granted, kept, parked) = (Hits(0), Hits(0), Hits(0));
    Answer { number: borrow.number, step, granted, kept, parked, good_for: Nanos(0) }
}
