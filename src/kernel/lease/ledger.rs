//! The lease balance of one key in one replica, and its expiry.
//!
//! | method | use |
//! |---|---|
//! | [`Ledger::spend`] | Decides a check from the balance or a remembered denial. |
//! | [`Ledger::borrow`] | Otherwise: one store call for the check. |
//! | [`Ledger::settle`], [`Ledger::lost`] | The end of a store call, with or without a reply. |
//! | [`Ledger::look`] | If a call is in flight: wait until it is settled, then try this. |
//! | [`Ledger::hold`] | Marks spent hits whose check other limits may still deny. |
//! | [`Ledger::put_back`], [`Ledger::let_go`] | The check was denied, or allowed. |
//! | [`Ledger::ahead`] | A background refill, before the balance runs out. |
//! | [`Ledger::hand_back`] | Returns the balance before a check that needs more than the balance. |
//! | [`Ledger::surplus`] | Returns the hits that will not be needed. |
//! | [`Ledger::give_back`] | Returns everything when draining. |
//!
//! Guarantees:
//! - A grant is settled once, only by the reply to the last message.
//! - Spent hits were granted and had not expired.
//! - Returned or superseded hits leave the balance before their message is sent.
//! - They come back only if that message certainly never left.
//! - Reports include the hits of undecided checks.
//! - Those hits return only if every later message reported them and they have not expired.
//! - A remembered denial applies only to checks of as many hits or more.
//!
//! Not covered:
//! - Waiting for a message of another check.
//! - Message numbers, which rise over all keys of a replica.

use super::counter::room;
use super::sizer::{Size, Sizer, scaled};
use super::{Answer, Borrow, Number, early};
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos};

/// The rate of speculative retries: 8 per span.
///
/// Used where only another replica's return can change the result. That is after an empty
/// grant, and for denials due to outstanding hits if the counter counts denied hits.
const TRIES_A_SPAN: u64 = 8;

/// A lease of full duration may be renewed early in its last 1/8.
const LAST_PART: u64 = 8;

/// With 8 checks expected and none seen, demand has ended. Random arrivals
/// pause this long once in three thousand times (e^−8), for any cost per check.
const NO_CHANCE: u64 = 8;

/// The lease balance of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    term: Nanos,
    sizer: Sizer,
    /// The strategy of the counter. `None`: the headroom stays at the last reported value.
    strategy: Option<Strategy>,
    balance: Hits,
    /// The hits of undecided checks: not yet spent, and not available to other checks.
    in_hand: Hits,
    /// The number of times that `in_hand` was voided.
    grip: u64,
    /// The expiry of the balance and of `in_hand`.
    until: Nanos,
    /// `true` if the lease is shorter than `term`, for example because
    /// its window ends. Then no new lease lasts longer before `until`.
    is_cut_short: bool,
    lease: Number,
    flight: Option<Flight>,
    written: Written,
    denial: Option<Denial>,
    /// The last time that this replica refunded hits to the key. A denial of
    /// a message sent before may predate the refund, so it is not remembered.
    refunded: Option<Nanos>,
    /// The last reported headroom, and the time of the report.
    heard: Option<(Nanos, Room)>,
    /// The largest recent round trip; it fades by 1/4 per reply.
    round_trip: Nanos,
    /// No background refill is sent before this instant.
    pause: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flight {
    number: Number,
    sent: Nanos,
    hits: Hits,
    /// The hits of undecided checks in this message; they may be put back after the reply was made.
    in_hand: Hits,
}

/// The last message that was written, and the hits that it took from the balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Written {
    number: Number,
    taken: Hits,
    /// The part of `taken` that the sizer counted as unspent.
    stranded: Hits,
}

impl Written {
    const NONE: Self = Self { number: Number(0), taken: Hits(0), stranded: Hits(0) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Denial {
    hits: Hits,
    /// The instant at which the hits are allowed if there is no other
    /// traffic. Clients receive this one, so that none retries too early.
    passes: Nanos,
    /// The instant until which the store is not called again: at
    /// most the retry-after, counted from the time of sending.
    until: Nanos,
}

/// The local result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spend {
    /// The hits were taken from the balance.
    Spent(Room),
    /// A remembered denial of as many hits or fewer is still valid.
    Denied {
        /// The time until the remembered hits are allowed.
        retry_after: Nanos,
        /// The additional hits of this check over the remembered ones.
        more: Hits,
        /// The current headroom.
        room: Room,
    },
    /// Only the store can decide.
    Ask,
}

impl Ledger {
    /// Creates an empty balance that borrows at most
    /// `most` hits at once, for leases that last `term`.
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

    /// Sets the strategy of the counter.
    #[must_use]
    pub const fn of(self, strategy: Strategy) -> Self {
        Self { strategy: Some(strategy), ..self }
    }

    /// Returns the hits that can be spent now.
    #[must_use]
    pub fn balance(&self, now: Nanos) -> Hits {
        if now < self.until { self.balance } else { Hits(0) }
    }

