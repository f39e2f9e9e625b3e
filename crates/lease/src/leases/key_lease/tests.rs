//! Putting hits back into a lease, and waking the checks that wait for a message.

use super::KeyLease;
use crate::kernel::decision::{Cost, Enforcement};
use crate::kernel::key::{CounterKey, KeyStrategy};
use crate::kernel::lease::sizer::LeaseSizing;
use crate::kernel::lease::{BorrowReply, BorrowRequest, LeaseTerms, MessageNumber, Overshoot};
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::leases::LeasedCounter;
use crate::store::{Charge, ChargeOutcome, Placement, StoreFailure};

const DAY: Nanos = Nanos::from_secs(86_400);
const NOW: Nanos = DAY;
const TERM: Nanos = Nanos::from_secs(10);

fn empty_lease() -> KeyLease {
    empty_lease_of(LeaseSizing::Fixed(Hits(20)))
}

fn empty_lease_of(size: LeaseSizing) -> KeyLease {
    let limit = FixedWindow::new(1_000, Windows::Every(DAY)).unwrap();
    let charge = Charge {
        key: CounterKey::unique("d", [("k", "v")].into_iter(), KeyStrategy::FixedWindow(DAY)),
        placement: Placement::default(),
        strategy: Strategy::FixedWindow(limit),
        cost: Cost::Charge(Hits(1)),
        standing: Enforcement::default(),
        per_second: false,
    };
    let overshoot = Overshoot::AtMost(Hits(100));
    KeyLease::new(
        LeasedCounter {
            charge: &charge,
            terms: LeaseTerms { overshoot, duration: TERM, sizing: size },
        },
        NOW,
        MessageNumber(1),
        |_, _| {},
    )
}

/// The reply of a store with enough hits.
fn full_reply(borrow: &BorrowRequest) -> BorrowReply {
    let room = Headroom { remaining: Hits(500), reset_after: DAY };
    BorrowReply {
        number: borrow.number,
        decision: CounterDecision::Allow(room),
        granted: borrow.wanted,
        kept: borrow.balance,
        outstanding_elsewhere: Hits(0),
        valid_for: TERM,
    }
}

/// A lease with a balance of 20 hits.
fn lease_of_20() -> KeyLease {
    let mut held = empty_lease();
    let borrow = held.borrow(NOW, MessageNumber(2), Hits(1)).unwrap();
    held.settle(NOW, MessageNumber(2), Ok(full_reply(&borrow)));
    assert_eq!(held.balance(NOW), Hits(20));
    held
}

/// Takes 18 undecided hits, so that a refill is due. Returns their epoch.
fn take_18(lease: &mut KeyLease) -> u64 {
    assert!(matches!(
        lease.take(NOW, Hits(18)),
        Some(ChargeOutcome::Decided(CounterDecision::Allow(_)))
    ));
    lease.epoch()
}

#[test]
fn put_back_restores_the_balance_before_any_message() {
    let mut held = lease_of_20();
    let epoch = take_18(&mut held);
    held.put_back(NOW, Hits(18), epoch);
    assert_eq!(held.balance(NOW), Hits(20));
}

#[test]
fn messages_report_undecided_hits_which_can_still_be_put_back() {
    type Write = fn(&mut KeyLease) -> Option<BorrowRequest>;
    let messages: [Write; 3] = [
        |held| held.refill(NOW, || MessageNumber(3)),
        |held| held.borrow(NOW, MessageNumber(3), Hits(5)),
        |held| held.return_all(NOW, MessageNumber(3)),
    ];
    for write in messages {
        let mut held = lease_of_20();
        let epoch = take_18(&mut held);
        let BorrowRequest { balance: said, returned, .. } = write(&mut held).unwrap();
        assert_eq!((said.plus(returned), said), (Hits(20), held.balance(NOW).plus(Hits(18))));
        held.put_back(NOW, Hits(18), epoch);
        assert_eq!(held.balance(NOW), said);
    }
}

#[test]
fn put_back_restores_the_balance_after_a_reply_or_timeout() {
    for (is_lost, borrowed) in [(false, 20), (true, 0)] {
        let mut held = lease_of_20();
        let epoch = take_18(&mut held);
        let ahead = held.refill(NOW, || MessageNumber(3)).unwrap();
        let came = if is_lost { Err(Some(StoreFailure::TimedOut)) } else { Ok(full_reply(&ahead)) };
        held.settle(NOW, MessageNumber(3), came);
        held.put_back(NOW, Hits(18), epoch);
        assert_eq!(held.balance(NOW), Hits(20 + borrowed));
    }
}

