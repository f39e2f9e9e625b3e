//! The split of a limit into shares.

use proptest::prelude::*;
use sluicegate_kernel::coordinator::split::{FairShare, ReplicaDemand, Split};
use sluicegate_kernel::units::{Nanos, Share};

const TURN_END: Nanos = Nanos(100);

fn fair_share(limit: u64, demands: &[ReplicaDemand], me: usize) -> FairShare {
    let limit = Share(limit);
    let need = |demand: &ReplicaDemand| demand.need.min(limit);
    let split = Split {
        limit,
        live_count: demands.len() as u64,
        me,
        own_need: need(&demands[me]),
        total_need: demands.iter().map(need).fold(Share(0), Share::plus),
        with_demand: demands.iter().filter(|demand| Share(0) < demand.need).count() as u64,
        idle: 0,
    };
    let fair = |start| split.fair_share(TURN_END, || demands.iter().copied(), &mut Share(start));
    // The result does not depend on the fill level of an earlier split.
    assert!([1, limit.0, 1 << 24].iter().all(|start| fair(*start) == fair(0)));
    fair(0)
}

fn shares(limit: u64, demands: &[ReplicaDemand]) -> Vec<u64> {
    (0..demands.len()).map(|me| fair_share(limit, demands, me).share.0).collect()
}

fn needs(needs: &[u64]) -> Vec<ReplicaDemand> {
    needs
        .iter()
        .map(|need| ReplicaDemand { need: Share(*need), is_waiting: false, changed_at: Nanos(101) })
        .collect()
}

fn demands() -> impl Strategy<Value = Vec<ReplicaDemand>> {
    let want = (prop_oneof![Just(0), 1..6_u64, 1..2_000_u64], any::<bool>(), 0..200_u64);
    let want = want.prop_map(|(need, waits, since)| ReplicaDemand {
        need: Share(need),
        is_waiting: waits,
        changed_at: Nanos(since),
    });
    prop::collection::vec(want, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn shares_sum_to_the_limit(wants in demands(), ceiling in prop_oneof![1..30_u64, 1..5_000_u64]) {
        prop_assert_eq!(shares(ceiling, &wants).iter().sum::<u64>(), ceiling);
    }

    #[test]
    fn no_share_is_zero_if_the_limit_covers_the_fleet(wants in demands(), more in 0..50_u64) {
        let ceiling = wants.len() as u64 + more;
        prop_assert!(shares(ceiling, &wants).iter().all(|share| 0 < *share));
    }

    #[test]
    fn no_replica_lacks_permits_while_another_has_spare_ones(wants in demands(), more in 0..500_u64) {
        let shares = shares(wants.len() as u64 + more, &wants);
        let short = shares.iter().zip(&wants).filter(|(share, want)| **share < want.need.0);
        let short = short.map(|(share, _)| *share);
        let smallest_short_share = short.min();
        let spare = shares.iter().zip(&wants).any(|(share, want)| want.need.0.max(1) < *share);
        prop_assert!(smallest_short_share.is_none() || !spare);
        // A replica whose share is below its demand has at most one permit less than any other
        // replica.
        let largest = shares.iter().max().unwrap();
        prop_assert!(smallest_short_share.is_none_or(|least| *largest <= least + 1));
    }
}

#[test]
fn shares_of_equal_demands_differ_by_at_most_one() {
    assert_eq!(shares(11, &needs(&[9, 9, 9, 9])), [3, 3, 3, 2]);
    assert_eq!(shares(11, &needs(&[1, 1, 1, 1])), [3, 3, 3, 2]);
    assert_eq!(shares(11, &needs(&[0, 0, 0, 0])), [3, 3, 3, 2]);
}

#[test]
fn idle_replicas_keep_one_permit_and_busy_ones_share_the_rest() {
    assert_eq!(shares(100, &needs(&[100, 0, 0, 12])), [86, 1, 1, 12]);
}

#[test]
fn a_lower_limit_takes_unneeded_permits_first() {
    let wants = needs(&[40, 2, 2]);
    assert_eq!(shares(60, &wants), [46, 7, 7]);
    assert_eq!(shares(44, &wants), [40, 2, 2]);
    assert_eq!(shares(30, &wants), [26, 2, 2]);
}

#[test]
fn permits_fewer_than_replicas_rotate_to_the_longest_waiting_replica() {
    let want = |waits, since| ReplicaDemand {
        need: Share(1),
        is_waiting: waits,
        changed_at: Nanos(since),
    };
    // In order: a replica that may still keep its permit, one that must pass it on, the one that
    // waits longest, and one that waits less long.
    let wants = [want(false, 101), want(false, 50), want(true, 60), want(true, 90)];
    assert_eq!(shares(1, &wants), [1, 0, 0, 0]);
    assert_eq!(shares(2, &wants), [1, 0, 1, 0]);
    assert_eq!(shares(3, &wants), [1, 0, 1, 1]);
}

#[test]
fn permits_are_reserved_for_replicas_that_wait_longer() {
    let want = |waits, since| ReplicaDemand {
        need: Share(1),
        is_waiting: waits,
        changed_at: Nanos(since),
    };
    let wants = [want(false, 50), want(true, 60), want(true, 90)];
    let reserved = [0, 1, 2].map(|replica| fair_share(2, &wants, replica).reserved.0);
    assert_eq!(reserved, [2, 0, 1]);
    assert_eq!(fair_share(3, &wants, 2).reserved, Share(0), "no turns are taken");
}

#[test]
fn idle_replicas_get_no_permit_if_replicas_outnumber_permits() {
    assert_eq!(shares(3, &needs(&[0, 3, 0, 0, 0])), [0, 3, 0, 0, 0]);
}
