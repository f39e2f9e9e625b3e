//! Permits with an id: duplicates, renewal and expiry.

use futures_util::future::poll_immediate;
use sluicegate::clock::Clock;
use sluicegate::engine::{AdmissionOutcome, CheckError, Engine};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::decision::{Check, Reason};
use sluicegate::kernel::units::Nanos;

use super::{
    ID, OTHER, QUEUED, acquire, advance, engine, in_flight, is_admitted, is_pending,
    wait_for_permits,
};
use crate::support::engine::{block_on, check_of};

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
