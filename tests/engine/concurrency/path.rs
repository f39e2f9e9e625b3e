//! Checks that need permits, alone or together with rate limits.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::future::poll_immediate;
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::{
    AdmissionOutcome, CheckError, ConcurrencyRejection, DecisionPolicy, Engine, RequestPermits,
};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::concurrency::permit_registry::EarlyReleaseLimits;
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::{
    self, Charges, CounterStore, FleetStore, Outcomes, StoreFailure, StoreReply,
};

/// An engine with `descriptors` in domain `d` and a maximum number of buckets.
fn engine_with(descriptors: &str, shadow: bool, max_buckets: usize) -> Engine {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [0; 16]));
    let policy = DecisionPolicy { is_shadow: shadow, ..DecisionPolicy::default() };
    let engine = Engine::new(Clock::manual(Nanos::from_secs(1)), memory, policy);
    let engine = engine.with_max_buckets(max_buckets, 0);
    publish(&engine, descriptors);
    engine
}

pub fn publish(engine: &Engine, descriptors: &str) {
    publish_as(engine, Revision(1), descriptors);
}

fn publish_as(engine: &Engine, revision: Revision, descriptors: &str) {
    let text = format!("domain: d\ndescriptors:\n{descriptors}");
    let (config, _) = config::load([("a.yaml", text.as_bytes())], revision, false).unwrap();
    engine.publish(Arc::new(config));
}

pub fn engine(descriptors: &str) -> Engine {
    engine_with(descriptors, false, 100)
}

fn descriptor<'a>(entries: &[(&'a str, &'a str)], hits: u64) -> Descriptor<'a> {
    let entries = entries.iter().copied().collect();
    Descriptor { entries, cost: Cost::Charge(Hits(hits)), limit: None }
}

