//! How a share moves from one member to another, and when one ends.

use sluicegate::kernel::coordinator::member::{Applied, Load};
use sluicegate::kernel::coordinator::message::Holding;
use sluicegate::kernel::coordinator::{Law, Life, Member, Reading, Reply, Terms};
use sluicegate::kernel::units::{Generation, Incarnation, MemberId, Nanos, Share};

use super::{Store, fixed, hungry, member, terms, uses};

#[test]
fn a_share_moves_only_after_it_was_let_go_and_is_out_of_use() {
    let mut store = Store::new(fixed(10));
    let (mut old, mut new) = (member(1, 1), member(2, 1));
    assert_eq!(store.round(0, &mut old, &hungry(0)), Share(10));
    assert_eq!(store.round(5, &mut new, &hungry(0)), Share(0), "all is held");
    assert_eq!(store.round(10, &mut old, &hungry(10)), Share(5));
    assert_eq!(store.round(11, &mut new, &hungry(0)), Share(0), "not acknowledged");
    assert_eq!(store.round(12, &mut old, &hungry(8)), Share(5));
    assert_eq!(store.round(13, &mut new, &hungry(0)), Share(2), "8 are in flight still");
    assert_eq!(store.round(14, &mut old, &hungry(5)), Share(5));
    assert_eq!(store.round(15, &mut new, &hungry(2)), Share(5));
}

#[test]
fn late_and_doubled_heartbeats_change_nothing() {
    let mut store = Store::new(fixed(10));
    let mut one = member(1, 1);
    let first = one.beat(Nanos(0), &hungry(0));
    let second = one.beat(Nanos(1), &hungry(3));
    store.granted(2, &second);
    let state = store.coordinator.clone();
    assert_eq!(store.hear(2, &first), Reply::Late);
    assert_eq!(store.hear(2, &second), Reply::Late);
    assert_eq!(store.coordinator, state);
}

#[test]
fn the_answer_to_any_heartbeat_but_the_newest_is_void() {
    let mut store = Store::new(fixed(10));
    let mut one = member(1, 1);
    let first = one.beat(Nanos(0), &hungry(0));
    let late = store.granted(0, &first);
    let second = one.beat(Nanos(1), &hungry(0));
    assert_eq!(one.on_grant(Nanos(1), &late), Applied::Late);
    let grant = store.granted(2, &second);
    assert_eq!(one.on_grant(Nanos(2), &grant), Applied::From(Share(0)));
    assert_eq!(one.on_grant(Nanos(2), &grant), Applied::Late, "doubled");
}

#[test]
fn a_share_is_over_at_term_less_margin_after_its_heartbeat_was_sent_and_not_a_tick_later() {
    let mut store = Store::new(fixed(10));
    let mut one = member(1, 1);
    let beat = one.beat(Nanos(100), &hungry(0));
    let grant = store.granted(7, &beat);
    one.on_grant(Nanos(120), &grant);
    assert_eq!(one.in_force(Nanos(129)), Share(10));
    assert_eq!(one.in_force(Nanos(130)), Share(0));
    assert!(!one.fence(Nanos(129)) && one.fence(Nanos(130)) && !one.fence(Nanos(131)), "seen once");
    assert_eq!((one.fences(), one.under(Nanos(130))), (1, None));
}

#[test]
fn an_answer_that_finds_its_share_fenced_is_void() {
    let mut store = Store::new(fixed(10));
    let mut one = member(1, 1);
    store.round(0, &mut one, &hungry(0));
    let beat = one.beat(Nanos(29), &hungry(9));
    let grant = store.granted(29, &beat);
    assert_eq!(one.on_grant(Nanos(30), &grant), Applied::Late);
    assert_eq!(one.in_force(Nanos(30)), Share(0));
}

#[test]
fn a_lost_member_is_reserved_its_exposure_until_its_requests_have_ended() {
    let mut store = Store::new(fixed(10));
    let (mut lost, mut other) = (member(1, 1), member(2, 1));
    store.round(0, &mut lost, &hungry(0));
    store.round(1, &mut other, &hungry(0));
    // It reported nothing in flight and is not heard again. Term 36, requests of 30.
    assert_eq!(store.round(65, &mut other, &hungry(0)), Share(0));
    assert_eq!(store.round(66, &mut other, &hungry(0)), Share(10));
}

