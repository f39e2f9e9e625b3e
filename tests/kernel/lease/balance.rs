//! Tests the lease balance of one replica: spending, refills, returns, expiry and denials.

use sluicegate::kernel::lease::balance::{LeaseBalance, SpendResult};
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::{BorrowReply, BorrowRequest, MessageNumber, safe_duration};
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::{CounterDecision, Headroom, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};

const NOW: Nanos = Nanos(5_000_000_000);
const TERM: Nanos = Nanos::SECOND;
const ROOM: Headroom = Headroom { remaining: Hits(7), reset_after: Nanos::SECOND };

fn after(millis: u64) -> Nanos {
    NOW.plus(Nanos(millis * 1_000_000))
}

fn empty_balance() -> LeaseBalance {
    LeaseBalance::new(LeaseSizing::Fixed(Hits(10)), TERM, Hits(100))
}

fn grant(number: u64, granted: u64, kept: u64) -> BorrowReply {
    BorrowReply {
        number: MessageNumber(number),
        decision: CounterDecision::Allow(ROOM),
        granted: Hits(granted),
        kept: Hits(kept),
        outstanding_elsewhere: Hits(0),
        valid_for: TERM,
    }
}

fn denial(number: u64, wait: Nanos, outstanding: u64) -> BorrowReply {
    let step = CounterDecision::Deny { retry_after: wait, headroom: ROOM };
    BorrowReply { decision: step, outstanding_elsewhere: Hits(outstanding), ..grant(number, 0, 0) }
}

fn borrow_for(balance: &mut LeaseBalance, now: Nanos, number: u64, hits: u64) -> BorrowRequest {
    balance.borrow(now, MessageNumber(number), Hits(hits)).unwrap()
}

fn with_ten() -> LeaseBalance {
    let mut ledger = empty_balance();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.settle(NOW, &grant(1, 10, 0));
    ledger
}

#[test]
fn exactly_the_balance_is_spent_locally() {
    let mut ledger = with_ten();
    for _ in 0..5 {
        assert!(matches!(ledger.spend(NOW, Hits(2)), SpendResult::Spent(_)));
    }
    assert_eq!(ledger.spend(NOW, Hits(1)), SpendResult::NeedsStore);
}

#[test]
fn a_repeated_grant_is_settled_once() {
    let mut ledger = with_ten();
    ledger.settle(NOW, &grant(1, 10, 0));
    assert_eq!(ledger.balance(NOW), Hits(10));
}

/// A balance of 10, from which an undecided check took 4 hits.
fn with_undecided_hits() -> LeaseBalance {
    let mut ledger = with_ten();
    assert!(matches!(ledger.spend(NOW, Hits(4)), SpendResult::Spent(_)));
    ledger.mark_undecided(Hits(4));
    assert_eq!((ledger.balance(NOW), ledger.total(NOW)), (Hits(6), Hits(10)));
    ledger
}

#[test]
fn a_store_denial_is_not_remembered_while_hits_are_undecided() {
    for is_back in [false, true] {
        let mut ledger = with_undecided_hits();
        let grip = ledger.undecided_epoch();
        assert_eq!(borrow_for(&mut ledger, NOW, 2, 11).balance, Hits(4));
        if is_back {
            ledger.put_back(NOW, Hits(4), grip);
        }
        ledger.settle(NOW, &BorrowReply { kept: Hits(4), ..denial(2, TERM, 0) });
        ledger.put_back(NOW, Hits(if is_back { 0 } else { 4 }), grip);
        assert_eq!(ledger.balance(NOW), Hits(4));
        // The store reported 7 remaining hits; with the local 4, a check of 11 may be allowed.
        assert_eq!(ledger.spend(NOW, Hits(11)), SpendResult::NeedsStore);
    }
}