pub fn check_of<'a>(entries: &[(&'a str, &'a str)]) -> Check<'a> {
    let descriptors = entries.iter().map(|&entry| descriptor(&[entry], 1)).collect();
    Check { domain: "d", descriptors }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
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

fn expect_rejection(engine: &Engine, check: &Check<'_>) -> ConcurrencyRejection {
    match admit(engine, check) {
        AdmissionOutcome::Rejected(rejection) => rejection,
        AdmissionOutcome::Decided(answer, _) => panic!("{answer:?}"),
    }
}

fn in_flight(engine: &Engine) -> u64 {
    engine.concurrency_limits().totals().in_flight
}

fn reported_limit(engine: &Engine) -> u64 {
    engine.concurrency_in_use().values().map(|ceiling| ceiling.limit).sum()
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

#[test]
fn reloaded_limit_applies_to_the_next_check() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let check = check_of(&[("k", "v")]);
    let _held = expect_permits(&engine, &check);
    expect_rejection(&engine, &check);
    publish(&engine, "- key: k\n  concurrency: {limit: 2}\n");
    let _second = expect_permits(&engine, &check);
    expect_rejection(&engine, &check);
}

/// Limits for the keys `a` and `b`, with queues.
fn two_limits([a, b]: [u32; 2]) -> String {
    let of = |key, limit| {
        format!(
            "- key: {key}\n  concurrency: {{limit: {limit}, queue: {{size: 50, timeout: 1h}}}}\n"
        )
    };
    of("a", a) + &of("b", b)
}

async fn wait_for_permits(engine: &Engine, check: &Check<'_>) -> RequestPermits {
    match engine.admit(check, None).await {
        Ok(AdmissionOutcome::Decided(_, permits)) => permits,
        other => panic!("{other:?}"),
    }
}

#[test]
fn latency_excludes_the_wait_for_another_limit() {
    let engine = engine(&two_limits([30, 1]));
    let (b, both) = (check_of(&[("b", "x")]), check_of(&[("a", "x"), ("b", "x")]));
    block_on(async {
        let first = wait_for_permits(&engine, &b).await;
        let mut waits = Box::pin(engine.admit(&both, None));
        assert!(is_pending(waits.as_mut()));
        advance(&engine, 2_000);
        drop(first);
        let Ok(AdmissionOutcome::Decided(_, permits)) = waits.await else { panic!() };
        advance(&engine, 10);
        permits.release(RequestOutcome::Success, None);
    });
    let times = engine.concurrency_limits().snapshots().into_iter().map(|(_, look)| look.rtt);
    assert_eq!(times.collect::<Vec<_>>(), [Some(Nanos(10_000_000)); 2]);
}

#[test]
fn limits_removed_by_reload_are_not_reported() {
    let engine = engine("- key: k\n  concurrency: {limit: 5}\n");
    let held = expect_permits(&engine, &check_of(&[("k", "v")]));
    assert_eq!(reported_limit(&engine), 5);
    publish_as(&engine, Revision(2), "- key: other\n  concurrency: {limit: 7}\n");
    assert_eq!((in_flight(&engine), reported_limit(&engine)), (1, 0));
    let looks = engine.concurrency_limits().snapshots();
    assert!(looks.iter().all(|(_, look)| look.load.limit().is_none()));
    drop(held);
}

#[test]
fn check_from_before_a_reload_does_not_undo_it() {
    let engine = engine(&two_limits([1, 30]));
    let [a, b] = ["a", "b"].map(|key| check_of(&[(key, "x")]));
    let both = check_of(&[("a", "x"), ("b", "x")]);
    block_on(async {
        let first = wait_for_permits(&engine, &a).await;
        let mut old = Box::pin(engine.admit(&both, None));
        assert!(is_pending(old.as_mut()));
        publish_as(&engine, Revision(2), &two_limits([1, 2]));
        let _two = [wait_for_permits(&engine, &b).await, wait_for_permits(&engine, &b).await];
        let mut waits: Vec<_> = (0..20).map(|_| Box::pin(engine.admit(&b, None))).collect();
        assert!(waits.iter_mut().all(|waits| is_pending(waits.as_mut())));
        first.release(RequestOutcome::Success, None);
        assert!(is_pending(old.as_mut()), "it waits under the new ceiling as all others do");
        assert!(waits.iter_mut().all(|waits| is_pending(waits.as_mut())));
        assert_eq!((in_flight(&engine), engine.concurrency_limits().totals().waiting), (3, 21));
    });
}

#[test]
fn check_from_before_a_reload_uses_the_new_limit() {
    let engine = engine(&two_limits([1, 30]));
    let (a, both) = (check_of(&[("a", "x")]), check_of(&[("a", "x"), ("b", "x")]));
    block_on(async {
        let _first = wait_for_permits(&engine, &a).await;
        let mut old = [(); 3].map(|()| Box::pin(engine.admit(&both, None)));
        assert!(old.iter_mut().all(|old| is_pending(old.as_mut())));
        publish_as(&engine, Revision(2), &two_limits([9, 1]));
        let mut passed = Vec::new();
        for old in &mut old {
            passed.extend(poll_immediate(old).await);
        }
        assert_eq!(passed.len(), 1);
        let total = engine.concurrency_limits().totals();
        assert_eq!((total.in_flight, total.waiting, reported_limit(&engine)), (5, 2, 10));
    });
}

#[test]
fn queued_check_gets_a_freed_permit_or_cancels_cleanly() {
    let engine =
        Arc::new(engine("- key: k\n  concurrency: {limit: 1, queue: {size: 2, timeout: 1h}}\n"));
    let check = check_of(&[("k", "v")]);
    assert_eq!(engine.longest_queue_wait(&check), Nanos::from_secs(3600));
    block_on(async {
        let Ok(AdmissionOutcome::Decided(_, held)) = engine.admit(&check, None).await else {
            panic!()
        };
        let mut canceled = Box::pin(engine.admit(&check, None));
        let mut waits = Box::pin(engine.admit(&check, None));
        assert!(is_pending(canceled.as_mut()));
        assert!(is_pending(waits.as_mut()));
        assert_eq!(engine.concurrency_limits().totals().waiting, 2);
        drop(canceled);
        assert_eq!(engine.concurrency_limits().totals().waiting, 1);
        held.release(RequestOutcome::Success, None);
        let Ok(AdmissionOutcome::Decided(_, held)) = waits.await else { panic!() };
        assert!(!held.is_empty());
    });
    assert_eq!((in_flight(&engine), engine.concurrency_limits().totals().waiting), (0, 0));
}

const ID: &str = "0123456789abcdef";
const OTHER: &str = "fedcba9876543210";

fn acquire(engine: &Engine, id: &str) -> Result<AdmissionOutcome, CheckError> {
    let check = check_of(&[("k", "v")]);
    block_on(engine.acquire((id, 0), &check, &check, None))
}

#[test]
fn id_keeps_its_permit_until_its_release() {
    let engine = engine("- key: k\n  concurrency: {limit: 2}\n");
    assert!(matches!(acquire(&engine, ID), Ok(AdmissionOutcome::Decided(..))));
    assert_eq!(in_flight(&engine), 1);
    assert!(matches!(acquire(&engine, ID), Err(CheckError::BadId { descriptor: 0, .. })));
    assert_eq!(in_flight(&engine), 1);
    engine.release(ID, None, RequestOutcome::Success, None);
    assert_eq!(in_flight(&engine), 0);
    engine.release(ID, None, RequestOutcome::Success, None);
    assert_eq!(in_flight(&engine), 0);
}

fn is_duplicate_id(result: &Result<AdmissionOutcome, CheckError>) -> bool {
    matches!(result, Err(CheckError::BadId { descriptor: 0, .. }))
}

fn is_admitted(result: &Result<AdmissionOutcome, CheckError>) -> bool {
    matches!(result, Ok(AdmissionOutcome::Decided(answer, _)) if answer.verdict == Verdict::Allow)
}

#[test]
fn a_duplicate_id_charges_no_rate_limit() {
    let engine = engine(
        "- key: k\n  concurrency: {limit: 9}\n  \
         rate_limit: {unit: day, requests_per_unit: 2}\n",
    );
    assert!(is_admitted(&acquire(&engine, ID)));
    for _ in 0..5 {
        assert!(is_duplicate_id(&acquire(&engine, ID)));
    }
    assert!(is_admitted(&acquire(&engine, OTHER)), "the second of two");
    assert!(!is_admitted(&acquire(&engine, "one-more-01234567")));
    assert_eq!(in_flight(&engine), 2);
}

#[test]
fn id_with_permits_is_refused_for_any_check() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    assert!(is_admitted(&acquire(&engine, ID)));
    assert!(is_duplicate_id(&acquire(&engine, ID)), "before the ceiling turns it away");
    let elsewhere = check_of(&[("nothing", "v")]);
    let again = || block_on(engine.acquire((ID, 0), &elsewhere, &elsewhere, None));
    assert!(is_duplicate_id(&again()));
    assert!(engine.release(ID, None, RequestOutcome::Success, None));
    assert!(is_admitted(&again()));
    assert!(is_admitted(&acquire(&engine, ID)), "what held nothing may ask again");
}