/// The same law with requests of at most `max_duration`.
fn lasting(max_duration: u64, law: Law) -> Law {
    Law { terms: Terms { max_duration: Nanos(max_duration), ..law.terms }, ..law }
}

/// Until when another is granted nothing that a lost member had. That one speaks at 0 under requests of `before`,
/// and at 1 and 2 too under those of `after` where it `hears` of them; the other speaks under these.
fn reserved_until(before: u64, after: u64, hears: bool) -> u64 {
    let mut store = Store::new(lasting(before, fixed(10)));
    let (mut lost, mut other) = (member(1, 1), member(2, 1));
    store.round(0, &mut lost, &hungry(0));
    store.law = lasting(after, store.law);
    for now in (1..3).filter(|_| hears) {
        assert_eq!(store.round(now, &mut lost, &hungry(10)), Share(10));
    }
    let rests_at = store.coordinator.rests_at(&store.law).0;
    let mut freed = |now: &u64| store.round(*now, &mut other, &hungry(0)) == Share(10);
    assert_eq!((3..200).find(&mut freed), Some(rests_at), "and then nothing of it is left");
    rests_at
}

#[test]
fn a_lost_member_is_reserved_what_it_admitted_while_requests_took_longer() {
    // Term 36. What it admitted before the reload may go on until 66.
    assert_eq!(reserved_until(30, 5, false), 66);
    assert_eq!(reserved_until(30, 5, true), 66, "it spoke of the shorter ones as well");
    assert_eq!(reserved_until(30, 29, true), 67, "2 + 36 + 29");
    // It may have been told what the others were, and not have said so.
    assert_eq!(reserved_until(5, 30, false), 66);
    assert_eq!(reserved_until(5, 30, true), 68);
}

#[test]
fn longer_requests_of_before_are_over_at_last_for_a_member_that_goes_on() {
    let mut store = Store::new(fixed(10));
    let (mut one, mut other) = (member(1, 1), member(2, 1));
    store.round(0, &mut one, &hungry(0));
    store.law = lasting(5, store.law);
    for now in [20, 40] {
        store.round(now, &mut one, &hungry(10));
    }
    assert_eq!(store.round(80, &mut other, &hungry(0)), Share(0));
    assert_eq!(store.round(81, &mut other, &hungry(0)), Share(10), "40 + 36 + 5");
}

/// The same of one that leaves at 1 with four in flight, and is not heard again.
fn reserved_after_leaving_until(before: u64, after: u64) -> u64 {
    let mut store = Store::new(lasting(before, fixed(10)));
    let (mut leaver, mut other) = (member(1, 1), member(2, 1));
    store.round(0, &mut leaver, &hungry(0));
    store.law = lasting(after, store.law);
    assert_eq!(store.hear(1, &leaver.leave(Nanos(1), Share(4))), Reply::Left);
    assert_eq!(store.round(2, &mut other, &hungry(0)), Share(6));
    (3..200).find(|now| store.round(*now, &mut other, &hungry(6)) == Share(10)).unwrap()
}

#[test]
fn a_member_that_leaves_is_reserved_what_it_admitted_while_requests_took_longer() {
    assert_eq!(reserved_after_leaving_until(30, 5), 66);
    assert_eq!(reserved_after_leaving_until(30, 30), 31, "it admits nothing after 1");
    assert_eq!(reserved_after_leaving_until(5, 30), 31);
}

#[test]
fn a_member_that_drained_in_order_frees_its_seat_at_once() {
    let mut store = Store::new(fixed(10));
    let (mut leaver, mut other) = (member(1, 1), member(2, 1));
    store.round(0, &mut leaver, &hungry(0));
    let draining = leaver.leave(Nanos(1), Share(4));
    assert_eq!(store.hear(1, &draining), Reply::Left);
    assert_eq!(leaver.in_force(Nanos(1)), Share(0));
    assert_eq!(store.round(2, &mut other, &hungry(0)), Share(6));
    let drained = leaver.beat(Nanos(3), &Load::default());
    assert_eq!(store.hear(3, &drained), Reply::Left);
    assert_eq!(store.round(4, &mut other, &hungry(6)), Share(10));
}