#[test]
fn undecided_hits_stay_local_and_expire_with_the_lease() {
    let mut ledger = with_undecided_hits();
    let grip = ledger.undecided_epoch();
    let all = ledger.borrow(after(500), MessageNumber(2), Hits(20)).unwrap();
    assert_eq!((all.balance, all.returned), (Hits(4), Hits(6)));
    ledger.settle(after(500), &grant(2, 0, 4));
    let (good, over) = (after(500 + 997), after(500 + 998));
    assert_eq!((ledger.total(good), ledger.total(over)), (Hits(4), Hits(0)));
    for (at, left) in [(good, 4), (over, 0)] {
        let mut ledger = ledger;
        ledger.put_back(at, Hits(4), grip);
        assert_eq!(ledger.balance(at), Hits(left));
    }
}

#[test]
fn a_reply_to_an_abandoned_message_is_ignored() {
    let mut ledger = empty_balance();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.give_up(MessageNumber(1));
    ledger.settle(NOW, &grant(1, 10, 0));
    assert_eq!(ledger.balance(NOW), Hits(0));
    borrow_for(&mut ledger, NOW, 2, 1);
    ledger.give_up(MessageNumber(1));
    ledger.settle(NOW, &grant(1, 10, 0));
    assert_eq!(ledger.balance(NOW), Hits(0));
    ledger.settle(NOW, &grant(2, 4, 0));
    assert_eq!(ledger.balance(NOW), Hits(4));
}

#[test]
fn an_unsent_message_restores_the_balance_until_expiry() {
    type Write = fn(&mut LeaseBalance) -> Option<BorrowRequest>;
    let writes: [Write; 3] = [
        |ledger| ledger.borrow(after(100), MessageNumber(2), Hits(11)),
        |ledger| ledger.return_if_idle(after(100), MessageNumber(2), TERM),
        |ledger| ledger.return_all(after(100), MessageNumber(2)),
    ];
    for write in writes {
        let mut ledger = with_ten();
        assert_eq!(write(&mut ledger).unwrap().returned, Hits(10));
        for _ in 0..2 {
            ledger.undo_unsent(after(200), MessageNumber(2));
            assert_eq!(
                (ledger.balance(after(997)), ledger.balance(after(998))),
                (Hits(10), Hits(0))
            );
        }
        assert!(
            ledger.borrow(after(200), MessageNumber(3), Hits(11)).is_some(),
            "none is on its way"
        );
    }
}

#[test]
fn an_unsent_message_restores_no_expired_lease() {
    let mut ledger = with_ten();
    borrow_for(&mut ledger, after(900), 2, 11);
    ledger.undo_unsent(after(998), MessageNumber(2));
    assert_eq!(ledger.balance(after(998)), Hits(0));
    assert_eq!(ledger.expire(after(998)), Hits(0));
}

#[test]
fn an_unsent_message_restores_nothing_after_a_newer_one() {
    let mut ledger = with_ten();
    ledger.return_if_idle(NOW, MessageNumber(2), TERM).unwrap();
    assert_eq!(borrow_for(&mut ledger, NOW, 3, 1).balance, Hits(0));
    ledger.undo_unsent(NOW, MessageNumber(2));
    assert_eq!(ledger.balance(NOW), Hits(0), "nothing is held, by what the store hears");
    ledger.settle(NOW, &grant(3, 4, 0));
    assert_eq!(ledger.balance(NOW), Hits(4), "nor was the other given up");
}

#[test]
fn a_lost_message_restores_nothing() {
    let mut ledger = with_ten();
    borrow_for(&mut ledger, NOW, 2, 11);
    ledger.give_up(MessageNumber(2));
    assert_eq!(ledger.balance(NOW), Hits(0));
}

#[test]
fn an_unsent_return_does_not_lower_the_next_lease_size() {
    let mut undone = with_learned_demand(80);
    let mut untouched = undone;
    assert_eq!(undone.return_if_idle(NOW, MessageNumber(2), TERM).unwrap().returned, Hits(80));
    undone.undo_unsent(NOW, MessageNumber(2));
    let want = |ledger: &mut LeaseBalance| borrow_for(ledger, NOW, 3, 1).wanted;
    assert_eq!(want(&mut undone), want(&mut untouched));
}

