//! Verifies the lease bound in simulated fleets.
//!
//! Guarantees:
//! - In any interval, allowed hits <= limit + hits outstanding at its start.
//! - Hits outstanding <= `max_overshoot`.
//! - The same simulation refutes a smaller bound and each flawed design.

use std::ops::Range;

use super::oracle::Overshoot;
use super::simulation::{EventCounts, KINDS, Kind, LeaseFlaw, LeaseSimulation};
use crate::dice::seed;

/// Events per simulation.
const EVENTS: usize = 1_500;

struct SimulationResult {
    seed: u64,
    overshoot: Overshoot,
    budget: u64,
    counts: EventCounts,
}

fn simulate(
    kind: Kind,
    flaw: LeaseFlaw,
    seeds: Range<u64>,
) -> impl Iterator<Item = SimulationResult> {
    seeds.map(move |seed| {
        let mut simulation = LeaseSimulation::new(seed, kind, flaw);
        let overshoot = simulation.run(EVENTS);
        SimulationResult {
            seed,
            overshoot,
            budget: simulation.store.budget(),
            counts: simulation.counts,
        }
    })
}

/// Simulations with seeds that are new in this run.
fn simulate_new_seeds(kind: Kind, count: u64) -> impl Iterator<Item = SimulationResult> {
    let first = seed() >> 1;
    simulate(kind, LeaseFlaw::None, first..first + count)
}

/// Counts the simulations in which some interval exceeds the bound.
fn refuted(kinds: &[Kind], flaw: LeaseFlaw, runs_each: u64) -> usize {
    let all = kinds.iter().flat_map(|kind| simulate(*kind, flaw, 0..runs_each));
    all.filter(|result| 0 < result.overshoot.above_bound).count()
}

#[test]
fn no_simulation_exceeds_limit_plus_outstanding_hits() {
    for kind in KINDS {
        for SimulationResult { seed, overshoot, budget, counts } in simulate_new_seeds(kind, 60) {
            let holds = overshoot.above_bound == 0 && overshoot.above_limit <= budget;
            assert!(
                holds,
                "{kind:?}: {overshoot:?} of {budget}; SLUICEGATE_SEED={seed}; {counts:?}"
            );
        }
    }
}

#[test]
fn simulations_cover_every_event() {
    for kind in KINDS {
        let all: Vec<EventCounts> =
            simulate(kind, LeaseFlaw::None, 0..30).map(|result| result.counts).collect();
        for (event, count_of) in EventCounts::ALL {
            let total: u64 = all.iter().map(count_of).sum();
            println!("{kind:?}: {event} {total}");
            assert!(0 < total, "{kind:?}: never {event}");
        }
    }
}

#[test]
fn simulations_reach_the_bound_exactly() {
    // The sliding window is omitted, because it seldom reaches its own bound.
    for kind in [Kind::Gcra, Kind::FixedWindow, Kind::SlidingLog] {
        let results = simulate(kind, LeaseFlaw::None, 0..150);
        let tight = results.filter(|result| result.overshoot.above_limit == result.budget).count();
        println!("{kind:?}: {tight} of 150 worlds reach the bound");
        assert!(0 < tight, "{kind:?}");
    }
}

#[test]
fn simulations_detect_flawed_designs() {
    let coupled = [Kind::CoupledWindow, Kind::CoupledCalendar];
    for (flaw, kinds, runs_each) in [
        (LeaseFlaw::CreditedToEachWaiter, &KINDS[..], 10),
        (LeaseFlaw::WindowOnReplicaClock, &coupled[..], 50),
        (LeaseFlaw::RefundedAfterWindowEnd, &coupled[..], 400),
        (LeaseFlaw::RefundedAfterExpiry, &KINDS[..], 80),
        (LeaseFlaw::OldReplyAccepted, &KINDS[..], 100),
        (LeaseFlaw::PutBackAfterReport, &KINDS[..], 200),
        (LeaseFlaw::PutBackThoughVoided, &KINDS[..], 300),
        (LeaseFlaw::UndoneThoughSent, &KINDS[..], 100),
    ] {
        let refuted = refuted(kinds, flaw, runs_each);
        println!("{flaw:?}: refuted in {refuted} of {} worlds", runs_each * kinds.len() as u64);
        assert!(10 <= refuted, "{flaw:?}: {refuted}");
    }
}
