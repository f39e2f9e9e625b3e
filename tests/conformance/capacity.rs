//! Tests the maximum number of keys in memory and the removal of expired keys.

use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::ChargeOutcome;
use sluicegate::store::memory::{MemoryStore, WhenFull};

use super::{
    Charge, DAY, NEW_YEAR, all_or_nothing, charge, each, execute, is_allowed, remaining, strategies,
};

fn memory_of(max_keys: usize, when_full: WhenFull) -> MemoryStore {
    MemoryStore::new(max_keys, when_full, [7; 16])
}

#[test]
fn a_new_key_above_the_maximum_gets_the_configured_verdict() {
    for (when_full, verdict) in [(WhenFull::Deny, Verdict::Deny), (WhenFull::Allow, Verdict::Allow)]
    {
        for strategy in strategies(5) {
            let memory = memory_of(2, when_full);
            for name in ["a", "b"] {
                assert!(is_allowed(
                    execute(&memory, NEW_YEAR, &each([charge(name, strategy, 1)]))[0]
                ));
            }
            let outcome = execute(&memory, NEW_YEAR, &each([charge("c", strategy, 1)]))[0];
            assert_eq!(outcome, ChargeOutcome::StoreFull(verdict));
            assert_eq!((memory.live_keys(), memory.times_full()), (2, 1));
        }
    }
}

#[test]
fn an_existing_key_is_charged_at_the_key_maximum() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Deny);
        for left in [4, 3, 2] {
            execute(&memory, NEW_YEAR, &each([charge("a", strategy, 1)]));
            assert_eq!(remaining(&memory, NEW_YEAR, "a", strategy), left);
        }
    }
}

#[test]
fn a_peek_creates_no_key() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Deny);
        assert_eq!(remaining(&memory, NEW_YEAR, "a", strategy), 5);
        assert_eq!(memory.live_keys(), 0);
    }
}

#[test]
fn sweeping_drops_only_expired_keys() {
    for strategy in strategies(5) {
        let memory = memory_of(100, WhenFull::Deny);
        execute(&memory, NEW_YEAR, &each([charge("early", strategy, 5)]));
        // Sliding windows keep a full window for two periods, so everything has expired by then.
        let later = NEW_YEAR.plus(DAY).plus(DAY);
        execute(&memory, later, &each([charge("late", strategy, 5)]));
        for _ in 0..MemoryStore::SHARDS {
            memory.sweep_next(later);
        }
        assert_eq!(memory.live_keys(), 1, "{strategy:?}");
        assert_eq!(remaining(&memory, later, "late", strategy), 0);
    }
}

#[test]
fn an_expired_key_makes_room_in_its_shard() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Deny);
        execute(&memory, NEW_YEAR, &each([charge("a", strategy, 1)]));
        let later = NEW_YEAR.plus(DAY).plus(DAY).plus(Nanos::SECOND);
        // The same key is in the same shard, and its expired state makes it a new key.
        assert!(
            is_allowed(execute(&memory, later, &each([charge("a", strategy, 5)]))[0]),
            "{strategy:?}"
        );
    }
}

#[test]
fn atomic_charges_need_room_for_every_new_key() {
    for strategy in strategies(5) {
        let memory = memory_of(2, WhenFull::Deny);
        execute(&memory, NEW_YEAR, &each([charge("old", strategy, 1)]));
        let all = ["old", "new", "newer"].map(|name| charge(name, strategy, 1));
        let outcomes = execute(&memory, NEW_YEAR, &all_or_nothing(all));
        assert!(is_allowed(outcomes[0]) && is_allowed(outcomes[1]), "{outcomes:?}");
        assert_eq!(outcomes[2], ChargeOutcome::StoreFull(Verdict::Deny));
        assert_eq!((memory.live_keys(), memory.times_full()), (1, 1), "{strategy:?}: none is made");
        assert_eq!(remaining(&memory, NEW_YEAR, "old", strategy), 4, "{strategy:?}");
        let fits = ["old", "new"].map(|name| charge(name, strategy, 1));
        assert!(execute(&memory, NEW_YEAR, &all_or_nothing(fits)).into_iter().all(is_allowed));
        assert_eq!(memory.live_keys(), 2);
    }
}

#[test]
fn allowed_overflow_keys_do_not_block_other_charges() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Allow);
        let both = ["a", "b"].map(|name| charge(name, strategy, 2));
        let outcomes = execute(&memory, NEW_YEAR, &all_or_nothing(both));
        assert!(is_allowed(outcomes[0]));
        assert_eq!(outcomes[1], ChargeOutcome::StoreFull(Verdict::Allow));
        assert_eq!((memory.live_keys(), memory.times_full()), (1, 1), "{strategy:?}");
        assert_eq!(remaining(&memory, NEW_YEAR, "a", strategy), 3);
    }
}

#[test]
fn an_impossible_charge_denies_even_when_full_allows() {
    for (known, new) in strategies(10).into_iter().zip(strategies(5)) {
        let memory = memory_of(1, WhenFull::Allow);
        execute(&memory, NEW_YEAR, &each([charge("known", known, 1)]));
        let both = all_or_nothing([charge("known", known, 6), charge("new", new, 6)]);
        let outcomes = execute(&memory, NEW_YEAR, &both);
        let left = remaining(&memory, NEW_YEAR, "known", known);
        if matches!(new, Strategy::FixedWindow(_)) {
            // A fixed window counts denied hits, so it needs a new key.
            assert_eq!((outcomes[1], left), (ChargeOutcome::StoreFull(Verdict::Allow), 3));
        } else {
            assert!(
                matches!(outcomes[1], ChargeOutcome::Decided(CounterDecision::ExceedsLimit(_))),
                "{outcomes:?}"
            );
            assert_eq!((left, memory.times_full()), (9, 0), "{new:?}: none was charged");
        }
    }
}

#[test]
fn peeks_and_refunds_need_no_room() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Deny);
        execute(&memory, NEW_YEAR, &each([charge("a", strategy, 1)]));
        let refund = Charge { cost: Cost::Refund(Hits(1)), ..charge("c", strategy, 0) };
        let all = [charge("a", strategy, 1), charge("b", strategy, 0), refund];
        let outcomes = execute(&memory, NEW_YEAR, &all_or_nothing(all));
        assert!(is_allowed(outcomes[1]) && matches!(outcomes[2], ChargeOutcome::Refunded(_)));
        assert_eq!(remaining(&memory, NEW_YEAR, "a", strategy), 3, "{strategy:?}: it was charged");
        assert_eq!((memory.live_keys(), memory.times_full()), (1, 0));
    }
}

#[test]
fn atomic_charges_replace_expired_keys() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Deny);
        let names: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
        execute(&memory, NEW_YEAR, &each([charge("old", strategy, 1)]));
        let later = NEW_YEAR.plus(DAY).plus(DAY).plus(Nanos::SECOND);
        // One of these keys is in the shard of the expired key.
        let admitted = names.iter().any(|name| {
            is_allowed(execute(&memory, later, &all_or_nothing([charge(name, strategy, 1)]))[0])
        });
        assert!(admitted, "{strategy:?}");
    }
}
