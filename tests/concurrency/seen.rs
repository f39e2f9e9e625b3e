//! What is shown of ceilings, and what a reload does to those who wait.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sluicegate::clock::Clock;
use sluicegate::engine::admit::{Admission, Ask, Held};
use sluicegate::engine::{Admitted, Engine};
use sluicegate::kernel::concurrency::Outcome;
use sluicegate::kernel::concurrency::limiter::Rules;
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Nanos, Revision};

use super::engine::{block_on, engine, publish, question};
use crate::support::dice::Dice;

#[test]
fn the_name_of_a_bucket_says_what_it_is_of_and_nothing_else_does() {
    let long = "v".repeat(65_535);
    let entries = [("upstream", "all"), ("", "a,b=c"), ("k\u{e9}", &long)];
    let name = CounterKey::ceiling("shop", entries.into_iter());
    let (domain, read) = CounterKey::read_ceiling(name.as_bytes()).unwrap();
    assert_eq!((domain, &read[..]), ("shop", &entries[..]));
    for cut in [1, 9, 10, 13, 14, 17, 40, name.as_bytes().len() - 1] {
        assert_eq!(CounterKey::read_ceiling(&name.as_bytes()[..cut]), None, "{cut}");
    }
    let mut dice = Dice::new(7);
    for _ in 0..10_000 {
        let bytes: Vec<_> =
            (0..dice.up_to(40)).map(|_| u8::try_from(dice.up_to(255)).unwrap()).collect();
        assert_eq!(CounterKey::read_ceiling(&bytes), None, "{bytes:?}");
    }
}

fn at_once(admission: &Admission, bucket: &[u8]) -> Held {
    let rules = Rules::fixed(9);
    let (revision, rules) = (Revision(1), &rules);
    let (keep, patience, answer, shared) = (None, Nanos(0), Nanos(0), None);
    let ask = Ask { bucket, revision, rules, keep, patience, answer, shared };
    match pin!(admission.acquire(ask)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(held)) => held,
        other => panic!("{other:?}"),
    }
}

#[test]
fn latency_is_that_of_successes_and_each_counts_for_an_eighth() {
    let clock = Arc::new(Clock::manual(Nanos::from_secs(1)));
    let admission = Admission::new(Arc::clone(&clock), 4, 0);
    let rtt = || admission.look(b"a").unwrap().rtt;
    let pass = |ms: u64| {
        let Clock::Manual(manual) = &*clock else { panic!() };
        manual.advance(Nanos(ms * Nanos::MILLI.0));
    };
    for outcome in [Outcome::Ignored, Outcome::Dropped] {
        assert!(at_once(&admission, b"a").release(outcome, Some(Nanos(5))));
        assert_eq!(rtt(), None);
    }
    let held = at_once(&admission, b"a");
    pass(80);
    assert!(held.release(Outcome::Success, None));
    assert_eq!(rtt(), Some(Nanos(80_000_000)), "from admission, where nobody measured");
    assert!(at_once(&admission, b"a").release(Outcome::Success, Some(Nanos(160_000_000))));
    assert_eq!(rtt(), Some(Nanos(90_000_000)));
}

#[test]
fn the_oldest_are_listed_first_and_only_so_many() {
    let clock = Arc::new(Clock::manual(Nanos::from_secs(1)));
    let admission = Admission::new(Arc::clone(&clock), 4, 0);
    let names: [&[u8]; 3] = [b"c", b"a", b"b"];
    let _held = names.map(|name| {
        let held = at_once(&admission, name);
        let Clock::Manual(manual) = &*clock else { panic!() };
        manual.advance(Nanos(1));
        held
    });
    let listed = |most| {
        let oldest = admission.oldest(most).into_iter();
        oldest.map(|(name, age)| (name.to_vec(), age.0)).collect::<Vec<_>>()
    };
    assert_eq!(listed(2), [(b"c".to_vec(), 3), (b"a".to_vec(), 2)]);
    assert_eq!(listed(9).len(), 3);
    assert_eq!(listed(0), []);
}

fn ceiling(words: &str) -> String {
    format!("- key: k\n  concurrency: {{{words}, queue: {{size: 9, timeout: 1h}}}}\n")
}

/// Whether one that waits under a ceiling of one is let in by this configuration, with no other event.
fn wakes(engine: &Engine, descriptors: &str) -> bool {
    let asked = question(&[("k", "v")]);
    block_on(async {
        let Ok(Admitted::Decided(_, held)) = engine.admit(&asked, None).await else { panic!() };
        let mut waits = Box::pin(engine.admit(&asked, None));
        let mut poll = || waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!poll());
        publish(engine, descriptors);
        let woken = poll();
        drop(held);
        woken
    })
}

#[test]
fn a_reload_wakes_at_once_whom_a_higher_ceiling_or_none_lets_pass() {
    for (reloaded, woken) in [
        (ceiling("limit: 1"), false),
        (ceiling("limit: 2"), true),
        ("- key: other\n  concurrency: {limit: 1}\n".to_owned(), true),
        ("- key: k\n  rate_limit: {unit: day, requests_per_unit: 9}\n".to_owned(), true),
    ] {
        let engine = engine(&ceiling("limit: 1"));
        assert_eq!(wakes(&engine, &reloaded), woken, "{reloaded}");
        assert_eq!(engine.ceilings().total().in_flight, 0);
    }
}
