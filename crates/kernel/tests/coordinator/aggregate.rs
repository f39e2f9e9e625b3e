//! Combination of the replicas' votes into one limit.

use sluicegate_kernel::coordinator::aggregate::{
    self, FractionalLimit, LimitFactor, LimitInference, VoteAggregate,
};
use sluicegate_kernel::coordinator::share_client::LoadReport;
use sluicegate_kernel::coordinator::{CoordinatorConfig, ShareClient};
use sluicegate_kernel::units::{Nanos, Share};

use super::{LimitCoordinator, high_demand, share_client, timing};

const INFERENCE: LimitInference = LimitInference {
    estimate: FractionalLimit(0),
    limit: Share(40),
    allowed: Share(10),
    peak: Share(10),
    samples: 100,
};

fn vote_for(estimate: u64, peak: u64) -> Option<LimitFactor> {
    let estimate = FractionalLimit::from_share(Share(estimate));
    aggregate::vote(&LimitInference { estimate, peak: Share(peak), ..INFERENCE })
}

fn ratios(quarters: &[u32]) -> Vec<LimitFactor> {
    quarters.iter().map(|quarter| LimitFactor(quarter * LimitFactor::ONE.0 / 4)).collect()
}

#[test]
fn replica_without_samples_or_share_does_not_vote() {
    assert_eq!(
        aggregate::vote(&LimitInference { samples: aggregate::MIN_SAMPLES - 1, ..INFERENCE }),
        None
    );
    assert_eq!(aggregate::vote(&LimitInference { allowed: Share(0), ..INFERENCE }), None);
    assert_eq!(aggregate::vote(&LimitInference { limit: Share(0), ..INFERENCE }), None);
}

#[test]
fn votes_to_grow_need_half_the_share_in_use() {
    assert_eq!(vote_for(60, 5), Some(LimitFactor(LimitFactor::ONE.0 * 3 / 2)));
    assert_eq!(vote_for(60, 4), Some(LimitFactor::ONE));
    assert_eq!(vote_for(20, 0), Some(LimitFactor(LimitFactor::ONE.0 / 2)));
    assert_eq!(vote_for(1_000, 10), Some(LimitFactor::TWICE), "bounded");
}

#[test]
fn votes_combine_by_the_lower_median() {
    assert_eq!(VoteAggregate::Median.combine(&mut []), None);
    assert_eq!(VoteAggregate::Median.combine(&mut ratios(&[8, 2])), Some(ratios(&[2])[0]));
    assert_eq!(VoteAggregate::Median.combine(&mut ratios(&[8, 2, 5])), Some(ratios(&[5])[0]));
    assert_eq!(VoteAggregate::Min.combine(&mut ratios(&[8, 2, 5])), Some(ratios(&[2])[0]));
}

/// One heartbeat of a replica that uses its whole share and knows the backend's `capacity`.
fn heartbeat_with_vote(
    store: &mut LimitCoordinator,
    now: u64,
    member: &mut ShareClient,
    capacity: u64,
) {
    let grant = member.current_grant(Nanos(now)).copied();
    let allowed = grant.map_or(Share(0), |grant| grant.share);
    let ceiling = grant.map_or(Share(1), |grant| grant.limit);
    let estimate = FractionalLimit::from_share(Share(capacity));
    let (limit, peak) = (ceiling, allowed);
    let vote = aggregate::vote(&LimitInference { estimate, limit, allowed, peak, samples: 100 });
    store.round_trip(now, member, &LoadReport { vote, ..high_demand(allowed.0) });
}

/// The limit after 120 heartbeats of each replica.
fn converged_limit(members: u64, start: u64, capacity: u64) -> u64 {
    let law = CoordinatorConfig::new(timing(), Share(1), Share(start), Share(10_000)).unwrap();
    let mut store = LimitCoordinator::new(law);
    let mut fleet: Vec<ShareClient> = (0..members).map(|id| share_client(id, 1)).collect();
    for beat in 0..120 {
        for (index, member) in (0..).zip(&mut fleet) {
            heartbeat_with_vote(&mut store, beat * 10 + index * 10 / members, member, capacity);
        }
    }
    store.coordinator.limit().0
}