#[test]
fn a_member_that_comes_back_in_a_new_life_does_not_free_what_its_old_one_left() {
    let mut store = Store::new(fixed(10));
    let (mut old, mut new) = (member(1, 1), member(1, 2));
    store.round(0, &mut old, &hungry(0));
    assert_eq!(store.round(5, &mut new, &hungry(0)), Share(0));
    let late = old.beat(Nanos(6), &hungry(0));
    assert_eq!(store.hear(6, &late), Reply::Superseded);
    assert_eq!(store.round(65, &mut new, &hungry(0)), Share(0));
    assert_eq!(store.round(66, &mut new, &hungry(0)), Share(10));
}

#[test]
fn a_member_that_comes_back_before_its_leave_was_heard_has_its_seat_and_that_leave_frees_nothing() {
    let mut store = Store::new(fixed(10));
    let (mut one, mut other) = (member(1, 1), member(2, 1));
    assert_eq!(store.round(0, &mut one, &hungry(0)), Share(10));
    let leave = one.leave(Nanos(1), Share(0));
    one.come_back();
    assert_eq!(one.in_force(Nanos(1)), Share(0), "nothing, until it is granted anew");
    assert!(one.due(Nanos(1), &hungry(0)) <= Nanos(1), "which it asks for at once");
    assert_eq!(store.round(1, &mut one, &hungry(0)), Share(10));
    assert_eq!(store.hear(2, &leave), Reply::Late);
    assert_eq!(store.round(3, &mut other, &hungry(0)), Share(0));
}

#[test]
fn a_member_that_comes_back_after_its_leave_was_heard_has_what_others_left_and_what_is_in_flight_counts_once()
 {
    let mut store = Store::new(fixed(10));
    let (mut one, mut other) = (member(1, 1), member(2, 1));
    store.round(0, &mut one, &hungry(0));
    assert_eq!(store.hear(1, &one.leave(Nanos(1), Share(4))), Reply::Left);
    assert_eq!(store.round(2, &mut other, &hungry(0)), Share(6));
    one.come_back();
    assert_eq!(store.round(3, &mut one, &hungry(4)), Share(4), "the other has the rest");
    assert_eq!(store.coordinator.exposure(), Share(10));
}

#[test]
fn an_answer_from_before_a_leave_is_void_for_one_that_has_come_back() {
    let mut store = Store::new(fixed(10));
    let mut one = member(1, 1);
    let beat = one.beat(Nanos(0), &hungry(0));
    let grant = store.granted(0, &beat);
    one.leave(Nanos(1), Share(0));
    one.come_back();
    assert_eq!(one.on_grant(Nanos(1), &grant), Applied::Late);
    assert_eq!(one.in_force(Nanos(1)), Share(0));
}

/// A store that forgot everything at `now`, as life 2.
fn forgets(store: &mut Store, now: u64) {
    store.life = Life::begin(Incarnation(2), Nanos(now));
}

#[test]
fn after_a_loss_nobody_is_granted_more_than_it_proves_to_hold() {
    let mut store = Store::new(fixed(10));
    let (mut one, mut two) = (member(1, 1), member(2, 1));
    store.round(0, &mut one, &hungry(0));
    store.round(1, &mut one, &hungry(3));
    store.round(2, &mut two, &hungry(0));
    forgets(&mut store, 10);
    assert_eq!(store.round(11, &mut two, &hungry(0)), Share(0), "first to speak, holds nothing");
    assert_eq!(store.round(12, &mut one, &hungry(3)), Share(10));
    assert_eq!(one.under(Nanos(12)), Some(Incarnation(2)));
    // Neither term nor requests of the first life can go on after 10 + 36 + 30.
    assert_eq!(store.round(30, &mut one, &hungry(3)), Share(10));
    assert_eq!(store.round(55, &mut one, &hungry(3)), Share(10));
    assert_eq!(store.round(75, &mut two, &hungry(0)), Share(0));
    assert_eq!(store.round(76, &mut one, &hungry(3)), Share(5));
}

