//! Reloads while checks are in flight or queued.

use std::sync::Arc;

use futures_util::future::poll_immediate;
use sluicegate::engine::{AdmissionOutcome, Engine};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::units::{Nanos, Revision};

use super::{
    advance, engine, expect_permits, expect_rejection, in_flight, is_pending, wait_for_permits,
};
use crate::support::engine::{block_on, check_of, publish, publish_as};

fn reported_limit(engine: &Engine) -> u64 {
    engine.concurrency_in_use().values().map(|ceiling| ceiling.limit).sum()
}

#[test]
fn reloaded_limit_applies_to_the_next_check() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let check = check_of(&[("k", "v")]);
    let _held = expect_permits(&engine, &check);
    expect_rejection(&engine, &check);
    publish(&engine, "", "- key: k\n  concurrency: {limit: 2}\n");
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
