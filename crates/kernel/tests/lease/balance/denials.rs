//! Remembered denials.

use sluicegate_kernel::lease::balance::SpendResult;
use sluicegate_kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate_kernel::rate::{Headroom, Strategy};
use sluicegate_kernel::units::{Hits, Nanos};

use super::{NOW, TERM, after, borrow_for, denial, empty_balance, grant, with_ten};

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
