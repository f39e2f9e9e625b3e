//! The laws of the ledger, one by one.

use sluicegate::kernel::lease::ledger::{Ledger, Spend};
use sluicegate::kernel::lease::sizer::Size;
use sluicegate::kernel::lease::{Answer, Borrow, Number, early};
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::{Room, Step, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};

const NOW: Nanos = Nanos(5_000_000_000);
const TERM: Nanos = Nanos::SECOND;
const ROOM: Room = Room { remaining: Hits(7), reset_after: Nanos::SECOND };

fn after(millis: u64) -> Nanos {
    NOW.plus(Nanos(millis * 1_000_000))
}

fn ledger() -> Ledger {
    Ledger::new(Size::Fixed(Hits(10)), TERM, Hits(100))
}

fn grant(number: u64, granted: u64, kept: u64) -> Answer {
    Answer {
        number: Number(number),
        step: Step::Admit(ROOM),
        granted: Hits(granted),
        kept: Hits(kept),
        parked: Hits(0),
        good_for: TERM,
    }
}

fn denial(number: u64, wait: Nanos, parked: u64) -> Answer {
    let step = Step::Deny { retry_after: wait, room: ROOM };
    Answer { step, parked: Hits(parked), ..grant(number, 0, 0) }
}

fn ask(ledger: &mut Ledger, at: Nanos, number: u64, hits: u64) -> Borrow {
    ledger.borrow(at, Number(number), Hits(hits)).unwrap()
}

/// A ledger that was lent 10 at NOW.
fn lent() -> Ledger {
    let mut ledger = ledger();
    ask(&mut ledger, NOW, 1, 1);
    ledger.settle(NOW, &grant(1, 10, 0));
    ledger
}

#[test]
fn what_is_held_is_spent_without_asking_and_not_one_hit_more() {
    let mut ledger = lent();
    for _ in 0..5 {
        assert!(matches!(ledger.spend(NOW, Hits(2)), Spend::Spent(_)));
    }
    assert_eq!(ledger.spend(NOW, Hits(1)), Spend::Ask);
}

#[test]
fn a_grant_is_settled_once() {
    let mut ledger = lent();
    ledger.settle(NOW, &grant(1, 10, 0));
    assert_eq!(ledger.balance(NOW), Hits(10));
}

/// A ledger that was lent 10 at NOW, of which a question has 4 in hand.
fn lent_and_taken() -> Ledger {
    let mut ledger = lent();
    assert!(matches!(ledger.spend(NOW, Hits(4)), Spend::Spent(_)));
    ledger.hold(Hits(4));
    assert_eq!((ledger.balance(NOW), ledger.held(NOW)), (Hits(6), Hits(10)));
    ledger
}

#[test]
fn a_denial_that_came_while_something_was_in_hand_is_not_remembered() {
    for is_back in [false, true] {
        let mut ledger = lent_and_taken();
        let grip = ledger.grip();
        assert_eq!(ask(&mut ledger, NOW, 2, 11).held, Hits(4));
        if is_back {
            ledger.put_back(NOW, Hits(4), grip);
        }
        ledger.settle(NOW, &Answer { kept: Hits(4), ..denial(2, TERM, 0) });
        ledger.put_back(NOW, Hits(if is_back { 0 } else { 4 }), grip);
        assert_eq!(ledger.balance(NOW), Hits(4));
        // 7 are left, by the store's answer.
        assert_eq!(ledger.spend(NOW, Hits(11)), Spend::Ask);
    }
}

#[test]
fn what_is_in_hand_goes_with_no_message_and_is_good_for_as_long_as_the_last_answer_says() {
    let mut ledger = lent_and_taken();
    let grip = ledger.grip();
    let all = ledger.hand_back(after(500), Number(2)).unwrap();
    assert_eq!((all.held, all.returned), (Hits(4), Hits(6)));
    ledger.settle(after(500), &grant(2, 0, 4));
    let (good, over) = (after(500 + 997), after(500 + 998));
    assert_eq!((ledger.held(good), ledger.held(over)), (Hits(4), Hits(0)));
    for (at, left) in [(good, 4), (over, 0)] {
        let mut ledger = ledger;
        ledger.put_back(at, Hits(4), grip);
        assert_eq!(ledger.balance(at), Hits(left));
    }
}

