//! Tests the lease table: grants, returns, repeated messages and expiry.

use sluicegate_kernel::lease::sizer::LeaseSizing;
use sluicegate_kernel::lease::{
    BorrowReply, BorrowRequest, LeaseTerms, MessageNumber, Overshoot, ReplicaIncarnation,
};
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::rate::fixed_window::{FixedWindow, WindowCount, Windows};
use sluicegate_kernel::rate::gcra::{Gcra, Tat};
use sluicegate_kernel::rate::sliding_log::{ArrivalLog, SlidingLog};
use sluicegate_kernel::rate::sliding_window::{SlidingWindow, WindowPair};
use sluicegate_kernel::units::{Hits, Nanos};

use super::store::{Counted, LeaseStore};

const NOW: Nanos = Nanos(1_700_000_000_000_000_000);
const TERM: Nanos = Nanos(2_000_000_000);
const A: ReplicaIncarnation = ReplicaIncarnation(1);
const B: ReplicaIncarnation = ReplicaIncarnation(2);
const MINUTE: Nanos = Nanos::from_secs(60);

fn after(millis: u64) -> Nanos {
    NOW.plus(Nanos(millis * 1_000_000))
}

fn gcra() -> Counted {
    Counted::Gcra(Gcra::new(100, MINUTE, 100).unwrap(), Tat::default())
}

fn fixed() -> Counted {
    Counted::Fixed(FixedWindow::new(100, Windows::Every(MINUTE)).unwrap(), WindowCount::default())
}

fn sliding() -> Counted {
    Counted::Sliding(SlidingWindow::new(100, MINUTE).unwrap(), WindowPair::default())
}

fn log() -> Counted {
    Counted::Log(SlidingLog::new(100, MINUTE).unwrap(), ArrivalLog::default())
}

fn every() -> [Counted; 4] {
    [gcra(), fixed(), sliding(), log()]
}

fn store(counted: Counted, budget: u64) -> LeaseStore {
    LeaseStore::new(
        counted,
        LeaseTerms {
            overshoot: Overshoot::AtMost(Hits(budget)),
            duration: TERM,
            sizing: LeaseSizing::Learned,
        },
    )
}

fn in_window() -> LeaseStore {
    LeaseStore::new(
        fixed(),
        LeaseTerms {
            overshoot: Overshoot::InWindow,
            duration: MINUTE,
            sizing: LeaseSizing::Learned,
        },
    )
}

fn want(number: u64, want: u64) -> BorrowRequest {
    BorrowRequest {
        number: MessageNumber(number),
        hits: Hits(0),
        wanted: Hits(want),
        demand: Hits(1),
        balance: Hits(0),
        returned: Hits(0),
        last_lease: MessageNumber(0),
    }
}

fn lend(
    store: &mut LeaseStore,
    now: Nanos,
    member: ReplicaIncarnation,
    borrow: &BorrowRequest,
) -> u64 {
    store.step(now, member, borrow).unwrap().granted.0
}

fn remaining(store: &mut LeaseStore, now: Nanos) -> u64 {
    store.counted.with(now, |counter| match counter.peek(now, Hits(0)) {
        CounterDecision::Allow(room)
        | CounterDecision::Deny { headroom: room, .. }
        | CounterDecision::ExceedsLimit(room) => room.remaining.0,
        CounterDecision::OutsideWindows => panic!("stale"),
    })
}

#[test]
fn a_grant_is_capped_by_limit_and_budget() {
    for counted in every() {
        let mut store = store(counted, 50);
        assert_eq!(lend(&mut store, NOW, A, &want(1, 30)), 30);
        let more = BorrowRequest { balance: Hits(30), ..want(2, 30) };
        assert_eq!(lend(&mut store, NOW, A, &more), 20, "the budget");
        let fewer = BorrowRequest { hits: Hits(40), ..want(3, 30) };
        assert_eq!(lend(&mut store, NOW, A, &fewer), 10, "the law: 50 and 40 of 100 are charged");
        assert_eq!(store.book.outstanding(NOW), Hits(10));
    }
}

#[test]
fn remaining_hits_are_divided_by_demand() {
    let mut store = store(gcra(), 100);
    let from_b = BorrowRequest { demand: Hits(10), ..want(1, 20) };
    assert_eq!(lend(&mut store, NOW, B, &from_b), 20);
    store.charge(NOW, Hits(40));
    let from_a = BorrowRequest { demand: Hits(30), ..want(1, 100) };
    assert_eq!(lend(&mut store, NOW, A, &from_a), 30, "⌊40·30/40⌋ of the law, 75 of the budget");
}

#[test]
fn the_budget_is_divided_by_demand() {
    let mut store = store(gcra(), 40);
    lend(&mut store, NOW, B, &BorrowRequest { demand: Hits(30), ..want(1, 0) });
    let from_a = BorrowRequest { demand: Hits(10), ..want(1, 100) };
    assert_eq!(lend(&mut store, NOW, A, &from_a), 10, "⌊40·10/40⌋");
    let again = BorrowRequest { demand: Hits(10), balance: Hits(10), ..want(2, 100) };
    assert_eq!(lend(&mut store, NOW, A, &again), 0);
}

