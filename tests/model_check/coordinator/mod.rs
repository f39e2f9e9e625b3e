//! Explores every interleaving of the share protocol in small models, with the kernel's functions
//! as steps.
//!
//! `spec/Coordinator.tla` verifies the same properties in TLA+. A model has two replicas, a limit
//! of one or two, and two or three heartbeats of each replica. A message may arrive late, twice,
//! out of order or never; with `late: false`, in time or never.

mod model;

use model::{Leaving, Twin};
use stateright::{Checker, Model};

/// Explores all states of a model. Their number is pinned, because a smaller model would pass too
/// easily.
fn explore(twin: Twin, states: usize) {
    let checker = twin.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), states, "states");
}

/// Asserts that a model with an omitted rule breaks `property`.
fn assert_violates(twin: Twin, property: &'static str) {
    let checker = twin.checker().threads(2).spawn_bfs().join();
    checker.assert_any_discovery(property);
}

#[test]
fn share_moves_despite_lost_late_and_repeated_messages() {
    explore(Twin { beats: &[3, 2], must: &["a share moves"], ..Twin::default() }, 19_481);
}

#[test]
fn paused_replica_is_fenced_before_its_share_moves() {
    let must: &[&str] = &["a fence happens", "a share moves to another"];
    let twin = Twin { ticks: 5, lag: 2, late: false, beats: &[1, 1], ..Twin::one() };
    explore(Twin { must, ..twin }, 12_094);
}

#[test]
fn crashed_replica_rejoins_while_its_requests_continue() {
    let twin = Twin { lives: 2, ticks: 5, late: false, beats: &[1, 1], ..Twin::one() };
    explore(Twin { must: &["a share moves to another"], ..twin }, 21_003);
}

#[test]
fn coordinator_without_state_grants_only_shares_that_replicas_report() {
    let shares = Twin { losses: 1, requests: false, ..Twin::one() };
    explore(Twin { beats: &[2, 2], ..shares.clone() }, 38_064);
    let must: &[&str] = &["an amnesia is survived"];
    explore(Twin { beats: &[3, 2], late: false, must, ..shares }, 5_328);
}

#[test]
fn lost_coordinator_state_and_replica_restart_keep_the_limit() {
    let twin = Twin { losses: 1, lives: 2, late: false, beats: &[2, 2], ..Twin::one() };
    explore(twin, 32_829);
}

#[test]
fn leaving_replica_counts_until_its_requests_end() {
    let twin =
        Twin { leaving: Leaving::InOrder, lives: 2, late: false, beats: &[3, 2], ..Twin::one() };
    explore(Twin { must: &["a share moves to another"], ..twin }, 115_287);
}

#[test]
fn leaving_and_rejoining_replica_keeps_the_limit() {
    let twin = Twin { leaving: Leaving::ForAWhile, late: false, ..Twin::one() };
    explore(Twin { beats: &[3, 2], must: &["a share moves to another"], ..twin }, 6_363);
}

#[test]
fn permits_in_use_never_rise_after_the_limit_decreases() {
    let must: &[&str] = &["more is in use than a lowered ceiling", "a raised ceiling is used"];
    explore(Twin { moves: &[1, 2], must, late: false, beats: &[3, 2], ..Twin::default() }, 71_527);
}

#[test]
fn share_moves_after_requests_of_an_earlier_max_duration() {
    let twin = Twin { lasts: &[3, 0], lives: 2, ticks: 4, late: false, ..Twin::one() };
    explore(Twin { beats: &[1, 1], must: &["a share moves to another"], ..twin }, 82_743);
}

#[test]
fn each_omitted_rule_of_the_share_protocol_violates_a_property() {
    let trusting = Twin { losses: 1, trusts: true, requests: false, ..Twin::one() };
    assert_violates(trusting, "the shares fit");
    let slow = Twin { ticks: 5, lag: 3, late: false, beats: &[1, 1], ..Twin::one() };
    assert_violates(slow, "what is in flight fits");
    let silent = Twin { leaving: Leaving::Hiding, late: false, beats: &[3, 2], ..Twin::one() };
    assert_violates(silent, "what is in flight fits");
}
