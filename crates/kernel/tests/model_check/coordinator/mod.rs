//! Explores every interleaving of the share protocol in small models, with the kernel's functions
//! as steps.
//!
//! `spec/Coordinator.tla` verifies the same properties in TLA+. A model has two replicas, a limit
//! of one or two, and two or three heartbeats of each replica. A message may arrive late, twice,
//! out of order or never; with `late: false`, in time or never.

mod model;

use model::{Leaving, Reserve, ShareModel, StoreFlaw};
use stateright::{Checker, Model};

/// Explores all states of a model. Their number is pinned, because a smaller model would pass too
/// easily.
fn explore(model: ShareModel, states: usize) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), states, "states");
}

/// Asserts that a model with an omitted rule breaks `property`.
fn assert_violates(model: ShareModel, property: &'static str) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_any_discovery(property);
}

#[test]
fn share_moves_despite_lost_late_and_repeated_messages() {
    explore(
        ShareModel { beats: &[3, 2], must: &["a share moves"], ..ShareModel::default() },
        19_481,
    );
}

#[test]
fn paused_replica_is_fenced_before_its_share_moves() {
    let must: &[&str] = &["a fence happens", "a share moves to another"];
    let model = ShareModel { ticks: 5, lag: 2, late: false, beats: &[1, 1], ..ShareModel::one() };
    explore(ShareModel { must, ..model }, 12_094);
}

#[test]
fn replica_restart_while_its_requests_continue_keeps_the_limit() {
    let model = ShareModel { lives: 2, ticks: 5, late: false, beats: &[1, 1], ..ShareModel::one() };
    explore(ShareModel { must: &["a share moves to another"], ..model }, 21_003);
}

#[test]
fn coordinator_without_state_grants_only_shares_that_replicas_report() {
    let shares = ShareModel { losses: 1, requests: false, ..ShareModel::one() };
    explore(ShareModel { beats: &[2, 2], ..shares.clone() }, 38_064);
    let must: &[&str] = &["an amnesia is survived"];
    explore(ShareModel { beats: &[3, 2], late: false, must, ..shares }, 5_328);
}

#[test]
fn lost_coordinator_state_and_replica_restart_keep_the_limit() {
    let model =
        ShareModel { losses: 1, lives: 2, late: false, beats: &[2, 2], ..ShareModel::one() };
    explore(model, 32_829);
}

#[test]
fn leaving_replica_counts_until_its_requests_end() {
    let model = ShareModel {
        leaving: Leaving::InOrder,
        lives: 2,
        late: false,
        beats: &[3, 2],
        ..ShareModel::one()
    };
    explore(ShareModel { must: &["a share moves to another"], ..model }, 115_287);
}

#[test]
fn leaving_and_rejoining_replica_keeps_the_limit() {
    let model = ShareModel { leaving: Leaving::ForAWhile, late: false, ..ShareModel::one() };
    explore(ShareModel { beats: &[3, 2], must: &["a share moves to another"], ..model }, 6_363);
}

#[test]
fn permits_in_use_never_rise_after_the_limit_decreases() {
    let must: &[&str] = &["more is in use than a lowered ceiling", "a raised ceiling is used"];
    explore(
        ShareModel { moves: &[1, 2], must, late: false, beats: &[3, 2], ..ShareModel::default() },
        71_527,
    );
}

#[test]
fn share_moves_after_requests_of_an_earlier_max_duration() {
    let model = ShareModel { lasts: &[3, 0], lives: 2, ticks: 4, late: false, ..ShareModel::one() };
    explore(ShareModel { beats: &[1, 1], must: &["a share moves to another"], ..model }, 82_743);
}

/// The names of the properties that a store without slack has: the limit is the least upper bound
/// of the shares and of the requests in flight.
const TIGHT: &[&str] = &["the shares reach the limit", "what is in flight reaches the limit"];

#[test]
fn the_whole_limit_is_granted_and_used() {
    for ceiling in [1, 2] {
        let model = ShareModel { ceiling, late: false, must: TIGHT, ..ShareModel::default() };
        model.checker().threads(2).spawn_bfs().join().assert_properties();
    }
}

#[test]
fn a_store_with_one_permit_less_never_reaches_the_limit() {
    let store = StoreFlaw::OneLess;
    let model = ShareModel { store, late: false, must: TIGHT, ..ShareModel::default() };
    let checker = model.checker().threads(2).spawn_bfs().join();
    for property in TIGHT {
        assert!(checker.discovery(property).is_none(), "{property}, with one permit less");
    }
}

#[test]
fn each_omitted_reserve_exceeds_the_limit() {
    let in_time = ShareModel { late: false, ..ShareModel::default() };
    let (moving, pausing) = (
        ShareModel { beats: &[3, 2], ..in_time.clone() },
        ShareModel { ticks: 5, lag: 2, beats: &[1, 1], ceiling: 1, ..in_time.clone() },
    );
    for reserve in Reserve::ALL {
        let (model, property) = match reserve {
            Reserve::Confirmed | Reserve::Granted => (moving.clone(), "the shares fit"),
            Reserve::InFlight => (moving.clone(), "what is in flight fits"),
            Reserve::Lifetime => (pausing.clone(), "the shares fit"),
            Reserve::MaxDuration => (pausing.clone(), "what is in flight fits"),
            Reserve::EarlierRequests => {
                // The replica reports once after the reload, and its request is still in flight.
                let reloading = ShareModel {
                    lasts: &[3, 0],
                    beats: &[2, 1],
                    ticks: 6,
                    lag: 1,
                    ..pausing.clone()
                };
                reloading.clone().checker().threads(2).spawn_bfs().join().assert_properties();
                (reloading, "what is in flight fits")
            }
        };
        println!("{reserve:?}");
        assert_violates(ShareModel { store: StoreFlaw::Omits(reserve), ..model }, property);
    }
}

#[test]
fn each_omitted_rule_of_the_share_protocol_violates_a_property() {
    let trusting = ShareModel { losses: 1, trusts: true, requests: false, ..ShareModel::one() };
    assert_violates(trusting, "the shares fit");
    let slow = ShareModel { ticks: 5, lag: 3, late: false, beats: &[1, 1], ..ShareModel::one() };
    assert_violates(slow, "what is in flight fits");
    let silent =
        ShareModel { leaving: Leaving::Hiding, late: false, beats: &[3, 2], ..ShareModel::one() };
    assert_violates(silent, "what is in flight fits");
}
