//! The coordinator's protocol, every interleaving of it, with the kernel's own functions as steps.
//!
//! What `spec/Coordinator.tla` says of a transcription is said here of the code. The worlds are
//! small: two members, a ceiling of one or two, two or three heartbeats each. Messages stay in the
//! network, so that each comes late, twice, out of order or never; where a world says so they come in time or never.

mod world;

use stateright::{Checker, Model};
use world::{Leaving, Twin};

/// Walks all of it; the number of states is pinned, so that a world that shrank is noticed.
fn walk(twin: Twin, states: usize) {
    let checker = twin.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert_eq!(checker.unique_state_count(), states, "states");
}

/// What is found when something is left out.
fn breaks(twin: Twin, property: &'static str) {
    let checker = twin.checker().threads(2).spawn_bfs().join();
    checker.assert_any_discovery(property);
}

#[test]
fn a_share_moves_between_members_whatever_happens_to_the_messages() {
    walk(Twin { beats: &[3, 2], must: &["a share moves"], ..Twin::default() }, 19_481);
}

#[test]
fn a_member_that_pauses_past_its_term_is_fenced_before_its_share_is_given_away() {
    let must: &[&str] = &["a fence happens", "a share moves to another"];
    let twin = Twin { ticks: 5, lag: 2, late: false, beats: &[1, 1], ..Twin::one() };
    walk(Twin { must, ..twin }, 12_094);
}

#[test]
fn a_member_that_crashes_leaves_its_requests_behind_and_comes_back() {
    let twin = Twin { lives: 2, ticks: 5, late: false, beats: &[1, 1], ..Twin::one() };
    walk(Twin { must: &["a share moves to another"], ..twin }, 21_003);
}

#[test]
fn a_coordinator_that_forgets_all_grants_nobody_more_than_it_holds() {
    let shares = Twin { losses: 1, requests: false, ..Twin::one() };
    walk(Twin { beats: &[2, 2], ..shares.clone() }, 38_064);
    let must: &[&str] = &["an amnesia is survived"];
    walk(Twin { beats: &[3, 2], late: false, must, ..shares }, 5_328);
}

#[test]
fn a_coordinator_that_forgets_while_a_member_comes_back_grants_neither_of_its_lives_more() {
    let twin = Twin { losses: 1, lives: 2, late: false, beats: &[2, 2], ..Twin::one() };
    walk(twin, 32_829);
}

#[test]
fn one_that_leaves_hands_its_share_on_and_is_counted_until_its_requests_have_ended() {
    let twin =
        Twin { leaving: Leaving::InOrder, lives: 2, late: false, beats: &[3, 2], ..Twin::one() };
    walk(Twin { must: &["a share moves to another"], ..twin }, 115_287);
}

#[test]
fn one_that_left_and_comes_back_has_one_seat_whether_anybody_heard_of_it_or_not() {
    let twin = Twin { leaving: Leaving::ForAWhile, late: false, ..Twin::one() };
    walk(Twin { beats: &[3, 2], must: &["a share moves to another"], ..twin }, 6_363);
}

#[test]
fn a_ceiling_that_falls_and_rises_is_never_exceeded_by_more_than_was_in_use() {
    let must: &[&str] = &["more is in use than a lowered ceiling", "a raised ceiling is used"];
    walk(Twin { moves: &[1, 2], must, late: false, beats: &[3, 2], ..Twin::default() }, 71_527);
}

#[test]
fn requests_of_a_member_that_crashed_are_waited_for_though_others_are_shorter_by_now() {
    let twin = Twin { lasts: &[3, 0], lives: 2, ticks: 4, late: false, ..Twin::one() };
    walk(Twin { beats: &[1, 1], must: &["a share moves to another"], ..twin }, 82_743);
}

#[test]
fn the_twin_notices_what_is_left_out() {
    let trusting = Twin { losses: 1, trusts: true, requests: false, ..Twin::one() };
    breaks(trusting, "the shares fit");
    let slow = Twin { ticks: 5, lag: 3, late: false, beats: &[1, 1], ..Twin::one() };
    breaks(slow, "what is in flight fits");
    let silent = Twin { leaving: Leaving::Hiding, late: false, beats: &[3, 2], ..Twin::one() };
    breaks(silent, "what is in flight fits");
}
