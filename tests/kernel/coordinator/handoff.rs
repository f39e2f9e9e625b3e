//! Handoff of shares between replicas, and expiry of shares.

use sluicegate::kernel::coordinator::message::GrantInUse;
use sluicegate::kernel::coordinator::share_client::{GrantOutcome, LoadReport};
use sluicegate::kernel::coordinator::{
    ClockReading, CoordinatorConfig, CoordinatorIncarnation, HeartbeatReply, ShareClient,
    ShareTiming,
};
use sluicegate::kernel::units::{Generation, Incarnation, Nanos, ReplicaId, Share};

use super::{Store, exact_demand, fixed_limit, high_demand, share_client, timing};

#[test]
fn share_moves_only_after_acknowledgement_and_drain() {
    let mut store = Store::new(fixed_limit(10));
    let (mut old, mut new) = (share_client(1, 1), share_client(2, 1));
    assert_eq!(store.round_trip(0, &mut old, &high_demand(0)), Share(10));
    assert_eq!(store.round_trip(5, &mut new, &high_demand(0)), Share(0), "all is held");
    assert_eq!(store.round_trip(10, &mut old, &high_demand(10)), Share(5));
    assert_eq!(store.round_trip(11, &mut new, &high_demand(0)), Share(0), "not acknowledged");
    assert_eq!(store.round_trip(12, &mut old, &high_demand(8)), Share(5));
    assert_eq!(store.round_trip(13, &mut new, &high_demand(0)), Share(2), "8 are in flight still");
    assert_eq!(store.round_trip(14, &mut old, &high_demand(5)), Share(5));
    assert_eq!(store.round_trip(15, &mut new, &high_demand(2)), Share(5));
}

#[test]
fn late_and_duplicate_heartbeats_change_nothing() {
    let mut store = Store::new(fixed_limit(10));
    let mut one = share_client(1, 1);
    let first = one.next_heartbeat(Nanos(0), &high_demand(0));
    let second = one.next_heartbeat(Nanos(1), &high_demand(3));
    store.expect_grant(2, &second);
    let state = store.coordinator.clone();
    assert_eq!(store.apply_heartbeat(2, &first), HeartbeatReply::Stale);
    assert_eq!(store.apply_heartbeat(2, &second), HeartbeatReply::Stale);
    assert_eq!(store.coordinator, state);
}

#[test]
fn only_the_newest_heartbeats_reply_applies() {
    let mut store = Store::new(fixed_limit(10));
    let mut one = share_client(1, 1);
    let first = one.next_heartbeat(Nanos(0), &high_demand(0));
    let late = store.expect_grant(0, &first);
    let second = one.next_heartbeat(Nanos(1), &high_demand(0));
    assert_eq!(one.apply_grant(Nanos(1), &late), GrantOutcome::Ignored);
    let grant = store.expect_grant(2, &second);
    assert_eq!(one.apply_grant(Nanos(2), &grant), GrantOutcome::Applied(Share(0)));
    assert_eq!(one.apply_grant(Nanos(2), &grant), GrantOutcome::Ignored, "doubled");
}

#[test]
fn share_expires_one_drift_margin_early_counted_from_sending() {
    let mut store = Store::new(fixed_limit(10));
    let mut one = share_client(1, 1);
    let beat = one.next_heartbeat(Nanos(100), &high_demand(0));
    let grant = store.expect_grant(7, &beat);
    one.apply_grant(Nanos(120), &grant);
    assert_eq!(one.usable_share(Nanos(129)), Share(10));
    assert_eq!(one.usable_share(Nanos(130)), Share(0));
    assert!(!one.fence(Nanos(129)) && one.fence(Nanos(130)) && !one.fence(Nanos(131)), "seen once");
    assert_eq!((one.fences(), one.coordinator_incarnation(Nanos(130))), (1, None));
}

#[test]
fn a_reply_after_the_fence_is_ignored() {
    let mut store = Store::new(fixed_limit(10));
    let mut one = share_client(1, 1);
    store.round_trip(0, &mut one, &high_demand(0));
    let beat = one.next_heartbeat(Nanos(29), &high_demand(9));
    let grant = store.expect_grant(29, &beat);
    assert_eq!(one.apply_grant(Nanos(30), &grant), GrantOutcome::Ignored);
    assert_eq!(one.usable_share(Nanos(30)), Share(0));
}

