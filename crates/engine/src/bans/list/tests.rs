//! The laws of the list of bans.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | a lift is forgotten with its ban | `a_lifted_ban_does_not_return` |
//! | of two changes the later to arrive wins | `replicas_agree_in_any_order_of_messages` |
//! | the page starts at the first ban each time | `every_ban_reaches_a_new_replica` |
//! | a received duration is not clamped | `a_hostile_message_is_bounded` |

use super::*;

const LENGTH: Nanos = Nanos::from_secs(600);
const START: Nanos = Nanos::from_secs(1_000);

fn name(number: usize) -> BanName {
    BanName { domain: "d".into(), descriptor: format!("k={number:05}").into(), limit: "".into() }
}

fn counter(number: usize) -> BannedCounter {
    BannedCounter { key: format!("key {number}").into_bytes().into(), length: LENGTH }
}

fn is_banned(list: &BanList, number: usize, now: Nanos) -> bool {
    list.left(&counter(number).key, now).is_some()
}

/// Applies a page, whose bans are named by [`name`].
fn apply(list: &mut BanList, page: &[BanChange], now: Nanos) {
    for change in page {
        let number = change.descriptor.trim_start_matches("k=").parse().unwrap();
        list.apply(change, &counter(number), now);
    }
}

fn at(second: u64) -> Nanos {
    START.plus(Nanos::from_secs(second))
}

#[test]
fn a_ban_ends_at_its_length_and_not_earlier() {
    let mut list = BanList::default();
    assert!(list.begin(name(1), &counter(1), Nanos(u64::MAX), START));
    assert_eq!(list.left(&counter(1).key, START), Some(LENGTH));
    let before_end = START.plus(LENGTH.since(Nanos(1)));
    assert_eq!(list.left(&counter(1).key, before_end), Some(Nanos(1)));
    assert_eq!(list.left(&counter(1).key, START.plus(LENGTH)), None);
    assert_eq!(list.active(before_end).count(), 1);
    assert_eq!(list.active(START.plus(LENGTH)).count(), 0);
    assert_eq!(
        (list.page(START.plus(LENGTH), MAX_PAGE_BYTES), list.len(), list.ends.len()),
        (vec![], 0, 0)
    );
}

#[test]
fn a_lifted_ban_does_not_return() {
    let (mut one, mut other) = (BanList::default(), BanList::default());
    one.begin(name(1), &counter(1), LENGTH, START);
    let begun = one.page(START, MAX_PAGE_BYTES);
    apply(&mut other, &begun, START);
    assert!(is_banned(&other, 1, START));
    assert!(one.lift(&name(1), at(1)));
    assert!(!one.lift(&name(1), at(1)), "it is lifted already");
    apply(&mut other, &one.page(at(1), MAX_PAGE_BYTES), at(1));
    for second in [1, 599, 600, 659] {
        // A replica that died may still have the ban in its last heartbeat.
        let left_ms = LENGTH.since(Nanos::from_secs(second)).0 / Nanos::MILLI.0;
        let stale = BanChange { left_ms: left_ms.max(1), ..begun[0].clone() };
        for list in [&mut one, &mut other] {
            list.page(at(second), MAX_PAGE_BYTES);
            apply(list, std::slice::from_ref(&stale), at(second));
            assert!(!is_banned(list, 1, at(second)), "{second} s");
        }
    }
}

#[test]
fn a_key_can_be_banned_again_after_a_lift() {
    let (mut one, mut other) = (BanList::default(), BanList::default());
    one.begin(name(1), &counter(1), LENGTH, START);
    one.lift(&name(1), at(1));
    let lifted = one.page(at(1), MAX_PAGE_BYTES);
    apply(&mut other, &lifted, at(1));
    one.begin(name(1), &counter(1), LENGTH, at(2));
    apply(&mut other, &one.page(at(2), MAX_PAGE_BYTES), at(2));
    apply(&mut other, &lifted, at(3));
    assert!(is_banned(&one, 1, at(3)) && is_banned(&other, 1, at(3)));
}

