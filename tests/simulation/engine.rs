//! The same faults against whole engines: two ceilings, several replicas, one store in this process.
//!
//! What `coordinator` does to the kernel's member, done to all of a replica: the rounds of its heartbeats, what it leaves unsaid
//! because nothing changed, seats that it gives up, questions that wait. Messages are lost, late and doubled on a wire that is a
//! [`Backend`](sluicegate::backend::Backend); clocks are set by hand. The oracle counts the requests that go
//! on and adds up the shares in force; of the protocol it knows nothing.

mod replica;
mod wire;
mod world;

use world::{Fault, Store, Tally, World};

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
        match World::new(seed, Store::Doubts, &Fault::ALL).play() {
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
fn the_same_engines_are_above_where_the_store_is_worse_than_it_may_be() {
    let first = seed();
    for store in [Store::Trusts, Store::RunsAhead] {
        let mut tries = (0..300_u64).map(|schedule| first.wrapping_add(schedule));
        let found = tries.find_map(|seed| World::new(seed, store, &Fault::ALL).play().err());
        let Some(broken) = found else { panic!("{store:?} was not caught from seed {first}") };
        println!("{store:?}: {broken}");
    }
}
