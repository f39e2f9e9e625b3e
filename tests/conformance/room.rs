//! The ceiling on live keys, and what is dropped when it is rested.

use sluicegate::backend::Outcome;
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::rate::{Step, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};

use super::{
    Charge, DAY, NEW_YEAR, admits, all_or_nothing, ask, charge, each, remaining, strategies,
};

fn memory_of(max_keys: usize, when_full: WhenFull) -> Memory {
    Memory::new(max_keys, when_full, [7; 16])
}

#[test]
fn a_new_key_beyond_the_ceiling_gets_the_chosen_verdict_and_is_counted_as_such() {
    for (when_full, verdict) in [(WhenFull::Deny, Verdict::Deny), (WhenFull::Allow, Verdict::Admit)]
    {
        for strategy in strategies(5) {
            let memory = memory_of(2, when_full);
            for name in ["a", "b"] {
                assert!(admits(ask(&memory, NEW_YEAR, &each([charge(name, strategy, 1)]))[0]));
            }
            let outcome = ask(&memory, NEW_YEAR, &each([charge("c", strategy, 1)]))[0];
            assert_eq!(outcome, Outcome::Full(verdict));
            assert_eq!((memory.live_keys(), memory.times_full()), (2, 1));
        }
    }
}

#[test]
fn a_key_that_lives_is_counted_at_the_ceiling_as_ever() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Deny);
        for left in [4, 3, 2] {
            ask(&memory, NEW_YEAR, &each([charge("a", strategy, 1)]));
            assert_eq!(remaining(&memory, NEW_YEAR, "a", strategy), left);
        }
    }
}

#[test]
fn a_peek_makes_no_key() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Deny);
        assert_eq!(remaining(&memory, NEW_YEAR, "a", strategy), 5);
        assert_eq!(memory.live_keys(), 0);
    }
}

#[test]
fn a_round_of_sweeps_drops_what_is_rested_and_nothing_else() {
    for strategy in strategies(5) {
        let memory = memory_of(100, WhenFull::Deny);
        ask(&memory, NEW_YEAR, &each([charge("early", strategy, 5)]));
        // Windows that slide forget a full window only after two; everything has by then.
        let later = NEW_YEAR.plus(DAY).plus(DAY);
        ask(&memory, later, &each([charge("late", strategy, 5)]));
        for _ in 0..Memory::SHARDS {
            memory.sweep_next(later);
        }
        assert_eq!(memory.live_keys(), 1, "{strategy:?}");
        assert_eq!(remaining(&memory, later, "late", strategy), 0);
    }
}

#[test]
fn at_the_ceiling_a_rested_key_makes_room_for_a_new_one_of_its_shard() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Deny);
        ask(&memory, NEW_YEAR, &each([charge("a", strategy, 1)]));
        let later = NEW_YEAR.plus(DAY).plus(DAY).plus(Nanos::SECOND);
        // The same key is of the same shard; only a key it does not remember is new to it.
        assert!(admits(ask(&memory, later, &each([charge("a", strategy, 5)]))[0]), "{strategy:?}");
    }
}

#[test]
fn what_is_charged_as_one_is_charged_whole_or_not_at_all_where_there_is_one_place_left() {
    for strategy in strategies(5) {
        let memory = memory_of(2, WhenFull::Deny);
        ask(&memory, NEW_YEAR, &each([charge("old", strategy, 1)]));
        let all = ["old", "new", "newer"].map(|name| charge(name, strategy, 1));
        let outcomes = ask(&memory, NEW_YEAR, &all_or_nothing(all));
        assert!(admits(outcomes[0]) && admits(outcomes[1]), "{outcomes:?}");
        assert_eq!(outcomes[2], Outcome::Full(Verdict::Deny));
        assert_eq!((memory.live_keys(), memory.times_full()), (1, 1), "{strategy:?}: none is made");
        assert_eq!(remaining(&memory, NEW_YEAR, "old", strategy), 4, "{strategy:?}");
        let fits = ["old", "new"].map(|name| charge(name, strategy, 1));
        assert!(ask(&memory, NEW_YEAR, &all_or_nothing(fits)).into_iter().all(admits));
        assert_eq!(memory.live_keys(), 2);
    }
}

#[test]
fn where_the_full_are_admitted_the_others_of_a_question_are_charged() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Allow);
        let both = ["a", "b"].map(|name| charge(name, strategy, 2));
        let outcomes = ask(&memory, NEW_YEAR, &all_or_nothing(both));
        assert!(admits(outcomes[0]));
        assert_eq!(outcomes[1], Outcome::Full(Verdict::Admit));
        assert_eq!((memory.live_keys(), memory.times_full()), (1, 1), "{strategy:?}");
        assert_eq!(remaining(&memory, NEW_YEAR, "a", strategy), 3);
    }
}

#[test]
fn where_the_full_are_admitted_one_that_can_never_pass_denies_and_none_is_charged() {
    for (known, new) in strategies(10).into_iter().zip(strategies(5)) {
        let memory = memory_of(1, WhenFull::Allow);
        ask(&memory, NEW_YEAR, &each([charge("known", known, 1)]));
        let both = all_or_nothing([charge("known", known, 6), charge("new", new, 6)]);
        let outcomes = ask(&memory, NEW_YEAR, &both);
        let left = remaining(&memory, NEW_YEAR, "known", known);
        if matches!(new, Strategy::FixedWindow(_)) {
            // It counts what it denies, which takes room.
            assert_eq!((outcomes[1], left), (Outcome::Full(Verdict::Admit), 3));
        } else {
            assert!(matches!(outcomes[1], Outcome::Stepped(Step::Never(_))), "{outcomes:?}");
            assert_eq!((left, memory.times_full()), (9, 0), "{new:?}: none was charged");
        }
    }
}

#[test]
fn a_peek_and_a_refund_of_a_new_key_need_no_room() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Deny);
        ask(&memory, NEW_YEAR, &each([charge("a", strategy, 1)]));
        let refund = Charge { cost: Cost::Refund(Hits(1)), ..charge("c", strategy, 0) };
        let all = [charge("a", strategy, 1), charge("b", strategy, 0), refund];
        let outcomes = ask(&memory, NEW_YEAR, &all_or_nothing(all));
        assert!(admits(outcomes[1]) && matches!(outcomes[2], Outcome::Refunded(_)));
        assert_eq!(remaining(&memory, NEW_YEAR, "a", strategy), 3, "{strategy:?}: it was charged");
        assert_eq!((memory.live_keys(), memory.times_full()), (1, 0));
    }
}

#[test]
fn what_is_charged_as_one_makes_room_of_what_is_rested() {
    for strategy in strategies(5) {
        let memory = memory_of(1, WhenFull::Deny);
        let names: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
        ask(&memory, NEW_YEAR, &each([charge("old", strategy, 1)]));
        let later = NEW_YEAR.plus(DAY).plus(DAY).plus(Nanos::SECOND);
        // One of them is of the rested one's shard, wherever that is.
        let admitted = names.iter().any(|name| {
            admits(ask(&memory, later, &all_or_nothing([charge(name, strategy, 1)]))[0])
        });
        assert!(admitted, "{strategy:?}");
    }
}
