//! Lease sizing: the number of hits to borrow.
//!
//! Example: 200 hits were requested in the last 10 s, and 50 leased
//! hits were not spent. A lease lasts 30 s and is at most 1,000 hits.
//!
//! | formula | worked row |
//! |---|---|
//! | demand = hits of the current span + the weighted hits of the last span | 200 |
//! | demand over one lease; a demand below 64 is not scaled up | 200·30/10 = 600 |
//! | reduced by the unspent part: ·demand / (demand + unspent) | ⌊600·200/250⌋ = 480 |
//!
//! Demand is counted in two buckets of one span each; the older one fades linearly. After two
//! spans nothing of a demand is left. A span is the duration of a lease, at most [`LONGEST_SPAN`].
//!
//! The current check is not part of the demand, only earlier checks are. A
//! key with one check per span borrows nothing. The second check borrows as
//! many hits as were requested, and the size doubles from lease to lease.
//!
//! Guarantees:
//! - A lease is at most `most` hits, and 0 without demand.
//! - O(1), no allocation.
//!
//! Not covered:
//! - The hits that the limit and the budget have left (see [`super::book`]).

use crate::kernel::units::{Hits, Nanos};

/// Below this demand a lease is not scaled to its full duration: so few hits predict little.
const FEW: Hits = Hits(64);

/// The longest span, for any lease duration: lease sizes must follow a demand that drifts.
pub const LONGEST_SPAN: Nanos = Nanos::from_secs(10);

/// A surplus below 1/2 of the balance is not returned. Random
/// arrivals vary that much, and the message would be wasted.
const LEAST_PART_BACK: u64 = 2;

/// The refill threshold of a fixed size is 1/4 of a lease. With a learned
/// size, 1/4 is the largest reserve for a check as large as recent ones.
const LAST_PART: u64 = 4;

/// The threshold of an early refill is 1/5 of a lease. An earlier
/// one would leave more of the budget unused and send more messages.
const LEISURE_PART: u64 = 5;

/// A lease is at most 1/10 of the hits that the limit allows at one instant.
const PARTS: u64 = 10;

/// The largest lease for a limit that allows `at_once` hits at one instant; at least 1.
#[must_use]
pub fn most(at_once: u32) -> Hits {
    Hits((u64::from(at_once) / PARTS).max(1))
}

/// The method that sets the size of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    /// A constant number of hits.
    Fixed(Hits),
    /// Learned from demand and from unspent hits.
    Learned,
}

/// The demand statistics of one key in one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizer {
    size: Size,
    term: Nanos,
    /// The duration of one bucket.
    span: Nanos,
    most: Hits,
    since: Nanos,
    current: Tally,
    last: Tally,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Tally {
    asked: Hits,
    questions: u64,
    stranded: Hits,
    largest: Hits,
    lent: Hits,
}

impl Tally {
    const NONE: Self =
        Self { asked: Hits(0), questions: 0, stranded: Hits(0), largest: Hits(0), lent: Hits(0) };
}

impl Sizer {
    /// Creates a sizer for leases of at most `most` hits that last `term`.
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

    /// Records a check, also a denied one, because it is demand too.
    pub fn asked(&mut self, now: Nanos, hits: Hits) {
        if self.size == Size::Learned {
            self.turn(now);
            self.current.asked = self.current.asked.plus(hits);
            self.current.questions = self.current.questions.saturating_add(1);
            self.current.largest = self.current.largest.max(hits);
        }
    }

    /// Records a granted lease.
    pub fn lent(&mut self, now: Nanos, hits: Hits) {
        if self.size == Size::Learned {
            self.turn(now);
            self.current.lent = self.current.lent.max(hits);
        }
    }

    /// Records leased hits that were not spent.
    pub fn stranded(&mut self, now: Nanos, hits: Hits) {
        if self.size == Size::Learned {
            self.turn(now);
            self.current.stranded = self.current.stranded.plus(hits);
        }
    }

    /// Reverts [`Sizer::stranded`]: the hits can be spent after all.
    pub fn not_stranded(&mut self, now: Nanos, hits: Hits) {
        if self.size == Size::Learned {
            self.turn(now);
            self.current.stranded = self.current.stranded.less(hits);
        }
    }

    /// Returns the hits requested in the last span. A fixed size returns one lease.
    #[must_use]
    pub fn demand(&self, now: Nanos) -> Hits {
        match self.size {
            Size::Fixed(hits) => hits,
            Size::Learned => self.seen(now).asked,
        }
    }

    /// Returns the hits to borrow next, at most `most`. Excludes `besides`,
    /// the hits of the current check, which is already recorded.
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

    /// Returns the part of `balance` that exceeds the demand
    /// expected in `left`; 0 if that is less than half of it.
    #[must_use]
    pub fn surplus(&self, now: Nanos, balance: Hits, left: Nanos) -> Hits {
        let surplus = balance.less(self.expected(now, left));
        let is_worth_it = balance.0.div_ceil(LEAST_PART_BACK) <= surplus.0;
        if is_worth_it && self.size == Size::Learned { surplus } else { Hits(0) }
    }

    /// Returns the hits expected in `time` at the demand of the last span; 0 for a fixed size.
    #[must_use]
    pub fn expected(&self, now: Nanos, time: Nanos) -> Hits {
        match self.size {
            Size::Fixed(_) => Hits(0),
            Size::Learned => Hits(scaled(self.seen(now).asked.0, time.0, self.span.0)),
        }
    }

    /// Returns the number of checks expected in `time` at the last span's rate; 0 for a fixed size.
    #[must_use]
    pub fn questions(&self, now: Nanos, time: Nanos) -> u64 {
        scaled(self.seen(now).questions, time.0, self.span.0)
    }

    /// Returns `true` if `balance` is at most 1/5 of a lease and is expected to run
    /// out within `time`. Always `false` for a fixed size with a balance above 0.
    #[must_use]
    pub fn runs_low(&self, now: Nanos, balance: Hits, time: Nanos) -> bool {
        let last_part = self.seen(now).lent.0 / LEISURE_PART;
        balance.0 <= self.expected(now, time).0.min(last_part)
    }

    /// Returns `true` if `balance` will run out within `ahead`, or cannot cover a
    /// check as large as recent ones. A fixed size compares it with 1/4 of a lease.
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

    /// Starts a new bucket if the current one is a span old.
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

    /// Returns the counts of the last span: the current
    /// bucket plus the unfaded part of the last one.
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

/// Returns ⌊whole·part / of⌋; 0 if `of` is 0.
pub(super) fn scaled(whole: u64, part: u64, of: u64) -> u64 {
    let product = u128::from(whole).saturating_mul(u128::from(part));
    let scaled = product.checked_div(u128::from(of)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
