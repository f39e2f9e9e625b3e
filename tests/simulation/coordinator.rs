//! One ceiling, several replicas, one store, and a world that is against them.
//!
//! Time is counted in ticks of the store's clock. An oracle that knows nothing of the protocol
//! counts what is really in flight and what could really be admitted, at every tick. The same
//! world with one rule of the protocol left out must break it: then the world is wicked enough.

mod faults;
mod numbers;
mod replica;
mod store;
mod world;

use faults::Fault;
use world::{Tally, World};

use super::bad::{Bad, Wrong};
use crate::support::dice::seed;

/// Schedules of one run: 300, or as many as `SLUICEGATE_SCHEDULES` says.
fn schedules() -> u64 {
    std::env::var("SLUICEGATE_SCHEDULES").map_or(300, |count| count.parse().unwrap())
}

#[test]
fn no_schedule_of_faults_brings_the_fleet_above_its_ceiling() {
    let first = seed();
    let mut tally = Tally::default();
    for schedule in 0..schedules() {
        let seed = first.wrapping_add(schedule);
        let played = World::new(seed, Bad::No, &Fault::ALL).play();
        match played {
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
fn the_same_world_breaks_the_protocol_where_a_rule_is_left_out() {
    let first = seed();
    for bad in Bad::ALL {
        let mut tries = (0..2_000_u64).map(|schedule| first.wrapping_add(schedule));
        let play = |seed| World::new(seed, bad, Fault::that_show(bad)).play();
        // Whoever starves has not broken the ceiling, and would hide that a rule is not needed for it.
        let found = tries.find_map(|seed| play(seed).err().and_then(Wrong::above));
        let Some(broken) = found else { panic!("{bad:?} was not caught from seed {first}") };
        println!("{bad:?}: {broken}");
    }
}
