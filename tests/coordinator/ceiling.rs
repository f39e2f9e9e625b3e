//! How the members' inferences become one ceiling.

use sluicegate::kernel::coordinator::aggregate::{self, Aggregate, Inference, Level, Ratio};
use sluicegate::kernel::coordinator::member::Load;
use sluicegate::kernel::coordinator::{Law, Member};
use sluicegate::kernel::units::{Nanos, Share};

use super::{Store, member, terms};

const SEEN: Inference =
    Inference { estimate: Level(0), allowed: Share(10), peak: Share(10), samples: 100 };

fn voted(estimate: u64, peak: u64) -> Option<Ratio> {
    let estimate = Level::of(Share(estimate));
    aggregate::vote(&Inference { estimate, peak: Share(peak), ..SEEN })
}

fn ratios(quarters: &[u32]) -> Vec<Ratio> {
    quarters.iter().map(|quarter| Ratio(quarter * Ratio::ONE.0 / 4)).collect()
}

#[test]
fn a_member_without_a_sample_or_a_share_does_not_vote() {
    assert_eq!(aggregate::vote(&Inference { samples: aggregate::FRESH - 1, ..SEEN }), None);
    assert_eq!(aggregate::vote(&Inference { allowed: Share(0), ..SEEN }), None);
}

#[test]
fn growth_takes_half_the_share_in_use_and_shrinking_takes_none() {
    assert_eq!(voted(15, 5), Some(Ratio(Ratio::ONE.0 * 3 / 2)));
    assert_eq!(voted(15, 4), Some(Ratio::ONE));
    assert_eq!(voted(5, 0), Some(Ratio(Ratio::ONE.0 / 2)));
    assert_eq!(voted(1_000, 10), Some(Ratio::TWICE), "bounded");
}

#[test]
fn the_lower_median_counts() {
    assert_eq!(Aggregate::Median.fold(&mut []), None);
    assert_eq!(Aggregate::Median.fold(&mut ratios(&[8, 2])), Some(ratios(&[2])[0]));
    assert_eq!(Aggregate::Median.fold(&mut ratios(&[8, 2, 5])), Some(ratios(&[5])[0]));
    assert_eq!(Aggregate::Min.fold(&mut ratios(&[8, 2, 5])), Some(ratios(&[2])[0]));
}

/// A policy that finds the backend's capacity exactly where it is used: its part of it.
fn sees(capacity: u64, ceiling: Share, allowed: Share) -> Level {
    Level(Level::of(Share(capacity)).0 * allowed.0 / ceiling.0)
}

/// One heartbeat of a member that uses all it has in front of a backend with that capacity.
fn infers(store: &mut Store, now: u64, member: &mut Member, capacity: u64) {
    let grant = member.grant(Nanos(now)).copied();
    let allowed = grant.map_or(Share(0), |grant| grant.share);
    let ceiling = grant.map_or(Share(1), |grant| grant.ceiling);
    let estimate = sees(capacity, ceiling, allowed);
    let vote = aggregate::vote(&Inference { estimate, allowed, peak: allowed, samples: 100 });
    store.round(now, member, &Load { in_flight: allowed, wanted: Share(1_000), vote });
}

/// Where the ceiling of a fleet of that size comes to rest.
fn rests_at(members: u64, start: u64, capacity: u64) -> u64 {
    let law = Law::new(terms(), Share(1), Share(start), Share(10_000)).unwrap();
    let mut store = Store::new(law);
    let mut fleet: Vec<Member> = (0..members).map(|id| member(id, 1)).collect();
    for beat in 0..120 {
        for (place, member) in (0..).zip(&mut fleet) {
            infers(&mut store, beat * 10 + place * 10 / members, member, capacity);
        }
    }
    store.coordinator.ceiling().0
}

#[test]
fn a_fleet_of_equals_comes_to_the_ceiling_that_one_of_them_would_find() {
    for members in [1, 2, 3, 5, 8] {
        for (start, capacity) in [(8, 97), (64, 97), (500, 97), (8, 8), (40, 10)] {
            let found = rests_at(members, start, capacity);
            let close = capacity - capacity / 50 - 1..=capacity + capacity / 50 + 1;
            assert!(
                close.contains(&found),
                "{members} members from {start}: {found}, not {capacity}"
            );
        }
    }
}

#[test]
fn a_cold_joiner_moves_nothing() {
    let law = Law::new(terms(), Share(1), Share(40), Share(100)).unwrap();
    let mut store = Store::new(law);
    let (mut warm, mut cold) = (member(1, 1), member(2, 1));
    for beat in 0..20 {
        infers(&mut store, beat * 10, &mut warm, 40);
        store.round(beat * 10 + 5, &mut cold, &super::hungry(0));
    }
    assert_eq!(store.coordinator.ceiling(), Share(40));
}

#[test]
fn a_ceiling_grows_at_most_twofold_in_a_round() {
    let law = Law::new(terms(), Share(1), Share(1), Share(1_000)).unwrap();
    let mut store = Store::new(law);
    let mut alone = member(1, 1);
    let mut last = 1;
    for beat in 0..30 {
        infers(&mut store, beat * 10, &mut alone, 900);
        let now = store.coordinator.ceiling().0;
        assert!(now <= last * 2, "{last} to {now}");
        last = now;
    }
    assert!(890 <= last, "and gets there: {last}");
}

/// The ceiling, which starts at 64, once a member has voted so, and after each of ten heartbeats in which it infers nothing.
fn ceilings_after_one_vote(vote: Ratio) -> Vec<u64> {
    let law = Law::new(terms(), Share(1), Share(64), Share(512)).unwrap();
    let mut store = Store::new(law);
    let mut alone = member(1, 1);
    // It must know the ceiling that it votes on, and the votes are counted every two periods.
    let votes = [None, None, Some(vote)].into_iter().chain([None; 10]);
    let ceilings = (0..).zip(votes).map(|(beat, vote)| {
        let load = Load { in_flight: Share(0), wanted: Share(1_000), vote };
        store.round(beat * 10, &mut alone, &load);
        store.coordinator.ceiling().0
    });
    ceilings.skip(2).collect()
}

#[test]
fn a_vote_is_counted_once() {
    let half = Ratio(Ratio::ONE.0 / 2);
    assert_eq!(ceilings_after_one_vote(Ratio::TWICE), [128; 11]);
    assert_eq!(ceilings_after_one_vote(half), [32; 11]);
}
