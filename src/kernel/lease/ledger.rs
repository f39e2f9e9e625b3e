//! A member's side of one key: what it may spend, and until when.
//!
//! ```text
//! spend ── Spent                              no call
//!       ├─ Denied                             no call: denied before, and not yet time
//!       └─ Ask ─ borrow ── a message          one call, then settle or lost
//!                       └─ none: one is on its way. Look again when it is settled, or charge alone
//! hold ─ put_back, or let_go                  what was spent by a question that other limits may deny
//! ahead ─ a message                           in the background, before the balance runs out
//! hand_back ─ a message                       everything, before a question that it would do for with the rest
//! surplus, give_back ─ a message              what will not be needed; everything
//! ```
//!
//! Guarantees: a grant is settled once, and only as the answer to the last message; what is spent
//! was granted, before its deadline; what is given back or superseded is gone from here before the
//! message leaves, and comes back only where it surely never left; what questions have in hand that are not decided is
//! said to be held, and goes back while every message since said so and it is not void. A remembered denial answers only
//! questions of as many hits or more.
//! Leaves out: who waits for whom, and the numbers, which rise over all keys of a member.

use super::counter::room;
use super::sizer::{Size, Sizer, scaled};
use super::{Answer, Borrow, Number, early};
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos};

/// What changes only when another member gives back is looked at so often in a span: whether there is
/// something to lend again, and, where the counter counts what it denies, whether a denial still stands that was due
/// to what others hold.
const TRIES_A_SPAN: u64 = 8;

/// A lease that is good for a whole term is renewed at leisure in its last part, one in so many.
const LAST_PART: u64 = 8;

/// Where so many questions were to be expected and none came, demand is over: of arrivals by chance one
/// pause in three thousand is as long, whatever each asks for.
const NO_CHANCE: u64 = 8;

/// Hits held of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    term: Nanos,
    sizer: Sizer,
    /// How the counter counts; nothing where that is not said, and then it has left what was last heard.
    strategy: Option<Strategy>,
    balance: Hits,
    /// Of questions that are not decided: neither spent nor to be spent by others.
    in_hand: Hits,
    /// How often what was in hand was void.
    grip: u64,
    /// When the balance is void, and what is in hand.
    until: Nanos,
    /// It is so before a whole term is over, as with a window that ends: none that is asked for before is good for longer.
    is_cut_short: bool,
    /// The last lease settled.
    lease: Number,
    flight: Option<Flight>,
    written: Written,
    denial: Option<Denial>,
    /// When hits were last given back to the key through this member. A denial of what was sent by then may be of before
    /// it, and is not remembered.
    refunded: Option<Nanos>,
    /// What the key had left when it was last heard of.
    heard: Option<(Nanos, Room)>,
    /// The longest that recent answers took, fading.
    round_trip: Nanos,
    /// No grant is asked for ahead before this.
    pause: Nanos,
}

/// The message that an answer is awaited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flight {
    number: Number,
    sent: Nanos,
    hits: Hits,
    /// What was in hand when it was written, and may be put back after its answer was made.
    in_hand: Hits,
}

/// The last message that was written, and what it took out of the balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Written {
    number: Number,
    taken: Hits,
    /// How much of that was counted as stranded.
    stranded: Hits,
}

impl Written {
    const NONE: Self = Self { number: Number(0), taken: Hits(0), stranded: Hits(0) };
}

/// So many hits do not pass before then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Denial {
    hits: Hits,
    /// When they pass for certain if nobody else comes: callers are told this, so that none comes back too soon.
    passes: Nanos,
    /// Until when that is not asked again: they may pass as soon as if the store had answered at once.
    until: Nanos,
}

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spend {
    /// Its hits were taken from the balance.
    Spent(Room),
    /// As many hits or fewer were denied, and it is not yet time.
    Denied {
        /// Wait until those hits may pass.
        retry_after: Nanos,
        /// How many more these are than those.
        more: Hits,
        /// What the key has left regardless.
        room: Room,
    },
    /// Only the store can say.
    Ask,
}

