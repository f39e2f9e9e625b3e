//! Handoff of shares between replicas, and expiry of shares.

mod data_loss;
mod leaving;

use sluicegate_kernel::coordinator::message::GrantInUse;
use sluicegate_kernel::coordinator::share_client::GrantOutcome;
use sluicegate_kernel::coordinator::{
    ClockReading, CoordinatorConfig, HeartbeatReply, ShareClient, ShareTiming,
};
use sluicegate_kernel::units::{Generation, Incarnation, Nanos, ReplicaId, Share};

use super::{LimitCoordinator, exact_demand, fixed_limit, high_demand, share_client, timing};

#[test]
fn share_moves_only_after_acknowledgement_and_drain() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
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
    let mut store = LimitCoordinator::new(fixed_limit(10));
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
    let mut store = LimitCoordinator::new(fixed_limit(10));
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
    let mut store = LimitCoordinator::new(fixed_limit(10));
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
    let mut store = LimitCoordinator::new(fixed_limit(10));
    let mut one = share_client(1, 1);
    store.round_trip(0, &mut one, &high_demand(0));
    let beat = one.next_heartbeat(Nanos(29), &high_demand(9));
    let grant = store.expect_grant(29, &beat);
    assert_eq!(one.apply_grant(Nanos(30), &grant), GrantOutcome::Ignored);
    assert_eq!(one.usable_share(Nanos(30)), Share(0));
}

#[test]
fn grants_never_exceed_a_lowered_limit() {
    let mut store = LimitCoordinator::new(fixed_limit(10));
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
    let mut store = LimitCoordinator::new(fixed_limit(2));
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
fn lowered_limit(others: u64) -> (LimitCoordinator, ShareClient, ShareClient) {
    let mut store = LimitCoordinator::new(fixed_limit(10));
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
    let mut store = LimitCoordinator::new(fixed_limit(10));
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
    let mut store = LimitCoordinator::new(fixed_limit(10));
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
    let mut store = LimitCoordinator::new(CoordinatorConfig { timing: slow, ..fixed_limit(10) });
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
    let mut store = LimitCoordinator::new(fixed_limit(10));
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
    let mut store = LimitCoordinator::new(fixed_limit(10));
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
