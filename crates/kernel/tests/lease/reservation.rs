//! Tests that reservations on a GCRA counter never exceed the limit, if they are committed,
//! canceled or expire.
//!
//! Verified by mutation: `canceled_reservations_never_exceed_the_limit` fails if a cancel also
//! refunds a reservation that is committed later.

use sluicegate_kernel::lease::counter::AnyCounter;
use sluicegate_kernel::lease::reservation::{CounterReservations, ReservationId};
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::rate::gcra::{Gcra, Tat};
use sluicegate_kernel::units::{Hits, Nanos};

use crate::dice::{Dice, seed};

const START: Nanos = Nanos::from_secs(1_000_000);

/// A counter with its open reservations and the hits that were finally allowed.
struct ReservationSimulation {
    limit: Gcra,
    tat: Tat,
    holds: CounterReservations,
    open: Vec<(ReservationId, Nanos, Hits)>,
    allowed: Vec<(Nanos, Hits)>,
}

impl ReservationSimulation {
    fn new(limit: Gcra) -> Self {
        let (tat, holds, open, allowed) = Default::default();
        Self { limit, tat, holds, open, allowed }
    }

    fn reserve(
        &mut self,
        now: Nanos,
        id: ReservationId,
        hits: Hits,
        duration: Nanos,
    ) -> Option<CounterDecision> {
        let mut counter = AnyCounter::Gcra(&self.limit, &mut self.tat);
        let step = self.holds.reserve(&mut counter, now, id, hits, duration);
        if let Some(CounterDecision::Allow(_)) = step {
            self.open.push((id, now, hits));
        }
        step
    }

    fn charge(&mut self, now: Nanos, hits: Hits) {
        if let CounterDecision::Allow(_) = self.limit.charge(&mut self.tat, now, hits) {
            self.allowed.push((now, hits));
        }
    }

    fn commit_or_cancel(&mut self, dice: &mut Dice, now: Nanos) {
        if self.open.is_empty() {
            return;
        }
        let at = usize::try_from(dice.up_to(self.open.len() as u64 - 1)).unwrap();
        let (id, reserved_at, hits) = self.open.swap_remove(at);
        if dice.once_in(2) {
            if self.holds.keep(id) {
                self.allowed.push((reserved_at, hits));
            }
        } else if !dice.once_in(4) {
            let mut counter = AnyCounter::Gcra(&self.limit, &mut self.tat);
            self.holds.cancel(&mut counter, now, id);
        }
    }

    /// Returns `true` if a GCRA counter without reservations allows the same hits in order of time.
    fn obeys_the_limit(mut self) -> bool {
        self.allowed.sort();
        let mut tat = Tat::default();
        let pass = |&(at, hits): &(Nanos, Hits)| {
            matches!(self.limit.charge(&mut tat, at, hits), CounterDecision::Allow(_))
        };
        self.allowed.iter().all(pass)
    }
}

#[test]
fn canceled_reservations_never_exceed_the_limit() {
    let seed = seed();
    for trace in 0..2_000_u64 {
        let mut dice = Dice::new(seed ^ trace << 32);
        let (rate, burst) = (dice.pick(&[1, 3, 10]), dice.pick(&[1, 2, 5, 20]));
        let limit = Gcra::new(rate, Nanos::SECOND, burst).unwrap();
        let (mut simulation, mut now) = (ReservationSimulation::new(limit), START);
        let duration = Nanos(dice.pick(&[100, 1_000, 5_000]) * 1_000_000);
        for number in 0..60 {
            now = now.plus(Nanos(dice.pick(&[0, 0, 1, 50, 200, 700]) * 1_000_000));
            let hits = Hits(dice.pick(&[1, 1, 2, u64::from(burst)]));
            match dice.up_to(4) {
                0 | 1 => drop(simulation.reserve(now, ReservationId(1, number), hits, duration)),
                2 => simulation.charge(now, hits),
                _ => simulation.commit_or_cancel(&mut dice, now),
            }
        }
        assert!(simulation.obeys_the_limit(), "SLUICEGATE_SEED={seed}, trace {trace}");
    }
}

#[test]
fn canceled_reservations_are_fully_refunded() {
    let limit = Gcra::new(10, Nanos::SECOND, 100).unwrap();
    let mut simulation = ReservationSimulation::new(limit);
    simulation.charge(START, Hits(30));
    let ids: Vec<_> = (0..50).map(|number| ReservationId(1, number)).collect();
    for id in &ids {
        simulation.reserve(START, *id, Hits(1), Nanos::SECOND);
    }
    assert!(simulation.holds.keep(ids[7]));
    // Two hits of the first charge drain in the meantime.
    let now = START.plus(Nanos(200_000_000));
    for id in ids.iter().rev().filter(|id| **id != ids[7]) {
        let mut counter = AnyCounter::Gcra(&simulation.limit, &mut simulation.tat);
        simulation.holds.cancel(&mut counter, now, *id);
    }
    let CounterDecision::Allow(room) = limit.peek(&simulation.tat, now, Hits(0)) else { panic!() };
    assert_eq!(room.remaining, Hits(100 - 30 - 1 + 2));
}
