//! Tests that a restart after a sync is invisible, and that a crash returns to the last sync.

use proptest::prelude::{Just, ProptestConfig, any, prop, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as _;
use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::on_excess::OnExcess;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::Charges;
use sluicegate::store::file::{FileStore, FileStoreOptions};
use sluicegate::store::memory::{MemoryStore, WhenFull};

use super::{MINUTE, NEW_YEAR, charge, execute, hits, open, options, remaining, strategies, sync};

#[derive(Clone, Debug)]
enum Step {
    Charge { key: usize, strategy: usize, cost: Cost, is_joint: bool },
    Wait(Nanos),
    Sweep,
    Sync,
    Restart,
    Crash,
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    let cost = prop_oneof![
        5 => (0_u64..6).prop_map(|hits| Cost::Charge(Hits(hits))),
        1 => (1_u64..4).prop_map(|hits| Cost::Refund(Hits(hits))),
    ];
    let charge = (0_usize..3, 0_usize..6, cost, any::<bool>());
    prop_oneof![
        8 => charge.prop_map(|(key, strategy, cost, is_joint)| {
            Step::Charge { key, strategy, cost, is_joint }
        }),
        3 => (1_u64..40_000).prop_map(|millis| Step::Wait(Nanos(millis * Nanos::MILLI.0))),
        1 => Just(Step::Sweep),
        2 => Just(Step::Sync),
        2 => Just(Step::Restart),
        1 => Just(Step::Crash),
    ]
}

/// Ten hits per minute by every strategy, and GCRA limits that a reload could choose for the same keys.
fn limits() -> [Strategy; 6] {
    let [gcra, fixed, sliding, log] = strategies(10);
    let lowered = Strategy::Gcra(Gcra::new(7, MINUTE, 3).unwrap());
    let usage = Gcra::with_on_excess(10, MINUTE, 10, OnExcess::Charge).unwrap();
    [gcra, fixed, sliding, log, lowered, Strategy::Gcra(usage)]
}

fn charges_of(step: &Step) -> Option<Charges> {
    let Step::Charge { key, strategy, cost, is_joint } = step else { return None };
    let name = ["a", "b", "c"][*key];
    let first = charge(name, limits()[*strategy], *cost);
    let mut charges = hits("other", limits()[1], 1);
    charges.list.insert(0, first);
    if *is_joint {
        charges.mode = sluicegate::store::ChargeMode::AllOrNothing {
            quota_for_all: false,
            quota_cannot_deny: false,
        };
    } else {
        charges.list.truncate(1);
    }
    Some(charges)
}

fn new_memory() -> MemoryStore {
    MemoryStore::new(100_000, WhenFull::Deny, [7; 16])
}

/// Returns a memory store after these checks.
fn replay(checks: &[(Nanos, Charges)]) -> MemoryStore {
    let memory = new_memory();
    for (now, charges) in checks {
        execute(&memory, *now, charges);
    }
    memory
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_restart_keeps_all_synced_charges_and_no_others(steps in prop::collection::vec(step(), 1..60)) {
        let directory = tempfile::tempdir().unwrap();
        let mut now = NEW_YEAR;
        let mut file = open(directory.path(), now);
        let mut memory = new_memory();
        let mut checks: Vec<(Nanos, Charges)> = Vec::new();
        let mut synced = 0;
        for step in steps {
            match &step {
                Step::Charge { .. } => {
                    let charges = charges_of(&step).unwrap();
                    let expected = execute(&memory, now, &charges);
                    prop_assert_eq!(execute(&file.store, now, &charges), expected, "at {:?}", &step);
                    checks.push((now, charges));
                }
                Step::Wait(pause) => now = now.plus(*pause),
                Step::Sweep => (0..MemoryStore::SHARDS).for_each(|_| file.store.memory().sweep_next(now)),
                Step::Sync => {
                    sync(&mut file, now);
                    synced = checks.len();
                }
                Step::Restart | Step::Crash => {
                    if matches!(step, Step::Restart) {
                        sync(&mut file, now);
                        synced = checks.len();
                    }
                    checks.truncate(synced);
                    memory = replay(&checks);
                    drop(file);
                    file = open(directory.path(), now);
                }
            }
        }
    }
}

#[test]
fn without_a_sync_a_restart_forgets_the_charges() {
    for strategy in strategies(5) {
        let directory = tempfile::tempdir().unwrap();
        let mut file = open(directory.path(), NEW_YEAR);
        execute(&file.store, NEW_YEAR, &hits("a", strategy, 2));
        sync(&mut file, NEW_YEAR);
        execute(&file.store, NEW_YEAR, &hits("a", strategy, 3));
        drop(file);
        let file = open(directory.path(), NEW_YEAR);
        assert_eq!(remaining(&file.store, NEW_YEAR, "a", strategy), Some(3), "{strategy:?}");
    }
}

#[test]
fn a_counter_that_a_refund_emptied_stays_empty_after_a_restart() {
    for strategy in strategies(5) {
        let directory = tempfile::tempdir().unwrap();
        let mut file = open(directory.path(), NEW_YEAR);
        execute(&file.store, NEW_YEAR, &hits("a", strategy, 2));
        sync(&mut file, NEW_YEAR);
        let mut refund = hits("a", strategy, 0);
        refund.list[0].cost = Cost::Refund(Hits(2));
        execute(&file.store, NEW_YEAR, &refund);
        (0..MemoryStore::SHARDS).for_each(|_| file.store.memory().sweep_next(NEW_YEAR));
        sync(&mut file, NEW_YEAR);
        drop(file);
        let file = open(directory.path(), NEW_YEAR);
        assert_eq!(remaining(&file.store, NEW_YEAR, "a", strategy), Some(5), "{strategy:?}");
    }
}

#[test]
fn empty_counters_are_not_restored() {
    for strategy in strategies(5) {
        let directory = tempfile::tempdir().unwrap();
        let mut file = open(directory.path(), NEW_YEAR);
        execute(&file.store, NEW_YEAR, &hits("a", strategy, 2));
        sync(&mut file, NEW_YEAR);
        drop(file);
        // A sliding window is empty two periods after its last hit.
        let file = open(directory.path(), NEW_YEAR.plus(MINUTE).plus(MINUTE));
        assert_eq!(file.store.memory().live_keys(), 0, "{strategy:?}");
    }
}

#[test]
fn more_saved_counters_than_max_keys_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = open(directory.path(), NEW_YEAR);
    for name in ["a", "b", "c"] {
        execute(&file.store, NEW_YEAR, &hits(name, strategies(5)[0], 2));
    }
    sync(&mut file, NEW_YEAR);
    drop(file);
    let open_with = |max_keys| {
        let options = FileStoreOptions { max_keys, ..options(directory.path()) };
        FileStore::open(&options, NEW_YEAR).map(|file| file.store.memory().live_keys())
    };
    let error = open_with(2).unwrap_err().to_string();
    assert!(
        error.contains("more counters or budgets than store.max_keys (2); raise store.max_keys"),
        "{error}"
    );
    assert_eq!(open_with(3).unwrap(), 3);
}
