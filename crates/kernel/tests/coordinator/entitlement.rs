//! The demand curves of replicas, and the entitlements of a fleet that follow from them.

use std::collections::BTreeMap;

use sluicegate_kernel::concurrency::ClassParts;
use sluicegate_kernel::coordinator::DemandCurve;
use sluicegate_kernel::coordinator::demand_curve::{CustomerDemand, MAX_POINTS, UNITS_PER_PERMIT};
use sluicegate_kernel::coordinator::entitlement::entitlements;
use sluicegate_kernel::units::Share;

use crate::dice::{Dice, seed};

const UNIT: u32 = 16;

fn customer(class: u8, permits: u32, weight: u32) -> CustomerDemand {
    CustomerDemand { class, demand: permits * UNIT, weight }
}

fn curve(customers: &[CustomerDemand]) -> DemandCurve {
    DemandCurve::of_customers(&mut customers.to_vec())
}

fn shares(fleet: &[&[CustomerDemand]], limit: u64, percents: &[u8]) -> Vec<u64> {
    let curves: Vec<_> = fleet.iter().map(|customers| curve(customers)).collect();
    let parts = ClassParts::new(percents).unwrap();
    entitlements(&curves, Share(limit), &parts).into_iter().map(|share| share.0).collect()
}

/// The exact curve: Σ min(demand, level·weight), with a level of 1,024 for one permit.
fn exact(customers: &[CustomerDemand], class: u8, level: u32) -> u64 {
    let part = |one: &CustomerDemand| {
        (u64::from(level) * u64::from(one.weight) / 64).min(one.demand.into())
    };
    customers.iter().filter(|one| one.class == class).map(part).sum()
}

fn any_customers(dice: &mut Dice, most: u64, classes: u64) -> Vec<CustomerDemand> {
    let customer = |_| {
        let size = dice.pick(&[3, 10, 100]);
        customer(
            u8::try_from(dice.up_to(classes - 1)).unwrap(),
            u32::try_from(dice.up_to(size)).unwrap(),
            dice.pick(&[1, 1, 1, 4]),
        )
    };
    (0..most).map(customer).collect()
}

#[test]
fn a_curve_gives_each_customer_its_demand_up_to_the_level() {
    let curve = curve(&[customer(0, 2, 1), customer(0, 10, 1)]);
    let at = [(0, 0), (1, 2), (2, 4), (5, 7), (10, 12), (100, 12)];
    for (permits, demand) in at {
        assert_eq!(curve.at(0, permits * 1_024), demand * UNITS_PER_PERMIT, "{permits}");
    }
    assert_eq!(curve.at(1, 1_024), 0, "no demand of another class");
}

#[test]
fn a_curve_of_many_customers_is_close_to_the_exact_one() {
    let mut dice = Dice::new(seed());
    for _ in 0..200 {
        let (count, classes) = (dice.pick(&[1, 8, 300]), dice.pick(&[1, 2]));
        let customers = any_customers(&mut dice, count, classes);
        let curve = curve(&customers);
        assert!(curve.points().len() <= MAX_POINTS);
        for class in 0..2 {
            for permits in [0, 1, 2, 3, 5, 8, 13, 30, 60, 100] {
                let (line, exact) = (
                    curve.at(class.into(), permits * 1_024),
                    exact(&customers, class, permits * 1_024),
                );
                let end = curve.at(class.into(), 1 << 26);
                assert!(line <= exact, "{line} > {exact}: a line is never above the curve");
                assert!(exact - line <= end / 25, "{exact} - {line} of {end} at {permits}");
            }
        }
    }
}

#[test]
fn a_bounded_curve_keeps_the_first_classes_and_the_lowest_levels() {
    let curve = curve(&[customer(0, 4, 1), customer(1, 2, 1), customer(1, 10, 1)]);
    let (ten, none) = (curve.at_most(Share(10)), curve.at_most(Share(0)));
    assert_eq!([ten.at(0, 1 << 20), ten.at(1, 1 << 20)], [4 * 16, 6 * 16]);
    assert_eq!(ten.at(1, 2 * 1_024), 4 * 16, "the lowest level is whole");
    assert_eq!([none.at(0, 1 << 20), none.at(1, 1 << 20)], [0, 0]);
    assert_eq!(curve.at_most(Share(1 << 40)), curve);
}

#[test]
fn a_hog_on_one_replica_does_not_win_the_shares() {
    let hog = [customer(0, 1_000, 1)];
    let others: Vec<_> = (0..9).map(|_| customer(0, 10, 1)).collect();
    assert_eq!(shares(&[&hog, &others], 100, &[100]), [10, 90]);
    // Twice the weight, twice the part.
    let heavy = [customer(0, 1_000, 2)];
    assert_eq!(shares(&[&heavy, &others], 110, &[100]), [20, 90]);
}

#[test]
fn the_largest_demand_has_the_same_part_as_any_other() {
    let (most, much) =
        (CustomerDemand { class: 0, demand: u32::MAX, weight: 1 }, customer(0, 1_000, 1));
    assert_eq!(shares(&[&[most], &[much]], 100, &[100]), [50, 50]);
    // A bounded curve keeps its slope.
    let curves = [curve(&[most]).at_most(Share(60)), curve(&[much]).at_most(Share(70))];
    let shares = entitlements(&curves, Share(100), &ClassParts::ONE);
    assert_eq!(shares, [Share(50), Share(50)]);
}