impl Ledger {
    /// A ledger that holds nothing; `most` hits at most are borrowed at once, for terms of `term`.
    #[must_use]
    pub const fn new(size: Size, term: Nanos, most: Hits) -> Self {
        Self {
            term,
            sizer: Sizer::new(size, term, most),
            strategy: None,
            balance: Hits(0),
            in_hand: Hits(0),
            grip: 0,
            until: Nanos(0),
            is_cut_short: false,
            lease: Number(0),
            flight: None,
            written: Written::NONE,
            denial: None,
            refunded: None,
            heard: None,
            round_trip: Nanos(0),
            pause: Nanos(0),
        }
    }

    /// The same, of a counter that counts by `strategy`.
    #[must_use]
    pub const fn of(self, strategy: Strategy) -> Self {
        Self { strategy: Some(strategy), ..self }
    }

    /// Hits that may be spent now.
    #[must_use]
    pub fn balance(&self, now: Nanos) -> Hits {
        if now < self.until { self.balance } else { Hits(0) }
    }

    /// Hits that may be spent now or put back: never more than the store lists.
    #[must_use]
    pub fn held(&self, now: Nanos) -> Hits {
        if now < self.until { self.all() } else { Hits(0) }
    }

    /// Answers a question where that takes no call. Cost: O(1), no allocation.
    ///
    /// 0 hits are answered here only while there is a balance.
    pub fn spend(&mut self, now: Nanos, hits: Hits) -> Spend {
        self.sizer.asked(now, hits);
        self.look(now, hits)
    }

    /// Answers a question that was counted before, when a message it waited for is settled.
    pub fn look(&mut self, now: Nanos, hits: Hits) -> Spend {
        self.expire(now);
        if self.balance != Hits(0) && hits <= self.balance {
            self.balance = self.balance.less(hits);
            return Spend::Spent(self.room(now));
        }
        match self.denial {
            Some(denial) if denial.hits <= hits && now < denial.until => {
                let (retry_after, more) = (denial.passes.since(now), hits.less(denial.hits));
                Spend::Denied { retry_after, more, room: self.room(now) }
            }
            _ => Spend::Ask,
        }
    }

    /// Counts a question that is put to [`Ledger::look`].
    pub fn asked(&mut self, now: Nanos, hits: Hits) {
        self.sizer.asked(now, hits);
    }

    /// Takes hits that were just spent in hand for their question, which another limit may deny: the store is told that
    /// they are held until it is decided, by [`Ledger::put_back`] or [`Ledger::let_go`].
    pub fn hold(&mut self, hits: Hits) {
        self.in_hand = self.in_hand.plus(hits);
    }

    /// Which hits are in hand: another number once those are void that were before.
    #[must_use]
    pub const fn grip(&self) -> u64 {
        self.grip
    }

    /// Puts back hits that were taken in hand at `grip`, when their question is not admitted after all; void where those
    /// are.
    pub fn put_back(&mut self, now: Nanos, hits: Hits, grip: u64) {
        self.expire(now);
        if grip == self.grip {
            self.in_hand = self.in_hand.less(hits);
            self.balance = self.balance.plus(hits);
        }
    }

    /// Their question is admitted: hits that were taken in hand at `grip` are spent.
    pub const fn let_go(&mut self, hits: Hits, grip: u64) {
        if grip == self.grip {
            self.in_hand = self.in_hand.less(hits);
        }
    }

    /// Forgets a denial, because hits are given back to the key, or were: messages pass what gives back, and are passed by
    /// it, so that this is told both before that is sent and when it is answered.
    pub fn forget_denial(&mut self, now: Nanos) {
        self.denial = None;
        self.refunded = self.refunded.max(Some(now));
    }

