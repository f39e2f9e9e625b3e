//! The running sums over all share states.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sluicegate_kernel::coordinator::aggregate::LimitFactor;
use sluicegate_kernel::coordinator::share_client::LoadReport;
use sluicegate_kernel::coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorIncarnation, RunningSums, ShareClient, ShareTiming,
};
use sluicegate_kernel::units::{Incarnation, Nanos, Share};

use super::{LimitCoordinator, share_client, timing};

const REPLICAS: usize = 5;

/// One step of a random fleet.
#[derive(Clone, Debug)]
struct Step {
    replica: usize,
    wait: u64,
    load: LoadReport,
    change: Change,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    /// The reply to the heartbeat is lost.
    LostReply,
    Leave,
    Restart,
    /// The limit becomes static with this many permits.
    Limit(u64),
    MaxDuration(u64),
    LostState,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = prop_oneof![
        40 => Just(Change::Nothing),
        2 => Just(Change::LostReply),
        1 => Just(Change::Leave),
        1 => Just(Change::Restart),
        1 => (1..40_u64).prop_map(Change::Limit),
        1 => (0..60_u64).prop_map(Change::MaxDuration),
        1 => Just(Change::LostState),
    ];
    let wait = prop_oneof![9 => 0..5_u64, 1 => 0..80_u64];
    let vote = prop::option::of((0..3_u32 << 16).prop_map(LimitFactor));
    let step = (0..REPLICAS, wait, 0..12_u64, 0..12_u64, vote, change);
    let step = step.prop_map(|(replica, wait, in_flight, demand, vote, change)| Step {
        replica,
        wait,
        load: LoadReport {
            in_flight: Share(in_flight),
            demand: Share(demand),
            vote,
            ..LoadReport::default()
        },
        change,
    });
    prop::collection::vec(step, 200)
}

/// Applies one step. Time passes first.
fn run(store: &mut LimitCoordinator, fleet: &mut [ShareClient], now: &mut u64, step: &Step) {
    *now += step.wait;
    let client = &mut fleet[step.replica];
    match step.change {
        Change::Limit(limit) => {
            let limit = Share(limit);
            store.law = CoordinatorConfig { min: limit, start: limit, max: limit, ..store.law };
        }
        Change::MaxDuration(ticks) => {
            store.law.timing = ShareTiming { max_duration: Nanos(ticks), ..timing() };
        }
        Change::LostState => {
            let next = Incarnation(store.life.incarnation.0 + 1);
            store.life = CoordinatorIncarnation::start(next, Nanos(*now));
        }
        Change::Restart => {
            *now += 1;
            *client = share_client(step.replica as u64, 1 + *now);
        }
        Change::Leave => {
            store.apply_heartbeat(*now, &client.last_heartbeat(Nanos(*now), step.load.in_flight));
            client.cancel_leave();
            return;
        }
        Change::Nothing | Change::LostReply => {}
    }
    let heartbeat = client.next_heartbeat(Nanos(*now), &step.load);
    let grant = store.expect_grant(*now, &heartbeat);
    if !matches!(step.change, Change::LostReply) {
        client.apply_grant(Nanos(*now), &grant);
    }
}

/// The sums of exposure, need and used permits, and the numbers of replicas with demand, short of
/// permits and without a share.
fn sums(sums: &RunningSums) -> [u64; 6] {
    let RunningSums { exposure, need, used, with_demand, short, without_share, .. } = *sums;
    [exposure.0, need.0, used.0, with_demand, short, without_share]
}

/// The same sums, computed from all share states.
fn recomputed_sums(coordinator: &Coordinator) -> [u64; 6] {
    let (states, limit) = (&coordinator.share_states, coordinator.limit().0);
    let mut sums = [0; 6];
    for state in states {
        let (granted, need) = (state.granted.share.0, state.demand.0.min(limit));
        sums[0] += granted.max(state.confirmed.share.0).max(state.in_flight.0);
        sums[1] += need;
        let knows_limit = state.replied_limit.0 <= limit;
        sums[2] += if knows_limit { granted.max(state.in_flight.0) } else { 0 };
        sums[3] += u64::from(need != 0);
        sums[4] += u64::from(granted < need);
        sums[5] += u64::from(granted == 0);
    }
    sums
}

/// Asserts that the sums are exact and that no share state expires while they are valid.
fn assert_exact(coordinator: &Coordinator) {
    let (running, states) = (&coordinator.sums, &coordinator.share_states);
    let first_expiry = states.iter().map(|state| state.expires_at).min();
    let expiring = states.iter().filter(|state| state.expires_at < running.next_expiry);
    assert_eq!(running.limit, coordinator.limit());
    assert_eq!(sums(running), recomputed_sums(coordinator));
    assert!(Some(running.valid_until) <= first_expiry);
    assert!(expiring.count() as u64 <= running.expiring);
}

#[test]
fn running_sums_equal_the_sums_over_all_share_states() {
    let (valid_steps, all_steps) = (Cell::new(0), Cell::new(0));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) };
    let play = |steps: Vec<Step>| {
        let adaptive = CoordinatorConfig::new(timing(), Share(1), Share(20), Share(60)).unwrap();
        let (mut store, mut now) = (LimitCoordinator::new(adaptive), 0);
        let mut fleet: Vec<_> = (0..REPLICAS).map(|id| share_client(id as u64, 1)).collect();
        for step in &steps {
            run(&mut store, &mut fleet, &mut now, step);
            let coordinator = &store.coordinator;
            let votes = coordinator.share_states.iter().filter(|state| state.vote.is_some());
            assert_eq!(coordinator.vote_count, votes.count() as u64);
            all_steps.update(|count| count + 1);
            if coordinator.latest_time < coordinator.sums.valid_until {
                valid_steps.update(|count| count + 1);
                assert_exact(coordinator);
            }
        }
        Ok(())
    };
    TestRunner::new(config).run(&steps(), play).unwrap();
    let (valid, all) = (valid_steps.get(), all_steps.get());
    assert!(all < 3 * valid, "the sums were valid after {valid} of {all} steps");
}