#[test]
fn only_one_message_is_in_flight() {
    let mut ledger = empty_balance();
    borrow_for(&mut ledger, NOW, 1, 1);
    assert_eq!(ledger.borrow(NOW, MessageNumber(2), Hits(1)), None);
    assert_eq!(ledger.refill(NOW, MessageNumber(3)), None);
    assert_eq!(ledger.return_surplus(NOW, MessageNumber(4)), None);
}

#[test]
fn a_lease_lifetime_counts_from_sending_minus_the_drift_margin() {
    let mut ledger = empty_balance();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.settle(after(100), &grant(1, 10, 0));
    assert_eq!(ledger.balance(after(997)), Hits(10));
    assert_eq!(ledger.balance(after(998)), Hits(0), "998 ms of 1 s");
    assert_eq!(ledger.expire(after(998)), Hits(10));
    assert_eq!(ledger.spend(after(998), Hits(1)), SpendResult::NeedsStore);
}

#[test]
fn a_reply_after_lease_expiry_grants_nothing() {
    let mut ledger = empty_balance();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.settle(after(998), &grant(1, 10, 0));
    assert_eq!(ledger.balance(after(998)), Hits(0));
}

#[test]
fn the_clock_drift_margin_is_two_thousandths_rounded_up() {
    for (good_for, used) in [(0, 0), (1, 0), (500, 499), (501, 499), (1_000, 998)] {
        assert_eq!(safe_duration(Nanos(good_for)), Nanos(used));
    }
}

#[test]
fn a_too_small_balance_is_returned_with_the_check() {
    let mut ledger = with_ten();
    let borrow = borrow_for(&mut ledger, NOW, 2, 11);
    let expected = (Hits(11), Hits(0), Hits(10), MessageNumber(1));
    assert_eq!((borrow.hits, borrow.balance, borrow.returned, borrow.last_lease), expected);
    assert_eq!(ledger.balance(NOW), Hits(0), "it is gone before the message leaves");
}

#[test]
fn a_refill_keeps_the_balance_usable() {
    let mut ledger = with_ten();
    assert_eq!(ledger.refill(NOW, MessageNumber(2)), None, "there is enough");
    ledger.spend(NOW, Hits(8));
    let borrow = ledger.refill(NOW, MessageNumber(2)).unwrap();
    assert_eq!((borrow.hits, borrow.wanted, borrow.balance), (Hits(0), Hits(10), Hits(2)));
    assert!(matches!(ledger.spend(NOW, Hits(1)), SpendResult::Spent(_)));
    ledger.settle(NOW, &grant(2, 10, 2));
    assert_eq!(ledger.balance(NOW), Hits(11));
}

#[test]
fn a_lease_is_renewed_two_round_trips_early() {
    let mut ledger = empty_balance();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.settle(after(50), &grant(1, 10, 0));
    assert_eq!(ledger.refill(after(897), MessageNumber(2)), None);
    assert!(ledger.refill(after(898), MessageNumber(2)).is_some(), "998 − 2·50");
}

#[test]
fn hits_missing_in_the_lease_table_leave_the_balance() {
    let mut ledger = with_ten();
    ledger.spend(NOW, Hits(8));
    ledger.refill(NOW, MessageNumber(2)).unwrap();
    ledger.settle(NOW, &grant(2, 5, 1));
    assert_eq!(ledger.balance(NOW), Hits(6));
}

#[test]
fn an_empty_grant_pauses_refills() {
    let mut ledger = with_ten();
    ledger.spend(NOW, Hits(8));
    ledger.refill(NOW, MessageNumber(2)).unwrap();
    ledger.settle(NOW, &grant(2, 0, 2));
    assert_eq!(ledger.refill(after(124), MessageNumber(3)), None);
    assert!(ledger.refill(after(125), MessageNumber(3)).is_some(), "an eighth of the term");
}

