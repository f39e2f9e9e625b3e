//! Metrics of concurrency limits, and the effect of a reload on queued requests.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sluicegate::clock::Clock;
use sluicegate::engine::concurrency::{ConcurrencyLimits, PermitGuard, PermitRequest};
use sluicegate::engine::{AdmissionOutcome, Engine};
use sluicegate::kernel::concurrency::limiter::LimiterConfig;
use sluicegate::kernel::concurrency::{ReportedOutcome, RequestOutcome, Requester, UpstreamAnswer};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Nanos, Revision};

use super::path::engine;
use crate::support::dice::Dice;
use crate::support::engine::{block_on, check_of, publish};

#[test]
fn only_a_bucket_name_parses_to_its_descriptors() {
    let long = "v".repeat(65_535);
    let entries = [("upstream", "all"), ("", "a,b=c"), ("k\u{e9}", &long)];
    let name = CounterKey::concurrency_bucket("shop", entries.into_iter());
    let (domain, read) = CounterKey::parse_concurrency_bucket(name.as_bytes()).unwrap();
    assert_eq!((domain, &read[..]), ("shop", &entries[..]));
    for cut in [1, 9, 10, 13, 14, 17, 40, name.as_bytes().len() - 1] {
        assert_eq!(CounterKey::parse_concurrency_bucket(&name.as_bytes()[..cut]), None, "{cut}");
    }
    let mut dice = Dice::new(7);
    for _ in 0..10_000 {
        let bytes: Vec<_> =
            (0..dice.up_to(40)).map(|_| u8::try_from(dice.up_to(255)).unwrap()).collect();
        assert_eq!(CounterKey::parse_concurrency_bucket(&bytes), None, "{bytes:?}");
    }
}

fn acquire_now(admission: &ConcurrencyLimits, bucket: &[u8]) -> PermitGuard {
    let rules = LimiterConfig::fixed(9);
    let (revision, rules) = (Revision(1), &rules);
    let (keep, patience, answer, shared) = (None, Nanos(0), Nanos(0), None);
    let ask = PermitRequest {
        by: Requester::ANY,
        bucket,
        limit_path: "d.k",
        revision,
        rules,
        permit_lifetime: keep,
        queue_timeout: patience,
        store_timeout: answer,
        shared,
    };
    match pin!(admission.acquire(ask)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(held)) => held,
        other => panic!("{other:?}"),
    }
}

#[test]
fn latency_averages_successes_with_weight_one_eighth() {
    let clock = Arc::new(Clock::manual(Nanos::from_secs(1)));
    let admission = ConcurrencyLimits::new(Arc::clone(&clock), 4, 0);
    let rtt = || admission.snapshot(b"a").unwrap().rtt;
    let advance = |ms: u64| {
        let Clock::Manual(manual) = &*clock else { panic!() };
        manual.advance(Nanos(ms * Nanos::MILLI.0));
    };
    let refusal = ReportedOutcome::Answered(UpstreamAnswer::with_http_status(429));
    for outcome in [RequestOutcome::Ignored.into(), RequestOutcome::Dropped.into(), refusal] {
        assert!(acquire_now(&admission, b"a").release(outcome, Some(Nanos(5))));
        assert_eq!(rtt(), None);
    }
    let held = acquire_now(&admission, b"a");
    advance(80);
    assert!(held.release(RequestOutcome::Success, None));
    assert_eq!(rtt(), Some(Nanos(80_000_000)), "from admission, where nobody measured");
    assert!(
        acquire_now(&admission, b"a").release(RequestOutcome::Success, Some(Nanos(160_000_000)))
    );
    assert_eq!(rtt(), Some(Nanos(90_000_000)));
}

#[test]
fn oldest_permits_are_listed_first_up_to_the_maximum() {
    let clock = Arc::new(Clock::manual(Nanos::from_secs(1)));
    let admission = ConcurrencyLimits::new(Arc::clone(&clock), 4, 0);
    let names: [&[u8]; 3] = [b"c", b"a", b"b"];
    let _held = names.map(|name| {
        let held = acquire_now(&admission, name);
        let Clock::Manual(manual) = &*clock else { panic!() };
        manual.advance(Nanos(1));
        held
    });
    let listed = |most| {
        let oldest = admission.oldest_permits(most).into_iter();
        oldest.map(|(name, age)| (name.to_vec(), age.0)).collect::<Vec<_>>()
    };
    assert_eq!(listed(2), [(b"c".to_vec(), 3), (b"a".to_vec(), 2)]);
    assert_eq!(listed(9).len(), 3);
    assert_eq!(listed(0), []);
}

fn queued_limit(words: &str) -> String {
    format!("- key: k\n  concurrency: {{{words}, queue: {{size: 9, timeout: 1h}}}}\n")
}

/// Returns `true` if publishing `descriptors` alone wakes a request queued at a limit of 1.
fn wakes_queued_check(engine: &Engine, descriptors: &str) -> bool {
    let check = check_of(&[("k", "v")]);
    block_on(async {
        let Ok(AdmissionOutcome::Decided(_, held)) = engine.admit(&check, None).await else {
            panic!()
        };
        let mut waits = Box::pin(engine.admit(&check, None));
        let mut poll = || waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!poll());
        publish(engine, "", descriptors);
        let woken = poll();
        drop(held);
        woken
    })
}

#[test]
fn reload_wakes_requests_that_the_new_limit_allows() {
    for (reloaded, woken) in [
        (queued_limit("limit: 1"), false),
        (queued_limit("limit: 2"), true),
        ("- key: other\n  concurrency: {limit: 1}\n".to_owned(), true),
        ("- key: k\n  rate_limit: {unit: day, requests_per_unit: 9}\n".to_owned(), true),
    ] {
        let engine = engine(&queued_limit("limit: 1"));
        assert_eq!(wakes_queued_check(&engine, &reloaded), woken, "{reloaded}");
        assert_eq!(engine.concurrency_limits().totals().in_flight, 0);
    }
}
