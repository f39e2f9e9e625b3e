//! Simulates whole engines with two concurrency limits and one store in this process, under random
//! faults.
//!
//! In addition to `coordinator`, this covers share rounds, reports that are skipped because nothing
//! changed, freed share states and waiting requests. The network is a
//! [`CounterStore`](sluicegate::store::CounterStore) that loses, delays and repeats messages.
//! Clocks are manual, and limits change. An oracle that does not know the protocol counts the
//! requests and adds up the shares in force.
//!
//! Guarantees:
//! - Shares and requests in flight never exceed a limit.
//! - If a rule of the protocol is omitted, they exceed it, so the faults are severe enough to test
//!   each rule.

mod bound;
mod faults;
mod replica;
mod run;
mod store;
mod wire;

use faults::Fault;
use run::{EngineCounts, EngineSimulation};

use super::flaws::{Flaw, Violation};
use crate::support::dice::seed;

/// The number of random fault schedules: `SLUICEGATE_ENGINE_SCHEDULES`, or 60.
fn schedules() -> u64 {
    std::env::var("SLUICEGATE_ENGINE_SCHEDULES").map_or(60, |count| count.parse().unwrap())
}

#[test]
fn random_faults_never_exceed_the_limits() {
    let first = seed();
    let mut tally = EngineCounts::default();
    for schedule in 0..schedules() {
        let seed = first.wrapping_add(schedule);
        match EngineSimulation::new(seed, Flaw::No, &Fault::ALL).play() {
            Ok(more) => tally.add(&more),
            Err(broken) => panic!("SLUICEGATE_SEED={seed}: {broken}"),
        }
    }
    println!("seed {first}, {} schedules: {tally:?}", schedules());
    for (what, count) in tally.required_events() {
        assert!(0 < count, "no {what} in {} schedules from {first}: {tally:?}", schedules());
    }
}

#[test]
fn omitting_any_rule_of_the_share_protocol_exceeds_a_limit() {
    let first = seed();
    for flaw in Flaw::ALL {
        let mut tries = (0..2_000_u64).map(|schedule| (schedule, first.wrapping_add(schedule)));
        // Starvation is ignored, because it does not prove that the omitted rule protects the
        // limit.
        let play = |seed| {
            EngineSimulation::new(seed, flaw, Fault::revealing(flaw))
                .play()
                .err()
                .and_then(Violation::limit_exceeded)
        };
        let found = tries.find_map(|(schedule, seed)| Some((schedule, play(seed)?)));
        let Some((before, broken)) = found else { panic!("{flaw:?} was not caught from {first}") };
        println!("{flaw:?} after {before} schedules from {first}: {broken}");
    }
}