#[test]
fn the_demand_of_a_silent_replica_expires() {
    let mut store = store(gcra(), 100);
    lend(&mut store, NOW, B, &BorrowRequest { demand: Hits(1_000), ..want(1, 0) });
    assert_eq!(lend(&mut store, after(1_999), A, &want(1, 50)), 0);
    assert_eq!(lend(&mut store, after(2_000), A, &want(2, 50)), 50);
}

#[test]
fn charged_hits_need_no_budget() {
    for counted in every() {
        let mut store = store(counted, 1);
        let answer = store.step(NOW, A, &BorrowRequest { hits: Hits(90), ..want(1, 5) }).unwrap();
        assert!(
            matches!(answer.decision, CounterDecision::Allow(room) if room.remaining == Hits(9))
        );
        assert_eq!((answer.granted, store.book.outstanding(NOW)), (Hits(1), Hits(1)));
    }
}

#[test]
fn a_denied_borrow_grants_no_lease() {
    for counted in every() {
        let mut store = store(counted, 50);
        store.charge(NOW, Hits(95));
        let answer = store.step(NOW, A, &BorrowRequest { hits: Hits(6), ..want(1, 5) }).unwrap();
        assert!(matches!(answer.decision, CounterDecision::Deny { .. }));
        assert_eq!(answer.granted, Hits(0));
    }
}

#[test]
fn a_repeated_message_is_charged_once() {
    for counted in every() {
        let mut store = store(counted, 50);
        let borrow = BorrowRequest { hits: Hits(10), ..want(1, 30) };
        let first = store.step(NOW, A, &borrow).unwrap();
        let again = store.step(after(1), A, &borrow).unwrap();
        assert_eq!((again.granted, again.kept), (first.granted, first.kept));
        assert_eq!(again.valid_for, first.valid_for.since(Nanos::MILLI), "the same end");
        assert!(matches!(again.decision, CounterDecision::Allow(_)));
        assert_eq!(remaining(&mut store, after(1)), 60);
    }
}

#[test]
fn a_repeated_message_retries_a_denial() {
    let mut store = store(gcra(), 50);
    store.charge(NOW, Hits(100));
    let borrow = BorrowRequest { hits: Hits(1), ..want(1, 0) };
    assert!(matches!(store.step(NOW, A, &borrow).unwrap().decision, CounterDecision::Deny { .. }));
    for _ in 0..2 {
        // In 600 ms GCRA frees one hit. The second iteration repeats a message that was allowed.
        assert!(matches!(
            store.step(after(600), A, &borrow).unwrap().decision,
            CounterDecision::Allow(_)
        ));
    }
    assert!(matches!(store.charge(after(600), Hits(1)), CounterDecision::Deny { .. }));
}

#[test]
fn a_superseded_message_charges_nothing() {
    for counted in every() {
        let mut store = store(counted, 50);
        store.step(NOW, A, &want(2, 10));
        assert_eq!(store.step(NOW, A, &BorrowRequest { hits: Hits(5), ..want(1, 10) }), None);
        assert_eq!(remaining(&mut store, NOW), 90);
        assert_eq!(store.book.outstanding(NOW), Hits(10));
    }
}

#[test]
fn returned_hits_are_refunded_once() {
    for counted in every() {
        let mut store = store(counted, 50);
        store.step(NOW, A, &want(1, 30));
        let back = BorrowRequest {
            balance: Hits(10),
            returned: Hits(20),
            last_lease: MessageNumber(1),
            ..want(2, 0)
        };
        for _ in 0..2 {
            store.step(NOW, A, &back);
            assert_eq!((remaining(&mut store, NOW), store.book.outstanding(NOW)), (90, Hits(10)));
        }
    }
}

#[test]
fn a_return_refunds_at_most_the_leased_hits() {
    for counted in every() {
        let mut store = store(counted, 50);
        store.charge(NOW, Hits(40));
        store.step(NOW, A, &want(1, 30));
        let back = BorrowRequest { returned: Hits(99), last_lease: MessageNumber(1), ..want(2, 0) };
        store.step(NOW, A, &back);
        assert_eq!(remaining(&mut store, NOW), 60);
    }
}

#[test]
fn an_expired_lease_is_not_refunded() {
    for (at, expected) in [(1_999, 100), (2_000, 70)] {
        let mut store = store(log(), 50);
        store.step(NOW, A, &want(1, 30));
        let back = BorrowRequest { returned: Hits(30), last_lease: MessageNumber(1), ..want(2, 0) };
        store.step(after(at), A, &back);
        assert_eq!(remaining(&mut store, after(at)), expected);
    }
}