#[test]
fn a_full_return_happens_once_and_ignores_pending_replies() {
    let mut ledger = with_ten();
    ledger.spend(NOW, Hits(8));
    ledger.refill(NOW, MessageNumber(2)).unwrap();
    let back = ledger.return_all(NOW, MessageNumber(3)).unwrap();
    assert_eq!(
        (back.returned, back.balance, back.last_lease),
        (Hits(2), Hits(0), MessageNumber(1))
    );
    ledger.settle(NOW, &grant(2, 10, 2));
    assert_eq!(ledger.balance(NOW), Hits(0));
    assert_eq!(ledger.return_all(NOW, MessageNumber(4)), None);
}

#[test]
fn an_expired_balance_is_not_returned() {
    assert_eq!(with_ten().return_all(after(998), MessageNumber(2)), None);
}

#[test]
fn hits_above_expected_demand_are_surplus() {
    let mut ledger = LeaseBalance::new(LeaseSizing::Learned, TERM, Hits(100));
    // 40 hits are requested in this lease duration.
    for number in 1..=40 {
        if ledger.spend(NOW, Hits(1)) == SpendResult::NeedsStore {
            borrow_for(&mut ledger, NOW, number, 1);
            ledger.settle(NOW, &grant(number, if number == 20 { 90 } else { 0 }, 0));
        }
    }
    assert_eq!(ledger.balance(NOW), Hits(70));
    let back = ledger.return_surplus(after(499), MessageNumber(90)).unwrap();
    // The expected demand until the lease expires at 998 ms is ⌊40·0.499⌋ = 19.
    assert_eq!((back.returned, back.balance), (Hits(51), Hits(19)));
    assert_eq!(ledger.balance(after(499)), Hits(19));
}

/// A balance with learned sizing: 64 hits requested, 80 leased, and `left` remaining at NOW.
fn with_learned_demand(left: u64) -> LeaseBalance {
    with_learned_demand_for(left, TERM)
}

fn with_learned_demand_for(left: u64, good_for: Nanos) -> LeaseBalance {
    let mut ledger = LeaseBalance::new(LeaseSizing::Learned, TERM, Hits(100));
    assert_eq!(ledger.spend(NOW, Hits(64 - (80 - left).min(64))), SpendResult::NeedsStore);
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.settle(NOW, &BorrowReply { valid_for: good_for, ..grant(1, 80, 0) });
    for _ in left..80 {
        assert!(matches!(ledger.spend(NOW, Hits(1)), SpendResult::Spent(_)));
    }
    ledger
}

#[test]
fn a_low_balance_is_refilled_early() {
    // The demand of 64 hits per second is 16 hits in 250 ms.
    let time = Nanos(250_000_000);
    assert_eq!(with_learned_demand(17).refill_early(NOW, MessageNumber(2), time.plus(time)), None);
    let mut low = with_learned_demand(16);
    assert_eq!(low.refill(NOW, MessageNumber(2)), None, "there is time");
    assert_eq!(low.refill_early(NOW, MessageNumber(2), Nanos(249_000_000)), None, "15 in 249 ms");
    let more = low.refill_early(NOW, MessageNumber(2), time).unwrap();
    let expected = (Hits(0), Hits(48), Hits(16), Hits(0));
    assert_eq!((more.hits, more.wanted, more.balance, more.returned), expected, "64 in all");
    assert_eq!(low.balance(NOW), Hits(16), "it stays usable");
    assert_eq!(low.refill_early(NOW, MessageNumber(3), time), None, "a message is on its way");
    low.settle(NOW, &grant(2, 0, 16));
    assert_eq!(
        low.refill_early(after(124), MessageNumber(3), TERM),
        None,
        "there was nothing to lend"
    );
    assert!(low.refill_early(after(125), MessageNumber(3), TERM).is_some());
}

