//! Early refills, renewals and returns of unused hits.

use sluicegate_kernel::lease::MessageNumber;
use sluicegate_kernel::lease::balance::{LeaseBalance, SpendResult};
use sluicegate_kernel::lease::sizer::LeaseSizing;
use sluicegate_kernel::units::{Hits, Nanos};

use super::{
    NOW, TERM, after, borrow_for, empty_balance, grant, with_learned_demand,
    with_learned_demand_for, with_ten,
};

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