#[test]
fn lost_replicas_exposure_is_reserved_until_requests_end() {
    let mut store = Store::new(fixed_limit(10));
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
    let mut store = Store::new(with_max_duration(before, fixed_limit(10)));
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
    let mut store = Store::new(fixed_limit(10));
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
    let mut store = Store::new(with_max_duration(before, fixed_limit(10)));
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
fn leaving_replica_is_reserved_until_its_requests_end() {
    assert_eq!(reserved_after_leaving_until(30, 5), 66);
    assert_eq!(reserved_after_leaving_until(30, 30), 31, "it admits nothing after 1");
    assert_eq!(reserved_after_leaving_until(5, 30), 31);
}

#[test]
fn drained_replica_frees_its_share_at_once() {
    let mut store = Store::new(fixed_limit(10));
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
    let mut store = Store::new(fixed_limit(10));
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
    let mut store = Store::new(fixed_limit(10));
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
    let mut store = Store::new(fixed_limit(10));
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
    let mut store = Store::new(fixed_limit(10));
    let mut one = share_client(1, 1);
    let beat = one.next_heartbeat(Nanos(0), &high_demand(0));
    let grant = store.expect_grant(0, &beat);
    one.last_heartbeat(Nanos(1), Share(0));
    one.cancel_leave();
    assert_eq!(one.apply_grant(Nanos(1), &grant), GrantOutcome::Ignored);
    assert_eq!(one.usable_share(Nanos(1)), Share(0));
}

/// Loses all state at `now` and starts incarnation 2.
fn lose_state(store: &mut Store, now: u64) {
    store.life = CoordinatorIncarnation::start(Incarnation(2), Nanos(now));
}

#[test]
fn after_data_loss_grants_are_limited_to_reported_shares() {
    let mut store = Store::new(fixed_limit(10));
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
    use sluicegate::kernel::coordinator::incarnation::IncarnationRecord;
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
    let mut store = Store::new(law);
    let mut one = share_client(1, 1);
    store.round_trip(0, &mut one, &high_demand(0));
    store.law.start = Share(400);
    lose_state(&mut store, 10);
    store.round_trip(11, &mut one, &high_demand(0));
    assert_eq!(store.coordinator.limit(), Share(10));
}

#[test]
fn stale_coordinator_state_is_reported_as_lost() {
    let mut store = Store::new(fixed_limit(10));
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
    let mut store = Store::new(fixed_limit(10));
    let (mut lost, mut other) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(1_000, &mut lost, &high_demand(0));
    assert_eq!(store.round_trip(10, &mut other, &high_demand(0)), Share(0));
    assert_eq!(store.coordinator.latest_time, Nanos(1_000));
    assert_eq!(store.round_trip(1_065, &mut other, &high_demand(0)), Share(0));
}

#[test]
fn share_granted_during_a_clock_step_keeps_its_lifetime() {
    let mut store = Store::new(fixed_limit(10));
    let (mut one, mut two) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(1_000, &mut one, &high_demand(0));
    assert_eq!(store.round_trip(10, &mut one, &high_demand(0)), Share(10));
    assert_eq!(
        store.round_trip(1_010, &mut two, &high_demand(0)),
        Share(0),
        "the clock is right again"
    );
}

#[test]
fn grants_never_exceed_a_lowered_limit() {
    let mut store = Store::new(fixed_limit(10));
    let (mut one, mut two) = (share_client(1, 1), share_client(2, 1));
    for now in 0..4 {
        store.round_trip(now, &mut one, &high_demand(5));
        store.round_trip(now, &mut two, &high_demand(5));
    }
    let idle = two.next_heartbeat(Nanos(8), &exact_demand(0));
    store.expect_grant(8, &idle);
    store.law = fixed_limit(4);
    assert_eq!(
        store.round_trip(10, &mut one, &high_demand(3)),
        Share(3),
        "the other wanted little"
    );
    assert_eq!(
        store.round_trip(10, &mut two, &high_demand(5)),
        Share(1),
        "it holds 5 still, and wants more"
    );
}

#[test]
fn replica_that_passes_on_its_permit_waits_behind_earlier_waiters() {
    let mut store = Store::new(fixed_limit(2));
    let mut fleet: Vec<ShareClient> = (1..4).map(|id| share_client(id, 1)).collect();
    for now in 0..9 {
        for one in &mut fleet {
            store.round_trip(now, one, &high_demand(0));
        }
    }
    let waits = fleet.iter().position(|one| one.usable_share(Nanos(8)) == Share(0)).unwrap();
    let mut first = fleet.remove(waits);
    // All replicas report. From 40 on, the two replicas with a permit must pass it to waiting
    // replicas.
    for one in fleet.iter_mut().chain([&mut first]) {
        store.round_trip(30, one, &high_demand(0));
    }
    assert_eq!(store.round_trip(50, &mut fleet[1], &high_demand(0)), Share(0), "makes way");
    assert_eq!(store.round_trip(51, &mut fleet[1], &high_demand(0)), Share(0), "and comes behind");
    assert_eq!(store.round_trip(52, &mut first, &high_demand(0)), Share(1));
}

/// Two replicas with shares of 5. The first has 5 requests in flight, the second `others`.
/// Then the limit falls from 10 to 4.
fn lowered_limit(others: u64) -> (Store, ShareClient, ShareClient) {
    let mut store = Store::new(fixed_limit(10));
    let (mut one, mut two) = (share_client(1, 1), share_client(2, 1));
    for now in 0..4 {
        store.round_trip(now, &mut one, &high_demand(if now == 0 { 0 } else { 5 }));
        store.round_trip(now, &mut two, &high_demand(if now == 0 { 0 } else { others }));
    }
    store.law = fixed_limit(4);
    (store, one, two)
}

#[test]
fn lowered_limit_lowers_shares_to_fair_shares() {
    let (mut store, mut one, mut two) = lowered_limit(5);
    assert_eq!(store.round_trip(10, &mut one, &high_demand(2)), Share(2));
    assert_eq!(store.round_trip(10, &mut two, &high_demand(5)), Share(2));
}

#[test]
fn requests_above_a_lowered_share_are_not_replaced_elsewhere() {
    let (mut store, mut one, mut two) = lowered_limit(0);
    assert_eq!(store.round_trip(10, &mut one, &high_demand(5)), Share(2));
    assert_eq!(store.round_trip(10, &mut two, &high_demand(0)), Share(0), "5 are in flight, of 4");
    assert_eq!(store.round_trip(11, &mut one, &high_demand(3)), Share(2));
    assert_eq!(store.round_trip(11, &mut two, &high_demand(0)), Share(1), "3 of 4");
    assert_eq!(store.round_trip(12, &mut one, &high_demand(2)), Share(2));
    assert_eq!(store.round_trip(12, &mut two, &high_demand(1)), Share(2));
}

#[test]
fn share_without_other_demand_is_kept() {
    let mut store = Store::new(fixed_limit(10));
    let (mut one, mut two) = (share_client(1, 1), share_client(2, 1));
    store.round_trip(0, &mut one, &exact_demand(7));
    store.round_trip(0, &mut two, &exact_demand(0));
    assert_eq!(
        store.round_trip(1, &mut one, &exact_demand(1)),
        Share(5),
        "for the other to show demand with"
    );
    store.round_trip(2, &mut one, &exact_demand(1));
    assert_eq!(store.round_trip(3, &mut two, &exact_demand(0)), Share(5));
    assert_eq!(store.round_trip(4, &mut one, &exact_demand(9)), Share(5));
    assert_eq!(store.round_trip(5, &mut two, &exact_demand(0)), Share(1), "nine are wanted there");
    store.round_trip(6, &mut two, &exact_demand(0));
    assert_eq!(store.round_trip(7, &mut one, &exact_demand(9)), Share(9));
    assert_eq!(store.round_trip(8, &mut one, &exact_demand(1)), Share(9), "nobody is short of it");
}

#[test]
fn handoffs_make_heartbeats_due_early() {
    let mut store = Store::new(fixed_limit(10));
    let (mut one, mut two) = (share_client(1, 1), share_client(2, 1));
    assert_eq!(two.next_heartbeat_at(Nanos(3), &high_demand(0)), Nanos(3), "cold: at once");
    store.round_trip(0, &mut one, &high_demand(0));
    assert_eq!(one.next_heartbeat_at(Nanos(0), &high_demand(10)), Nanos(10), "content");
    store.round_trip(0, &mut two, &high_demand(0));
    assert_eq!(
        two.next_heartbeat_at(Nanos(0), &high_demand(0)),
        Nanos(1),
        "capped below its fair part"
    );
    assert_eq!(two.next_heartbeat_at(Nanos(0), &exact_demand(0)), Nanos(10), "but wants nothing");
    store.round_trip(10, &mut one, &high_demand(10));
    assert_eq!(
        one.next_heartbeat_at(Nanos(10), &high_demand(10)),
        Nanos(11),
        "a lowered share was applied"
    );
    store.round_trip(11, &mut one, &high_demand(10));
    assert_eq!(one.next_heartbeat_at(Nanos(12), &high_demand(6)), Nanos(21), "not drained yet");
    assert_eq!(one.next_heartbeat_at(Nanos(12), &high_demand(5)), Nanos(11), "drained");
    one.next_heartbeat(Nanos(12), &high_demand(5));
    assert_eq!(
        one.next_heartbeat_at(Nanos(13), &high_demand(5)),
        Nanos(22),
        "its answer is under way"
    );
}

#[test]
fn heartbeats_align_to_the_coordinators_clock() {
    let slow = ShareTiming { heartbeat: Nanos(100), share_lifetime: Nanos(1_000), ..timing() };
    let mut store = Store::new(CoordinatorConfig { timing: slow, ..fixed_limit(10) });
    let mut one = ShareClient::new(ReplicaId(1), Incarnation(1), slow);
    store.round_trip(1_000, &mut one, &high_demand(0));
    assert_eq!(
        one.next_heartbeat_at(Nanos(1_000), &high_demand(10)),
        Nanos(1_100),
        "nobody's clock but its own"
    );
    // The replica's clock reads 1,020 when the coordinator's reads 47, so the coordinator's 90 is
    // 1,063 here.
    let clock = ClockReading { local_time: Nanos(1_020), coordinator_time: Nanos(47) };
    one.set_clock(clock);
    assert_eq!(one.next_heartbeat_at(Nanos(1_000), &high_demand(10)), Nanos(1_063));
    store.round_trip(1_063, &mut one, &high_demand(10));
    assert_eq!(one.next_heartbeat_at(Nanos(1_063), &high_demand(10)), Nanos(1_153));
    store.round_trip(1_080, &mut one, &high_demand(10));
    assert_eq!(
        one.next_heartbeat_at(Nanos(1_080), &high_demand(10)),
        Nanos(1_153),
        "an early one puts nothing off"
    );
    // A new reading puts the coordinator's clock back by 1. The next heartbeat is still not due at
    // once.
    store.round_trip(1_153, &mut one, &high_demand(10));
    one.set_clock(ClockReading { local_time: Nanos(1_153), coordinator_time: Nanos(179) });
    assert_eq!(one.next_heartbeat_at(Nanos(1_153), &high_demand(10)), Nanos(1_244));
    one.next_heartbeat(Nanos(1_250), &high_demand(10));
    assert_eq!(
        one.next_heartbeat_at(Nanos(1_250), &high_demand(10)),
        Nanos(1_350),
        "its answer is under way"
    );
}

#[test]
fn heartbeats_that_gain_no_permits_back_off_exponentially() {
    let mut store = Store::new(fixed_limit(10));
    let slow = ShareTiming { heartbeat: Nanos(100), share_lifetime: Nanos(1_000), ..timing() };
    let mut one = ShareClient::new(ReplicaId(1), Incarnation(1), slow);
    let mut two = ShareClient::new(ReplicaId(2), Incarnation(1), slow);
    store.law.timing = slow;
    store.round_trip(0, &mut one, &high_demand(0));
    let mut now = 0;
    let mut waits = Vec::new();
    for _ in 0..70 {
        store.round_trip(now, &mut two, &high_demand(0));
        let due = two.next_heartbeat_at(Nanos(now), &high_demand(0)).0;
        waits.push(due - now);
        now = due;
    }
    assert!(waits[..64].iter().all(|wait| *wait == 5), "prompt for three heartbeats: {waits:?}");
    assert_eq!(waits[64..], [10, 20, 40, 80, 100, 100]);
}

#[test]
fn a_heartbeat_repeats_the_newest_grant() {
    let mut store = Store::new(fixed_limit(10));
    let mut one = share_client(1, 1);
    store.round_trip(0, &mut one, &high_demand(0));
    let again = one.next_heartbeat(Nanos(1), &high_demand(2));
    let holds = GrantInUse {
        coordinator_incarnation: Incarnation(1),
        generation: Generation(1),
        share: Share(10),
        limit: Share(10),
    };
    assert_eq!((again.number, again.grant_in_use, again.in_flight), (2, Some(holds), Share(2)));
    let grant = store.expect_grant(1, &again);
    assert_eq!(grant.generation, Generation(1), "the same share has the same number");
}
