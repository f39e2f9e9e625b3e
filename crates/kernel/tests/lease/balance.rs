//! Tests the lease balance of one replica: spending, refills, returns, expiry and denials.

mod denials;
mod early_refill;

use sluicegate_kernel::lease::balance::{LeaseBalance, SpendResult};
use sluicegate_kernel::lease::sizer::LeaseSizing;
use sluicegate_kernel::lease::{BorrowReply, BorrowRequest, MessageNumber, safe_duration};
use sluicegate_kernel::rate::{CounterDecision, Headroom};
use sluicegate_kernel::units::{Hits, Nanos};

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
fn remaining_adds_the_balance_to_the_store_headroom() {
    let mut ledger = with_ten();
    let SpendResult::Spent(room) = ledger.spend(after(100), Hits(1)) else { panic!() };
    let expected = Headroom { remaining: Hits(7 + 9), reset_after: Nanos(900_000_000) };
    assert_eq!(room, expected);
}