#[test]
fn an_answer_to_a_message_given_up_is_ignored() {
    let mut ledger = ledger();
    ask(&mut ledger, NOW, 1, 1);
    ledger.lost(Number(1));
    ledger.settle(NOW, &grant(1, 10, 0));
    assert_eq!(ledger.balance(NOW), Hits(0));
    ask(&mut ledger, NOW, 2, 1);
    ledger.lost(Number(1));
    ledger.settle(NOW, &grant(1, 10, 0));
    assert_eq!(ledger.balance(NOW), Hits(0));
    ledger.settle(NOW, &grant(2, 4, 0));
    assert_eq!(ledger.balance(NOW), Hits(4));
}

#[test]
fn what_went_with_a_message_that_never_left_is_held_as_before_until_its_deadline() {
    type Write = fn(&mut Ledger) -> Option<Borrow>;
    let writes: [Write; 3] = [
        |ledger| ledger.borrow(after(100), Number(2), Hits(11)),
        |ledger| ledger.abandon(after(100), Number(2), TERM),
        |ledger| ledger.give_back(after(100), Number(2)),
    ];
    for write in writes {
        let mut ledger = lent();
        assert_eq!(write(&mut ledger).unwrap().returned, Hits(10));
        for _ in 0..2 {
            ledger.unsent(after(200), Number(2));
            assert_eq!(
                (ledger.balance(after(997)), ledger.balance(after(998))),
                (Hits(10), Hits(0))
            );
        }
        assert!(ledger.borrow(after(200), Number(3), Hits(11)).is_some(), "none is on its way");
    }
}

#[test]
fn nothing_comes_back_with_a_message_that_never_left_once_its_lease_is_over() {
    let mut ledger = lent();
    ask(&mut ledger, after(900), 2, 11);
    ledger.unsent(after(998), Number(2));
    assert_eq!(ledger.balance(after(998)), Hits(0));
    assert_eq!(ledger.expire(after(998)), Hits(0));
}

#[test]
fn nothing_comes_back_with_a_message_that_never_left_once_the_store_was_told_something_else() {
    let mut ledger = lent();
    ledger.abandon(NOW, Number(2), TERM).unwrap();
    assert_eq!(ask(&mut ledger, NOW, 3, 1).held, Hits(0));
    ledger.unsent(NOW, Number(2));
    assert_eq!(ledger.balance(NOW), Hits(0), "nothing is held, by what the store hears");
    ledger.settle(NOW, &grant(3, 4, 0));
    assert_eq!(ledger.balance(NOW), Hits(4), "nor was the other given up");
}

#[test]
fn what_went_with_a_message_that_may_have_left_does_not_come_back() {
    let mut ledger = lent();
    ask(&mut ledger, NOW, 2, 11);
    ledger.lost(Number(2));
    assert_eq!(ledger.balance(NOW), Hits(0));
}

#[test]
fn surplus_that_never_left_is_not_counted_as_unspent() {
    let mut told = learned(80);
    let mut untold = told;
    assert_eq!(told.abandon(NOW, Number(2), TERM).unwrap().returned, Hits(80));
    told.unsent(NOW, Number(2));
    let want = |ledger: &mut Ledger| ask(ledger, NOW, 3, 1).want;
    assert_eq!(want(&mut told), want(&mut untold));
}

#[test]
fn one_message_is_on_its_way_at_a_time() {
    let mut ledger = ledger();
    ask(&mut ledger, NOW, 1, 1);
    assert_eq!(ledger.borrow(NOW, Number(2), Hits(1)), None);
    assert_eq!(ledger.ahead(NOW, Number(3)), None);
    assert_eq!(ledger.surplus(NOW, Number(4)), None);
}

