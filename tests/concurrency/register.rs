//! Ids, and releases that come first.

use proptest::prelude::*;
use sluicegate::kernel::concurrency::register::{Acquired, Bounds, Register, Released};
use sluicegate::kernel::units::Nanos;

const START: Nanos = Nanos::from_secs(1_000);
const FAR: Nanos = Nanos::from_secs(9_000);
const BOUNDS: Bounds = Bounds { per_source: 3, total: 5, keep: Nanos::from_secs(10) };

fn register() -> Register<u32, char, u32> {
    Register::new(BOUNDS)
}

#[test]
fn a_release_that_comes_first_answers_its_acquire_once() {
    let mut ids = register();
    assert_eq!(ids.release(START, &7, &'a'), Released::Early);
    assert_eq!(ids.acquire(START, 7, FAR, 70), Acquired::Over(70));
    assert_eq!(ids.acquire(START, 7, FAR, 71), Acquired::Held, "a tombstone answers once");
    assert_eq!(ids.release(START, &7, &'a'), Released::Held(71));
}

#[test]
fn what_an_id_holds_is_given_out_once() {
    let mut ids = register();
    assert_eq!(ids.acquire(START, 7, FAR, 70), Acquired::Held);
    assert_eq!(ids.acquire(START, 7, FAR, 71), Acquired::Taken(71), "an id is for one request");
    assert_eq!(ids.release(START, &7, &'a'), Released::Held(70));
    assert_eq!(ids.release(START, &7, &'a'), Released::Early);
    assert_eq!(ids.expire(FAR), None, "the deadline went with the release");
}

#[test]
fn an_id_is_claimed_by_one_at_a_time_and_its_release_heeds_no_claim() {
    let mut ids = register();
    assert!(ids.claim(7) && !ids.claim(7));
    assert!(ids.claim(8), "another id");
    assert_eq!(ids.release(START, &7, &'a'), Released::Early, "it holds nothing yet");
    assert_eq!(ids.acquire(START, 7, FAR, 70), Acquired::Over(70));
    ids.unclaim(&7);
    assert!(ids.claim(7));
}

#[test]
fn a_deadline_gives_out_what_the_release_did_not() {
    let mut ids = register();
    ids.acquire(START, 7, START.plus(Nanos(5)), 70);
    assert!(ids.renew(&7, START.plus(Nanos(9))));
    assert_eq!(ids.expire(START.plus(Nanos(8))), None);
    assert_eq!(ids.next_deadline(), Some(START.plus(Nanos(9))));
    assert_eq!(ids.expire(START.plus(Nanos(9))), Some((7, 70)));
    assert!(ids.is_empty() && !ids.renew(&7, FAR));
}

#[test]
fn a_full_table_refuses_unknown_releases_and_evicts_nobody() {
    let mut ids = register();
    for id in 0..3 {
        assert_eq!(ids.release(START, &id, &'a'), Released::Early);
    }
    assert_eq!(ids.release(START, &3, &'a'), Released::Refused, "its own bound");
    assert_eq!(ids.release(START, &1, &'a'), Released::Early, "said twice is said once");
    assert_eq!(ids.release(START, &10, &'b'), Released::Early, "another source has its own");
    assert_eq!(ids.release(START, &11, &'b'), Released::Early);
    assert_eq!(ids.release(START, &12, &'b'), Released::Refused, "the bound of all");
    ids.acquire(START, 99, FAR, 1);
    assert_eq!(ids.release(START, &99, &'a'), Released::Held(1), "what is held is always known");
    for id in 0..3 {
        assert_eq!(ids.acquire(START, id, FAR, 0), Acquired::Over(0), "nobody was evicted");
    }
    assert_eq!(ids.release(START, &3, &'a'), Released::Early, "there is room again");
}

#[test]
fn a_tombstone_lasts_its_time_and_not_a_tick_longer() {
    let mut ids = register();
    ids.release(START, &7, &'a');
    ids.release(START, &8, &'a');
    let end = START.plus(BOUNDS.keep);
    assert_eq!(ids.next_deadline(), Some(end));
    assert_eq!(ids.acquire(Nanos(end.0 - 1), 7, FAR, 70), Acquired::Over(70));
    assert_eq!(ids.acquire(end, 8, FAR, 80), Acquired::Held);
    assert_eq!(ids.tombstones(), 0);
}

proptest! {
    #[test]
    fn whatever_is_acquired_comes_back_exactly_once(
        events in proptest::collection::vec((0..4_u8, 0..6_u32, 0..9_u64), 1..300),
    ) {
        let (mut ids, mut now, mut next) = (register(), START, 0);
        let (mut given, mut back) = (Vec::new(), Vec::new());
        for (kind, id, by) in events {
            match kind {
                0 => {
                    given.push(next);
                    match ids.acquire(now, id, now.plus(Nanos::from_secs(by)), next) {
                        Acquired::Held => {}
                        Acquired::Over(what) | Acquired::Taken(what) => back.push(what),
                    }
                    next += 1;
                }
                1 => if let Released::Held(what) = ids.release(now, &id, &'a') { back.push(what) },
                2 => drop(ids.renew(&id, now.plus(Nanos::from_secs(by)))),
                _ => {
                    now = now.plus(Nanos::from_secs(by));
                    while let Some((_, what)) = ids.expire(now) { back.push(what) }
                }
            }
            prop_assert!(ids.tombstones() <= 3, "one source");
        }
        while let Some((_, what)) = ids.expire(FAR) { back.push(what) }
        back.sort_unstable();
        prop_assert_eq!(given, back);
    }
}