    /// Returns the balance plus the hits of undecided checks; at most the hits listed in the store.
    #[must_use]
    pub fn held(&self, now: Nanos) -> Hits {
        if now < self.until { self.all() } else { Hits(0) }
    }

    /// Records a check and decides it without a store call if possible. Cost: O(1), no allocation.
    ///
    /// A check of 0 hits is decided here only while the balance is above 0.
    pub fn spend(&mut self, now: Nanos, hits: Hits) -> Spend {
        self.sizer.asked(now, hits);
        self.look(now, hits)
    }

    /// Decides a check that is already recorded, for example when a pending message is settled.
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

    /// Records a check that is then passed to [`Ledger::look`].
    pub fn asked(&mut self, now: Nanos, hits: Hits) {
        self.sizer.asked(now, hits);
    }

    /// Moves hits that were just spent to `in_hand`,
    /// because another limit may still deny the check.
    ///
    /// Messages report them until [`Ledger::put_back`] or [`Ledger::let_go`].
    pub fn hold(&mut self, hits: Hits) {
        self.in_hand = self.in_hand.plus(hits);
    }

    /// The generation of `in_hand`; it changes when those hits are voided.
    #[must_use]
    pub const fn grip(&self) -> u64 {
        self.grip
    }

    /// Returns the hits of a denied check to the balance, unless they were voided since `grip`.
    pub fn put_back(&mut self, now: Nanos, hits: Hits, grip: u64) {
        self.expire(now);
        if grip == self.grip {
            self.in_hand = self.in_hand.less(hits);
            self.balance = self.balance.plus(hits);
        }
    }

    /// Marks the hits of an allowed check as spent, unless they were voided since `grip`.
    pub const fn let_go(&mut self, hits: Hits, grip: u64) {
        if grip == self.grip {
            self.in_hand = self.in_hand.less(hits);
        }
    }

    /// Forgets the remembered denial because hits were refunded to the key.
    ///
    /// Refunds and lease messages may overtake each other. So call this
    /// before the refund is sent and again when its reply arrives.
    pub fn forget_denial(&mut self, now: Nanos) {
        self.denial = None;
        self.refunded = self.refunded.max(Some(now));
    }

    /// Returns `true` if [`Ledger::ahead`] may return a message; cheaper than calling it.
    #[must_use]
    pub fn is_near_its_end(&self, now: Nanos) -> bool {
        self.flight.is_none() && self.pause <= now && self.is_due(now, self.balance(now))
    }

    /// Returns the headroom as this replica sees it, at most the limit of an idle counter.
    ///
    /// It is the counter's headroom projected to `now` without other traffic, plus the balance.
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

    /// Returns `true` if denied hits are counted, so that each retry uses up returned hits.
    const fn counts_denied(&self) -> bool {
        matches!(self.strategy, Some(Strategy::FixedWindow(_)))
    }

    /// Returns the message for a check that only the store
    /// can decide, or `None` while one is in flight.
    ///
    /// The rest of the balance was too small, and is returned with the message.
    pub fn borrow(&mut self, now: Nanos, number: Number, hits: Hits) -> Option<Borrow> {
        if self.flight.is_some() {
            return None;
        }
        let returned = self.expire_all(now);
        Some(self.message(now, number, hits, self.sizer.want(now, hits), returned))
    }

    /// Returns the message for a background refill.
    ///
    /// Returns `None` if the balance is empty or large enough, or while a message is in flight.
    pub fn ahead(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        let want = self.sizer.want(now, Hits(0));
        let held = self.balance(now);
        let idle = self.flight.is_some() || now < self.pause || held == Hits(0);
        if idle || want == Hits(0) || !self.is_due(now, held) {
            return None;
        }
        Some(self.message(now, number, Hits(0), want, Hits(0)))
    }

    /// Returns the message for an early refill, if [`Ledger::ahead`] would send one within `time`.
    ///
    /// Early refills of many keys share one store call. Returns
    /// `None` like `ahead`, or if the balance lasts longer.
    pub fn at_leisure(&mut self, now: Nanos, number: Number, time: Nanos) -> Option<Borrow> {
        let want = self.sizer.want(now, Hits(0));
        let held = self.balance(now);
        let idle = self.flight.is_some() || now < self.pause || held == Hits(0);
        // Leases that end with a window all end at once, so they are not renewed early.
        let ends =
            !self.is_cut_short && self.until.since(now) <= time.min(Nanos(self.term.0 / LAST_PART));
        if idle || want == Hits(0) || !(ends || self.sizer.runs_low(now, held, time)) {
            return None;
        }
        Some(self.message(now, number, Hits(0), want.less(held), Hits(0)))
    }