#[test]
fn a_lease_ends_early_counted_from_when_the_question_was_sent() {
    let mut ledger = ledger();
    ask(&mut ledger, NOW, 1, 1);
    ledger.settle(after(100), &grant(1, 10, 0));
    assert_eq!(ledger.balance(after(997)), Hits(10));
    assert_eq!(ledger.balance(after(998)), Hits(0), "998 ms of 1 s");
    assert_eq!(ledger.expire(after(998)), Hits(10));
    assert_eq!(ledger.spend(after(998), Hits(1)), Spend::Ask);
}

#[test]
fn an_answer_that_comes_after_its_lease_brings_nothing() {
    let mut ledger = ledger();
    ask(&mut ledger, NOW, 1, 1);
    ledger.settle(after(998), &grant(1, 10, 0));
    assert_eq!(ledger.balance(after(998)), Hits(0));
}

#[test]
fn early_is_two_thousandths_rounded_up() {
    for (good_for, used) in [(0, 0), (1, 0), (500, 499), (501, 499), (1_000, 998)] {
        assert_eq!(early(Nanos(good_for)), Nanos(used));
    }
}

#[test]
fn what_did_not_suffice_goes_back_with_the_question() {
    let mut ledger = lent();
    let borrow = ask(&mut ledger, NOW, 2, 11);
    let expected = (Hits(11), Hits(0), Hits(10), Number(1));
    assert_eq!((borrow.hits, borrow.held, borrow.returned, borrow.lease), expected);
    assert_eq!(ledger.balance(NOW), Hits(0), "it is gone before the message leaves");
}

#[test]
fn what_is_handed_back_is_all_in_a_message_that_asks_for_nothing_and_is_awaited() {
    let mut ledger = lent();
    let back = ledger.hand_back(NOW, Number(2)).unwrap();
    let expected = (Hits(0), Hits(0), Hits(0), Hits(10), Number(1));
    assert_eq!((back.hits, back.want, back.held, back.returned, back.lease), expected);
    assert_eq!(ledger.balance(NOW), Hits(0), "it is gone before the message leaves");
    assert_eq!(ledger.borrow(NOW, Number(3), Hits(1)), None, "others wait for its answer");
    ledger.settle(NOW, &grant(2, 0, 0));
    assert_eq!(ledger.hand_back(NOW, Number(3)), None, "there is nothing");
}

#[test]
fn more_is_asked_for_before_it_is_needed_and_what_is_held_stays_usable() {
    let mut ledger = lent();
    assert_eq!(ledger.ahead(NOW, Number(2)), None, "there is enough");
    ledger.spend(NOW, Hits(8));
    let borrow = ledger.ahead(NOW, Number(2)).unwrap();
    assert_eq!((borrow.hits, borrow.want, borrow.held), (Hits(0), Hits(10), Hits(2)));
    assert!(matches!(ledger.spend(NOW, Hits(1)), Spend::Spent(_)));
    ledger.settle(NOW, &grant(2, 10, 2));
    assert_eq!(ledger.balance(NOW), Hits(11));
}

#[test]
fn a_lease_is_renewed_two_round_trips_before_it_ends() {
    let mut ledger = ledger();
    ask(&mut ledger, NOW, 1, 1);
    ledger.settle(after(50), &grant(1, 10, 0));
    assert_eq!(ledger.ahead(after(897), Number(2)), None);
    assert!(ledger.ahead(after(898), Number(2)).is_some(), "998 − 2·50");
}

#[test]
fn what_the_store_does_not_list_is_not_kept() {
    let mut ledger = lent();
    ledger.spend(NOW, Hits(8));
    ledger.ahead(NOW, Number(2)).unwrap();
    ledger.settle(NOW, &grant(2, 5, 1));
    assert_eq!(ledger.balance(NOW), Hits(6));
}

