//! How a ceiling is divided.

use proptest::prelude::*;
use sluicegate::kernel::coordinator::split::{Split, Want};
use sluicegate::kernel::units::{Nanos, Share};

const TURNED: Nanos = Nanos(100);

fn parts(split: Split, ceiling: u64, wants: &[Want]) -> Vec<u64> {
    (0..wants.len()).map(|me| split.part(Share(ceiling), wants, me, TURNED).0).collect()
}

fn needs(needs: &[u64]) -> Vec<Want> {
    needs.iter().map(|need| Want { need: Share(*need), waits: false, since: Nanos(101) }).collect()
}

fn wants() -> impl Strategy<Value = Vec<Want>> {
    let want = (prop_oneof![Just(0), 1..6_u64, 1..2_000_u64], any::<bool>(), 0..200_u64);
    let want = want.prop_map(|(need, waits, since)| Want {
        need: Share(need),
        waits,
        since: Nanos(since),
    });
    prop::collection::vec(want, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn the_parts_sum_to_the_ceiling(wants in wants(), ceiling in prop_oneof![1..30_u64, 1..5_000_u64]) {
        for split in [Split::Equal, Split::Demand] {
            prop_assert_eq!(parts(split, ceiling, &wants).iter().sum::<u64>(), ceiling);
        }
    }

    #[test]
    fn nobody_gets_nothing_of_a_ceiling_as_large_as_the_fleet(wants in wants(), more in 0..50_u64) {
        let ceiling = wants.len() as u64 + more;
        for split in [Split::Equal, Split::Demand] {
            prop_assert!(parts(split, ceiling, &wants).iter().all(|part| 0 < *part));
        }
    }

    #[test]
    fn nobody_is_short_while_another_has_more_than_it_can_use(wants in wants(), more in 0..500_u64) {
        let parts = parts(Split::Demand, wants.len() as u64 + more, &wants);
        let short = parts.iter().zip(&wants).filter(|(part, want)| **part < want.need.0).map(|(part, _)| *part);
        let least_of_the_short = short.min();
        let spare = parts.iter().zip(&wants).any(|(part, want)| want.need.0.max(1) < *part);
        prop_assert!(least_of_the_short.is_none() || !spare);
        // And nobody who is short stands more than one below anybody else.
        let most = parts.iter().max().unwrap();
        prop_assert!(least_of_the_short.is_none_or(|least| *most <= least + 1));
    }
}

#[test]
fn equal_parts_differ_by_one_at_most() {
    assert_eq!(parts(Split::Equal, 11, &needs(&[0, 9, 0, 9])), [3, 3, 3, 2]);
}

#[test]
fn the_idle_keep_enough_to_show_demand_and_the_hungry_share_the_rest() {
    assert_eq!(parts(Split::Demand, 100, &needs(&[100, 0, 0, 12])), [86, 1, 1, 12]);
}

#[test]
fn what_a_shrinking_ceiling_loses_is_taken_from_the_idle_first() {
    let wants = needs(&[40, 2, 2]);
    assert_eq!(parts(Split::Demand, 60, &wants), [46, 7, 7]);
    assert_eq!(parts(Split::Demand, 44, &wants), [40, 2, 2]);
    assert_eq!(parts(Split::Demand, 30, &wants), [26, 2, 2]);
}

#[test]
fn a_ceiling_smaller_than_the_hungry_goes_to_the_longest_waiting_once_a_turn_is_over() {
    let want = |waits, since| Want { need: Share(1), waits, since: Nanos(since) };
    // In its turn, turn over, waiting long, waiting less long.
    let wants = [want(false, 101), want(false, 50), want(true, 60), want(true, 90)];
    for split in [Split::Equal, Split::Demand] {
        assert_eq!(parts(split, 1, &wants), [1, 0, 0, 0]);
        assert_eq!(parts(split, 2, &wants), [1, 0, 1, 0]);
        assert_eq!(parts(split, 3, &wants), [1, 0, 1, 1]);
    }
}

#[test]
fn what_those_ahead_in_the_line_wait_for_is_not_free() {
    let want = |waits, since| Want { need: Share(1), waits, since: Nanos(since) };
    let wants = [want(false, 50), want(true, 60), want(true, 90)];
    for split in [Split::Equal, Split::Demand] {
        let owed = [0, 1, 2].map(|me| split.owed(Share(2), &wants, me, TURNED).0);
        assert_eq!(owed, [2, 0, 1]);
        assert_eq!(split.owed(Share(3), &wants, 2, TURNED), Share(0), "no turns are taken");
    }
}

#[test]
fn the_idle_of_a_fleet_larger_than_the_ceiling_hold_nothing_that_the_hungry_could_use() {
    assert_eq!(parts(Split::Demand, 3, &needs(&[0, 3, 0, 0, 0])), [0, 3, 0, 0, 0]);
}
