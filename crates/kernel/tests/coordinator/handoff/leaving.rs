//! Replicas that leave, return or are lost.

use sluicegate_kernel::coordinator::share_client::{GrantOutcome, LoadReport};
use sluicegate_kernel::coordinator::{CoordinatorConfig, HeartbeatReply, ShareTiming};
use sluicegate_kernel::units::{Nanos, Share};

use crate::coordinator::{LimitCoordinator, fixed_limit, high_demand, share_client};

#[test]
fn lost_replicas_exposure_is_reserved_until_requests_end() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let (mut lost, mut other) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(0, &mut lost, &high_demand(0));
    store.round_trip(1, &mut other, &high_demand(0));
    // The lost replica reported no requests in flight. Its share may be valid until 36, and a
    // request of that time may last 30: reserved until 66.
    assert_eq!(store.round_trip(65, &mut other, &high_demand(0)), Share(0));
    assert_eq!(store.round_trip(66, &mut other, &high_demand(0)), Share(10));
}

fn with_max_duration(max_duration: u64, config: CoordinatorConfig) -> CoordinatorConfig {
    CoordinatorConfig {
        timing: ShareTiming { max_duration: Nanos(max_duration), ..config.timing },
        ..config
    }
}

/// The instant at which another replica gets the share of a lost one.
///
/// The lost replica reports at 0 under a `max_duration` of `before`. If `is_updated`, it also
/// reports at 1 and 2 under `after`. The other replica reports under `after`.
fn reserved_until(before: u64, after: u64, is_updated: bool) -> u64 {
    let mut store = LimitCoordinator::new(with_max_duration(before, fixed_limit(10)));
    let (mut lost, mut other) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(0, &mut lost, &high_demand(0));
    store.law = with_max_duration(after, store.law);
    for now in (1..3).filter(|_| is_updated) {
        assert_eq!(store.round_trip(now, &mut lost, &high_demand(10)), Share(10));
    }
    let rests_at = store.coordinator.unused_from(&store.law).0;
    let mut freed = |now: &u64| store.round_trip(*now, &mut other, &high_demand(0)) == Share(10);
    assert_eq!((3..200).find(&mut freed), Some(rests_at), "and then nothing of it is left");
    rests_at
}

#[test]
fn lost_replica_stays_reserved_for_its_longest_max_duration() {
    // The share lifetime is 36. Requests that started with the old `max_duration` may run until 66.
    assert_eq!(reserved_until(30, 5, false), 66);
    assert_eq!(reserved_until(30, 5, true), 66, "it spoke of the shorter ones as well");
    assert_eq!(reserved_until(30, 29, true), 67, "2 + 36 + 29");
    // The lost replica may use the longer `max_duration` before it reports again.
    assert_eq!(reserved_until(5, 30, false), 66);
    assert_eq!(reserved_until(5, 30, true), 68);
}

#[test]
fn previous_longer_max_duration_expires_for_a_live_replica() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let (mut one, mut other) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(0, &mut one, &high_demand(0));
    store.law = with_max_duration(5, store.law);
    for now in [20, 40] {
        store.round_trip(now, &mut one, &high_demand(10));
    }
    assert_eq!(store.round_trip(80, &mut other, &high_demand(0)), Share(0));
    assert_eq!(store.round_trip(81, &mut other, &high_demand(0)), Share(10), "40 + 36 + 5");
}

/// The instant at which another replica gets the whole share of a replica that leaves the fleet at
/// 1 with four requests in flight.
fn reserved_after_leaving_until(before: u64, after: u64) -> u64 {
    let mut store = LimitCoordinator::new(with_max_duration(before, fixed_limit(10)));
    let (mut leaver, mut other) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(0, &mut leaver, &high_demand(0));
    store.law = with_max_duration(after, store.law);
    assert_eq!(
        store.apply_heartbeat(1, &leaver.last_heartbeat(Nanos(1), Share(4))),
        HeartbeatReply::Left
    );
    assert_eq!(store.round_trip(2, &mut other, &high_demand(0)), Share(6));
    (3..200).find(|now| store.round_trip(*now, &mut other, &high_demand(6)) == Share(10)).unwrap()
}