    /// Whether [`Ledger::ahead`] may have a message: cheaper than to ask it.
    #[must_use]
    pub fn is_near_its_end(&self, now: Nanos) -> bool {
        self.flight.is_none() && self.pause <= now && self.is_due(now, self.balance(now))
    }

    /// What the key has left for those who ask here: what the counter has by now if nobody came since it was last
    /// heard of, and the balance; at most what a counter at rest has.
    #[must_use]
    pub fn room(&self, now: Nanos) -> Room {
        let Some((at, room)) = self.heard else { return Room::default() };
        let Some(strategy) = self.strategy else {
            let (remaining, elapsed) = (room.remaining.plus(self.balance(now)), now.since(at));
            return Room { remaining, reset_after: room.reset_after.since(elapsed) };
        };
        let room = strategy.later(room, at, now);
        let remaining =
            room.remaining.plus(self.balance(now)).min(Hits(u64::from(strategy.most())));
        Room { remaining, ..room }
    }

    /// Whether the counter counts what it denies, so that each try costs what others give back.
    const fn counts_denied(&self) -> bool {
        matches!(self.strategy, Some(Strategy::FixedWindow(_)))
    }

    /// The message for a question that only the store can answer. What is left of the balance did
    /// not suffice, and goes back with it. None while another message is on its way.
    pub fn borrow(&mut self, now: Nanos, number: Number, hits: Hits) -> Option<Borrow> {
        if self.flight.is_some() {
            return None;
        }
        let returned = self.expire_all(now);
        Some(self.message(now, number, hits, self.sizer.want(now, hits), returned))
    }

    /// The message that asks for more before it is needed. None while nothing is held, enough is,
    /// or another message is on its way.
    pub fn ahead(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        let want = self.sizer.want(now, Hits(0));
        let held = self.balance(now);
        let idle = self.flight.is_some() || now < self.pause || held == Hits(0);
        if idle || want == Hits(0) || !self.is_due(now, held) {
            return None;
        }
        Some(self.message(now, number, Hits(0), want, Hits(0)))
    }

    /// The message that asks for more at leisure: of a ledger that would be asked for more by [`Ledger::ahead`]
    /// within `time`, so that messages about many keys go together. None as there, and where what is held lasts longer.
    pub fn at_leisure(&mut self, now: Nanos, number: Number, time: Nanos) -> Option<Borrow> {
        let want = self.sizer.want(now, Hits(0));
        let held = self.balance(now);
        let idle = self.flight.is_some() || now < self.pause || held == Hits(0);
        // With a window the leases of all keys end at one instant.
        let ends =
            !self.is_cut_short && self.until.since(now) <= time.min(Nanos(self.term.0 / LAST_PART));
        if idle || want == Hits(0) || !(ends || self.sizer.runs_low(now, held, time)) {
            return None;
        }
        Some(self.message(now, number, Hits(0), want.less(held), Hits(0)))
    }

    /// The message that gives everything back for a question that it would cover with what the store has left, once
    /// that is answered. None when nothing is held or another message is on its way.
    pub fn hand_back(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        if self.flight.is_some() || self.balance(now) == Hits(0) {
            return None;
        }
        let returned = self.expire_all(now);
        Some(self.message(now, number, Hits(0), Hits(0), returned))
    }

    /// The message that gives back what will not be asked for before it is void. None when most of
    /// it will be, or another message is on its way.
    pub fn surplus(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        self.expire(now);
        let surplus = self.sizer.surplus(now, self.balance, self.until.since(now));
        if self.flight.is_some() || surplus == Hits(0) {
            return None;
        }
        self.balance = self.balance.less(surplus);
        let parting = self.parting(now, number, surplus);
        self.strand(now, surplus);
        Some(parting)
    }