#[test]
fn put_back_is_ignored_if_the_store_lists_fewer_hits() {
    let mut held = lease_of_20();
    let epoch = take_18(&mut held);
    let ahead = held.refill(NOW, || MessageNumber(3)).unwrap();
    held.settle(NOW, MessageNumber(3), Ok(BorrowReply { kept: Hits(19), ..full_reply(&ahead) }));
    assert_eq!(held.balance(NOW), Hits(2 + 20));
    held.put_back(NOW, Hits(18), epoch);
    assert_eq!(held.balance(NOW), Hits(2 + 20));
}

#[test]
fn put_back_is_ignored_after_the_lease_expires() {
    let (mut held, later) = (lease_of_20(), NOW.plus(TERM));
    let epoch = take_18(&mut held);
    let borrow = held.borrow(later, MessageNumber(3), Hits(1)).unwrap();
    assert_eq!((borrow.balance, borrow.returned), (Hits(0), Hits(0)));
    held.settle(later, MessageNumber(3), Ok(full_reply(&borrow)));
    held.put_back(later, Hits(18), epoch);
    assert_eq!(held.balance(later), Hits(20));
}

#[test]
fn hits_of_an_allowed_check_leave_the_balance() {
    let mut held = lease_of_20();
    let epoch = take_18(&mut held);
    held.mark_spent(Hits(18), epoch);
    assert_eq!(held.refill(NOW, || MessageNumber(3)).unwrap().balance, Hits(2));
}

#[test]
fn put_back_of_hits_from_an_old_lease_is_ignored() {
    let (mut before, mut after) = (lease_of_20(), lease_of_20());
    let epoch = take_18(&mut before);
    let limit = after.charge.clone();
    let leased = LeasedCounter { charge: &limit, terms: after.terms };
    after = KeyLease::new(leased, NOW, MessageNumber(9), |_, _| {});
    after.put_back(NOW, Hits(18), epoch);
    let borrow = after.borrow(NOW, MessageNumber(10), Hits(1)).unwrap();
    after.settle(NOW, MessageNumber(10), Ok(full_reply(&borrow)));
    after.put_back(NOW, Hits(18), epoch);
    assert_eq!(after.balance(NOW), Hits(20));
}

#[test]
fn waiting_checks_wake_only_for_the_newest_message() {
    let mut held = empty_lease();
    let first = held.borrow(NOW, MessageNumber(2), Hits(1)).unwrap();
    assert_eq!(held.borrow(NOW, MessageNumber(3), Hits(1)), None, "one is on its way");
    // The message is settled without a reply, so that another message can be sent.
    held.settle(NOW, MessageNumber(2), Err(None));
    let second = held.borrow(NOW, MessageNumber(4), Hits(1)).unwrap();
    let waits = held.subscribe();
    held.settle(NOW, MessageNumber(2), Ok(full_reply(&first)));
    assert!(!waits.has_changed().unwrap(), "the older one's fate is not theirs");
    assert_eq!((held.balance(NOW), held.evictable_since()), (Hits(0), None), "nor is it believed");
    held.settle(NOW, MessageNumber(4), Ok(full_reply(&second)));
    assert!(waits.has_changed().unwrap());
    assert_eq!((*waits.borrow(), held.evictable_since()), (None, Some(NOW)));
}

#[test]
fn waiting_checks_get_the_cause_of_a_failed_message() {
    let mut held = empty_lease();
    held.borrow(NOW, MessageNumber(2), Hits(1)).unwrap();
    let waits = held.subscribe();
    held.settle(NOW, MessageNumber(2), Err(Some(StoreFailure::Unreachable)));
    assert_eq!(*waits.borrow(), Some(StoreFailure::Unreachable));
}

#[test]
fn a_lease_is_idle_without_balance_checks_or_pending_reply() {
    let later = NOW.plus(Nanos(3 * TERM.0));
    let mut held = lease_of_20();
    assert!(!held.is_idle(NOW.plus(Nanos(TERM.0 / 2))), "something is held");
    assert!(held.is_idle(later), "its lease is over");
    held.record_check(later, Hits(1));
    assert!(!held.is_idle(later), "somebody asks");
    let mut waiting = lease_of_20();
    waiting.decide(NOW, Hits(20));
    waiting.borrow(NOW, MessageNumber(3), Hits(1)).unwrap();
    assert!(!waiting.is_idle(later), "an answer is awaited");
}

/// The history of at most 64 hits predicts nothing. A longer pause than two minutes is not learned.
#[test]
fn a_key_whose_demand_may_repeat_is_kept_for_two_minutes() {
    let (pause, longer) = (NOW.plus(Nanos::from_secs(120)), NOW.plus(Nanos::from_secs(130)));
    let mut few = empty_lease_of(LeaseSizing::Learned);
    few.record_check(NOW, Hits(63));
    assert!(few.is_idle(pause));
    let mut many = empty_lease_of(LeaseSizing::Learned);
    many.record_check(NOW, Hits(64));
    assert!(!many.is_idle(pause) && many.is_idle(longer));
}