#[test]
fn a_lease_is_renewed_early_in_its_last_eighth() {
    let mut held = with_learned_demand(60);
    assert_eq!(held.refill_early(after(872), MessageNumber(2), Nanos::from_secs(9)), None);
    assert!(
        held.clone().refill_early(after(873), MessageNumber(2), Nanos::from_secs(9)).is_some(),
        "998 − 125"
    );
    assert_eq!(held.refill_early(after(873), MessageNumber(2), Nanos(124_000_000)), None);
    assert_eq!(
        held.refill_early(after(998), MessageNumber(2), Nanos::from_secs(9)),
        None,
        "it is over"
    );
}

#[test]
fn a_shortened_lease_is_refilled_but_not_renewed_early() {
    let cut_short = Nanos(900_000_000);
    let time = Nanos(250_000_000);
    let mut held = with_learned_demand_for(60, cut_short);
    for millis in [0, 773, 897] {
        assert_eq!(held.refill_early(after(millis), MessageNumber(2), time), None, "{millis} ms");
    }
    assert!(
        with_learned_demand_for(16, cut_short).refill_early(NOW, MessageNumber(2), time).is_some()
    );
    // The lease in the next window has the full duration.
    borrow_for(&mut held, after(900), 2, 61);
    held.settle(after(900), &grant(2, 60, 0));
    assert!(held.refill_early(after(1_897), MessageNumber(3), time).is_some());
}

#[test]
fn a_full_return_reports_zero_demand() {
    assert_eq!(with_ten().return_all(NOW, MessageNumber(2)).unwrap().demand, Hits(0));
    let mut rare = with_ten();
    assert_eq!(rare.return_if_idle(after(900), MessageNumber(2), Nanos(999_000_000)), None);
    assert!(
        rare.return_if_idle(after(900), MessageNumber(2), TERM).is_some(),
        "nobody asked in a whole span"
    );
}

#[test]
fn a_balance_is_returned_after_eight_expected_checks_are_missing() {
    // With 41 checks and 64 hits per second, eight checks take 196 ms and eight hits 125 ms.
    let mut quiet = with_learned_demand(40);
    assert_eq!(quiet.return_if_idle(after(195), MessageNumber(2), Nanos(195_000_000)), None);
    let gone = quiet.return_if_idle(after(196), MessageNumber(2), Nanos(196_000_000)).unwrap();
    assert_eq!((gone.returned, gone.demand), (Hits(40), Hits(0)));
}

#[test]
fn a_remembered_denial_counts_its_wait_from_the_reply() {
    let mut ledger = empty_balance();
    borrow_for(&mut ledger, NOW, 1, 5);
    ledger.settle(after(20), &denial(1, Nanos::SECOND, 0));
    let expected = SpendResult::Denied {
        retry_after: Nanos(920_000_000),
        additional_hits: Hits(0),
        headroom: Headroom { remaining: Hits(7), reset_after: Nanos(920_000_000) },
    };
    assert_eq!(ledger.spend(after(100), Hits(5)), expected);
    assert_eq!(ledger.spend(after(1_000), Hits(5)), SpendResult::NeedsStore);
}

#[test]
fn a_remembered_denial_does_not_apply_to_fewer_hits() {
    let mut ledger = empty_balance();
    borrow_for(&mut ledger, NOW, 1, 5);
    ledger.settle(NOW, &denial(1, Nanos::SECOND, 0));
    assert_eq!(ledger.spend(NOW, Hits(4)), SpendResult::NeedsStore);
    assert!(matches!(
        ledger.spend(NOW, Hits(6)),
        SpendResult::Denied { additional_hits: Hits(1), .. }
    ));
}

