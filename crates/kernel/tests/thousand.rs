//! The laws of fleets of up to 30 replicas, with the simulation of `benches/thousand`.

#![allow(missing_docs, unreachable_pub, dead_code, clippy::print_stdout, clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

#[path = "../../../tests/support/dice.rs"]
mod dice;
#[path = "../../../benches/thousand/figures.rs"]
mod figures;
#[path = "../../../benches/thousand/flaw.rs"]
mod flaw;
#[path = "../../../benches/thousand/laws.rs"]
mod laws;
#[path = "../../../benches/thousand/oracle.rs"]
mod oracle;
#[path = "../../../benches/thousand/replica.rs"]
mod replica;
#[path = "../../../benches/thousand/store.rs"]
mod store;
#[path = "../../../benches/thousand/world.rs"]
mod world;

use flaw::Flaw;
use world::World;

#[test]
fn fleets_of_1_to_30_replicas_keep_all_laws() {
    let seed = dice::seed();
    println!("SLUICEGATE_SEED={seed}");
    let fleets = [1, 10, 30].map(|replicas| World::new(replicas, seed, Flaw::No, || 0).run());
    let broken = laws::broken_laws(&fleets, false);
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn omitting_a_rule_breaks_a_law() {
    let seed = dice::seed();
    for flaw in Flaw::ALL {
        let broken = World::new(10, seed, flaw, || 0).run().broken_law();
        println!("{flaw:?}: {broken:?}");
        assert!(broken.is_some(), "{flaw:?} was not found, SLUICEGATE_SEED={seed}");
    }
}

#[test]
fn growth_beyond_its_law_is_found() {
    let seed = dice::seed();
    let mut fleets = [10, 30].map(|replicas| World::new(replicas, seed, Flaw::No, || 0).run());
    fleets[1].messages[0] *= 3;
    let broken = laws::broken_laws(&fleets, false);
    assert!(broken.iter().any(|what| what.contains("lease messages/s")), "{broken:?}");
}