#[test]
fn replicas_agree_in_any_order_of_messages() {
    let mut list = BanList::default();
    let mut messages = Vec::new();
    for (second, is_lift) in [(0, false), (1, true), (2, false), (3, true)] {
        if is_lift {
            list.lift(&name(1), at(second));
        } else {
            list.begin(name(1), &counter(1), LENGTH, at(second));
        }
        messages.push(list.page(at(second), MAX_PAGE_BYTES));
    }
    for first in 0..4 {
        for rest in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let mut other = BanList::default();
            for message in std::iter::once(first).chain(rest) {
                apply(&mut other, &messages[message], at(4));
            }
            assert!(!is_banned(&other, 1, at(4)), "{first} {rest:?}");
        }
    }
}

#[test]
fn a_full_list_refuses_new_bans_until_one_ends() {
    let mut list = BanList::default();
    for number in 0..MAX_BANS {
        assert!(list.begin(name(number), &counter(number), LENGTH, START));
    }
    assert!(!list.begin(name(MAX_BANS), &counter(MAX_BANS), LENGTH, at(1)));
    assert!(!is_banned(&list, MAX_BANS, at(1)) && is_banned(&list, 0, at(1)));
    let change = BanChange { domain: "d".into(), descriptor: "k=99999".into(), ..lasting(1) };
    apply(&mut list, &[change], at(1));
    assert_eq!((list.len(), list.ends.len()), (MAX_BANS, MAX_BANS));
    assert!(list.begin(name(MAX_BANS), &counter(MAX_BANS), LENGTH, START.plus(LENGTH)));
    assert_eq!((list.len(), list.ends.len()), (1, 1));
}

fn lasting(number: u64) -> BanChange {
    BanChange { left_ms: u64::MAX, known_ms: u64::MAX, number, ..BanChange::default() }
}

#[test]
fn a_hostile_message_is_bounded() {
    let mut list = BanList::default();
    let change = BanChange { domain: "d".into(), descriptor: "k=7".into(), ..lasting(MAX_NUMBER) };
    apply(&mut list, std::slice::from_ref(&change), START);
    assert_eq!(list.left(&counter(7).key, START), Some(LENGTH));
    let above = BanChange { number: u64::MAX, descriptor: "k=8".into(), ..change.clone() };
    apply(&mut list, &[above], START);
    assert!(!is_banned(&list, 8, START));
    let long = BanChange { domain: "d".repeat(MAX_BAN_NAME_BYTES).into(), ..change };
    apply(&mut list, &[long], START);
    assert_eq!((list.len(), list.ends.len()), (1, 1));
    let after = START.plus(LENGTH).plus(REMEMBER_MARGIN);
    assert_eq!((list.page(after, MAX_PAGE_BYTES), list.len()), (vec![], 0));
}

#[test]
fn every_ban_reaches_a_new_replica() {
    let (mut old, mut new) = (BanList::default(), BanList::default());
    let count = 1_050;
    for number in 0..count {
        old.begin(name(number), &counter(number), LENGTH, START);
    }
    for second in 10..21 {
        let page = old.page(at(second), MAX_PAGE_BYTES);
        assert!(page.len() <= MAX_PAGE_BANS);
        apply(&mut new, &page, at(second));
    }
    assert_eq!(new.active(at(21)).count(), count);
    let long: Box<str> = "d".repeat(1_000).into();
    for number in 0..100 {
        let name = BanName { domain: long.clone(), ..name(number) };
        old.begin(name, &counter(count + number), LENGTH, at(30));
    }
    let bytes = |change: &BanChange| change.name().bytes();
    assert!(old.page(at(30), MAX_PAGE_BYTES).iter().map(bytes).sum::<usize>() <= MAX_PAGE_BYTES);
}

#[test]
fn a_new_ban_is_in_each_of_the_next_messages() {
    let mut list = BanList::default();
    for number in 0..500 {
        list.begin(name(number), &counter(number), LENGTH, START);
    }
    list.begin(name(777), &counter(777), LENGTH, at(10));
    for second in 10..14 {
        let page = list.page(at(second), MAX_PAGE_BYTES);
        assert!(page.iter().any(|change| change.name() == name(777)), "{second} s");
    }
}

#[test]
fn a_reload_keeps_only_the_bans_of_limits_with_a_penalty() {
    let mut list = BanList::default();
    for number in 0..10 {
        list.begin(name(number), &counter(number), LENGTH, START);
    }
    list.find_counters(|found| (name(5) <= *found).then(|| counter(100)));
    assert_eq!((list.len(), list.ends.len()), (5, 1), "all have one counter now");
    assert!(is_banned(&list, 100, at(1)) && !is_banned(&list, 1, at(1)));
}