#[test]
fn a_flood_of_the_last_class_leaves_the_permits_to_the_first() {
    let (batch, critical) = ([customer(1, 1_000, 1)], [customer(0, 100, 1)]);
    assert_eq!(shares(&[&batch, &critical], 100, &[100, 50]), [0, 100]);
    // Of 100, `batch` may use the 20 between 30 and 50. It needs a share of 40 for these.
    assert_eq!(shares(&[&batch, &[customer(0, 30, 1)]], 100, &[100, 50]), [40, 30]);
}

#[test]
fn demand_below_the_limit_is_covered() {
    let fleet = [[customer(0, 3, 1), customer(1, 7, 1)], [customer(0, 5, 1), customer(0, 1, 9)]];
    assert_eq!(shares(&[&fleet[0], &fleet[1]], 50, &[100, 100]), [10, 6]);
    assert_eq!(shares(&[&[], &fleet[1]], 50, &[100, 100]), [0, 6]);
}

#[test]
fn many_small_shares_sum_to_the_limit() {
    // Each of 100 replicas is entitled to half a permit, and counts as one that needs a permit.
    let one = [customer(0, 1, 1)];
    let fleet: Vec<&[CustomerDemand]> = vec![&one; 100];
    assert_eq!(shares(&fleet, 50, &[100]), vec![1; 100]);
    // 1.5 permits each: rounded one by one, the sum would be 200.
    let two = [customer(0, 2, 1)];
    let fleet: Vec<&[CustomerDemand]> = vec![&two; 100];
    assert_eq!(shares(&fleet, 150, &[100]).iter().sum::<u64>(), 150);
}

/// Gives the permits one by one, as one process would: to the first class with an unmet demand whose
/// part is not full, and in it to the customer that then has the fewest permits for its weight.
fn one_by_one(
    fleet: &[Vec<CustomerDemand>],
    limit: u64,
    percents: &[u8],
) -> Vec<BTreeMap<u8, u64>> {
    let mut given: Vec<Vec<u32>> = fleet.iter().map(|all| vec![0; all.len()]).collect();
    let mut used = 0;
    loop {
        let open = |class: u8| used < limit * u64::from(percents[usize::from(class)]) / 100;
        let customers =
            (0..fleet.len()).flat_map(|at| (0..fleet[at].len()).map(move |one| (at, one)));
        let next = customers
            .filter(|(at, one)| given[*at][*one] * UNIT < fleet[*at][*one].demand)
            .filter(|(at, one)| open(fleet[*at][*one].class))
            .min_by_key(|(at, one)| {
                let CustomerDemand { class, weight, .. } = fleet[*at][*one];
                (class, 1_000 * (given[*at][*one] + 1) / weight)
            });
        let Some((at, one)) = next else { break };
        given[at][one] += 1;
        used += 1;
    }
    let sums = |(all, given): (&Vec<CustomerDemand>, Vec<u32>)| {
        let mut sums = BTreeMap::new();
        for (one, given) in all.iter().zip(given) {
            *sums.entry(one.class).or_default() += u64::from(given);
        }
        sums
    };
    fleet.iter().zip(given).map(sums).collect()
}

/// The least and the most share of a replica. At one common level, a customer gets at most one permit
/// more than one by one, and at most its weight less. The sum of all shares is rounded.
fn share_bounds(
    given: &BTreeMap<u8, u64>,
    customers: &[CustomerDemand],
    percents: &[u8],
) -> [u64; 2] {
    let (mut used, mut more, mut less, mut bounds) = (0, 0, 0, [0, 0]);
    for (class, percent) in (0..).zip(percents) {
        let here = || customers.iter().filter(|one| one.class == class && one.demand != 0);
        let permits = given.get(&class).copied().unwrap_or(0);
        used += permits;
        more += here().count() as u64;
        less += here().map(|one| u64::from(one.weight)).sum::<u64>();
        let share = |used: u64| used * 100 / u64::from(*percent);
        if less < permits {
            bounds[0] = bounds[0].max(share(used.saturating_sub(less)).saturating_sub(1));
        }
        if here().next().is_some() {
            bounds[1] = bounds[1].max(share(used + more) + 1);
        }
    }
    bounds
}

#[test]
fn entitlements_match_permits_given_one_by_one() {
    let mut dice = Dice::new(seed());
    for round in 0..300 {
        let percents = dice.pick(&[&[100, 100, 100][..], &[100, 80, 50], &[90, 30, 30]]);
        let (replicas, limit) = (1 + dice.up_to(5), dice.pick(&[20, 100, 1_000]));
        let fleet: Vec<_> = (0..replicas)
            .map(|_| {
                let count = dice.up_to(8);
                any_customers(&mut dice, count, 3)
            })
            .collect();
        let given = one_by_one(&fleet, limit, percents);
        let views: Vec<&[CustomerDemand]> = fleet.iter().map(Vec::as_slice).collect();
        let shares = shares(&views, limit, percents);
        for ((share, given), customers) in shares.iter().zip(&given).zip(&fleet) {
            let [least, most] = share_bounds(given, customers, percents);
            assert!(
                (least..=most).contains(share),
                "round {round}: {share}, not {least} to {most}: {given:?}"
            );
        }
        let sum: u64 = shares.iter().sum();
        assert!(sum <= limit + replicas, "{sum} of {limit}");
    }
}
