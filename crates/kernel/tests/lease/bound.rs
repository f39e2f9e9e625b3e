//! Verifies the lease bound in simulated fleets.
//!
//! Guarantees:
//! - In any interval, allowed hits <= limit + hits outstanding at its start.
//! - Hits outstanding <= `max_overshoot`.
//! - With occupying leases, allowed hits <= limit.
//! - The same simulation refutes a smaller bound and each flawed design.

use std::ops::Range;

use super::oracle::Overshoot;
use super::simulation::{
    CHARGED_KINDS, EventCounts, Kind, LeaseFlaw, LeaseSimulation, OCCUPYING_KINDS,
};
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

fn all_kinds() -> impl Iterator<Item = Kind> {
    CHARGED_KINDS.into_iter().chain(OCCUPYING_KINDS)
}

/// Counts the simulations in which some interval exceeds the bound. For occupying leases, that is the
/// limit alone.
fn refuted(kinds: &[Kind], flaw: LeaseFlaw, runs_each: u64) -> usize {
    let is_above = |kind: &Kind, result: &SimulationResult| {
        let overshoot = result.overshoot;
        let is_occupying = OCCUPYING_KINDS.contains(kind);
        0 < if is_occupying { overshoot.above_limit } else { overshoot.above_bound }
    };
    let count = |kind: &Kind| {
        let results = simulate(*kind, flaw, 0..runs_each);
        results.filter(|result| is_above(kind, result)).count()
    };
    kinds.iter().map(count).sum()
}

#[test]
fn no_simulation_exceeds_limit_plus_outstanding_hits() {
    for kind in all_kinds() {
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
    for kind in all_kinds() {
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
        (LeaseFlaw::CreditedToEachWaiter, &CHARGED_KINDS[..], 10),
        (LeaseFlaw::WindowOnReplicaClock, &coupled[..], 50),
        (LeaseFlaw::RefundedAfterWindowEnd, &coupled[..], 400),
        (LeaseFlaw::RefundedAfterExpiry, &CHARGED_KINDS[..], 80),
        (LeaseFlaw::OldReplyAccepted, &CHARGED_KINDS[..], 100),
        (LeaseFlaw::PutBackAfterReport, &CHARGED_KINDS[..], 200),
        (LeaseFlaw::PutBackThoughVoided, &CHARGED_KINDS[..], 300),
        (LeaseFlaw::UndoneThoughSent, &CHARGED_KINDS[..], 100),
        (LeaseFlaw::CreditedToEachWaiter, &OCCUPYING_KINDS[..], 30),
        (LeaseFlaw::OldReplyAccepted, &OCCUPYING_KINDS[..], 100),
        (LeaseFlaw::PutBackAfterReport, &OCCUPYING_KINDS[..], 200),
        (LeaseFlaw::UndoneThoughSent, &OCCUPYING_KINDS[..], 100),
        (LeaseFlaw::ForgottenAtExpiry, &OCCUPYING_KINDS[..], 100),
        (LeaseFlaw::ChargedBesideLeases, &OCCUPYING_KINDS[..], 30),
    ] {
        let refuted = refuted(kinds, flaw, runs_each);
        println!("{flaw:?}: refuted in {refuted} of {} worlds", runs_each * kinds.len() as u64);
        assert!(10 <= refuted, "{flaw:?}: {refuted}");
    }
}
