//! Put back hits, and wake the checks that wait for a message.

use super::Held;
use crate::backend::{Cause, Charge, Home, Outcome};
use crate::engine::leases::Leased;
use crate::kernel::decision::{Cost, Standing};
use crate::kernel::key::{CounterKey, Counting};
use crate::kernel::lease::sizer::Size;
use crate::kernel::lease::{Answer, Borrow, Number, Overshoot, Terms};
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos};

const DAY: Nanos = Nanos::from_secs(86_400);
const NOW: Nanos = DAY;
const TERM: Nanos = Nanos::from_secs(10);

fn held() -> Held {
    let limit = FixedWindow::new(1_000, Windows::Every(DAY)).unwrap();
    let charge = Charge {
        key: CounterKey::injective("d", [("k", "v")].into_iter(), Counting::FixedWindow(DAY)),
        home: Home::default(),
        strategy: Strategy::FixedWindow(limit),
        cost: Cost::Charge(Hits(1)),
        standing: Standing::default(),
        per_second: false,
    };
    let (overshoot, size) = (Overshoot::AtMost(Hits(100)), Size::Fixed(Hits(20)));
    Held::new(
        Leased { charge: &charge, terms: Terms { overshoot, term: TERM, size } },
        NOW,
        Number(1),
    )
}

/// The reply of a store with enough hits.
fn answer(borrow: &Borrow) -> Answer {
    let room = Room { remaining: Hits(500), reset_after: DAY };
    Answer {
        number: borrow.number,
        step: Step::Admit(room),
        granted: borrow.want,
        kept: borrow.held,
        parked: Hits(0),
        good_for: TERM,
    }
}

/// A lease with a balance of 20 hits.
fn stocked() -> Held {
    let mut held = held();
    let borrow = held.borrow(NOW, Number(2), Hits(1)).unwrap();
    held.settle(NOW, Number(2), Ok(answer(&borrow)));
    assert_eq!(held.balance(NOW), Hits(20));
    held
}

/// Takes 18 hits, so that a refill is due. Returns their epoch.
fn take(held: &mut Held) -> u64 {
    assert!(matches!(held.take(NOW, Hits(18)), Some(Outcome::Stepped(Step::Admit(_)))));
    held.epoch()
}

#[test]
fn put_back_works_before_any_message() {
    let mut held = stocked();
    let epoch = take(&mut held);
    held.put_back(NOW, Hits(18), epoch);
    assert_eq!(held.balance(NOW), Hits(20));
}

#[test]
fn messages_count_taken_hits_and_put_back_still_works() {
    type Write = fn(&mut Held) -> Option<Borrow>;
    let messages: [Write; 3] = [
        |held| held.ahead(NOW, || Number(3)),
        |held| held.borrow(NOW, Number(3), Hits(5)),
        |held| held.give_back(NOW, Number(3)),
    ];
    for write in messages {
        let mut held = stocked();
        let epoch = take(&mut held);
        let Borrow { held: said, returned, .. } = write(&mut held).unwrap();
        assert_eq!((said.plus(returned), said), (Hits(20), held.balance(NOW).plus(Hits(18))));
        held.put_back(NOW, Hits(18), epoch);
        assert_eq!(held.balance(NOW), said);
    }
}

#[test]
fn put_back_works_after_a_reply_or_timeout() {
    for (is_lost, borrowed) in [(false, 20), (true, 0)] {
        let mut held = stocked();
        let epoch = take(&mut held);
        let ahead = held.ahead(NOW, || Number(3)).unwrap();
        let came = if is_lost { Err(Some(Cause::Late)) } else { Ok(answer(&ahead)) };
        held.settle(NOW, Number(3), came);
        held.put_back(NOW, Hits(18), epoch);
        assert_eq!(held.balance(NOW), Hits(20 + borrowed));
    }
}