#[test]
fn equal_replicas_find_the_same_limit_as_one_replica() {
    for members in [1, 2, 3, 5, 8] {
        for (start, capacity) in [(8, 97), (64, 97), (500, 97), (8, 8), (40, 10)] {
            let found = converged_limit(members, start, capacity);
            let close = capacity - capacity / 50 - 1..=capacity + capacity / 50 + 1;
            assert!(
                close.contains(&found),
                "{members} members from {start}: {found}, not {capacity}"
            );
        }
    }
}

#[test]
fn joining_replica_does_not_change_the_limit() {
    let law = CoordinatorConfig::new(timing(), Share(1), Share(40), Share(100)).unwrap();
    let mut store = LimitCoordinator::new(law);
    let (mut warm, mut cold) = (share_client(1, 1), share_client(2, 1));
    for beat in 0..20 {
        heartbeat_with_vote(&mut store, beat * 10, &mut warm, 40);
        store.round_trip(beat * 10 + 5, &mut cold, &super::high_demand(0));
    }
    assert_eq!(store.coordinator.limit(), Share(40));
}

#[test]
fn adaptive_limit_at_most_doubles_per_heartbeat() {
    let law = CoordinatorConfig::new(timing(), Share(1), Share(1), Share(1_000)).unwrap();
    let mut store = LimitCoordinator::new(law);
    let mut alone = share_client(1, 1);
    let mut last = 1;
    for beat in 0..30 {
        heartbeat_with_vote(&mut store, beat * 10, &mut alone, 900);
        let now = store.coordinator.limit().0;
        assert!(now <= last * 2, "{last} to {now}");
        last = now;
    }
    assert!(890 <= last, "and gets there: {last}");
}

/// The limit after one vote, and after each of ten heartbeats without a vote. It starts at 64.
fn limits_after_one_vote(vote: LimitFactor) -> Vec<u64> {
    let law = CoordinatorConfig::new(timing(), Share(1), Share(64), Share(512)).unwrap();
    let mut store = LimitCoordinator::new(law);
    let mut alone = share_client(1, 1);
    // A replica can vote only once it knows the limit, and the coordinator counts votes every
    // second heartbeat.
    let votes = [None, None, Some(vote)].into_iter().chain([None; 10]);
    let ceilings = (0..).zip(votes).map(|(beat, vote)| {
        let load = LoadReport { vote, ..high_demand(0) };
        store.round_trip(beat * 10, &mut alone, &load);
        store.coordinator.limit().0
    });
    ceilings.skip(2).collect()
}

/// The limit after twelve heartbeats of replicas that vote for the factors 1, 2 and 1/2. It starts at
/// 64.
fn limit_of_disagreeing_replicas(aggregate: VoteAggregate) -> u64 {
    let law = CoordinatorConfig::new(timing(), Share(8), Share(64), Share(512)).unwrap();
    let mut store = LimitCoordinator::new(CoordinatorConfig { aggregate, ..law });
    let mut fleet: Vec<ShareClient> = (0..3).map(|id| share_client(id, 1)).collect();
    let votes = [LimitFactor::ONE, LimitFactor::TWICE, LimitFactor(LimitFactor::ONE.0 / 2)];
    for beat in 0..12 {
        for (index, (member, vote)) in (0..).zip(fleet.iter_mut().zip(votes)) {
            let vote = (1 < beat).then_some(vote);
            let load = LoadReport { vote, ..high_demand(0) };
            store.round_trip(beat * 10 + index, member, &load);
        }
    }
    store.coordinator.limit().0
}

#[test]
fn the_limit_follows_the_median_or_the_smallest_vote() {
    assert_eq!(limit_of_disagreeing_replicas(VoteAggregate::Median), 64);
    assert_eq!(limit_of_disagreeing_replicas(VoteAggregate::Min), 8, "the lower bound");
}

#[test]
fn a_vote_is_counted_once() {
    let half = LimitFactor(LimitFactor::ONE.0 / 2);
    assert_eq!(limits_after_one_vote(LimitFactor::TWICE), [128; 11]);
    assert_eq!(limits_after_one_vote(half), [32; 11]);
}