#[test]
fn only_the_last_lease_is_refunded() {
    for counted in every() {
        let mut store = store(counted, 50);
        store.step(NOW, A, &want(1, 30));
        // The replica never receives the grant of message 2, and returns its balance from message
        // 1.
        store.step(NOW, A, &BorrowRequest { balance: Hits(30), ..want(2, 5) });
        let back = BorrowRequest { returned: Hits(30), last_lease: MessageNumber(1), ..want(3, 0) };
        store.step(NOW, A, &back);
        assert_eq!((remaining(&mut store, NOW), store.book.outstanding(NOW)), (65, Hits(0)));
    }
}

#[test]
fn a_window_refunds_only_its_own_hits() {
    // The window that contains `NOW` ends 40 s after `NOW`.
    for (counted, expected) in [(fixed(), 80), (sliding(), 50)] {
        let terms = LeaseTerms {
            overshoot: Overshoot::AtMost(Hits(50)),
            duration: MINUTE,
            sizing: LeaseSizing::Learned,
        };
        let mut store = LeaseStore::new(counted, terms);
        store.step(NOW, A, &want(1, 30));
        store.charge(after(40_000), Hits(20));
        let back = BorrowRequest { returned: Hits(30), last_lease: MessageNumber(1), ..want(2, 0) };
        store.step(after(40_000), A, &back);
        assert_eq!(remaining(&mut store, after(40_000)), expected, "{:?}", store.counted);
    }
}

#[test]
fn a_window_refunds_only_its_newest_lease() {
    let terms = LeaseTerms {
        overshoot: Overshoot::AtMost(Hits(50)),
        duration: MINUTE,
        sizing: LeaseSizing::Learned,
    };
    let mut store = LeaseStore::new(fixed(), terms);
    store.step(NOW, A, &want(1, 30));
    let next = after(40_000);
    store.step(
        next,
        A,
        &BorrowRequest { balance: Hits(30), last_lease: MessageNumber(1), ..want(2, 10) },
    );
    store.charge(next, Hits(20));
    let back = BorrowRequest { returned: Hits(40), last_lease: MessageNumber(2), ..want(3, 0) };
    store.step(next, A, &back);
    assert_eq!(remaining(&mut store, next), 80, "10 were charged here, and 30 elsewhere");
}

#[test]
fn a_log_refunds_the_entries_of_the_lease() {
    let mut store = store(log(), 50);
    store.step(NOW, A, &want(1, 30));
    store.charge(after(1_000), Hits(20));
    let back = BorrowRequest { returned: Hits(30), last_lease: MessageNumber(1), ..want(2, 0) };
    store.step(after(1_000), A, &back);
    assert_eq!(remaining(&mut store, after(60_000)), 80, "the 20 are as young as they were");
}

#[test]
fn a_lease_without_overshoot_ends_with_its_window() {
    let mut store = in_window();
    let BorrowReply { granted, valid_for: good_for, .. } =
        store.step(NOW, A, &want(1, 100)).unwrap();
    assert_eq!((granted, good_for), (Hits(100), Nanos::from_secs(40)));
    assert_eq!(store.book.outstanding(after(39_999)), Hits(100));
    assert_eq!(store.book.outstanding(after(40_000)), Hits(0));
}

#[test]
fn the_balance_of_an_ended_window_is_not_kept() {
    let mut store = in_window();
    store.step(NOW, A, &want(1, 60));
    let report = BorrowRequest { balance: Hits(60), last_lease: MessageNumber(1), ..want(2, 10) };
    let answer = store.step(after(40_000), A, &report).unwrap();
    assert_eq!((answer.kept, answer.granted), (Hits(0), Hits(10)));
}

#[test]
fn leases_without_overshoot_require_a_fixed_window() {
    for counted in [gcra(), sliding(), log()] {
        let terms = LeaseTerms {
            overshoot: Overshoot::InWindow,
            duration: TERM,
            sizing: LeaseSizing::Learned,
        };
        assert_eq!(lend(&mut LeaseStore::new(counted, terms), NOW, A, &want(1, 10)), 0);
    }
}

#[test]
fn a_full_lease_table_grants_no_further_lease() {
    let mut store = store(gcra(), 100);
    for member in 0..2_048 {
        store.step(NOW, ReplicaIncarnation(member + 10), &want(1, 0));
    }
    let answer = store.step(NOW, A, &BorrowRequest { hits: Hits(1), ..want(1, 5) }).unwrap();
    assert!(matches!(answer.decision, CounterDecision::Allow(_)));
    assert_eq!((answer.granted, store.book.outstanding(NOW)), (Hits(0), Hits(0)));
}

#[test]
fn lease_records_disappear_at_expiry() {
    let mut store = store(gcra(), 100);
    assert!(store.book.is_expired(NOW));
    store.step(NOW, A, &want(1, 5));
    assert!(!store.book.is_expired(after(1_999)));
    assert!(store.book.is_expired(after(2_000)));
}
