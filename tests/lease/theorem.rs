//! Over any interval, admitted ≤ law + what was out when it began, and that ≤ `max_overshoot`.
//!
//! The same harness refutes a bound that is one less, and each careless design.

use std::ops::Range;

use super::oracle::Overshoot;
use super::world::{Flaw, KINDS, Kind, Seen, World};
use crate::support::dice::seed;

/// What happens in each world.
const EVENTS: usize = 1_500;

/// One world at its end.
struct End {
    seed: u64,
    overshoot: Overshoot,
    budget: u64,
    seen: Seen,
}

fn worlds(kind: Kind, flaw: Flaw, seeds: Range<u64>) -> impl Iterator<Item = End> {
    seeds.map(move |seed| {
        let mut world = World::new(seed, kind, flaw);
        let overshoot = world.run(EVENTS);
        End { seed, overshoot, budget: world.store.budget(), seen: world.seen }
    })
}

/// Worlds that this run is the first to see.
fn new_worlds(kind: Kind, count: u64) -> impl Iterator<Item = End> {
    let first = seed() >> 1;
    worlds(kind, Flaw::None, first..first + count)
}

/// In how many of these worlds a strategy some interval passes the law and what was out.
fn refuted(kinds: &[Kind], flaw: Flaw, worlds_each: u64) -> usize {
    let all = kinds.iter().flat_map(|kind| worlds(*kind, flaw, 0..worlds_each));
    all.filter(|end| 0 < end.overshoot.above_out).count()
}

#[test]
fn no_world_admits_more_than_the_law_and_what_may_be_out() {
    for kind in KINDS {
        for End { seed, overshoot, budget, seen } in new_worlds(kind, 60) {
            let holds = overshoot.above_out == 0 && overshoot.above_law <= budget;
            assert!(holds, "{kind:?}: {overshoot:?} of {budget}; SLUICEGATE_SEED={seed}; {seen:?}");
        }
    }
}

#[test]
fn everything_that_can_happen_does() {
    for kind in KINDS {
        let all: Vec<Seen> = worlds(kind, Flaw::None, 0..30).map(|end| end.seen).collect();
        for (what, of) in Seen::ALL {
            let total: u64 = all.iter().map(of).sum();
            println!("{kind:?}: {what} {total}");
            assert!(0 < total, "{kind:?}: never {what}");
        }
    }
}

#[test]
fn a_bound_that_is_one_less_is_refuted() {
    // Not the sliding window, whose own bound is seldom reached.
    for kind in [Kind::Gcra, Kind::FixedWindow, Kind::SlidingLog] {
        let worlds = worlds(kind, Flaw::None, 0..150);
        let tight = worlds.filter(|end| end.overshoot.above_law == end.budget).count();
        println!("{kind:?}: {tight} of 150 worlds reach the bound");
        assert!(0 < tight, "{kind:?}");
    }
}

#[test]
fn careless_designs_are_refuted() {
    let coupled = [Kind::CoupledWindow, Kind::CoupledCalendar];
    for (flaw, kinds, worlds_each) in [
        (Flaw::CreditedToEachWaiter, &KINDS[..], 10),
        (Flaw::WindowOnMembersClock, &coupled[..], 50),
        (Flaw::GivenBackAfterTheRoll, &coupled[..], 400),
        (Flaw::GivenBackAfterExpiry, &KINDS[..], 80),
        (Flaw::OldAnswerTaken, &KINDS[..], 50),
        (Flaw::PutBackAfterAMessage, &KINDS[..], 200),
        (Flaw::PutBackThoughVoid, &KINDS[..], 300),
        (Flaw::UndoneThoughItLeft, &KINDS[..], 100),
    ] {
        let refuted = refuted(kinds, flaw, worlds_each);
        println!("{flaw:?}: refuted in {refuted} of {} worlds", worlds_each * kinds.len() as u64);
        assert!(10 <= refuted, "{flaw:?}: {refuted}");
    }
}