#[test]
fn the_grace_ends_when_every_live_record_is_under_this_life() {
    use sluicegate::kernel::coordinator::life::Record;
    let record = |id, under: Option<u64>| Record {
        member: MemberId(id),
        life: Incarnation(1),
        under: under.map(Incarnation),
    };
    let longest = terms().longest();
    let settles = |now, since, fleet: &[Record]| {
        let mut life = Life::begin(Incarnation(2), Nanos(100));
        life.settle(Nanos(now), longest, Nanos(since), fleet);
        !life.is_in_grace(Nanos(now), &terms())
    };
    assert!(settles(101, 0, &[record(1, Some(2)), record(2, Some(2))]));
    assert!(!settles(101, 0, &[record(1, Some(2)), record(2, Some(1))]));
    assert!(!settles(101, 0, &[record(1, Some(2)), record(2, None)]));
    assert!(!settles(165, 100, &[record(1, Some(2))]), "a table that was lost too");
    assert!(settles(166, 100, &[]), "term and max_duration have passed");
}

#[test]
fn a_ceiling_survives_the_loss_as_far_as_members_remember_it() {
    let law = Law { min: Share(1), max: Share(500), ..fixed(10) };
    let mut store = Store::new(law);
    let mut one = member(1, 1);
    store.round(0, &mut one, &hungry(0));
    store.law.start = Share(400);
    forgets(&mut store, 10);
    store.round(11, &mut one, &hungry(0));
    assert_eq!(store.coordinator.ceiling(), Share(10));
}

#[test]
fn a_store_that_fell_back_to_an_old_state_is_told_so() {
    let mut store = Store::new(fixed(10));
    let mut one = member(1, 1);
    let old = store.coordinator.clone();
    store.round(0, &mut one, &hungry(0));
    store.coordinator = old;
    store.coordinator.incarnation = Incarnation(1);
    let beat = one.beat(Nanos(1), &hungry(0));
    assert_eq!(beat.holds.unwrap().generation, Generation(1));
    assert_eq!(store.hear(1, &beat), Reply::Lost);
}

#[test]
fn a_clock_that_steps_back_ends_nothing_early() {
    let mut store = Store::new(fixed(10));
    let (mut lost, mut other) = (member(1, 1), member(2, 1));
    store.round(1_000, &mut lost, &hungry(0));
    assert_eq!(store.round(10, &mut other, &hungry(0)), Share(0));
    assert_eq!(store.coordinator.latest, Nanos(1_000));
    assert_eq!(store.round(1_065, &mut other, &hungry(0)), Share(0));
}

#[test]
fn a_seat_taken_while_the_clock_was_back_lasts_as_long_as_its_member_believes() {
    let mut store = Store::new(fixed(10));
    let (mut one, mut two) = (member(1, 1), member(2, 1));
    store.round(1_000, &mut one, &hungry(0));
    assert_eq!(store.round(10, &mut one, &hungry(0)), Share(10));
    assert_eq!(store.round(1_010, &mut two, &hungry(0)), Share(0), "the clock is right again");
}

#[test]
fn those_that_were_told_of_a_lower_ceiling_fit_below_it_together() {
    let mut store = Store::new(fixed(10));
    let (mut one, mut two) = (member(1, 1), member(2, 1));
    for now in 0..4 {
        store.round(now, &mut one, &hungry(5));
        store.round(now, &mut two, &hungry(5));
    }
    let idle = two.beat(Nanos(8), &uses(0));
    store.granted(8, &idle);
    store.law = fixed(4);
    assert_eq!(store.round(10, &mut one, &hungry(3)), Share(3), "the other wanted little");
    assert_eq!(store.round(10, &mut two, &hungry(5)), Share(1), "it holds 5 still, and wants more");
}