#[test]
fn share_of_a_leaving_replica_is_reserved_until_its_requests_end() {
    assert_eq!(reserved_after_leaving_until(30, 5), 66);
    assert_eq!(reserved_after_leaving_until(30, 30), 31, "it admits nothing after 1");
    assert_eq!(reserved_after_leaving_until(5, 30), 31);
}

#[test]
fn drained_replica_frees_its_share_at_once() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let (mut leaver, mut other) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(0, &mut leaver, &high_demand(0));
    let draining = leaver.last_heartbeat(Nanos(1), Share(4));
    assert_eq!(store.apply_heartbeat(1, &draining), HeartbeatReply::Left);
    assert_eq!(leaver.usable_share(Nanos(1)), Share(0));
    assert_eq!(store.round_trip(2, &mut other, &high_demand(0)), Share(6));
    let drained = leaver.next_heartbeat(Nanos(3), &LoadReport::default());
    assert_eq!(store.apply_heartbeat(3, &drained), HeartbeatReply::Left);
    assert_eq!(store.round_trip(4, &mut other, &high_demand(6)), Share(10));
}

#[test]
fn restarted_replica_gets_no_share_until_its_old_one_expires() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let (mut old, mut new) = (share_client(1, 1), share_client(1, 2));
    store.round_trip(0, &mut old, &high_demand(0));
    assert_eq!(store.round_trip(5, &mut new, &high_demand(0)), Share(0));
    let late = old.next_heartbeat(Nanos(6), &high_demand(0));
    assert_eq!(store.apply_heartbeat(6, &late), HeartbeatReply::Superseded);
    assert_eq!(store.round_trip(65, &mut new, &high_demand(0)), Share(0));
    assert_eq!(store.round_trip(66, &mut new, &high_demand(0)), Share(10));
}

#[test]
fn delayed_message_of_leaving_frees_nothing_after_the_replica_returned() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let (mut one, mut other) = (share_client(1, 1), share_client(2, 1));
    assert_eq!(store.round_trip(0, &mut one, &high_demand(0)), Share(10));
    let leave = one.last_heartbeat(Nanos(1), Share(0));
    one.cancel_leave();
    assert_eq!(one.usable_share(Nanos(1)), Share(0), "nothing, until it is granted anew");
    assert!(
        one.next_heartbeat_at(Nanos(1), &high_demand(0)) <= Nanos(1),
        "which it asks for at once"
    );
    assert_eq!(store.round_trip(1, &mut one, &high_demand(0)), Share(10));
    assert_eq!(store.apply_heartbeat(2, &leave), HeartbeatReply::Stale);
    assert_eq!(store.round_trip(3, &mut other, &high_demand(0)), Share(0));
}

#[test]
fn requests_count_once_after_a_replica_leaves_and_returns() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let (mut one, mut other) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(0, &mut one, &high_demand(0));
    assert_eq!(
        store.apply_heartbeat(1, &one.last_heartbeat(Nanos(1), Share(4))),
        HeartbeatReply::Left
    );
    assert_eq!(store.round_trip(2, &mut other, &high_demand(0)), Share(6));
    one.cancel_leave();
    assert_eq!(store.round_trip(3, &mut one, &high_demand(4)), Share(4), "the other has the rest");
    assert_eq!(store.coordinator.exposure(), Share(10));
}

#[test]
fn reply_from_before_leaving_is_ignored_after_returning() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let mut one = share_client(1, 1);
    let beat = one.next_heartbeat(Nanos(0), &high_demand(0));
    let grant = store.expect_grant(0, &beat);
    one.last_heartbeat(Nanos(1), Share(0));
    one.cancel_leave();
    assert_eq!(one.apply_grant(Nanos(1), &grant), GrantOutcome::Ignored);
    assert_eq!(one.usable_share(Nanos(1)), Share(0));
}