    /// Returns the message that returns the whole balance, before
    /// a check that needs the balance plus the store's headroom.
    ///
    /// Returns `None` if the balance is empty or while a message is in flight.
    pub fn hand_back(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        if self.flight.is_some() || self.balance(now) == Hits(0) {
            return None;
        }
        let returned = self.expire_all(now);
        Some(self.message(now, number, Hits(0), Hits(0), returned))
    }

    /// Returns the message that returns the hits that demand will not use before they expire.
    ///
    /// Returns `None` if demand will use most of them, or while a message is in flight.
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

    /// Returns the message that returns the whole balance because demand has ended.
    ///
    /// Demand has ended if no check came for `quiet`, although 8
    /// were expected, or for a whole span. Otherwise returns `None`;
    /// also if the balance is empty or while a message is in flight.
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

    /// Returns the message that returns the whole balance, when draining or dropping this balance.
    ///
    /// It supersedes a message in flight, whose reply
    /// is then ignored. `None` if the balance is empty.
    pub fn give_back(&mut self, now: Nanos, number: Number) -> Option<Borrow> {
        self.flight = None;
        let returned = self.expire_all(now);
        (returned != Hits(0)).then(|| self.farewell(now, number, returned))
    }

    /// Applies the reply to the last message; ignores any other reply.
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

    /// Gives up waiting for the reply to message `number`; a late reply is ignored.
    pub fn lost(&mut self, number: Number) {
        self.flight = self.flight.filter(|flight| flight.number != number);
    }

    /// Undoes message `number`, which certainly never left this process.
    ///
    /// The returned hits can be spent again until their old expiry. If a newer message was written
    /// since, it reported the balance without them. Then this only stops waiting for the reply.
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

    /// Voids an expired balance and `in_hand`. Returns the voided hits of the balance.
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

    fn expire_all(&mut self, now: Nanos) -> Hits {
        self.expire(now);
        std::mem::take(&mut self.balance)
    }

    /// Returns `true` if it is time to refill: two round
    /// trips ahead, in case the reply is twice as slow.
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

    /// Creates a message whose reply is ignored.
    fn parting(&mut self, now: Nanos, number: Number, returned: Hits) -> Borrow {
        let parting = self.message(now, number, Hits(0), Hits(0), returned);
        self.flight = None;
        parting
    }

    /// Counts the hits that the last message returns as unspent.
    fn strand(&mut self, now: Nanos, hits: Hits) {
        self.sizer.stranded(now, hits);
        self.written.stranded = hits;
    }

    /// Creates a message without demand, so that the store divides the remaining hits among others.
    fn farewell(&mut self, now: Nanos, number: Number, returned: Hits) -> Borrow {
        Borrow { demand: Hits(0), ..self.parting(now, number, returned) }
    }

    /// Updates round trip, headroom, denial and refill pause from a reply.
    fn hear(&mut self, now: Nanos, flight: Flight, answer: &Answer) {
        let took = now.since(flight.sent);
        let faded = Nanos(self.round_trip.0.saturating_sub(self.round_trip.0 / 4));
        self.round_trip = took.max(faded);
        if answer.step == Step::Stale {
            return;
        }
        // Dated now, although it may be older: a later date gives a later retry, which is safe.
        self.heard = Some((now, room(answer.step)));
        self.denial = self.denial_after(now, flight, answer);
        if answer.granted == Hits(0) {
            self.pause = now.plus(self.try_again());
        }
    }

    /// Returns the denial to remember: the one of the fewest hits covers most checks.
    fn denial_after(&self, now: Nanos, flight: Flight, answer: &Answer) -> Option<Denial> {
        let before = self.denial.filter(|denial| flight.sent < denial.until);
        match answer.step {
            Step::Deny { .. } if self.refunded.is_some_and(|back| flight.sent <= back) => before,
            // Hits put back since then may be enough.
            Step::Deny { .. } if flight.in_hand != Hits(0) => before,
            Step::Deny { retry_after, room } if flight.hits != Hits(0) => {
                let certain =
                    flight.sent.plus(stands(flight.hits, room, answer.parked, retry_after));
                // Waiting checks receive this reply. A check one
                // round trip later could not have had a newer one.
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

/// Returns the time for which a denial is certain, even if the `parked` hits are returned.
///
/// The limit must first free the missing hits beyond `parked`.
///
/// The 1 is subtracted because `remaining` is rounded down by almost one hit.
///
/// | hits | remaining | outstanding elsewhere | wait | certain for |
/// |---|---|---|---|---|
/// | 64 | 23 | 10 | 410 ms | ⌊410·(41 − 10 − 1)/41⌋ = 300 ms |
/// | 1 | 0 | 1 | any | 0 |
fn stands(hits: Hits, room: Room, parked: Hits, retry_after: Nanos) -> Nanos {
    if parked == Hits(0) {
        return retry_after;
    }
    let missing = hits.less(room.remaining);
    let beyond = missing.less(parked).less(Hits(1));
    Nanos(scaled(retry_after.0, beyond.0, missing.0))
}
