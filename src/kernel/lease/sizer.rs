//! How much to borrow.
//!
//! | formula, for 400 hits asked in the last term, of which 50 were stranded; most 1,000 | worked row |
//! |---|---|
//! | demand = this term's hits + what the last term's weigh | 400 |
//! | half of it, or 64 if that is more, and no more than it | 200 |
//! | of which the part that was not stranded: ·demand / (demand + stranded) | ⌊200·400/450⌋ = 177 |
//!
//! A term is counted in two buckets, of which the older fades: after two terms nothing is left of
//! what was, whatever it was. The question at hand is not demand, only those before it: a key asked for
//! once a term is lent nothing, and one asked again is lent as much as was asked, which doubles from
//! lease to lease.
//!
//! Guarantees: never more than `most`, nothing without demand; O(1), no allocation.
//! Leaves out: what the law and the budget have left, which only the book knows, and which it
//! divides.

use crate::kernel::units::{Hits, Nanos};

/// Leases are for at least these hits, where there is demand for so many: 1 call in 64 decisions is
/// below what a call in 50 may cost.
const WORTH_A_CALL: Hits = Hits(64);

/// A lease is for one part in so many of a term's demand: the smaller, the less is stranded when
/// demand turns, and the more calls it takes where questions are of several hits.
const LEASES_A_TERM: u64 = 2;

/// With a fixed size, what is left when the next lease is asked for: one part in so many.
const LAST_PART: u64 = 4;

/// The next lease is asked for when less is left than the largest question of late, but no sooner than when
/// this part of the last lease is left.
const LAST_PART_LEARNED: u64 = 4;

/// A lease is at most one part in so many of what passes at one instant.
const PARTS: u64 = 10;

/// The most that one lease is for, of a limit that admits `at_once` at one instant; at least 1.
#[must_use]
pub fn most(at_once: u32) -> Hits {
    Hits((u64::from(at_once) / PARTS).max(1))
}

/// How the size of a lease is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    /// Always this many hits.
    Fixed(Hits),
    /// From demand, and from what was stranded.
    Learned,
}

/// Learns what one key of one member needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizer {
    size: Size,
    term: Nanos,
    most: Hits,
    /// When the current bucket began.
    since: Nanos,
    current: Tally,
    last: Tally,
}

/// What a term saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Tally {
    asked: Hits,
    stranded: Hits,
    /// The largest question.
    largest: Hits,
    /// The largest lease.
    lent: Hits,
}

impl Sizer {
    /// Leases of at most `most` hits, for terms of this length.
    #[must_use]
    pub const fn new(size: Size, term: Nanos, most: Hits) -> Self {
        let none = Tally { asked: Hits(0), stranded: Hits(0), largest: Hits(0), lent: Hits(0) };
        Self { size, term, most, since: Nanos(0), current: none, last: none }
    }

    /// Hits were asked for, whatever became of them: a key that is denied teaches too.
    pub fn asked(&mut self, now: Nanos, hits: Hits) {
        if self.size == Size::Learned {
            self.turn(now);
            self.current.asked = self.current.asked.plus(hits);
            self.current.largest = self.current.largest.max(hits);
        }
    }

    /// Hits were lent.
    pub fn lent(&mut self, now: Nanos, hits: Hits) {
        if self.size == Size::Learned {
            self.turn(now);
            self.current.lent = self.current.lent.max(hits);
        }
    }

    /// Hits that were lent went unspent.
    pub fn stranded(&mut self, now: Nanos, hits: Hits) {
        if self.size == Size::Learned {
            self.turn(now);
            self.current.stranded = self.current.stranded.plus(hits);
        }
    }

    /// Hits asked for in the last term. With a fixed size, one lease.
    #[must_use]
    pub fn demand(&self, now: Nanos) -> Hits {
        match self.size {
            Size::Fixed(hits) => hits,
            Size::Learned => self.seen(now).asked,
        }
    }

    /// Hits to borrow next, `besides` those of a question that was counted already; at most `most`.
    #[must_use]
    pub fn want(&self, now: Nanos, besides: Hits) -> Hits {
        let want = match self.size {
            Size::Fixed(hits) => hits,
            Size::Learned => {
                let Tally { asked, stranded, .. } = self.seen(now);
                let asked = asked.less(besides);
                let lease = Hits(asked.0.div_ceil(LEASES_A_TERM)).max(WORTH_A_CALL).min(asked);
                Hits(scaled(lease.0, asked.0, asked.plus(stranded).0))
            }
        };
        want.min(self.most)
    }

    /// What of `balance` will not be asked for in `left`, by the demand of the last term.
    #[must_use]
    pub fn surplus(&self, now: Nanos, balance: Hits, left: Nanos) -> Hits {
        match self.size {
            Size::Fixed(_) => Hits(0),
            Size::Learned => {
                balance.less(Hits(scaled(self.seen(now).asked.0, left.0, self.term.0)))
            }
        }
    }

    /// Hits that would be asked for in `span` by the demand of the last term; none is foretold of a fixed
    /// size.
    #[must_use]
    pub fn expected(&self, now: Nanos, span: Nanos) -> Hits {
        match self.size {
            Size::Fixed(_) => Hits(0),
            Size::Learned => Hits(scaled(self.seen(now).asked.0, span.0, self.term.0)),
        }
    }

    /// Will `balance` be gone `ahead` of now, or not suffice for a question as large as others were?
    #[must_use]
    pub fn runs_out(&self, now: Nanos, balance: Hits, ahead: Nanos) -> bool {
        match self.size {
            Size::Fixed(hits) => balance.0 < hits.0.div_ceil(LAST_PART),
            Size::Learned => {
                let Tally { asked, largest, lent, .. } = self.seen(now);
                let next = largest.0.min(lent.0 / LAST_PART_LEARNED);
                balance.0 <= scaled(asked.0, ahead.0, self.term.0).max(next)
            }
        }
    }

    /// Begins a new bucket when the current one is a term old.
    fn turn(&mut self, now: Nanos) {
        let age = now.since(self.since);
        if age < self.term {
            return;
        }
        let follows = age.since(self.term) < self.term;
        self.last = if follows { self.current } else { Tally::default() };
        self.since = if follows { self.since.plus(self.term) } else { now };
        self.current = Tally::default();
    }

    /// The last term as of `now`: the current bucket, and of the one before what has not faded.
    fn seen(&self, now: Nanos) -> Tally {
        let mut turned = *self;
        turned.turn(now);
        let left = turned.term.since(now.since(turned.since));
        let fading = |hits: Hits| Hits(scaled(hits.0, left.0, turned.term.0));
        Tally {
            asked: turned.current.asked.plus(fading(turned.last.asked)),
            stranded: turned.current.stranded.plus(fading(turned.last.stranded)),
            largest: turned.current.largest.max(turned.last.largest),
            lent: turned.current.lent.max(turned.last.lent),
        }
    }
}

/// ⌊whole·part / of⌋; 0 of nothing.
fn scaled(whole: u64, part: u64, of: u64) -> u64 {
    let product = u128::from(whole).saturating_mul(u128::from(part));
    let scaled = product.checked_div(u128::from(of)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
