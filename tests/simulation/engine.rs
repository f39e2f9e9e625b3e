//! The same faults against whole engines: two ceilings, several replicas, one store in this process.
//!
//! What `coordinator` does to the kernel's member, done to all of a replica: the rounds of its heartbeats, what it leaves unsaid
//! because nothing changed, seats that it gives up, questions that wait. Messages are lost, late and doubled on a wire that is a
//! [`Backend`](sluicegate::backend::Backend); clocks are set by hand; ceilings move. The oracle
//! counts the requests that go on and adds up the shares in force; of the protocol it knows nothing. The same engines beside a
//! store that leaves one rule out must be above: then the world is wicked enough.

mod bound;
mod faults;
mod replica;
mod store;
mod wire;
mod world;

use faults::Fault;
use world::{Tally, World};

use super::bad::{Bad, Wrong};
use crate::support::dice::seed;

/// Schedules of one run: 300, or as many as `SLUICEGATE_ENGINE_SCHEDULES` says.
fn schedules() -> u64 {
    std::env::var("SLUICEGATE_ENGINE_SCHEDULES").map_or(300, |count| count.parse().unwrap())
}

#[test]
fn no_schedule_of_faults_brings_engines_above_their_ceilings() {
    let first = seed();
    let mut tally = Tally::default();
    for schedule in 0..schedules() {
        let seed = first.wrapping_add(schedule);
        match World::new(seed, Bad::No, &Fault::ALL).play() {
            Ok(more) => tally.add(&more),
            Err(broken) => panic!("SLUICEGATE_SEED={seed}: {broken}"),
        }
    }
    println!("seed {first}, {} schedules: {tally:?}", schedules());
    for (what, count) in tally.that_must_happen() {
        assert!(0 < count, "no {what} in {} schedules from {first}: {tally:?}", schedules());
    }
}

#[test]
fn the_same_engines_are_above_where_a_rule_is_left_out() {
    let first = seed();
    for bad in Bad::ALL {
        let mut tries = (0..2_000_u64).map(|schedule| (schedule, first.wrapping_add(schedule)));
        // Whoever starves is not above, and would hide that a rule is not needed for that.
        let play =
            |seed| World::new(seed, bad, Fault::that_show(bad)).play().err().and_then(Wrong::above);
        let found = tries.find_map(|(schedule, seed)| Some((schedule, play(seed)?)));
        let Some((before, broken)) = found else { panic!("{bad:?} was not caught from {first}") };
        println!("{bad:?} after {before} schedules from {first}: {broken}");
    }
}