    /// The message that gives everything back because nobody asks any more, after `quiet` in which so
    /// many questions were to be expected that it is no chance, or of a whole span. None otherwise, or when nothing is
    /// held or another message is on its way.
    pub fn abandon(&mut self, now: Nanos, number: Number, quiet: Nanos) -> Option<Borrow> {
        self.expire(now);
        let is_chance = self.sizer.questions(now, quiet) < NO_CHANCE && quiet < self.sizer.span();
        if self.flight.is_some() || self.balance == Hits(0) || is_chance {
            return None;
        }
        let all = std::mem::take(&mut self.balance);
        let farewell = self.farewell(now, number, all);
        self.strand(now, all);
        Some(farewell)
    }

    /// The message that gives everything back, at drain or when this ledger is dropped. Supersedes
    /// one on its way: its answer is ignored. None when nothing is held.
    pub fn give_back(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        self.flight = None;
        let returned = self.expire_all(now);
        (returned != Hits(0)).then(|| self.farewell(now, number, returned))
    }

    /// Takes the answer to the last message; any other is ignored.
    pub fn settle(&mut self, now: Nanos, answer: &Answer) {
        let Some(flight) = self.flight.filter(|flight| flight.number == answer.number) else {
            return;
        };
        self.flight = None;
        self.expire(now);
        self.hear(now, flight, answer);
        if answer.kept < self.all() {
            self.void_in_hand();
        }
        let kept = self.balance.min(answer.kept);
        self.sizer.stranded(now, self.balance.less(kept));
        self.balance = kept.plus(answer.granted);
        if answer.granted != Hits(0) {
            self.lease = answer.number;
            self.sizer.lent(now, answer.granted);
        }
        if self.all() != Hits(0) {
            self.until = flight.sent.plus(early(answer.good_for));
            self.is_cut_short = answer.good_for < self.term;
            self.expire(now);
        }
    }

    /// Nobody will answer: gives the message up. An answer that comes all the same is ignored.
    pub fn lost(&mut self, number: Number) {
        self.flight = self.flight.filter(|flight| flight.number != number);
    }

    /// Undoes the writing of a message that surely never left, so that the store cannot take it whenever: what it
    /// took out of the balance may be spent until the deadline that it had. Not where another was written
    /// since, which said what is held without it; then the message is only given up.
    pub fn unsent(&mut self, now: Nanos, number: Number) {
        self.lost(number);
        if self.written.number == number {
            let Written { taken, stranded, .. } =
                std::mem::replace(&mut self.written, Written::NONE);
            self.sizer.not_stranded(now, stranded);
            if now < self.until {
                self.balance = self.balance.plus(taken);
            }
        }
    }

    /// Voids what is past its deadline: these hits of the balance, and what is in hand.
    pub fn expire(&mut self, now: Nanos) -> Hits {
        if now < self.until || self.all() == Hits(0) {
            return Hits(0);
        }
        self.void_in_hand();
        let void = std::mem::take(&mut self.balance);
        self.sizer.stranded(now, void);
        void
    }

    fn all(&self) -> Hits {
        self.balance.plus(self.in_hand)
    }

    const fn void_in_hand(&mut self) {
        if self.in_hand.0 != 0 {
            self.in_hand = Hits(0);
            self.grip = self.grip.wrapping_add(1);
        }
    }

    /// Takes the whole balance, what is void left out.
    fn expire_all(&mut self, now: Nanos) -> Hits {
        self.expire(now);
        std::mem::take(&mut self.balance)
    }

    /// Is it time to ask for more? Two round trips ahead: one for the answer, one because it may be
    /// as late again.
    fn is_due(&self, now: Nanos, held: Hits) -> bool {
        let ahead = self.round_trip.plus(self.round_trip);
        self.sizer.runs_out(now, held, ahead) || self.until.since(now) <= ahead
    }

