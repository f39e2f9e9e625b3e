//! Tests the lease balance of one replica: spending, refills, returns, expiry and denials.

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

fn borrow_for(ledger: &mut Ledger, at: Nanos, number: u64, hits: u64) -> Borrow {
    ledger.borrow(at, Number(number), Hits(hits)).unwrap()
}

fn with_ten() -> Ledger {
    let mut ledger = ledger();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.settle(NOW, &grant(1, 10, 0));
    ledger
}

#[test]
fn exactly_the_balance_is_spent_locally() {
    let mut ledger = with_ten();
    for _ in 0..5 {
        assert!(matches!(ledger.spend(NOW, Hits(2)), Spend::Spent(_)));
    }
    assert_eq!(ledger.spend(NOW, Hits(1)), Spend::Ask);
}

#[test]
fn a_repeated_grant_is_settled_once() {
    let mut ledger = with_ten();
    ledger.settle(NOW, &grant(1, 10, 0));
    assert_eq!(ledger.balance(NOW), Hits(10));
}

/// A balance of 10 with 4 hits of an undecided check.
fn with_undecided_hits() -> Ledger {
    let mut ledger = with_ten();
    assert!(matches!(ledger.spend(NOW, Hits(4)), Spend::Spent(_)));
    ledger.hold(Hits(4));
    assert_eq!((ledger.balance(NOW), ledger.held(NOW)), (Hits(6), Hits(10)));
    ledger
}

#[test]
fn a_denial_during_an_undecided_check_is_not_remembered() {
    for is_back in [false, true] {
        let mut ledger = with_undecided_hits();
        let grip = ledger.grip();
        assert_eq!(borrow_for(&mut ledger, NOW, 2, 11).held, Hits(4));
        if is_back {
            ledger.put_back(NOW, Hits(4), grip);
        }
        ledger.settle(NOW, &Answer { kept: Hits(4), ..denial(2, TERM, 0) });
        ledger.put_back(NOW, Hits(if is_back { 0 } else { 4 }), grip);
        assert_eq!(ledger.balance(NOW), Hits(4));
        // The store reported 7 remaining hits.
        assert_eq!(ledger.spend(NOW, Hits(11)), Spend::Ask);
    }
}