#[test]
fn who_made_way_does_not_take_back_what_the_first_in_line_waits_for() {
    let mut store = Store::new(fixed(2));
    let mut fleet: Vec<Member> = (1..4).map(|id| member(id, 1)).collect();
    for now in 0..9 {
        for one in &mut fleet {
            store.round(now, one, &hungry(0));
        }
    }
    let waits = fleet.iter().position(|one| one.in_force(Nanos(8)) == Share(0)).unwrap();
    let mut first = fleet.remove(waits);
    // All are heard, and the turns of the two that hold a permit are over after 40.
    for one in fleet.iter_mut().chain([&mut first]) {
        store.round(30, one, &hungry(0));
    }
    assert_eq!(store.round(50, &mut fleet[1], &hungry(0)), Share(0), "makes way");
    assert_eq!(store.round(51, &mut fleet[1], &hungry(0)), Share(0), "and comes behind");
    assert_eq!(store.round(52, &mut first, &hungry(0)), Share(1));
}

/// Two that want all have shares of 5, the first 5 in flight and the other as many as are given; then the ceiling of 10
/// falls to 4.
fn fallen(others: u64) -> (Store, Member, Member) {
    let mut store = Store::new(fixed(10));
    let (mut one, mut two) = (member(1, 1), member(2, 1));
    for now in 0..4 {
        store.round(now, &mut one, &hungry(if now == 0 { 0 } else { 5 }));
        store.round(now, &mut two, &hungry(if now == 0 { 0 } else { others }));
    }
    store.law = fixed(4);
    (store, one, two)
}

#[test]
fn a_falling_ceiling_lowers_each_to_its_part_and_none_below_it() {
    let (mut store, mut one, mut two) = fallen(5);
    assert_eq!(store.round(10, &mut one, &hungry(2)), Share(2));
    assert_eq!(store.round(10, &mut two, &hungry(5)), Share(2));
}

#[test]
fn while_requests_above_a_fallen_share_go_on_nobody_else_begins_some_in_their_place() {
    let (mut store, mut one, mut two) = fallen(0);
    assert_eq!(store.round(10, &mut one, &hungry(5)), Share(2));
    assert_eq!(store.round(10, &mut two, &hungry(0)), Share(0), "5 are in flight, of 4");
    assert_eq!(store.round(11, &mut one, &hungry(3)), Share(2));
    assert_eq!(store.round(11, &mut two, &hungry(0)), Share(1), "3 of 4");
    assert_eq!(store.round(12, &mut one, &hungry(2)), Share(2));
    assert_eq!(store.round(12, &mut two, &hungry(1)), Share(2));
}

#[test]
fn a_share_that_nobody_else_wants_is_kept() {
    let mut store = Store::new(fixed(10));
    let (mut one, mut two) = (member(1, 1), member(2, 1));
    store.round(0, &mut one, &uses(7));
    store.round(0, &mut two, &uses(0));
    assert_eq!(store.round(1, &mut one, &uses(1)), Share(5), "for the other to show demand with");
    store.round(2, &mut one, &uses(1));
    assert_eq!(store.round(3, &mut two, &uses(0)), Share(5));
    assert_eq!(store.round(4, &mut one, &uses(9)), Share(5));
    assert_eq!(store.round(5, &mut two, &uses(0)), Share(1), "nine are wanted there");
    store.round(6, &mut two, &uses(0));
    assert_eq!(store.round(7, &mut one, &uses(9)), Share(9));
    assert_eq!(store.round(8, &mut one, &uses(1)), Share(9), "nobody is short of it");
}

