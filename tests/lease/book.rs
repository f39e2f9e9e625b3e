//! Tests the lease table: grants, returns, repeated messages and expiry.

use sluicegate::kernel::lease::sizer::Size;
use sluicegate::kernel::lease::{Answer, Borrow, Member, Number, Overshoot, Terms};
use sluicegate::kernel::rate::Step;
use sluicegate::kernel::rate::fixed_window::{Count, FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::{Gcra, Tat};
use sluicegate::kernel::rate::sliding_log::{Log, SlidingLog};
use sluicegate::kernel::rate::sliding_window::{Pair, SlidingWindow};
use sluicegate::kernel::units::{Hits, Nanos};

use super::store::{Counted, Store};

const NOW: Nanos = Nanos(1_700_000_000_000_000_000);
const TERM: Nanos = Nanos(2_000_000_000);
const A: Member = Member(1);
const B: Member = Member(2);
const MINUTE: Nanos = Nanos::from_secs(60);

fn after(millis: u64) -> Nanos {
    NOW.plus(Nanos(millis * 1_000_000))
}

fn gcra() -> Counted {
    Counted::Gcra(Gcra::new(100, MINUTE, 100).unwrap(), Tat::default())
}

fn fixed() -> Counted {
    Counted::Fixed(FixedWindow::new(100, Windows::Every(MINUTE)).unwrap(), Count::default())
}

fn sliding() -> Counted {
    Counted::Sliding(SlidingWindow::new(100, MINUTE).unwrap(), Pair::default())
}

fn log() -> Counted {
    Counted::Log(SlidingLog::new(100, MINUTE).unwrap(), Log::default())
}

fn every() -> [Counted; 4] {
    [gcra(), fixed(), sliding(), log()]
}

fn store(counted: Counted, budget: u64) -> Store {
    Store::new(
        counted,
        Terms { overshoot: Overshoot::AtMost(Hits(budget)), term: TERM, size: Size::Learned },
    )
}

fn in_window() -> Store {
    Store::new(fixed(), Terms { overshoot: Overshoot::InWindow, term: MINUTE, size: Size::Learned })
}

fn want(number: u64, want: u64) -> Borrow {
    Borrow {
        number: Number(number),
        hits: Hits(0),
        want: Hits(want),
        demand: Hits(1),
        held: Hits(0),
        returned: Hits(0),
        lease: Number(0),
    }
}

fn lend(store: &mut Store, at: Nanos, member: Member, borrow: &Borrow) -> u64 {
    store.step(at, member, borrow).unwrap().granted.0
}

fn remaining(store: &mut Store, at: Nanos) -> u64 {
    store.counted.with(at, |counter| match counter.ask(at, Hits(0)) {
        Step::Admit(room) | Step::Deny { room, .. } | Step::Never(room) => room.remaining.0,
        Step::Stale => panic!("stale"),
    })
}

#[test]
fn a_grant_is_capped_by_limit_and_budget() {
    for counted in every() {
        let mut store = store(counted, 50);
        assert_eq!(lend(&mut store, NOW, A, &want(1, 30)), 30);
        let more = Borrow { held: Hits(30), ..want(2, 30) };
        assert_eq!(lend(&mut store, NOW, A, &more), 20, "the budget");
        let fewer = Borrow { hits: Hits(40), ..want(3, 30) };
        assert_eq!(lend(&mut store, NOW, A, &fewer), 10, "the law: 50 and 40 of 100 are charged");
        assert_eq!(store.book.out(NOW), Hits(10));
    }
}

#[test]
fn remaining_hits_are_divided_by_demand() {
    let mut store = store(gcra(), 100);
    let from_b = Borrow { demand: Hits(10), ..want(1, 20) };
    assert_eq!(lend(&mut store, NOW, B, &from_b), 20);
    store.charge(NOW, Hits(40));
    let from_a = Borrow { demand: Hits(30), ..want(1, 100) };
    assert_eq!(lend(&mut store, NOW, A, &from_a), 30, "⌊40·30/40⌋ of the law, 75 of the budget");
}

#[test]
fn the_budget_is_divided_by_demand() {
    let mut store = store(gcra(), 40);
    lend(&mut store, NOW, B, &Borrow { demand: Hits(30), ..want(1, 0) });
    let from_a = Borrow { demand: Hits(10), ..want(1, 100) };
    assert_eq!(lend(&mut store, NOW, A, &from_a), 10, "⌊40·10/40⌋");
    let again = Borrow { demand: Hits(10), held: Hits(10), ..want(2, 100) };
    assert_eq!(lend(&mut store, NOW, A, &again), 0);
}

#[test]
fn demand_expires_with_its_replica() {
    let mut store = store(gcra(), 100);
    lend(&mut store, NOW, B, &Borrow { demand: Hits(1_000), ..want(1, 0) });
    assert_eq!(lend(&mut store, after(1_999), A, &want(1, 50)), 0);
    assert_eq!(lend(&mut store, after(2_000), A, &want(2, 50)), 50);
}

#[test]
fn charged_hits_need_no_budget() {
    for counted in every() {
        let mut store = store(counted, 1);
        let answer = store.step(NOW, A, &Borrow { hits: Hits(90), ..want(1, 5) }).unwrap();
        assert!(matches!(answer.step, Step::Admit(room) if room.remaining == Hits(9)));
        assert_eq!((answer.granted, store.book.out(NOW)), (Hits(1), Hits(1)));
    }
}

#[test]
fn a_denied_borrow_grants_no_lease() {
    for counted in every() {
        let mut store = store(counted, 50);
        store.charge(NOW, Hits(95));
        let answer = store.step(NOW, A, &Borrow { hits: Hits(6), ..want(1, 5) }).unwrap();
        assert!(matches!(answer.step, Step::Deny { .. }));
        assert_eq!(answer.granted, Hits(0));
    }
}

#[test]
fn a_repeated_message_is_charged_once() {
    for counted in every() {
        let mut store = store(counted, 50);
        let borrow = Borrow { hits: Hits(10), ..want(1, 30) };
        let first = store.step(NOW, A, &borrow).unwrap();
        let again = store.step(after(1), A, &borrow).unwrap();
        assert_eq!((again.granted, again.kept), (first.granted, first.kept));
        assert_eq!(again.good_for, first.good_for.since(Nanos::MILLI), "the same end");
        assert!(matches!(again.step, Step::Admit(_)));
        assert_eq!(remaining(&mut store, after(1)), 60);
    }
}

#[test]
fn a_repeated_message_retries_a_denial() {
    let mut store = store(gcra(), 50);
    store.charge(NOW, Hits(100));
    let borrow = Borrow { hits: Hits(1), ..want(1, 0) };
    assert!(matches!(store.step(NOW, A, &borrow).unwrap().step, Step::Deny { .. }));
    for _ in 0..2 {
        // 600 ms free one hit. The second time repeats an allowed message.
        assert!(matches!(store.step(after(600), A, &borrow).unwrap().step, Step::Admit(_)));
    }
    assert!(matches!(store.charge(after(600), Hits(1)), Step::Deny { .. }));
}

#[test]
fn a_superseded_message_charges_nothing() {
    for counted in every() {
        let mut store = store(counted, 50);
        store.step(NOW, A, &want(2, 10));
        assert_eq!(store.step(NOW, A, &Borrow { hits: Hits(5), ..want(1, 10) }), None);
        assert_eq!(remaining(&mut store, NOW), 90);
        assert_eq!(store.book.out(NOW), Hits(10));
    }
}

#[test]
fn returned_hits_are_refunded_once() {
    for counted in every() {
        let mut store = store(counted, 50);
        store.step(NOW, A, &want(1, 30));
        let back = Borrow { held: Hits(10), returned: Hits(20), lease: Number(1), ..want(2, 0) };
        for _ in 0..2 {
            store.step(NOW, A, &back);
            assert_eq!((remaining(&mut store, NOW), store.book.out(NOW)), (90, Hits(10)));
        }
    }
}

#[test]
fn a_return_refunds_at_most_the_listed_hits() {
    for counted in every() {
        let mut store = store(counted, 50);
        store.charge(NOW, Hits(40));
        store.step(NOW, A, &want(1, 30));
        let back = Borrow { returned: Hits(99), lease: Number(1), ..want(2, 0) };
        store.step(NOW, A, &back);
        assert_eq!(remaining(&mut store, NOW), 60);
    }
}

#[test]
fn an_expired_lease_is_not_refunded() {
    for (at, expected) in [(1_999, 100), (2_000, 70)] {
        let mut store = store(log(), 50);
        store.step(NOW, A, &want(1, 30));
        let back = Borrow { returned: Hits(30), lease: Number(1), ..want(2, 0) };
        store.step(after(at), A, &back);
        assert_eq!(remaining(&mut store, after(at)), expected);
    }
}

#[test]
fn only_the_last_lease_is_refunded() {
    for counted in every() {
        let mut store = store(counted, 50);
        store.step(NOW, A, &want(1, 30));
        // The replica never received this grant, and returns its balance of the first.
        store.step(NOW, A, &Borrow { held: Hits(30), ..want(2, 5) });
        let back = Borrow { returned: Hits(30), lease: Number(1), ..want(3, 0) };
        store.step(NOW, A, &back);
        assert_eq!((remaining(&mut store, NOW), store.book.out(NOW)), (65, Hits(0)));
    }
}

#[test]
fn a_window_refunds_only_its_own_hits() {
    // The window of NOW ends after 40 s.
    for (counted, expected) in [(fixed(), 80), (sliding(), 50)] {
        let terms =
            Terms { overshoot: Overshoot::AtMost(Hits(50)), term: MINUTE, size: Size::Learned };
        let mut store = Store::new(counted, terms);
        store.step(NOW, A, &want(1, 30));
        store.charge(after(40_000), Hits(20));
        let back = Borrow { returned: Hits(30), lease: Number(1), ..want(2, 0) };
        store.step(after(40_000), A, &back);
        assert_eq!(remaining(&mut store, after(40_000)), expected, "{:?}", store.counted);
    }
}

#[test]
fn a_window_refunds_only_its_newest_lease() {
    let terms = Terms { overshoot: Overshoot::AtMost(Hits(50)), term: MINUTE, size: Size::Learned };
    let mut store = Store::new(fixed(), terms);
    store.step(NOW, A, &want(1, 30));
    let next = after(40_000);
    store.step(next, A, &Borrow { held: Hits(30), lease: Number(1), ..want(2, 10) });
    store.charge(next, Hits(20));
    let back = Borrow { returned: Hits(40), lease: Number(2), ..want(3, 0) };
    store.step(next, A, &back);
    assert_eq!(remaining(&mut store, next), 80, "10 were charged here, and 30 elsewhere");
}

#[test]
fn a_log_refunds_the_entries_of_the_lease() {
    let mut store = store(log(), 50);
    store.step(NOW, A, &want(1, 30));
    store.charge(after(1_000), Hits(20));
    let back = Borrow { returned: Hits(30), lease: Number(1), ..want(2, 0) };
    store.step(after(1_000), A, &back);
    assert_eq!(remaining(&mut store, after(60_000)), 80, "the 20 are as young as they were");
}

#[test]
fn an_in_window_lease_ends_with_its_window() {
    let mut store = in_window();
    let Answer { granted, good_for, .. } = store.step(NOW, A, &want(1, 100)).unwrap();
    assert_eq!((granted, good_for), (Hits(100), Nanos::from_secs(40)));
    assert_eq!(store.book.out(after(39_999)), Hits(100));
    assert_eq!(store.book.out(after(40_000)), Hits(0));
}

#[test]
fn the_balance_of_an_ended_window_is_not_kept() {
    let mut store = in_window();
    store.step(NOW, A, &want(1, 60));
    let report = Borrow { held: Hits(60), lease: Number(1), ..want(2, 10) };
    let answer = store.step(after(40_000), A, &report).unwrap();
    assert_eq!((answer.kept, answer.granted), (Hits(0), Hits(10)));
}

#[test]
fn in_window_leases_require_a_fixed_window() {
    for counted in [gcra(), sliding(), log()] {
        let terms = Terms { overshoot: Overshoot::InWindow, term: TERM, size: Size::Learned };
        assert_eq!(lend(&mut Store::new(counted, terms), NOW, A, &want(1, 10)), 0);
    }
}

#[test]
fn a_replica_above_the_maximum_gets_no_lease() {
    let mut store = store(gcra(), 100);
    for member in 0..2_048 {
        store.step(NOW, Member(member + 10), &want(1, 0));
    }
    let answer = store.step(NOW, A, &Borrow { hits: Hits(1), ..want(1, 5) }).unwrap();
    assert!(matches!(answer.step, Step::Admit(_)));
    assert_eq!((answer.granted, store.book.out(NOW)), (Hits(0), Hits(0)));
}

#[test]
fn lease_records_disappear_at_expiry() {
    let mut store = store(gcra(), 100);
    assert!(store.book.is_blank(NOW));
    store.step(NOW, A, &want(1, 5));
    assert!(!store.book.is_blank(after(1_999)));
    assert!(store.book.is_blank(after(2_000)));
}