#[test]
fn undecided_hits_stay_local_and_expire_with_the_lease() {
    let mut ledger = with_undecided_hits();
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
fn a_reply_to_an_abandoned_message_is_ignored() {
    let mut ledger = ledger();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.lost(Number(1));
    ledger.settle(NOW, &grant(1, 10, 0));
    assert_eq!(ledger.balance(NOW), Hits(0));
    borrow_for(&mut ledger, NOW, 2, 1);
    ledger.lost(Number(1));
    ledger.settle(NOW, &grant(1, 10, 0));
    assert_eq!(ledger.balance(NOW), Hits(0));
    ledger.settle(NOW, &grant(2, 4, 0));
    assert_eq!(ledger.balance(NOW), Hits(4));
}

#[test]
fn an_unsent_message_restores_the_balance_until_expiry() {
    type Write = fn(&mut Ledger) -> Option<Borrow>;
    let writes: [Write; 3] = [
        |ledger| ledger.borrow(after(100), Number(2), Hits(11)),
        |ledger| ledger.abandon(after(100), Number(2), TERM),
        |ledger| ledger.give_back(after(100), Number(2)),
    ];
    for write in writes {
        let mut ledger = with_ten();
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
fn an_unsent_message_restores_no_expired_lease() {
    let mut ledger = with_ten();
    borrow_for(&mut ledger, after(900), 2, 11);
    ledger.unsent(after(998), Number(2));
    assert_eq!(ledger.balance(after(998)), Hits(0));
    assert_eq!(ledger.expire(after(998)), Hits(0));
}

#[test]
fn an_unsent_message_restores_nothing_after_a_newer_one() {
    let mut ledger = with_ten();
    ledger.abandon(NOW, Number(2), TERM).unwrap();
    assert_eq!(borrow_for(&mut ledger, NOW, 3, 1).held, Hits(0));
    ledger.unsent(NOW, Number(2));
    assert_eq!(ledger.balance(NOW), Hits(0), "nothing is held, by what the store hears");
    ledger.settle(NOW, &grant(3, 4, 0));
    assert_eq!(ledger.balance(NOW), Hits(4), "nor was the other given up");
}

#[test]
fn a_lost_message_restores_nothing() {
    let mut ledger = with_ten();
    borrow_for(&mut ledger, NOW, 2, 11);
    ledger.lost(Number(2));
    assert_eq!(ledger.balance(NOW), Hits(0));
}

#[test]
fn an_unsent_surplus_is_not_counted_as_unspent() {
    let mut undone = with_learned_demand(80);
    let mut untouched = undone;
    assert_eq!(undone.abandon(NOW, Number(2), TERM).unwrap().returned, Hits(80));
    undone.unsent(NOW, Number(2));
    let want = |ledger: &mut Ledger| borrow_for(ledger, NOW, 3, 1).want;
    assert_eq!(want(&mut undone), want(&mut untouched));
}

#[test]
fn only_one_message_is_in_flight() {
    let mut ledger = ledger();
    borrow_for(&mut ledger, NOW, 1, 1);
    assert_eq!(ledger.borrow(NOW, Number(2), Hits(1)), None);
    assert_eq!(ledger.ahead(NOW, Number(3)), None);
    assert_eq!(ledger.surplus(NOW, Number(4)), None);
}

#[test]
fn a_lease_expires_early_counted_from_sending() {
    let mut ledger = ledger();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.settle(after(100), &grant(1, 10, 0));
    assert_eq!(ledger.balance(after(997)), Hits(10));
    assert_eq!(ledger.balance(after(998)), Hits(0), "998 ms of 1 s");
    assert_eq!(ledger.expire(after(998)), Hits(10));
    assert_eq!(ledger.spend(after(998), Hits(1)), Spend::Ask);
}

#[test]
fn a_reply_after_lease_expiry_grants_nothing() {
    let mut ledger = ledger();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.settle(after(998), &grant(1, 10, 0));
    assert_eq!(ledger.balance(after(998)), Hits(0));
}

#[test]
fn the_drift_margin_is_two_thousandths_rounded_up() {
    for (good_for, used) in [(0, 0), (1, 0), (500, 499), (501, 499), (1_000, 998)] {
        assert_eq!(early(Nanos(good_for)), Nanos(used));
    }
}

#[test]
fn a_too_small_balance_is_returned_with_the_check() {
    let mut ledger = with_ten();
    let borrow = borrow_for(&mut ledger, NOW, 2, 11);
    let expected = (Hits(11), Hits(0), Hits(10), Number(1));
    assert_eq!((borrow.hits, borrow.held, borrow.returned, borrow.lease), expected);
    assert_eq!(ledger.balance(NOW), Hits(0), "it is gone before the message leaves");
}

#[test]
fn handing_back_returns_the_balance_and_awaits_a_reply() {
    let mut ledger = with_ten();
    let back = ledger.hand_back(NOW, Number(2)).unwrap();
    let expected = (Hits(0), Hits(0), Hits(0), Hits(10), Number(1));
    assert_eq!((back.hits, back.want, back.held, back.returned, back.lease), expected);
    assert_eq!(ledger.balance(NOW), Hits(0), "it is gone before the message leaves");
    assert_eq!(ledger.borrow(NOW, Number(3), Hits(1)), None, "others wait for its answer");
    ledger.settle(NOW, &grant(2, 0, 0));
    assert_eq!(ledger.hand_back(NOW, Number(3)), None, "there is nothing");
}

#[test]
fn a_refill_keeps_the_balance_usable() {
    let mut ledger = with_ten();
    assert_eq!(ledger.ahead(NOW, Number(2)), None, "there is enough");
    ledger.spend(NOW, Hits(8));
    let borrow = ledger.ahead(NOW, Number(2)).unwrap();
    assert_eq!((borrow.hits, borrow.want, borrow.held), (Hits(0), Hits(10), Hits(2)));
    assert!(matches!(ledger.spend(NOW, Hits(1)), Spend::Spent(_)));
    ledger.settle(NOW, &grant(2, 10, 2));
    assert_eq!(ledger.balance(NOW), Hits(11));
}

#[test]
fn a_lease_is_renewed_two_round_trips_early() {
    let mut ledger = ledger();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.settle(after(50), &grant(1, 10, 0));
    assert_eq!(ledger.ahead(after(897), Number(2)), None);
    assert!(ledger.ahead(after(898), Number(2)).is_some(), "998 − 2·50");
}

#[test]
fn unlisted_hits_leave_the_balance() {
    let mut ledger = with_ten();
    ledger.spend(NOW, Hits(8));
    ledger.ahead(NOW, Number(2)).unwrap();
    ledger.settle(NOW, &grant(2, 5, 1));
    assert_eq!(ledger.balance(NOW), Hits(6));
}

#[test]
fn an_empty_grant_pauses_refills() {
    let mut ledger = with_ten();
    ledger.spend(NOW, Hits(8));
    ledger.ahead(NOW, Number(2)).unwrap();
    ledger.settle(NOW, &grant(2, 0, 2));
    assert_eq!(ledger.ahead(after(124), Number(3)), None);
    assert!(ledger.ahead(after(125), Number(3)).is_some(), "an eighth of the term");
}

#[test]
fn a_full_return_happens_once_and_ignores_pending_replies() {
    let mut ledger = with_ten();
    ledger.spend(NOW, Hits(8));
    ledger.ahead(NOW, Number(2)).unwrap();
    let back = ledger.give_back(NOW, Number(3)).unwrap();
    assert_eq!((back.returned, back.held, back.lease), (Hits(2), Hits(0), Number(1)));
    ledger.settle(NOW, &grant(2, 10, 2));
    assert_eq!(ledger.balance(NOW), Hits(0));
    assert_eq!(ledger.give_back(NOW, Number(4)), None);
}

#[test]
fn an_expired_balance_is_not_returned() {
    assert_eq!(with_ten().give_back(after(998), Number(2)), None);
}

#[test]
fn hits_above_expected_demand_are_surplus() {
    let mut ledger = Ledger::new(Size::Learned, TERM, Hits(100));
    // 40 hits are requested in this lease duration.
    for number in 1..=40 {
        if ledger.spend(NOW, Hits(1)) == Spend::Ask {
            borrow_for(&mut ledger, NOW, number, 1);
            ledger.settle(NOW, &grant(number, if number == 20 { 90 } else { 0 }, 0));
        }
    }
    assert_eq!(ledger.balance(NOW), Hits(70));
    let back = ledger.surplus(after(499), Number(90)).unwrap();
    // Expected demand until 998 ms: ⌊40·0.499⌋ = 19.
    assert_eq!((back.returned, back.held), (Hits(51), Hits(19)));
    assert_eq!(ledger.balance(after(499)), Hits(19));
}

/// A balance with learned sizing: 64 hits requested, 80 leased, and `left` remaining at NOW.
fn with_learned_demand(left: u64) -> Ledger {
    with_learned_demand_for(left, TERM)
}

fn with_learned_demand_for(left: u64, good_for: Nanos) -> Ledger {
    let mut ledger = Ledger::new(Size::Learned, TERM, Hits(100));
    assert_eq!(ledger.spend(NOW, Hits(64 - (80 - left).min(64))), Spend::Ask);
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.settle(NOW, &Answer { good_for, ..grant(1, 80, 0) });
    for _ in left..80 {
        assert!(matches!(ledger.spend(NOW, Hits(1)), Spend::Spent(_)));
    }
    ledger
}

#[test]
fn a_low_balance_is_refilled_early() {
    // 64 hits per second are 16 in 250 ms.
    let time = Nanos(250_000_000);
    assert_eq!(with_learned_demand(17).at_leisure(NOW, Number(2), time.plus(time)), None);
    let mut low = with_learned_demand(16);
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
fn a_lease_is_renewed_early_in_its_last_eighth() {
    let mut held = with_learned_demand(60);
    assert_eq!(held.at_leisure(after(872), Number(2), Nanos::from_secs(9)), None);
    assert!(
        held.clone().at_leisure(after(873), Number(2), Nanos::from_secs(9)).is_some(),
        "998 − 125"
    );
    assert_eq!(held.at_leisure(after(873), Number(2), Nanos(124_000_000)), None);
    assert_eq!(held.at_leisure(after(998), Number(2), Nanos::from_secs(9)), None, "it is over");
}

#[test]
fn a_shortened_lease_is_refilled_but_not_renewed_early() {
    let cut_short = Nanos(900_000_000);
    let time = Nanos(250_000_000);
    let mut held = with_learned_demand_for(60, cut_short);
    for millis in [0, 773, 897] {
        assert_eq!(held.at_leisure(after(millis), Number(2), time), None, "{millis} ms");
    }
    assert!(with_learned_demand_for(16, cut_short).at_leisure(NOW, Number(2), time).is_some());
    // The lease in the next window has the full duration.
    borrow_for(&mut held, after(900), 2, 61);
    held.settle(after(900), &grant(2, 60, 0));
    assert!(held.at_leisure(after(1_897), Number(3), time).is_some());
}

#[test]
fn a_full_return_reports_zero_demand() {
    assert_eq!(with_ten().give_back(NOW, Number(2)).unwrap().demand, Hits(0));
    let mut rare = with_ten();
    assert_eq!(rare.abandon(after(900), Number(2), Nanos(999_000_000)), None);
    assert!(rare.abandon(after(900), Number(2), TERM).is_some(), "nobody asked in a whole span");
}

#[test]
fn a_key_is_abandoned_after_eight_missed_checks() {
    // 41 checks and 64 hits per second: eight checks in 196 ms, eight hits in 125 ms.
    let mut quiet = with_learned_demand(40);
    assert_eq!(quiet.abandon(after(195), Number(2), Nanos(195_000_000)), None);
    let gone = quiet.abandon(after(196), Number(2), Nanos(196_000_000)).unwrap();
    assert_eq!((gone.returned, gone.demand), (Hits(40), Hits(0)));
}

#[test]
fn a_remembered_denial_counts_its_wait_from_the_reply() {
    let mut ledger = ledger();
    borrow_for(&mut ledger, NOW, 1, 5);
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
fn a_denial_does_not_cover_cheaper_checks() {
    let mut ledger = ledger();
    borrow_for(&mut ledger, NOW, 1, 5);
    ledger.settle(NOW, &denial(1, Nanos::SECOND, 0));
    assert_eq!(ledger.spend(NOW, Hits(4)), Spend::Ask);
    assert!(matches!(ledger.spend(NOW, Hits(6)), Spend::Denied { more: Hits(1), .. }));
}

#[test]
fn the_denial_of_the_fewest_hits_is_remembered() {
    let mut ledger = ledger();
    for (number, hits) in [(1, 3), (2, 9)] {
        borrow_for(&mut ledger, NOW, number, hits);
        ledger.settle(NOW, &denial(number, Nanos::SECOND, 0));
    }
    assert!(matches!(ledger.spend(NOW, Hits(3)), Spend::Denied { .. }));
    borrow_for(&mut ledger, NOW, 3, 2);
    ledger.settle(NOW, &grant(3, 0, 0));
    assert!(matches!(ledger.spend(NOW, Hits(3)), Spend::Denied { .. }), "2 passed, 3 did not");
    borrow_for(&mut ledger, NOW, 4, 3);
    ledger.settle(NOW, &grant(4, 0, 0));
    assert_eq!(ledger.spend(NOW, Hits(3)), Spend::Ask, "3 passed");
}

#[test]
fn a_denial_sent_before_a_refund_is_not_remembered() {
    let mut ledger = ledger();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.forget_denial(NOW);
    ledger.settle(after(20), &denial(1, Nanos::SECOND, 0));
    assert_eq!(ledger.spend(after(20), Hits(1)), Spend::Ask);
    borrow_for(&mut ledger, after(20), 2, 1);
    ledger.settle(after(40), &denial(2, Nanos::SECOND, 0));
    assert!(matches!(ledger.spend(after(40), Hits(1)), Spend::Denied { .. }));
}

#[test]
fn a_denial_is_rechecked_while_enough_hits_are_outstanding() {
    let mut ledger = ledger();
    borrow_for(&mut ledger, NOW, 1, 11);
    // 7 hits remain, and other replicas may return 4.
    ledger.settle(after(20), &denial(1, Nanos::from_secs(3_600), 4));
    let Spend::Denied { retry_after, .. } = ledger.spend(after(39), Hits(11)) else { panic!() };
    assert_eq!(retry_after, Nanos::from_secs(3_600).since(Nanos(39_000_000 - 20_000_000)));
    assert_eq!(ledger.spend(after(40), Hits(11)), Spend::Ask);
}

#[test]
fn a_counted_denial_is_rechecked_eight_times_per_span() {
    let window = FixedWindow::new(100, Windows::Every(TERM)).unwrap();
    let mut ledger = ledger().of(Strategy::FixedWindow(window));
    borrow_for(&mut ledger, NOW, 1, 11);
    ledger.settle(after(20), &denial(1, Nanos::from_secs(3_600), 4));
    assert!(matches!(ledger.spend(after(124), Hits(11)), Spend::Denied { .. }));
    assert_eq!(ledger.spend(after(125), Hits(11)), Spend::Ask);
}

#[test]
fn too_few_outstanding_hits_delay_the_recheck() {
    let mut ledger = ledger();
    borrow_for(&mut ledger, NOW, 1, 17);
    // 7 hits remain and 10 are missing; other replicas may return 4.
    // The limit frees 5 in half of the time, and may have freed part of one already.
    ledger.settle(NOW, &denial(1, Nanos::SECOND, 4));
    assert!(matches!(ledger.spend(after(499), Hits(17)), Spend::Denied { .. }));
    assert_eq!(ledger.spend(after(500), Hits(17)), Spend::Ask);
}

#[test]
fn the_balance_is_spent_despite_a_remembered_denial() {
    let mut ledger = with_ten();
    borrow_for(&mut ledger, NOW, 2, 1);
    ledger.settle(NOW, &denial(2, Nanos::SECOND, 0));
    borrow_for(&mut ledger, NOW, 3, 0);
    ledger.settle(NOW, &grant(3, 10, 0));
    assert!(matches!(ledger.spend(NOW, Hits(1)), Spend::Spent(_)));
}

#[test]
fn remaining_adds_the_balance_to_the_store_headroom() {
    let mut ledger = with_ten();
    let Spend::Spent(room) = ledger.spend(after(100), Hits(1)) else { panic!() };
    let expected = Room { remaining: Hits(7 + 9), reset_after: Nanos(900_000_000) };
    assert_eq!(room, expected);
}