#[test]
fn put_back_is_ignored_if_the_store_lists_fewer() {
    let mut held = stocked();
    let epoch = take(&mut held);
    let ahead = held.ahead(NOW, || Number(3)).unwrap();
    held.settle(NOW, Number(3), Ok(Answer { kept: Hits(19), ..answer(&ahead) }));
    assert_eq!(held.balance(NOW), Hits(2 + 20));
    held.put_back(NOW, Hits(18), epoch);
    assert_eq!(held.balance(NOW), Hits(2 + 20));
}

#[test]
fn put_back_is_ignored_after_the_lease_expires() {
    let (mut held, later) = (stocked(), NOW.plus(TERM));
    let epoch = take(&mut held);
    let borrow = held.borrow(later, Number(3), Hits(1)).unwrap();
    assert_eq!((borrow.held, borrow.returned), (Hits(0), Hits(0)));
    held.settle(later, Number(3), Ok(answer(&borrow)));
    held.put_back(later, Hits(18), epoch);
    assert_eq!(held.balance(later), Hits(20));
}

#[test]
fn hits_of_an_allowed_check_leave_the_balance() {
    let mut held = stocked();
    let epoch = take(&mut held);
    held.let_go(Hits(18), epoch);
    assert_eq!(held.ahead(NOW, || Number(3)).unwrap().held, Hits(2));
}

#[test]
fn put_back_is_ignored_by_a_new_lease() {
    let (mut before, mut after) = (stocked(), stocked());
    let epoch = take(&mut before);
    let limit = after.charge.clone();
    let leased = Leased { charge: &limit, terms: after.terms };
    after = Held::new(leased, NOW, Number(9));
    after.put_back(NOW, Hits(18), epoch);
    let borrow = after.borrow(NOW, Number(10), Hits(1)).unwrap();
    after.settle(NOW, Number(10), Ok(answer(&borrow)));
    after.put_back(NOW, Hits(18), epoch);
    assert_eq!(after.balance(NOW), Hits(20));
}

#[test]
fn waiters_wake_only_for_the_newest_message() {
    let mut held = held();
    let first = held.borrow(NOW, Number(2), Hits(1)).unwrap();
    assert_eq!(held.borrow(NOW, Number(3), Hits(1)), None, "one is on its way");
    // Given up, so that another message can be sent.
    held.settle(NOW, Number(2), Err(None));
    let second = held.borrow(NOW, Number(4), Hits(1)).unwrap();
    let waits = held.wait();
    held.settle(NOW, Number(2), Ok(answer(&first)));
    assert!(!waits.has_changed().unwrap(), "the older one's fate is not theirs");
    assert_eq!((held.balance(NOW), held.last_asked()), (Hits(0), None), "nor is it believed");
    held.settle(NOW, Number(4), Ok(answer(&second)));
    assert!(waits.has_changed().unwrap());
    assert_eq!((*waits.borrow(), held.last_asked()), (None, Some(NOW)));
}

#[test]
fn waiters_get_the_cause_of_a_failure() {
    let mut held = held();
    held.borrow(NOW, Number(2), Hits(1)).unwrap();
    let waits = held.wait();
    held.settle(NOW, Number(2), Err(Some(Cause::Unreachable)));
    assert_eq!(*waits.borrow(), Some(Cause::Unreachable));
}

#[test]
fn a_key_is_idle_without_balance_checks_or_pending_reply() {
    let later = NOW.plus(Nanos(3 * TERM.0));
    let mut held = stocked();
    assert!(!held.is_idle(NOW.plus(Nanos(TERM.0 / 2))), "something is held");
    assert!(held.is_idle(later), "its lease is over");
    held.count(later, Hits(1));
    assert!(!held.is_idle(later), "somebody asks");
    let mut waiting = stocked();
    waiting.look(NOW, Hits(20));
    waiting.borrow(NOW, Number(3), Hits(1)).unwrap();
    assert!(!waiting.is_idle(later), "an answer is awaited");
}
