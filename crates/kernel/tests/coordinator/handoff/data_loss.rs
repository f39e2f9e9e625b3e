//! A coordinator without state, and its clock.

use sluicegate_kernel::coordinator::{CoordinatorConfig, CoordinatorIncarnation, HeartbeatReply};
use sluicegate_kernel::units::{Generation, Incarnation, Nanos, ReplicaId, Share};

use crate::coordinator::{LimitCoordinator, fixed_limit, high_demand, share_client, timing};

/// Loses all state at `now` and starts incarnation 2.
fn lose_state(store: &mut LimitCoordinator, now: u64) {
    store.life = CoordinatorIncarnation::start(Incarnation(2), Nanos(now));
}

#[test]
fn after_data_loss_grants_are_limited_to_reported_shares() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let (mut one, mut two) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(0, &mut one, &high_demand(0));
    store.round_trip(1, &mut one, &high_demand(3));
    store.round_trip(2, &mut two, &high_demand(0));
    lose_state(&mut store, 10);
    assert_eq!(
        store.round_trip(11, &mut two, &high_demand(0)),
        Share(0),
        "first to speak, holds nothing"
    );
    assert_eq!(store.round_trip(12, &mut one, &high_demand(3)), Share(10));
    assert_eq!(one.coordinator_incarnation(Nanos(12)), Some(Incarnation(2)));
    // Shares and requests of the coordinator's first incarnation end by 10 + 36 + 30 = 76.
    assert_eq!(store.round_trip(30, &mut one, &high_demand(3)), Share(10));
    assert_eq!(store.round_trip(55, &mut one, &high_demand(3)), Share(10));
    assert_eq!(store.round_trip(75, &mut two, &high_demand(0)), Share(0));
    assert_eq!(store.round_trip(76, &mut one, &high_demand(3)), Share(5));
}

#[test]
fn grace_ends_once_all_replicas_have_reported() {
    use sluicegate_kernel::coordinator::incarnation::IncarnationRecord;
    let record = |id, under: Option<u64>| IncarnationRecord {
        replica: ReplicaId(id),
        incarnation: Incarnation(1),
        coordinator_incarnation: under.map(Incarnation),
    };
    let longest = timing().longest_use();
    let settles = |now, since, fleet: &[IncarnationRecord]| {
        let mut life = CoordinatorIncarnation::start(Incarnation(2), Nanos(100));
        life.settle(Nanos(now), longest, Nanos(since), fleet);
        !life.is_in_grace(Nanos(now), &timing())
    };
    assert!(settles(101, 0, &[record(1, Some(2)), record(2, Some(2))]));
    assert!(!settles(101, 0, &[record(1, Some(2)), record(2, Some(1))]));
    assert!(!settles(101, 0, &[record(1, Some(2)), record(2, None)]));
    assert!(!settles(165, 100, &[record(1, Some(2))]), "a table that was lost too");
    assert!(settles(166, 100, &[]), "term and max_duration have passed");
}

#[test]
fn replicas_restore_the_limit_after_data_loss() {
    let law = CoordinatorConfig { min: Share(1), max: Share(500), ..fixed_limit(10) };
    let mut store = LimitCoordinator::new(law);
    let mut one = share_client(1, 1);
    store.round_trip(0, &mut one, &high_demand(0));
    store.law.start = Share(400);
    lose_state(&mut store, 10);
    store.round_trip(11, &mut one, &high_demand(0));
    assert_eq!(store.coordinator.limit(), Share(10));
}

#[test]
fn stale_coordinator_state_is_reported_as_lost() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let mut one = share_client(1, 1);
    let old = store.coordinator.clone();
    store.round_trip(0, &mut one, &high_demand(0));
    store.coordinator = old;
    store.coordinator.incarnation = Incarnation(1);
    let beat = one.next_heartbeat(Nanos(1), &high_demand(0));
    assert_eq!(beat.grant_in_use.unwrap().generation, Generation(1));
    assert_eq!(store.apply_heartbeat(1, &beat), HeartbeatReply::StateLost);
}

#[test]
fn clock_step_back_expires_no_share_early() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let (mut lost, mut other) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(1_000, &mut lost, &high_demand(0));
    assert_eq!(store.round_trip(10, &mut other, &high_demand(0)), Share(0));
    assert_eq!(store.coordinator.latest_time, Nanos(1_000));
    assert_eq!(store.round_trip(1_065, &mut other, &high_demand(0)), Share(0));
}

#[test]
fn share_granted_during_a_clock_step_keeps_its_lifetime() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let (mut one, mut two) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(1_000, &mut one, &high_demand(0));
    assert_eq!(store.round_trip(10, &mut one, &high_demand(0)), Share(10));
    assert_eq!(
        store.round_trip(1_010, &mut two, &high_demand(0)),
        Share(0),
        "the clock is right again"
    );
}
