//! Checks that need permits, alone or together with rate limits.

mod early_release;
mod permit_ids;
mod reload;
mod requesters;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use sluicegate::clock::Clock;
use sluicegate::engine::{
    AdmissionOutcome, CheckError, DecisionPolicy, Engine, Rejection, RequestPermits,
};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::memory::{MemoryStore, WhenFull};

use crate::support::engine::{block_on, check_of, publish};

/// An engine with `descriptors` in domain `d` and a maximum number of buckets.
fn engine_with(descriptors: &str, shadow: bool, max_buckets: usize) -> Engine {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [0; 16]));
    let policy = DecisionPolicy { is_shadow: shadow, ..DecisionPolicy::default() };
    let engine = Engine::new(Clock::manual(Nanos::from_secs(1)), memory, policy);
    let engine = engine.with_max_buckets(max_buckets, 0);
    publish(&engine, "", descriptors);
    engine
}

pub fn engine(descriptors: &str) -> Engine {
    engine_with(descriptors, false, 100)
}

fn descriptor<'a>(entries: &[(&'a str, &'a str)], hits: u64) -> Descriptor<'a> {
    let entries = entries.iter().copied().collect();
    Descriptor { entries, cost: Cost::Charge(Hits(hits)), limit: None }
}

fn is_pending(future: Pin<&mut impl Future>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

fn admit(engine: &Engine, check: &Check<'_>) -> AdmissionOutcome {
    block_on(engine.admit(check, None)).unwrap()
}

fn expect_permits(engine: &Engine, check: &Check<'_>) -> RequestPermits {
    match admit(engine, check) {
        AdmissionOutcome::Decided(answer, permits) if answer.verdict == Verdict::Allow => permits,
        other => panic!("{other:?}"),
    }
}

fn expect_rejection(engine: &Engine, check: &Check<'_>) -> Rejection {
    match admit(engine, check) {
        AdmissionOutcome::Rejected(rejection) => rejection,
        AdmissionOutcome::Decided(answer, _) => panic!("{answer:?}"),
    }
}

fn in_flight(engine: &Engine) -> u64 {
    engine.concurrency_limits().totals().in_flight
}

#[test]
fn reached_limit_rejects_with_the_configured_response() {
    let engine = engine("- key: k\n  concurrency: {limit: 2, reject: {status: 429, body: busy}}\n");
    let check = check_of(&[("k", "v")]);
    let (first, second) = (expect_permits(&engine, &check), expect_permits(&engine, &check));
    let rejection = expect_rejection(&engine, &check);
    assert_eq!((rejection.reject.status, &*rejection.reject.body), (429, "busy"));
    assert_eq!((rejection.reason, &*rejection.path), (Reason::ConcurrencyLimitReached, "d.k"));
    first.release(RequestOutcome::Success, None);
    let third = expect_permits(&engine, &check);
    drop((second, third));
    assert_eq!(in_flight(&engine), 0);
}

#[test]
fn each_value_has_a_bucket_unless_share_threshold_is_set() {
    let engine = engine(
        "- key: own\n  concurrency: {limit: 1}\n\
         - key: one\n  value: a*\n  share_threshold: true\n  concurrency: {limit: 1}\n",
    );
    let _held = [("own", "a"), ("own", "b"), ("one", "a1")]
        .map(|e| expect_permits(&engine, &check_of(&[e])));
    expect_rejection(&engine, &check_of(&[("own", "a")]));
    expect_rejection(&engine, &check_of(&[("one", "a2")]));
    assert_eq!(engine.concurrency_limits().totals().buckets, 3);
}

#[test]
fn check_acquires_all_its_permits_or_none() {
    let engine =
        engine("- key: a\n  concurrency: {limit: 1}\n- key: b\n  concurrency: {limit: 1}\n");
    for order in [[("a", "x"), ("b", "x")], [("b", "x"), ("a", "x")]] {
        for full in order {
            let held = expect_permits(&engine, &check_of(&[full]));
            expect_rejection(&engine, &check_of(&order));
            assert_eq!(in_flight(&engine), 1, "what was taken before came back");
            drop(held);
        }
    }
    let both = expect_permits(&engine, &check_of(&[("a", "x"), ("b", "x")]));
    assert_eq!(in_flight(&engine), 2);
    both.release(RequestOutcome::Success, None);
}

#[test]
fn bucket_named_twice_in_a_check_counts_once() {
    let engine = engine("- key: a\n  concurrency: {limit: 1}\n");
    let held = expect_permits(&engine, &check_of(&[("a", "x"), ("a", "x")]));
    assert_eq!(in_flight(&engine), 1);
    drop(held);
}

const BOTH_LIMITS: &str = "- key: k\n  concurrency: {limit: 1}\n  \
                    rate_limit: {unit: day, requests_per_unit: 2}\n";

#[test]
fn a_concurrency_denial_charges_no_rate_limit() {
    let engine = engine(BOTH_LIMITS);
    let check = check_of(&[("k", "v")]);
    let held = expect_permits(&engine, &check);
    for _ in 0..10 {
        expect_rejection(&engine, &check);
    }
    drop(held);
    drop(expect_permits(&engine, &check));
}

#[test]
fn a_rate_limit_denial_releases_the_permits() {
    let engine = engine(BOTH_LIMITS);
    let check = check_of(&[("k", "v")]);
    for _ in 0..2 {
        drop(expect_permits(&engine, &check));
    }
    let AdmissionOutcome::Decided(answer, permits) = admit(&engine, &check) else { panic!() };
    assert_eq!(answer.verdict, Verdict::Deny);
    assert!(permits.is_empty());
    assert_eq!(in_flight(&engine), 0);
}

#[test]
fn check_without_a_release_ignores_concurrency_limits() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let check = check_of(&[("k", "v")]);
    let _held = expect_permits(&engine, &check);
    let answer = block_on(engine.decide(&check)).unwrap();
    assert_eq!(answer.verdict, Verdict::Allow);
    assert_eq!(answer.statuses[0].decision.reason, Reason::NoLimit);
    assert_eq!(in_flight(&engine), 1);
}