const QUEUED: &str = "- key: k\n  concurrency: {limit: 1, queue: {size: 9, timeout: 1h}}\n";

#[test]
fn queued_id_is_refused_until_it_leaves_the_queue() {
    let engine = engine(QUEUED);
    let check = check_of(&[("k", "v")]);
    block_on(async {
        let acquire_by_id = |id| Box::pin(engine.acquire((id, 0), &check, &check, None));
        assert!(is_admitted(&acquire_by_id(OTHER).await));
        let mut first = acquire_by_id(ID);
        assert!(is_pending(first.as_mut()));
        let second = poll_immediate(acquire_by_id(ID)).await;
        assert!(is_duplicate_id(&second.expect("it does not wait")));
        assert_eq!(engine.concurrency_limits().totals().waiting, 1);
        drop(first);
        let mut again = acquire_by_id(ID);
        assert!(is_pending(again.as_mut()));
        assert!(engine.release(OTHER, None, RequestOutcome::Success, None));
        assert!(is_admitted(&again.await));
        assert!(engine.release(ID, None, RequestOutcome::Success, None));
    });
    assert_eq!((in_flight(&engine), engine.concurrency_limits().totals().waiting), (0, 0));
}

#[test]
fn early_release_is_remembered_while_its_acquire_waits() {
    let engine = engine(QUEUED);
    let check = check_of(&[("k", "v")]);
    block_on(async {
        let acquire_by_id = |id| Box::pin(engine.acquire((id, 0), &check, &check, None));
        assert!(is_admitted(&acquire_by_id(OTHER).await));
        let mut waits = acquire_by_id(ID);
        assert!(is_pending(waits.as_mut()));
        assert!(!engine.release(ID, None, RequestOutcome::Ignored, None));
        // 25 s are longer than the lifetime of an early release, but a queued acquire of its id
        // prolongs it.
        advance(&engine, 25_000);
        assert!(engine.release(OTHER, None, RequestOutcome::Success, None));
        assert!(is_admitted(&waits.await));
    });
    assert_eq!(in_flight(&engine), 0);
    assert_eq!(engine.early_releases().0, 0);
}