#[test]
fn a_heartbeat_is_due_early_when_it_makes_a_share_move_sooner() {
    let mut store = Store::new(fixed(10));
    let (mut one, mut two) = (member(1, 1), member(2, 1));
    assert_eq!(two.due(Nanos(3), &hungry(0)), Nanos(3), "cold: at once");
    store.round(0, &mut one, &hungry(0));
    assert_eq!(one.due(Nanos(0), &hungry(10)), Nanos(10), "content");
    store.round(0, &mut two, &hungry(0));
    assert_eq!(two.due(Nanos(0), &hungry(0)), Nanos(1), "capped below its fair part");
    assert_eq!(two.due(Nanos(0), &uses(0)), Nanos(10), "but wants nothing");
    store.round(10, &mut one, &hungry(10));
    assert_eq!(one.due(Nanos(10), &hungry(10)), Nanos(11), "a lowered share was applied");
    store.round(11, &mut one, &hungry(10));
    assert_eq!(one.due(Nanos(12), &hungry(6)), Nanos(21), "not drained yet");
    assert_eq!(one.due(Nanos(12), &hungry(5)), Nanos(11), "drained");
    one.beat(Nanos(12), &hungry(5));
    assert_eq!(one.due(Nanos(13), &hungry(5)), Nanos(22), "its answer is under way");
}

#[test]
fn those_who_know_the_coordinators_clock_speak_at_its_multiples_of_a_little_less_than_a_heartbeat()
{
    let slow = Terms { heartbeat: Nanos(100), term: Nanos(1_000), ..terms() };
    let mut store = Store::new(Law { terms: slow, ..fixed(10) });
    let mut one = Member::new(MemberId(1), Incarnation(1), slow);
    store.round(1_000, &mut one, &hungry(0));
    assert_eq!(one.due(Nanos(1_000), &hungry(10)), Nanos(1_100), "nobody's clock but its own");
    // Its 1,020 are the coordinator's 47: that one's 90 are its 1,063.
    let clock = Reading { here: Nanos(1_020), there: Nanos(47) };
    one.goes_by(clock);
    assert_eq!(one.due(Nanos(1_000), &hungry(10)), Nanos(1_063));
    store.round(1_063, &mut one, &hungry(10));
    assert_eq!(one.due(Nanos(1_063), &hungry(10)), Nanos(1_153));
    store.round(1_080, &mut one, &hungry(10));
    assert_eq!(one.due(Nanos(1_080), &hungry(10)), Nanos(1_153), "an early one puts nothing off");
    // Read anew, it is one behind: not at once again.
    store.round(1_153, &mut one, &hungry(10));
    one.goes_by(Reading { here: Nanos(1_153), there: Nanos(179) });
    assert_eq!(one.due(Nanos(1_153), &hungry(10)), Nanos(1_244));
    one.beat(Nanos(1_250), &hungry(10));
    assert_eq!(one.due(Nanos(1_250), &hungry(10)), Nanos(1_350), "its answer is under way");
}

#[test]
fn the_wait_between_fruitless_heartbeats_doubles_up_to_the_usual() {
    let mut store = Store::new(fixed(10));
    let slow = Terms { heartbeat: Nanos(100), term: Nanos(1_000), ..terms() };
    let mut one = Member::new(MemberId(1), Incarnation(1), slow);
    let mut two = Member::new(MemberId(2), Incarnation(1), slow);
    store.law.terms = slow;
    store.round(0, &mut one, &hungry(0));
    let mut now = 0;
    let mut waits = Vec::new();
    for _ in 0..70 {
        store.round(now, &mut two, &hungry(0));
        let due = two.due(Nanos(now), &hungry(0)).0;
        waits.push(due - now);
        now = due;
    }
    assert!(waits[..64].iter().all(|wait| *wait == 5), "prompt for three heartbeats: {waits:?}");
    assert_eq!(waits[64..], [10, 20, 40, 80, 100, 100]);
}

#[test]
fn a_heartbeat_says_what_the_newest_grant_said() {
    let mut store = Store::new(fixed(10));
    let mut one = member(1, 1);
    store.round(0, &mut one, &hungry(0));
    let again = one.beat(Nanos(1), &hungry(2));
    let holds = Holding {
        coordinator: Incarnation(1),
        generation: Generation(1),
        share: Share(10),
        ceiling: Share(10),
    };
    assert_eq!((again.number, again.holds, again.in_flight), (2, Some(holds), Share(2)));
    let grant = store.granted(1, &again);
    assert_eq!(grant.generation, Generation(1), "the same share has the same number");
}