    fn message(
        &mut self,
        now: Nanos,
        number: Number,
        hits: Hits,
        want: Hits,
        returned: Hits,
    ) -> Borrow {
        let held = self.held(now);
        let in_hand = held.less(self.balance(now));
        self.flight = Some(Flight { number, sent: now, hits, in_hand });
        self.written = Written { number, taken: returned, stranded: Hits(0) };
        let (demand, lease) = (self.sizer.demand(now), self.lease);
        Borrow { number, hits, want, demand, held, returned, lease }
    }

    /// A message that no answer is awaited to.
    fn parting(&mut self, now: Nanos, number: Number, returned: Hits) -> Borrow {
        let parting = self.message(now, number, Hits(0), Hits(0), returned);
        self.flight = None;
        parting
    }

    /// Counts what the last message gives back as unspent.
    fn strand(&mut self, now: Nanos, hits: Hits) {
        self.sizer.stranded(now, hits);
        self.written.stranded = hits;
    }

    /// The parting of who will not ask soon: others need not share what is left with it.
    fn farewell(&mut self, now: Nanos, number: Number, returned: Hits) -> Borrow {
        Borrow { demand: Hits(0), ..self.parting(now, number, returned) }
    }

    /// Remembers what an answer says of the key.
    fn hear(&mut self, now: Nanos, flight: Flight, answer: &Answer) {
        let took = now.since(flight.sent);
        let faded = Nanos(self.round_trip.0.saturating_sub(self.round_trip.0 / 4));
        self.round_trip = took.max(faded);
        if answer.step == Step::Stale {
            return;
        }
        // As of now, though it may have been so since this was sent: who goes by it must not come back too soon.
        self.heard = Some((now, room(answer.step)));
        self.denial = self.denial_after(now, flight, answer);
        if answer.granted == Hits(0) {
            self.pause = now.plus(self.try_again());
        }
    }

    /// The denial to remember. The one of the fewest hits tells most.
    fn denial_after(&self, now: Nanos, flight: Flight, answer: &Answer) -> Option<Denial> {
        let before = self.denial.filter(|denial| flight.sent < denial.until);
        match answer.step {
            Step::Deny { .. } if self.refunded.is_some_and(|back| flight.sent <= back) => before,
            // With what is put back since it may be enough.
            Step::Deny { .. } if flight.in_hand != Hits(0) => before,
            Step::Deny { retry_after, room } if flight.hits != Hits(0) => {
                let certain =
                    flight.sent.plus(stands(flight.hits, room, answer.parked, retry_after));
                // Who waited for this answer is told of it, and one who asks a round trip later could not
                // have heard of anything sooner.
                let heard = now.plus(self.round_trip);
                let again = if self.counts_denied() {
                    flight.sent.plus(self.try_again()).max(heard)
                } else {
                    heard
                };
                let until = certain.max(again).min(flight.sent.plus(retry_after));
                let denial = Denial { hits: flight.hits, passes: now.plus(retry_after), until };
                Some(before.filter(|before| before.hits < flight.hits).unwrap_or(denial))
            }
            Step::Admit(_) => before.filter(|denial| flight.hits < denial.hits),
            _ => before,
        }
    }

    const fn try_again(&self) -> Nanos {
        Nanos(self.sizer.span().0 / TRIES_A_SPAN)
    }
}

/// How long a denial of `hits` stands for certain, whatever others give back of what is `parked`: as long as what
/// is missing beyond it takes to be earned.
///
/// | asked | left | parked | wait | stands |
/// |---|---|---|---|---|
/// | 64 | 23 | 10 | 410 ms | ⌊410·(41 − 10 − 1)/41⌋ = 300 ms: what is left may be almost a hit more than it says |
/// | 1 | 0 | 1 | any | 0 |
fn stands(hits: Hits, room: Room, parked: Hits, retry_after: Nanos) -> Nanos {
    if parked == Hits(0) {
        return retry_after;
    }
    let missing = hits.less(room.remaining);
    let beyond = missing.less(parked).less(Hits(1));
    Nanos(scaled(retry_after.0, beyond.0, missing.0))
}