#[test]
fn expired_id_can_acquire_before_a_sweep() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, max_duration: 3s}\n");
    assert!(is_admitted(&acquire(&engine, ID)));
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(Nanos(Nanos::from_secs(3).0 - 1));
    assert!(is_duplicate_id(&acquire(&engine, ID)));
    clock.advance(Nanos(1));
    assert!(!engine.renew(ID));
    assert!(is_admitted(&acquire(&engine, ID)));
    assert_eq!(in_flight(&engine), 1);
    assert!(engine.renew(ID));
    assert!(engine.release(ID, None, RequestOutcome::Success, None));
}

/// Limits for `a` and `b` with a `max_duration` of 1 s and 60 s, and a check of both.
fn limits_of_1s_and_60s() -> (Engine, Check<'static>) {
    let queue = "queue: {size: 9, timeout: 1h}";
    let of = |key, secs| {
        format!("- key: {key}\n  concurrency: {{limit: 1, max_duration: {secs}s, {queue}}}\n")
    };
    (engine(&(of("a", 1) + &of("b", 60))), check_of(&[("a", "x"), ("b", "x")]))
}

#[test]
fn two_limits_require_renewal_within_the_shorter_max_duration() {
    let (engine, both) = limits_of_1s_and_60s();
    let acquire_both = || block_on(engine.acquire((ID, 0), &both, &both, Some(Nanos::SECOND)));
    assert!(is_admitted(&acquire_both()));
    assert_eq!(engine.renewal_interval(ID), Some(Nanos::SECOND));
    for _ in 0..3 {
        advance(&engine, 900);
        assert!(engine.renew(ID));
        assert_eq!(in_flight(&engine), 2);
    }
    advance(&engine, 1_000);
    assert!(!engine.renew(ID), "a part is gone");
    assert_eq!(in_flight(&engine), 1, "the other is kept for its own time");
    advance(&engine, 59_000);
    assert!(!engine.renew(ID), "a part is gone still");
    advance(&engine, 59_000);
    assert_eq!(in_flight(&engine), 1, "and yet it was seen alive");
    assert!(
        is_admitted(&acquire_both()),
        "it may ask anew, and what was left is given back before"
    );
    assert_eq!(in_flight(&engine), 2);
    assert!(engine.renew(ID));
}

#[test]
fn max_duration_starts_at_the_last_acquire() {
    let (engine, both) = limits_of_1s_and_60s();
    let b = check_of(&[("b", "x")]);
    block_on(async {
        let first = wait_for_permits(&engine, &b).await;
        let mut waits = Box::pin(engine.acquire((ID, 0), &both, &both, None));
        assert!(is_pending(waits.as_mut()));
        advance(&engine, 900);
        first.release(RequestOutcome::Success, None);
        assert!(is_admitted(&waits.await));
    });
    advance(&engine, 999);
    assert!(engine.renew(ID));
    assert_eq!(in_flight(&engine), 2);
}

#[test]
fn check_that_loses_a_permit_while_queued_starts_over() {
    let (engine, both) = limits_of_1s_and_60s();
    let [a, b] = ["a", "b"].map(|key| check_of(&[(key, "x")]));
    block_on(async {
        let first = wait_for_permits(&engine, &b).await;
        let mut waits = Box::pin(engine.acquire((ID, 0), &both, &both, None));
        assert!(is_pending(waits.as_mut()));
        advance(&engine, 1_000);
        let other = wait_for_permits(&engine, &a).await;
        first.release(RequestOutcome::Success, None);
        assert!(is_pending(waits.as_mut()), "the place under a is another's now");
        assert_eq!(in_flight(&engine), 1, "and what it had under b is given back");
        other.release(RequestOutcome::Success, None);
        assert!(is_admitted(&waits.await));
        assert_eq!(in_flight(&engine), 2);
        assert!(engine.renew(ID));
        assert!(is_duplicate_id(&engine.acquire((ID, 0), &both, &both, None).await));
    });
}

/// A limit for `b` with a `max_duration` of 60 s and a much longer queue timeout.
const LIMIT_B_60S: &str = "- key: b\n  concurrency: {limit: 1, max_duration: 60s, \
                            queue: {size: 9, timeout: 1h}}\n";

