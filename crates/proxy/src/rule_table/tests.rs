//! The bound of the rule table, the order in which it forgets, and its hashes.

use std::sync::{Arc, Barrier};
use std::thread;

use super::{RuleTable, SHARDS};
use crate::fixtures::unlimited_rule;
use crate::request::DescriptorHash;

/// The number of young rules in a shard of [`table`].
const YOUNG_PER_SHARD: usize = 1_000;

/// A table for this many rules of equal size in each shard.
fn table() -> RuleTable {
    RuleTable::new(2 * SHARDS * YOUNG_PER_SHARD * unlimited_rule("ann").memory_bytes())
}

/// The hash with this number in the first shard.
const fn hash(number: usize) -> DescriptorHash {
    [0, number as u64]
}

/// Inserts as many new rules as make each young rule old.
fn age(table: &RuleTable, first: usize) {
    let rule = unlimited_rule("eve");
    for number in first..first + YOUNG_PER_SHARD {
        table.insert(hash(number), Arc::clone(&rule));
    }
}

fn size(table: &RuleTable) -> usize {
    let sizes = table.shards.iter().map(|shard| {
        let shard = shard.read();
        shard.young.len() + shard.old.len()
    });
    sizes.sum()
}

#[test]
fn a_shard_keeps_at_most_its_part_of_the_rules() {
    let (table, rule) = (table(), unlimited_rule("ann"));
    for number in 0..5 * YOUNG_PER_SHARD {
        table.insert(hash(number), Arc::clone(&rule));
        // A lookup of an old rule inserts, too.
        let _found = table.find(hash(number.saturating_sub(YOUNG_PER_SHARD)));
        assert!(size(&table) <= 2 * YOUNG_PER_SHARD);
    }
}

#[test]
fn rules_of_many_bytes_are_fewer() {
    let (table, text) = (table(), "x".repeat(50_000));
    let rule = unlimited_rule(&text);
    for number in 0..2 * YOUNG_PER_SHARD {
        table.insert(hash(number), Arc::clone(&rule));
        assert!(size(&table) * 50_000 < 2 * YOUNG_PER_SHARD * unlimited_rule("ann").memory_bytes());
    }
    assert!(0 < size(&table));
    // A rule that is larger than all young ones is not kept.
    table.insert(hash(0), unlimited_rule(&"x".repeat(100_000_000)));
    assert!(size(&table) < 2 * YOUNG_PER_SHARD);
}

#[test]
fn a_rule_without_a_request_is_forgotten_at_the_second_age() {
    let (table, rule) = (table(), unlimited_rule("ann"));
    let (used, unused) = (hash(0), hash(1));
    table.insert(used, Arc::clone(&rule));
    table.insert(unused, rule);
    table.age();
    assert!(table.find(used).is_some());
    table.age();
    assert!(table.find(used).is_some() && table.find(unused).is_none());
}

#[test]
fn rules_without_a_request_are_forgotten_first() {
    let (table, rule) = (table(), unlimited_rule("ann"));
    let (used, unused) = (hash(0), hash(1));
    table.insert(used, Arc::clone(&rule));
    table.insert(unused, rule);
    for round in 1..5 {
        age(&table, round * YOUNG_PER_SHARD);
        assert!(table.find(used).is_some(), "round {round}");
    }
    assert!(table.find(unused).is_none());
}

#[test]
fn the_newest_rule_of_a_descriptor_is_found() {
    let (table, old, new) = (table(), unlimited_rule("one"), unlimited_rule("two"));
    table.insert(hash(0), old);
    age(&table, 1);
    table.insert(hash(0), Arc::clone(&new));
    for _ in 0..2 {
        assert!(table.find(hash(0)).is_some_and(|found| Arc::ptr_eq(&found, &new)));
        age(&table, 1);
    }
}

#[test]
fn concurrent_lookups_find_a_rule_that_moves() {
    const THREADS: usize = 4;
    let (table, rule) = (table(), unlimited_rule("ann"));
    // The last insert makes the others old.
    (0..=YOUNG_PER_SHARD).for_each(|number| table.insert(hash(number), Arc::clone(&rule)));
    let start = Barrier::new(THREADS);
    let missed = || {
        start.wait();
        (1..YOUNG_PER_SHARD).filter(|number| table.find(hash(*number)).is_none()).count()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(missed)).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 0);
        }
    });
}