#[test]
fn the_denial_of_the_fewest_hits_is_remembered() {
    let mut ledger = empty_balance();
    for (number, hits) in [(1, 3), (2, 9)] {
        borrow_for(&mut ledger, NOW, number, hits);
        ledger.settle(NOW, &denial(number, Nanos::SECOND, 0));
    }
    assert!(matches!(ledger.spend(NOW, Hits(3)), SpendResult::Denied { .. }));
    borrow_for(&mut ledger, NOW, 3, 2);
    ledger.settle(NOW, &grant(3, 0, 0));
    assert!(
        matches!(ledger.spend(NOW, Hits(3)), SpendResult::Denied { .. }),
        "2 passed, 3 did not"
    );
    borrow_for(&mut ledger, NOW, 4, 3);
    ledger.settle(NOW, &grant(4, 0, 0));
    assert_eq!(ledger.spend(NOW, Hits(3)), SpendResult::NeedsStore, "3 passed");
}

#[test]
fn a_denial_sent_before_a_refund_is_not_remembered() {
    let mut ledger = empty_balance();
    borrow_for(&mut ledger, NOW, 1, 1);
    ledger.forget_denial(NOW);
    ledger.settle(after(20), &denial(1, Nanos::SECOND, 0));
    assert_eq!(ledger.spend(after(20), Hits(1)), SpendResult::NeedsStore);
    borrow_for(&mut ledger, after(20), 2, 1);
    ledger.settle(after(40), &denial(2, Nanos::SECOND, 0));
    assert!(matches!(ledger.spend(after(40), Hits(1)), SpendResult::Denied { .. }));
}

#[test]
fn a_denied_check_calls_the_store_while_enough_hits_are_outstanding() {
    let mut ledger = empty_balance();
    borrow_for(&mut ledger, NOW, 1, 11);
    // 7 hits remain, and other replicas may return 4.
    ledger.settle(after(20), &denial(1, Nanos::from_secs(3_600), 4));
    let SpendResult::Denied { retry_after, .. } = ledger.spend(after(39), Hits(11)) else {
        panic!()
    };
    assert_eq!(retry_after, Nanos::from_secs(3_600).since(Nanos(39_000_000 - 20_000_000)));
    assert_eq!(ledger.spend(after(40), Hits(11)), SpendResult::NeedsStore);
}

#[test]
fn a_fixed_window_denial_calls_the_store_eight_times_per_window() {
    let window = FixedWindow::new(100, Windows::Every(TERM)).unwrap();
    let mut ledger = empty_balance().with_strategy(Strategy::FixedWindow(window));
    borrow_for(&mut ledger, NOW, 1, 11);
    ledger.settle(after(20), &denial(1, Nanos::from_secs(3_600), 4));
    assert!(matches!(ledger.spend(after(124), Hits(11)), SpendResult::Denied { .. }));
    assert_eq!(ledger.spend(after(125), Hits(11)), SpendResult::NeedsStore);
}

#[test]
fn too_few_outstanding_hits_delay_the_next_store_call() {
    let mut ledger = empty_balance();
    borrow_for(&mut ledger, NOW, 1, 17);
    // 7 hits remain, and 10 of 17 are missing. Other replicas may return 4. The limit frees 5 in
    // half of the retry-after, and may have freed part of one already.
    ledger.settle(NOW, &denial(1, Nanos::SECOND, 4));
    assert!(matches!(ledger.spend(after(499), Hits(17)), SpendResult::Denied { .. }));
    assert_eq!(ledger.spend(after(500), Hits(17)), SpendResult::NeedsStore);
}

#[test]
fn the_balance_is_spent_despite_a_remembered_denial() {
    let mut ledger = with_ten();
    borrow_for(&mut ledger, NOW, 2, 1);
    ledger.settle(NOW, &denial(2, Nanos::SECOND, 0));
    borrow_for(&mut ledger, NOW, 3, 0);
    ledger.settle(NOW, &grant(3, 10, 0));
    assert!(matches!(ledger.spend(NOW, Hits(1)), SpendResult::Spent(_)));
}

#[test]
fn remaining_adds_the_balance_to_the_store_headroom() {
    let mut ledger = with_ten();
    let SpendResult::Spent(room) = ledger.spend(after(100), Hits(1)) else { panic!() };
    let expected = Headroom { remaining: Hits(7 + 9), reset_after: Nanos(900_000_000) };
    assert_eq!(room, expected);
}