#[test]
fn check_that_loses_a_permit_at_its_timeout_is_denied() {
    let a = "- key: a\n  concurrency: {limit: 1, max_duration: 1s}\n";
    let (engine, both) = (engine(&[a, LIMIT_B_60S].concat()), check_of(&[("a", "x"), ("b", "x")]));
    block_on(async {
        let first = wait_for_permits(&engine, &check_of(&[("b", "x")])).await;
        let mut waits = Box::pin(engine.acquire((ID, 0), &both, &both, None));
        assert!(is_pending(waits.as_mut()));
        advance(&engine, 3_599_999);
        first.release(RequestOutcome::Success, None);
        advance(&engine, 1);
        let Ok(AdmissionOutcome::Rejected(rejection)) = waits.await else { panic!("it was late") };
        assert_eq!((rejection.reason, &*rejection.path), (Reason::QueueTimeout, "d.b"));
    });
    assert_eq!(in_flight(&engine), 0);
}

#[test]
fn lost_shadow_permit_does_not_fail_the_check() {
    let a = "- key: a\n  shadow_mode: true\n  concurrency: {limit: 1, max_duration: 1s}\n";
    let (engine, both) = (engine(&[a, LIMIT_B_60S].concat()), check_of(&[("a", "x"), ("b", "x")]));
    block_on(async {
        let first = wait_for_permits(&engine, &check_of(&[("b", "x")])).await;
        let mut waits = Box::pin(engine.acquire((ID, 0), &both, &both, None));
        assert!(is_pending(waits.as_mut()));
        advance(&engine, 1_000);
        first.release(RequestOutcome::Success, None);
        assert!(is_admitted(&waits.await));
    });
    assert_eq!(in_flight(&engine), 1);
    assert!(engine.renew(ID));
}

#[test]
fn an_early_release_leaves_no_permit_behind() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    engine.release(ID, None, RequestOutcome::Ignored, None);
    assert!(matches!(acquire(&engine, ID), Ok(AdmissionOutcome::Decided(..))));
    assert_eq!(in_flight(&engine), 0);
}

#[test]
fn early_release_beyond_the_bound_is_forgotten() {
    let bounds = EarlyReleaseLimits { per_source: 0, total: 0, lifetime: Nanos::SECOND };
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n").with_early_releases(bounds);
    engine.release(ID, None, RequestOutcome::Ignored, None);
    assert!(acquire(&engine, ID).is_ok());
    assert_eq!(in_flight(&engine), 1);
}

#[test]
fn time_in_flight_is_known_by_id() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    assert_eq!(engine.in_flight_for(ID), None);
    assert!(acquire(&engine, ID).is_ok());
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(Nanos(7));
    assert_eq!(engine.in_flight_for(ID), Some(Nanos(7)));
    engine.release(ID, None, RequestOutcome::Success, None);
    assert_eq!(engine.in_flight_for(ID), None);
}

#[test]
fn an_unreleased_permit_expires_after_max_duration() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, max_duration: 3s}\n");
    assert!(matches!(acquire(&engine, ID), Ok(AdmissionOutcome::Decided(..))));
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(Nanos(Nanos::from_secs(3).0 - 1));
    engine.concurrency_limits().sweep();
    assert_eq!(in_flight(&engine), 1);
    clock.advance(Nanos(1));
    engine.concurrency_limits().sweep();
    assert_eq!(in_flight(&engine), 0);
    engine.release(ID, None, RequestOutcome::Success, None);
    assert_eq!(in_flight(&engine), 0, "given back once");
}

#[test]
fn wall_clock_step_forward_expires_no_permit() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, max_duration: 3s}\n");
    assert!(is_admitted(&acquire(&engine, ID)));
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.step_wall_clock(Nanos::from_secs(3_600));
    engine.concurrency_limits().sweep();
    assert_eq!(in_flight(&engine), 1);
    assert_eq!(engine.in_flight_for(ID), Some(Nanos(0)));
    assert!(is_duplicate_id(&acquire(&engine, ID)), "it holds its place");
    clock.advance(Nanos(Nanos::from_secs(3).0 - 1));
    assert!(engine.renew(ID));
    clock.advance(Nanos::from_secs(3));
    engine.concurrency_limits().sweep();
    assert_eq!(in_flight(&engine), 0, "what has passed does end it");
}

