//! Reservations on one counter: hits that are charged for a check and may still be refunded.
//!
//! A check that is charged atomically in several stores reserves its hits in each of them. Then it
//! commits all reservations, or cancels them. A reservation that is still open when it expires is
//! canceled.
//!
//! Guarantees:
//! - Reserved hits are charged at once, so the limit is never exceeded.
//! - A cancel refunds only hits that remain in the same window or log entry.
//! - A cancel reduces a debt only by the part that is certainly still owed.
//! - A repeated reservation with the same id is charged once.
//! - A reservation ends once: kept, canceled or expired.
//!
//! **Debts.** A GCRA debt drains as a whole; it does not record which hits it consists of. Reserved
//! hits that have drained cannot be refunded: a refund would remove hits that others charged since.
//! Call *gap* the amount by which the debt would be smaller without the open reservations. The gap
//! shrinks only while the debt without them would be zero, by N per tick. The gap is always at
//! least the field `reserved`, which each call updates:
//!
//! | formula | worked row, N = 1 per tick |
//! |---|---|
//! | left = debt at the last update − elapsed · N | 50, 20 of them reserved; 40 ticks later: 10 |
//! | reserved = min(reserved, left) − the part of `left` that is already gone | min(20, 10) = 10 |
//! | refund = min(hits · P, reserved − cost of other reservations) | 10, though 20 were reserved |

use super::counter::{AnyCounter, ChargeLocation, headroom_of};
use crate::rate::CounterDecision;
use crate::rate::gcra::Gcra;
use crate::rate::limit::Tick;
use crate::units::{Hits, Nanos};

/// The most open reservations of one counter; above it, [`CounterReservations::reserve`] returns
/// `None`. Canceling this many takes about a millisecond, in which Redis serves no other client.
pub const MAX_RESERVATIONS: usize = 4_096;

/// The id of a reservation: the process, and a number that is unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservationId(pub u64, pub u64);

/// The open reservations of one counter. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterReservations {
    open: Vec<Reservation>,
    debt: ReservedDebt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reservation {
    id: ReservationId,
    hits: Hits,
    location: ChargeLocation,
    expires_at: Nanos,
}

/// The part of a GCRA debt that is certainly still reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReservedDebt {
    limit: Option<Gcra>,
    /// The tick of the last update, and the debt at that tick in hit·ticks.
    since: u64,
    owed: u64,
    /// The reserved part of the debt, in hit·ticks.
    reserved: u64,
}

impl CounterReservations {
    /// Charges `hits` and reserves them for `duration`, if the limit allows them; a denial charges
    /// nothing. Returns `None` if too many reservations are open. Cost: O(open reservations).
    pub fn reserve(
        &mut self,
        counter: &mut AnyCounter,
        now: Nanos,
        id: ReservationId,
        hits: Hits,
        duration: Nanos,
    ) -> Option<CounterDecision> {
        let now = Tick::Micro.nanos(Tick::Micro.floor(now));
        if counter.peek(now, Hits(0)) == CounterDecision::OutsideWindows {
            return Some(CounterDecision::OutsideWindows);
        }
        cap_debt(counter, now);
        self.expire(counter, now);
        if self.open.iter().any(|reservation| reservation.id == id) {
            return Some(CounterDecision::Allow(headroom_of(counter.peek(now, Hits(0)))));
        }
        let result = counter.peek(now, hits);
        if hits == Hits(0) || !matches!(result, CounterDecision::Allow(_)) {
            return Some(result);
        }
        if MAX_RESERVATIONS <= self.open.len() {
            return None;
        }
        self.debt.advance(counter, now);
        let charged = counter.charge(now, hits);
        self.debt.reserve(hits);
        self.open.push(Reservation {
            id,
            hits,
            location: counter.locate_charge(now),
            expires_at: now.plus(duration),
        });
        Some(charged)
    }

    /// Commits a reservation: its hits stay charged. Returns `false` if the reservation had already
    /// ended.
    pub fn keep(&mut self, id: ReservationId) -> bool {
        let kept = self.remove(id);
        self.debt.keep(kept.map_or(Hits(0), |reservation| reservation.hits));
        kept.is_some()
    }