#[test]
fn check_with_zero_hits_takes_no_permit() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let descriptors = [descriptor(&[("k", "v")], 0)].into_iter().collect();
    let permits = expect_permits(&engine, &Check { domain: "d", descriptors });
    assert!(permits.is_empty());
}

#[test]
fn shadow_mode_neither_denies_nor_queues() {
    let words = "concurrency: {limit: 1, queue: {size: 9, timeout: 1h}}\n";
    let marked = engine(&format!("- key: k\n  shadow_mode: true\n  {words}"));
    let global = engine_with(&format!("- key: k\n  {words}"), true, 100);
    for engine in [marked, global] {
        let check = check_of(&[("k", "v")]);
        let held = expect_permits(&engine, &check);
        assert!(!held.is_empty());
        assert!(expect_permits(&engine, &check).is_empty(), "it passes without a permit");
        assert_eq!(in_flight(&engine), 1);
    }
}

#[test]
fn check_beyond_the_bucket_maximum_is_rejected() {
    let engine = engine_with("- key: k\n  concurrency: {limit: 1}\n", false, 2);
    let _held = ["a", "b"].map(|value| expect_permits(&engine, &check_of(&[("k", value)])));
    let rejection = expect_rejection(&engine, &check_of(&[("k", "c")]));
    assert_eq!(rejection.reason, Reason::TooManyBuckets);
}

async fn wait_for_permits(engine: &Engine, check: &Check<'_>) -> RequestPermits {
    match engine.admit(check, None).await {
        Ok(AdmissionOutcome::Decided(_, permits)) => permits,
        other => panic!("{other:?}"),
    }
}

const ID: &str = "0123456789abcdef";

const OTHER: &str = "fedcba9876543210";

fn acquire(engine: &Engine, id: &str) -> Result<AdmissionOutcome, CheckError> {
    let check = check_of(&[("k", "v")]);
    block_on(engine.acquire((id, 0), &check, &check, None))
}

fn is_admitted(result: &Result<AdmissionOutcome, CheckError>) -> bool {
    matches!(result, Ok(AdmissionOutcome::Decided(answer, _)) if answer.verdict == Verdict::Allow)
}

const QUEUED: &str = "- key: k\n  concurrency: {limit: 1, queue: {size: 9, timeout: 1h}}\n";

fn advance(engine: &Engine, ms: u64) {
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(Nanos(ms * Nanos::MILLI.0));
    engine.concurrency_limits().sweep();
}

#[test]
fn an_invalid_check_takes_no_permit() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let refused = |check| block_on(engine.admit(&check, None)).unwrap_err();
    assert_eq!(refused(check_of(&[])), CheckError::NoDescriptors);
    assert_eq!(refused(Check { domain: "", ..check_of(&[("k", "v")]) }), CheckError::EmptyDomain);
    assert_eq!(in_flight(&engine), 0);
}