#[test]
fn renewal_extends_a_permit_by_max_duration() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, max_duration: 3s}\n");
    assert!(!engine.renew(ID), "nothing is held");
    assert!(matches!(acquire(&engine, ID), Ok(AdmissionOutcome::Decided(..))));
    for _ in 0..5 {
        advance(&engine, 2_000);
        assert!(engine.renew(ID));
        assert_eq!(in_flight(&engine), 1);
    }
    advance(&engine, 3_000);
    assert!(!engine.renew(ID), "its deadline was before");
    assert_eq!(in_flight(&engine), 0);
}

fn advance(engine: &Engine, ms: u64) {
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(Nanos(ms * Nanos::MILLI.0));
    engine.concurrency_limits().sweep();
}

#[test]
fn releases_of_denied_acquires_are_not_remembered() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let other = "fedcba9876543210";
    assert!(matches!(acquire(&engine, ID), Ok(AdmissionOutcome::Decided(..))));
    for _ in 0..2 {
        assert!(matches!(acquire(&engine, other), Ok(AdmissionOutcome::Rejected(..))));
    }
    assert!(!engine.release(other, None, RequestOutcome::Ignored, None));
    assert_eq!(engine.early_releases().0, 0);
    assert!(matches!(acquire(&engine, other), Ok(AdmissionOutcome::Rejected(..))));
    assert!(engine.release(ID, None, RequestOutcome::Success, None));
    assert!(
        matches!(acquire(&engine, other), Ok(AdmissionOutcome::Decided(..))),
        "it may ask again"
    );
    assert_eq!(in_flight(&engine), 1);
    assert!(engine.release(other, None, RequestOutcome::Success, None));
}

#[derive(Debug)]
struct UnavailableStore;

impl CounterStore for UnavailableStore {
    fn charge<'a>(&'a self, _: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        let away = |_| store::ChargeOutcome::Failed(StoreFailure::Unreachable);
        StoreReply::Ready(charges.list.iter().map(away).collect())
    }

    fn exchange_lease_message<'a>(
        &'a self,
        _: Nanos,
        _: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        StoreReply::Ready(LeaseOutcome::Failed(StoreFailure::Unreachable))
    }
}

impl FleetStore for UnavailableStore {}

#[test]
fn releases_of_failed_acquires_are_not_remembered() {
    let clock = Clock::manual(Nanos::from_secs(1));
    let engine = Engine::new(clock, Arc::new(UnavailableStore), DecisionPolicy::default());
    publish(&engine, BOTH_LIMITS);
    assert!(matches!(acquire(&engine, ID), Err(CheckError::StoreUnavailable(_))));
    assert_eq!(in_flight(&engine), 0);
    assert!(!engine.release(ID, None, RequestOutcome::Ignored, None));
    assert_eq!(engine.early_releases().0, 0);
    assert!(
        matches!(acquire(&engine, ID), Err(CheckError::StoreUnavailable(_))),
        "it may ask again"
    );
}

#[test]
fn releases_of_canceled_acquires_are_not_remembered() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, queue: {size: 2, timeout: 1h}}\n");
    let check = check_of(&[("k", "v")]);
    let acquire_by_id = |id| Box::pin(engine.acquire((id, 0), &check, &check, None));
    block_on(async {
        assert!(is_admitted(&acquire_by_id(ID).await));
        let (mut canceled, mut released) =
            (acquire_by_id(OTHER), acquire_by_id("its-release-is-before"));
        assert!(is_pending(canceled.as_mut()) && is_pending(released.as_mut()));
        engine.release("its-release-is-before", None, RequestOutcome::Ignored, None);
        assert_eq!(engine.early_releases().0, 1);
        drop(released);
        assert_eq!(engine.early_releases().0, 0, "what it was remembered for is over");
        drop(canceled);
        assert!(!engine.release(OTHER, None, RequestOutcome::Ignored, None));
        assert_eq!(engine.early_releases().0, 0);
    });
    assert!(engine.release(ID, None, RequestOutcome::Success, None));
}