#[test]
fn after_a_grant_of_nothing_no_more_is_asked_for_ahead_for_a_while() {
    let mut ledger = lent();
    ledger.spend(NOW, Hits(8));
    ledger.ahead(NOW, Number(2)).unwrap();
    ledger.settle(NOW, &grant(2, 0, 2));
    assert_eq!(ledger.ahead(after(124), Number(3)), None);
    assert!(ledger.ahead(after(125), Number(3)).is_some(), "an eighth of the term");
}

#[test]
fn everything_is_given_back_once_and_an_answer_on_its_way_is_ignored() {
    let mut ledger = lent();
    ledger.spend(NOW, Hits(8));
    ledger.ahead(NOW, Number(2)).unwrap();
    let back = ledger.give_back(NOW, Number(3)).unwrap();
    assert_eq!((back.returned, back.held, back.lease), (Hits(2), Hits(0), Number(1)));
    ledger.settle(NOW, &grant(2, 10, 2));
    assert_eq!(ledger.balance(NOW), Hits(0));
    assert_eq!(ledger.give_back(NOW, Number(4)), None);
}

#[test]
fn nothing_void_is_given_back() {
    assert_eq!(lent().give_back(after(998), Number(2)), None);
}

#[test]
fn idle_hits_are_surplus() {
    let mut ledger = Ledger::new(Size::Learned, TERM, Hits(100));
    // 40 are asked for in this term.
    for number in 1..=40 {
        if ledger.spend(NOW, Hits(1)) == Spend::Ask {
            ask(&mut ledger, NOW, number, 1);
            ledger.settle(NOW, &grant(number, if number == 20 { 90 } else { 0 }, 0));
        }
    }
    assert_eq!(ledger.balance(NOW), Hits(70));
    let back = ledger.surplus(after(499), Number(90)).unwrap();
    // Until 998 ms: ⌊40·0.499⌋ = 19.
    assert_eq!((back.returned, back.held), (Hits(51), Hits(19)));
    assert_eq!(ledger.balance(after(499)), Hits(19));
}

/// A ledger that learned, was asked for 64 and lent 80 at NOW, of which so many are left.
fn learned(left: u64) -> Ledger {
    learned_for(left, TERM)
}

/// The same, lent for so long.
fn learned_for(left: u64, good_for: Nanos) -> Ledger {
    let mut ledger = Ledger::new(Size::Learned, TERM, Hits(100));
    assert_eq!(ledger.spend(NOW, Hits(64 - (80 - left).min(64))), Spend::Ask);
    ask(&mut ledger, NOW, 1, 1);
    ledger.settle(NOW, &Answer { good_for, ..grant(1, 80, 0) });
    for _ in left..80 {
        assert!(matches!(ledger.spend(NOW, Hits(1)), Spend::Spent(_)));
    }
    ledger
}

#[test]
fn at_leisure_more_is_asked_for_when_a_fifth_is_left_that_demand_will_take() {
    // 64 a second: 16 in 250 ms.
    let time = Nanos(250_000_000);
    assert_eq!(learned(17).at_leisure(NOW, Number(2), time.plus(time)), None);
    let mut low = learned(16);
    assert_eq!(low.ahead(NOW, Number(2)), None, "there is time");
    assert_eq!(low.at_leisure(NOW, Number(2), Nanos(249_000_000)), None, "15 in 249 ms");
    let more = low.at_leisure(NOW, Number(2), time).unwrap();
    let expected = (Hits(0), Hits(48), Hits(16), Hits(0));
    assert_eq!((more.hits, more.want, more.held, more.returned), expected, "64 in all");
    assert_eq!(low.balance(NOW), Hits(16), "it stays usable");
    assert_eq!(low.at_leisure(NOW, Number(3), time), None, "a message is on its way");
    low.settle(NOW, &grant(2, 0, 16));
    assert_eq!(low.at_leisure(after(124), Number(3), TERM), None, "there was nothing to lend");
    assert!(low.at_leisure(after(125), Number(3), TERM).is_some());
}

