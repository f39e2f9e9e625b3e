//! How much to borrow.
//!
//! | formula, for 200 hits asked in the last 10 s, and as many stranded as a quarter of it; terms of 30 s, most 1,000 | worked row |
//! |---|---|
//! | demand = hits of this span + what the last span's weigh | 200 |
//! | what a whole term of it comes to, and of less than 64 no more than it | 200·30/10 = 600 |
//! | of which the part that was not stranded: ·demand / (demand + stranded) | ⌊600·200/250⌋ = 480 |
//!
//! Demand is counted in two buckets of a span each, of which the older fades: after two spans nothing is
//! left of what was, whatever it was. A span is a term, and [`LONGEST_SPAN`] at most: a lease may be
//! good for longer than a demand is believed to last. The question at hand is not demand, only those before it: a key asked for
//! once a span is lent nothing, and one asked again is lent as much as was asked, which doubles from
//! lease to lease.
//!
//! Guarantees: never more than `most`, nothing without demand; O(1), no allocation.
//! Leaves out: what the law and the budget have left, which only the book knows, and which it
//! divides.

use crate::kernel::units::{Hits, Nanos};

/// Where fewer hits were asked for, a lease is for no more than were: what is known of so few is little.
const FEW: Hits = Hits(64);

/// The longest that a demand is believed to last, whatever the term: what is lent must follow demand
/// that drifts.
pub const LONGEST_SPAN: Nanos = Nanos::from_secs(10);

/// Less than one part in so many of a balance is not given back: demand by chance is as much above or
/// below what it was before, and a message would be for nothing.
const LEAST_PART_BACK: u64 = 2;

/// What is left of a lease when the next is asked for, one part in so many: with a fixed size always, else at
/// most, when less is left than the largest question of late or than will be asked for soon.
const LAST_PART: u64 = 4;

/// What is left of a lease when the next is asked for at leisure, one part in so many: whoever asks sooner lets
/// more of the budget lie, and needs more messages.
const LEISURE_PART: u64 = 5;

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
    /// What one bucket counts.
    span: Nanos,
    most: Hits,
    /// When the current bucket began.
    since: Nanos,
    current: Tally,
    last: Tally,
}

/// What a span saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Tally {
    asked: Hits,
    questions: u64,
    stranded: Hits,
    /// The largest question.
    largest: Hits,
    /// The largest lease.
    lent: Hits,
}

impl Tally {
    const NONE: Self =
        Self { asked: Hits(0), questions: 0, stranded: Hits(0), largest: Hits(0), lent: Hits(0) };
}

impl Sizer {
    /// Leases of at most `most` hits, for terms of this length.
    #[must_use]
    pub const fn new(size: Size, term: Nanos, most: Hits) -> Self {
        let span = if term.0 < LONGEST_SPAN.0 { term } else { LONGEST_SPAN };
        Self { size, term, span, most, since: Nanos(0), current: Tally::NONE, last: Tally::NONE }
    }

    /// The span in which demand is counted.
    #[must_use]
    pub const fn span(&self) -> Nanos {
        self.span
    }

    /// Hits were asked for, whatever became of them: a key that is denied teaches too.
    pub fn asked(&mut self, now: Nanos, hits: Hits) {
        if self.size == Size::Learned {
            self.turn(now);
            self.current.asked = self.current.asked.plus(hits);
            self.current.questions = self.current.questions.saturating_add(1);
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

    /// Hits that were just counted as unspent may be spent after all.
    pub fn not_stranded(&mut self, now: Nanos, hits: Hits) {
        if self.size == Size::Learned {
            self.turn(now);
            self.current.stranded = self.current.stranded.less(hits);
        }
    }

    /// Hits asked for in the last span. With a fixed size, one lease.
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
                let lease =
                    if asked < FEW { asked.0 } else { scaled(asked.0, self.term.0, self.span.0) };
                Hits(scaled(lease, asked.0, asked.plus(stranded).0))
            }
        };
        want.min(self.most)
    }

    /// What of `balance` will not be asked for in `left`, by the demand of the last span; nothing where that
    /// is less than half of it.
    #[must_use]
    pub fn surplus(&self, now: Nanos, balance: Hits, left: Nanos) -> Hits {
        let surplus = balance.less(self.expected(now, left));
        let is_worth_it = balance.0.div_ceil(LEAST_PART_BACK) <= surplus.0;
        if is_worth_it && self.size == Size::Learned { surplus } else { Hits(0) }
    }

    /// Hits that would be asked for in `time` by the demand of the last span; none is foretold of a fixed
    /// size.
    #[must_use]
    pub fn expected(&self, now: Nanos, time: Nanos) -> Hits {
        match self.size {
            Size::Fixed(_) => Hits(0),
            Size::Learned => Hits(scaled(self.seen(now).asked.0, time.0, self.span.0)),
        }
    }

    /// Questions that would come in `time` if they came as in the last span; none is foretold of a fixed size.
    #[must_use]
    pub fn questions(&self, now: Nanos, time: Nanos) -> u64 {
        scaled(self.seen(now).questions, time.0, self.span.0)
    }

    /// Will `balance` be gone within `time`, and is the last part of a lease all that is left? Nothing is
    /// foretold of a fixed size.
    #[must_use]
    pub fn runs_low(&self, now: Nanos, balance: Hits, time: Nanos) -> bool {
        let last_part = self.seen(now).lent.0 / LEISURE_PART;
        balance.0 <= self.expected(now, time).0.min(last_part)
    }

    /// Will `balance` be gone `ahead` of now, or not suffice for a question as large as others were?
    #[must_use]
    pub fn runs_out(&self, now: Nanos, balance: Hits, ahead: Nanos) -> bool {
        match self.size {
            Size::Fixed(hits) => balance.0 < hits.0.div_ceil(LAST_PART),
            Size::Learned => {
                let Tally { asked, largest, lent, .. } = self.seen(now);
                let next = largest.0.min(lent.0 / LAST_PART);
                balance.0 <= scaled(asked.0, ahead.0, self.span.0).max(next)
            }
        }
    }

    /// Begins a new bucket when the current one is a span old.
    fn turn(&mut self, now: Nanos) {
        let age = now.since(self.since);
        if age < self.span {
            return;
        }
        let follows = age.since(self.span) < self.span;
        self.last = if follows { self.current } else { Tally::default() };
        self.since = if follows { self.since.plus(self.span) } else { now };
        self.current = Tally::default();
    }

    /// The last span as of `now`: the current bucket, and of the one before what has not faded.
    fn seen(&self, now: Nanos) -> Tally {
        let mut turned = *self;
        turned.turn(now);
        let left = turned.span.since(now.since(turned.since));
        let fading = |count| scaled(count, left.0, turned.span.0);
        let fading_hits = |hits: Hits| Hits(fading(hits.0));
        Tally {
            asked: turned.current.asked.plus(fading_hits(turned.last.asked)),
            questions: turned.current.questions.saturating_add(fading(turned.last.questions)),
            stranded: turned.current.stranded.plus(fading_hits(turned.last.stranded)),
            largest: turned.current.largest.max(turned.last.largest),
            lent: turned.current.lent.max(turned.last.lent),
        }
    }
}

/// ⌊whole·part / of⌋; 0 of nothing.
pub(super) fn scaled(whole: u64, part: u64, of: u64) -> u64 {
    let product = u128::from(whole).saturating_mul(u128::from(part));
    let scaled = product.checked_div(u128::from(of)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