#[test]
fn release_during_a_queued_retry_counts_as_early() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, queue: {size: 1, timeout: 1h}}\n");
    let check = check_of(&[("k", "v")]);
    let acquire_by_id = |id, patience| Box::pin(engine.acquire((id, 0), &check, &check, patience));
    block_on(async {
        assert!(is_admitted(&acquire_by_id(ID, None).await));
        assert!(matches!(
            acquire_by_id(OTHER, Some(Nanos(0))).await,
            Ok(AdmissionOutcome::Rejected(..))
        ));
        let mut waits = acquire_by_id(OTHER, None);
        assert!(is_pending(waits.as_mut()));
        engine.release(OTHER, None, RequestOutcome::Ignored, None);
        assert_eq!(engine.early_releases().0, 1);
        assert!(engine.release(ID, None, RequestOutcome::Success, None));
        assert!(is_admitted(&waits.await));
    });
    assert_eq!((in_flight(&engine), engine.early_releases().0), (0, 0));
}

#[test]
fn early_releases_use_the_configured_bounds() {
    let bounds = EarlyReleaseLimits { per_source: 3, total: 5, lifetime: Nanos::SECOND };
    let engine = engine("- key: k\n  concurrency: {limit: 1, max_duration: 3s}\n");
    let engine = engine.with_early_releases(bounds);
    assert_eq!(engine.early_releases(), (0, 5));
    let other = "fedcba9876543210";
    assert!(matches!(acquire(&engine, ID), Ok(AdmissionOutcome::Decided(..))));
    assert!(matches!(acquire(&engine, other), Ok(AdmissionOutcome::Rejected(..))));
    advance(&engine, 3_000);
    expire_id(&engine, ID);
    // The denial was remembered for only a second, so this release is of an unknown id.
    engine.release(other, None, RequestOutcome::Ignored, None);
    assert_eq!(engine.early_releases(), (1, 5));
}

/// Runs the engine's expiry until it has removed `id`.
fn expire_id(engine: &Engine, id: &str) {
    let forgotten = async {
        while engine.renewal_interval(id).is_some() {
            tokio::task::yield_now().await;
        }
    };
    let either = async {
        tokio::select! {
            () = engine.expire_forever() => panic!("it ended"),
            () = forgotten => {}
        }
    };
    let patience = Duration::from_secs(60);
    block_on(async { tokio::time::timeout(patience, either).await }).expect("it is known still");
}

#[test]
fn early_releases_are_bounded_per_source_without_eviction() {
    const MOST: usize = 50_000;
    let engine = engine("- key: k\n  concurrency: {limit: 9}\n");
    let source = |last| Some(std::net::IpAddr::from([192, 0, 2, last]));
    let early = |id: String, from| {
        engine.release(&id, source(from), RequestOutcome::Ignored, None);
        engine.early_releases().0
    };
    for number in 0..MOST {
        assert_eq!(early(format!("release-{number:016}"), 1), number + 1);
    }
    assert_eq!(early("one-more-of-the-same".into(), 1), MOST, "refused");
    assert_eq!(early(ID.into(), 2), MOST + 1, "another's are remembered");
    for id in ["release-0000000000000000", ID] {
        assert!(matches!(acquire(&engine, id), Ok(AdmissionOutcome::Decided(..))));
        assert_eq!(in_flight(&engine), 0, "{id} was over");
    }
    assert!(matches!(acquire(&engine, "one-more-of-the-same"), Ok(AdmissionOutcome::Decided(..))));
    assert_eq!(in_flight(&engine), 1, "forgotten, and max_duration frees it");
}

#[test]
fn unreleased_permits_are_bounded_by_the_limit_and_expire() {
    let engine = engine("- key: k\n  concurrency: {limit: 100000, max_duration: 30s}\n");
    let check = check_of(&[("k", "v")]);
    let held = block_on(async {
        let mut held = 0;
        for number in 0..101_000 {
            let id = format!("never-given-back-{number}");
            let admitted = engine.acquire((&id, 0), &check, &check, None).await;
            held += usize::from(matches!(admitted, Ok(AdmissionOutcome::Decided(..))));
        }
        held
    });
    assert_eq!((held, in_flight(&engine)), (100_000, 100_000));
    advance(&engine, 30_000);
    assert_eq!(in_flight(&engine), 0);
}

#[test]
fn an_invalid_check_takes_no_permit() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let refused = |check| block_on(engine.admit(&check, None)).unwrap_err();
    assert_eq!(refused(check_of(&[])), CheckError::NoDescriptors);
    assert_eq!(refused(Check { domain: "", ..check_of(&[("k", "v")]) }), CheckError::EmptyDomain);
    assert_eq!(in_flight(&engine), 0);
}