#[test]
fn at_leisure_a_lease_is_renewed_in_the_last_eighth_of_its_term() {
    let mut held = learned(60);
    assert_eq!(held.at_leisure(after(872), Number(2), Nanos::from_secs(9)), None);
    assert!(
        held.clone().at_leisure(after(873), Number(2), Nanos::from_secs(9)).is_some(),
        "998 − 125"
    );
    assert_eq!(held.at_leisure(after(873), Number(2), Nanos(124_000_000)), None);
    assert_eq!(held.at_leisure(after(998), Number(2), Nanos::from_secs(9)), None, "it is over");
}

#[test]
fn at_leisure_a_lease_that_ends_with_its_window_is_not_renewed_and_more_is_asked_for_when_it_runs_low()
 {
    let cut_short = Nanos(900_000_000);
    let time = Nanos(250_000_000);
    let mut held = learned_for(60, cut_short);
    for millis in [0, 773, 897] {
        assert_eq!(held.at_leisure(after(millis), Number(2), time), None, "{millis} ms");
    }
    assert!(learned_for(16, cut_short).at_leisure(NOW, Number(2), time).is_some());
    // The next window's lease is for a whole term again.
    ask(&mut held, after(900), 2, 61);
    held.settle(after(900), &grant(2, 60, 0));
    assert!(held.at_leisure(after(1_897), Number(3), time).is_some());
}

#[test]
fn who_gives_all_back_says_that_it_asks_no_more() {
    assert_eq!(lent().give_back(NOW, Number(2)).unwrap().demand, Hits(0));
    let mut rare = lent();
    assert_eq!(rare.abandon(after(900), Number(2), Nanos(999_000_000)), None);
    assert!(rare.abandon(after(900), Number(2), TERM).is_some(), "nobody asked in a whole span");
}

#[test]
fn a_key_is_abandoned_after_a_pause_of_eight_questions_whatever_each_asks_for() {
    // 41 questions a second, and 64 hits: eight questions in 196 ms, eight hits in 125.
    let mut quiet = learned(40);
    assert_eq!(quiet.abandon(after(195), Number(2), Nanos(195_000_000)), None);
    let gone = quiet.abandon(after(196), Number(2), Nanos(196_000_000)).unwrap();
    assert_eq!((gone.returned, gone.demand), (Hits(40), Hits(0)));
}

#[test]
fn a_denial_is_remembered_until_it_may_pass_and_its_wait_is_told_from_when_the_answer_came() {
    let mut ledger = ledger();
    ask(&mut ledger, NOW, 1, 5);
    ledger.settle(after(20), &denial(1, Nanos::SECOND, 0));
    let expected = Spend::Denied {
        retry_after: Nanos(920_000_000),
        more: Hits(0),
        room: Room { remaining: Hits(7), reset_after: Nanos(920_000_000) },
    };
    assert_eq!(ledger.spend(after(100), Hits(5)), expected);
    assert_eq!(ledger.spend(after(1_000), Hits(5)), Spend::Ask);
}

#[test]
fn an_expensive_denial_does_not_deny_what_is_cheaper() {
    let mut ledger = ledger();
    ask(&mut ledger, NOW, 1, 5);
    ledger.settle(NOW, &denial(1, Nanos::SECOND, 0));
    assert_eq!(ledger.spend(NOW, Hits(4)), Spend::Ask);
    assert!(matches!(ledger.spend(NOW, Hits(6)), Spend::Denied { more: Hits(1), .. }));
}