    /// Cancels a reservation: refunds its hits if it is still open. Returns the new headroom.
    pub fn cancel(
        &mut self,
        counter: &mut AnyCounter,
        now: Nanos,
        id: ReservationId,
    ) -> CounterDecision {
        let now = Tick::Micro.nanos(Tick::Micro.floor(now));
        if counter.peek(now, Hits(0)) == CounterDecision::OutsideWindows {
            return CounterDecision::OutsideWindows;
        }
        cap_debt(counter, now);
        if let Some(reservation) = self.remove(id) {
            self.refund_all(counter, now, &[reservation]);
        }
        counter.peek(now, Hits(0))
    }

    fn remove(&mut self, id: ReservationId) -> Option<Reservation> {
        let index = self.open.iter().position(|reservation| reservation.id == id)?;
        Some(self.open.remove(index))
    }

    fn expire(&mut self, counter: &mut AnyCounter, now: Nanos) {
        let expired: Vec<Reservation> =
            self.open.extract_if(.., |reservation| reservation.expires_at <= now).collect();
        if !expired.is_empty() {
            self.refund_all(counter, now, &expired);
        }
    }

    fn refund_all(&mut self, counter: &mut AnyCounter, now: Nanos, ended: &[Reservation]) {
        self.debt.advance(counter, now);
        match counter {
            AnyCounter::Gcra(limit, state) => {
                let hits =
                    ended.iter().map(|reservation| reservation.hits).fold(Hits(0), Hits::plus);
                let others =
                    self.open.iter().map(|reservation| reservation.hits).fold(Hits(0), Hits::plus);
                limit.reduce_debt(state, now, self.debt.cancel(hits, others));
            }
            _ => {
                for reservation in ended {
                    counter.refund(now, reservation.location, reservation.hits);
                }
            }
        }
    }
}

/// Caps a debt at one burst after the clock stepped back, so that it drains from `now`.
fn cap_debt(counter: &mut AnyCounter, now: Nanos) {
    if let AnyCounter::Gcra(limit, state) = counter {
        limit.charge(state, now, Hits(0));
    }
}

impl ReservedDebt {
    fn advance(&mut self, counter: &AnyCounter, now: Nanos) {
        let AnyCounter::Gcra(limit, state) = counter else { return };
        let (since, owed) = (limit.tick().floor(now), limit.debt(state, now));
        let reserved =
            if self.limit == Some(**limit) { self.still_reserved(limit, since, owed) } else { 0 };
        *self = Self { limit: Some(**limit), since, owed, reserved };
    }

    /// Returns the part of the debt `owed` at `tick` that is still reserved.
    fn still_reserved(&self, limit: &Gcra, tick: u64, owed: u64) -> u64 {
        let rate = limit.refill_rate();
        let earned = |ticks: u64| ticks.saturating_mul(u64::from(rate.hits));
        let remaining = match tick.checked_sub(self.since) {
            Some(elapsed) => self.owed.saturating_sub(earned(elapsed)),
            // The clock stepped back.
            None => self
                .owed
                .saturating_add(earned(self.since.saturating_sub(tick)))
                .min(limit.capacity()),
        };
        self.reserved.min(remaining).saturating_sub(remaining.saturating_sub(owed))
    }

    fn reserve(&mut self, hits: Hits) {
        let cost = self.cost(hits);
        (self.owed, self.reserved) =
            (self.owed.saturating_add(cost), self.reserved.saturating_add(cost));
    }

    fn keep(&mut self, hits: Hits) {
        self.reserved = self.reserved.saturating_sub(self.cost(hits));
    }

    /// Cancels a reservation of `hits` and returns the debt to refund. `others` are the hits of the
    /// other open reservations, which may still be kept.
    fn cancel(&mut self, hits: Hits, others: Hits) -> u64 {
        let refund = self.cost(hits).min(self.reserved.saturating_sub(self.cost(others)));
        (self.owed, self.reserved) =
            (self.owed.saturating_sub(refund), self.reserved.saturating_sub(refund));
        refund
    }

    fn cost(&self, hits: Hits) -> u64 {
        self.limit.map_or(0, |limit| hits.0.saturating_mul(limit.refill_rate().ticks.get()))
    }
}
