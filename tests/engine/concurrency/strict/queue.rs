//! Requests that wait for a permit.

use std::pin::pin;

use futures_util::future::poll_immediate;
use sluicegate::kernel::concurrency::RequestOutcome;

use super::{default_check, two_replicas};
use crate::support::engine::{block_on, check_of};
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{Replica, admitted_permits};

#[test]
fn local_release_wakes_queued_requests_in_order() {
    let store = FaultyStore::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 2, timeout: 1h}";
    let mut alone = Replica::new(&store, "a", ceiling);
    assert!(alone.try_acquire_strict());
    block_on(async {
        let checks = [default_check(), default_check(), default_check()];
        let admit = |at: usize| alone.engine.admit(&checks[at], None);
        let (mut first, mut second) = (pin!(admit(0)), pin!(admit(1)));
        assert!(poll_immediate(&mut first).await.is_none());
        assert!(poll_immediate(&mut second).await.is_none());
        assert_eq!(alone.engine.concurrency_limits().totals().waiting, 2);
        assert!(admitted_permits(admit(2).await.unwrap()).is_none(), "the line is full");
        for permits in alone.permits.drain(..) {
            permits.release(RequestOutcome::Success, None);
        }
        alone.engine.report_once().await;
        assert!(poll_immediate(&mut second).await.is_none(), "overtaken");
        let woken = poll_immediate(&mut first).await;
        let permits =
            admitted_permits(woken.expect("woken, not left to ask again").unwrap()).unwrap();
        assert_eq!(alone.engine.concurrency_limits().totals().waiting, 1);
        permits.release(RequestOutcome::Success, None);
        alone.engine.report_once().await;
        assert!(admitted_permits(second.await.unwrap()).is_some());
        assert_eq!(alone.engine.concurrency_limits().totals().waiting, 0);
    });
}

#[test]
fn customers_of_a_strict_limit_take_turns() {
    let store = FaultyStore::new();
    let limit = "limit: 1, mode: strict, queue: {size: 4, timeout: 1h}, fair: {by: customer}";
    let mut alone = Replica::new(&store, "a", limit);
    assert!(alone.try_acquire_strict());
    block_on(async {
        let [hog, other] = ["hog", "other"].map(|name| check_of(&[("k", "v"), ("customer", name)]));
        let requests = [("hog 1", &hog), ("hog 2", &hog), ("hog 3", &hog), ("other", &other)];
        let displacing = check_of(&[("k", "v"), ("customer", "third")]);
        let mut waiting = Vec::new();
        for (name, check) in requests {
            let mut request = Box::pin(alone.engine.admit(check, None));
            assert!(poll_immediate(&mut request).await.is_none(), "{name} waits");
            waiting.push((name, request));
        }
        // The longest backlog makes room in the full queue, which is never that of the first request.
        let mut third = Box::pin(alone.engine.admit(&displacing, None));
        assert!(poll_immediate(&mut third).await.is_none());
        waiting.push(("third", third));
        let mut permits = std::mem::take(&mut alone.permits);
        let mut served = Vec::new();
        while !waiting.is_empty() {
            permits.drain(..).for_each(|permit| permit.release(RequestOutcome::Success, None));
            alone.engine.report_once().await;
            let mut left = Vec::new();
            for (name, mut request) in waiting {
                match poll_immediate(&mut request).await {
                    Some(admitted) => {
                        let admitted = admitted_permits(admitted.unwrap());
                        served.push((name, admitted.is_some()));
                        permits.extend(admitted);
                    }
                    None => left.push((name, request)),
                }
            }
            waiting = left;
        }
        let order = [("hog 3", false), ("hog 1", true), ("other", true), ("third", true)];
        assert_eq!(served[..2].iter().filter(|it| order[..2].contains(it)).count(), 2);
        assert_eq!(served[2..], [order[2], order[3], ("hog 2", true)]);
    });
}

#[test]
fn queued_request_retries_after_a_release_elsewhere() {
    let store = FaultyStore::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 2, timeout: 1h}";
    let [mut a, b] = two_replicas(&store, ceiling);
    assert!(a.try_acquire_strict());
    block_on(async {
        let check = default_check();
        let mut waits = pin!(b.engine.admit(&check, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        a.finish(1);
        a.engine.report_once().await;
        assert!(admitted_permits(waits.await.unwrap()).is_some());
    });
}

#[test]
fn new_request_does_not_overtake_the_queue() {
    let store = FaultyStore::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 1, timeout: 1h}";
    let [a, mut b] = two_replicas(&store, ceiling);
    assert!(b.try_acquire_strict());
    block_on(async {
        let (first, second) = (default_check(), default_check());
        let mut waits = pin!(a.engine.admit(&first, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        b.finish(1);
        b.engine.report_once().await;
        assert!(admitted_permits(a.engine.admit(&second, None).await.unwrap()).is_none());
        assert!(admitted_permits(waits.await.unwrap()).is_some());
    });
}

#[test]
fn timed_out_or_canceled_request_leaves_the_queue() {
    let store = FaultyStore::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 1, timeout: 30ms}";
    let mut alone = Replica::new(&store, "a", ceiling);
    assert!(alone.try_acquire_strict());
    assert!(!alone.try_acquire_strict(), "its time is over");
    assert_eq!(alone.engine.concurrency_limits().totals().waiting, 0);
    block_on(async {
        let check = default_check();
        let mut waits = Box::pin(alone.engine.admit(&check, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        drop(waits);
    });
    assert_eq!(alone.engine.concurrency_limits().totals().waiting, 0);
    assert_eq!(alone.engine.concurrency_limits().totals().in_flight, 1);
}