#[test]
fn the_denial_of_the_fewest_hits_is_remembered() {
    let mut ledger = ledger();
    for (number, hits) in [(1, 3), (2, 9)] {
        ask(&mut ledger, NOW, number, hits);
        ledger.settle(NOW, &denial(number, Nanos::SECOND, 0));
    }
    assert!(matches!(ledger.spend(NOW, Hits(3)), Spend::Denied { .. }));
    ask(&mut ledger, NOW, 3, 2);
    ledger.settle(NOW, &grant(3, 0, 0));
    assert!(matches!(ledger.spend(NOW, Hits(3)), Spend::Denied { .. }), "2 passed, 3 did not");
    ask(&mut ledger, NOW, 4, 3);
    ledger.settle(NOW, &grant(4, 0, 0));
    assert_eq!(ledger.spend(NOW, Hits(3)), Spend::Ask, "3 passed");
}

#[test]
fn a_denial_of_what_was_sent_before_hits_came_back_is_not_remembered_and_of_later_ones_is() {
    let mut ledger = ledger();
    ask(&mut ledger, NOW, 1, 1);
    ledger.forget_denial(NOW);
    ledger.settle(after(20), &denial(1, Nanos::SECOND, 0));
    assert_eq!(ledger.spend(after(20), Hits(1)), Spend::Ask);
    ask(&mut ledger, after(20), 2, 1);
    ledger.settle(after(40), &denial(2, Nanos::SECOND, 0));
    assert!(matches!(ledger.spend(after(40), Hits(1)), Spend::Denied { .. }));
}

#[test]
fn while_others_hold_hits_that_would_do_a_denial_is_asked_again_after_a_round_trip() {
    let mut ledger = ledger();
    ask(&mut ledger, NOW, 1, 11);
    // 7 are left, and 4 may come back.
    ledger.settle(after(20), &denial(1, Nanos::from_secs(3_600), 4));
    let Spend::Denied { retry_after, .. } = ledger.spend(after(39), Hits(11)) else { panic!() };
    assert_eq!(retry_after, Nanos::from_secs(3_600).since(Nanos(39_000_000 - 20_000_000)));
    assert_eq!(ledger.spend(after(40), Hits(11)), Spend::Ask);
}

#[test]
fn a_denial_that_the_counter_counts_is_asked_again_eight_times_in_a_span() {
    let window = FixedWindow::new(100, Windows::Every(TERM)).unwrap();
    let mut ledger = ledger().of(Strategy::FixedWindow(window));
    ask(&mut ledger, NOW, 1, 11);
    ledger.settle(after(20), &denial(1, Nanos::from_secs(3_600), 4));
    assert!(matches!(ledger.spend(after(124), Hits(11)), Spend::Denied { .. }));
    assert_eq!(ledger.spend(after(125), Hits(11)), Spend::Ask);
}

#[test]
fn while_others_hold_too_few_hits_a_denial_stands_until_these_would_do() {
    let mut ledger = ledger();
    ask(&mut ledger, NOW, 1, 17);
    // 7 are left and 10 missing, of which 4 may come back: 5 are earned in half of the time, and a part of one
    // may be there already.
    ledger.settle(NOW, &denial(1, Nanos::SECOND, 4));
    assert!(matches!(ledger.spend(after(499), Hits(17)), Spend::Denied { .. }));
    assert_eq!(ledger.spend(after(500), Hits(17)), Spend::Ask);
}

#[test]
fn what_is_held_is_spent_although_a_denial_is_remembered() {
    let mut ledger = lent();
    ask(&mut ledger, NOW, 2, 1);
    ledger.settle(NOW, &denial(2, Nanos::SECOND, 0));
    ask(&mut ledger, NOW, 3, 0);
    ledger.settle(NOW, &grant(3, 10, 0));
    assert!(matches!(ledger.spend(NOW, Hits(1)), Spend::Spent(_)));
}

#[test]
fn what_remains_is_of_the_key_and_not_of_the_stash() {
    let mut ledger = lent();
    let Spend::Spent(room) = ledger.spend(after(100), Hits(1)) else { panic!() };
    let expected = Room { remaining: Hits(7 + 9), reset_after: Nanos(900_000_000) };
    assert_eq!(room, expected);
}
