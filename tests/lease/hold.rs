//! Holds of a debt against the law: whatever is held, kept, given back or left to expire, those hits that
//! were admitted in the end pass one after the other under the same limit.
//!
//! `what_is_given_back_never_lets_more_pass_than_the_law` was seen to fail where a hold that is given back took what
//! another hold, kept later, had of the debt.

use sluicegate::kernel::lease::counter::Counter;
use sluicegate::kernel::lease::hold::{Holds, Id};
use sluicegate::kernel::rate::Step;
use sluicegate::kernel::rate::gcra::{Gcra, Tat};
use sluicegate::kernel::units::{Hits, Nanos};

use crate::support::dice::{Dice, seed};

const START: Nanos = Nanos::from_secs(1_000_000);

/// A counter, those who hold some of it, and what was admitted in the end.
struct World {
    limit: Gcra,
    tat: Tat,
    holds: Holds,
    open: Vec<(Id, Nanos, Hits)>,
    admitted: Vec<(Nanos, Hits)>,
}

impl World {
    fn new(limit: Gcra) -> Self {
        let (tat, holds, open, admitted) = Default::default();
        Self { limit, tat, holds, open, admitted }
    }

    fn hold(&mut self, now: Nanos, id: Id, hits: Hits, term: Nanos) -> Option<Step> {
        let mut counter = Counter::Gcra(&self.limit, &mut self.tat);
        let step = self.holds.hold(&mut counter, now, id, hits, term);
        if let Some(Step::Admit(_)) = step {
            self.open.push((id, now, hits));
        }
        step
    }

    fn charge(&mut self, now: Nanos, hits: Hits) {
        if let Step::Admit(_) = self.limit.step(&mut self.tat, now, hits) {
            self.admitted.push((now, hits));
        }
    }

    fn settle(&mut self, dice: &mut Dice, now: Nanos) {
        if self.open.is_empty() {
            return;
        }
        let at = usize::try_from(dice.up_to(self.open.len() as u64 - 1)).unwrap();
        let (id, held_at, hits) = self.open.swap_remove(at);
        if dice.once_in(2) {
            if self.holds.keep(id) {
                self.admitted.push((held_at, hits));
            }
        } else if !dice.once_in(4) {
            let mut counter = Counter::Gcra(&self.limit, &mut self.tat);
            self.holds.give_back(&mut counter, now, id);
        }
    }

    /// Whether all that was admitted passes under the law alone.
    fn keeps_the_law(mut self) -> bool {
        self.admitted.sort();
        let mut tat = Tat::default();
        let pass = |&(at, hits): &(Nanos, Hits)| {
            matches!(self.limit.step(&mut tat, at, hits), Step::Admit(_))
        };
        self.admitted.iter().all(pass)
    }
}

#[test]
fn what_is_given_back_never_lets_more_pass_than_the_law() {
    let seed = seed();
    for trace in 0..2_000_u64 {
        let mut dice = Dice::new(seed ^ trace << 32);
        let (rate, burst) = (dice.pick(&[1, 3, 10]), dice.pick(&[1, 2, 5, 20]));
        let limit = Gcra::new(rate, Nanos::SECOND, burst).unwrap();
        let (mut world, mut now) = (World::new(limit), START);
        let term = Nanos(dice.pick(&[100, 1_000, 5_000]) * 1_000_000);
        for number in 0..60 {
            now = now.plus(Nanos(dice.pick(&[0, 0, 1, 50, 200, 700]) * 1_000_000));
            let hits = Hits(dice.pick(&[1, 1, 2, u64::from(burst)]));
            match dice.up_to(4) {
                0 | 1 => drop(world.hold(now, Id(1, number), hits, term)),
                2 => world.charge(now, hits),
                _ => world.settle(&mut dice, now),
            }
        }
        assert!(world.keeps_the_law(), "SLUICEGATE_SEED={seed}, trace {trace}");
    }
}

#[test]
fn what_is_given_back_at_once_was_never_charged() {
    let limit = Gcra::new(10, Nanos::SECOND, 100).unwrap();
    let mut world = World::new(limit);
    world.charge(START, Hits(30));
    let ids: Vec<_> = (0..50).map(|number| Id(1, number)).collect();
    for id in &ids {
        world.hold(START, *id, Hits(1), Nanos::SECOND);
    }
    assert!(world.holds.keep(ids[7]));
    // Two hits drain meanwhile, of those that were charged first.
    let now = START.plus(Nanos(200_000_000));
    for id in ids.iter().rev().filter(|id| **id != ids[7]) {
        let mut counter = Counter::Gcra(&world.limit, &mut world.tat);
        world.holds.give_back(&mut counter, now, *id);
    }
    let Step::Admit(room) = limit.ask(&world.tat, now, Hits(0)) else { panic!() };
    assert_eq!(room.remaining, Hits(100 - 30 - 1 + 2));
}
