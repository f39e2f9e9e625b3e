//! Simulates one concurrency limit with several replicas and one store, under random faults.
//!
//! Time is in ticks of the store's clock. At every tick, an oracle that does not know the protocol
//! counts the requests in flight and the permits that replicas could still use.
//!
//! Guarantees:
//! - Shares and requests in flight never exceed the limit.
//! - If a rule of the protocol is omitted, they exceed it, so the faults are severe enough to test
//!   each rule.

mod faults;
mod measurements;
mod replica;
mod run;
mod store;

use faults::Fault;
use run::{CoordinatorCounts, CoordinatorSimulation};

use super::flaws::{Flaw, Violation};
use crate::dice::seed;

/// The number of random fault schedules: `SLUICEGATE_SCHEDULES`, or 300.
fn schedules() -> u64 {
    std::env::var("SLUICEGATE_SCHEDULES").map_or(300, |count| count.parse().unwrap())
}

#[test]
fn random_faults_never_exceed_the_limit() {
    let first = seed();
    let mut tally = CoordinatorCounts::default();
    for schedule in 0..schedules() {
        let seed = first.wrapping_add(schedule);
        let played = CoordinatorSimulation::new(seed, Flaw::No, &Fault::ALL).play();
        match played {
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
fn omitting_any_rule_of_the_share_protocol_exceeds_the_limit() {
    let first = seed();
    for flaw in Flaw::ALL {
        let mut tries = (0..2_000_u64).map(|schedule| first.wrapping_add(schedule));
        let play = |seed| CoordinatorSimulation::new(seed, flaw, Fault::revealing(flaw)).play();
        // Starvation is ignored, because it does not prove that the omitted rule protects the
        // limit.
        let found = tries.find_map(|seed| play(seed).err().and_then(Violation::limit_exceeded));
        let Some(broken) = found else { panic!("{flaw:?} was not caught from seed {first}") };
        println!("{flaw:?}: {broken}");
    }
}
