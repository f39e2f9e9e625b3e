//! Checks that wait for the first share of a limit.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::poll_immediate;
use sluicegate::engine::AdmissionOutcome;
use sluicegate::kernel::units::Nanos;

use super::{HALF_SECOND, default_check, in_time};
use crate::support::engine::block_on;
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::{Replica, admitted_permits};

#[test]
fn the_first_check_waits_for_a_share() {
    let store = FaultyStore::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert!(alone.try_acquire());
    assert_eq!(store.share_calls.load(Relaxed), 1);
    assert_eq!(alone.acquire_all(), 3);
    assert_eq!(store.share_calls.load(Relaxed), 1, "no call for a request");
}

#[test]
fn share_wait_ends_at_the_timeout() {
    let alone = Replica::with_hour_timeout(&FaultyStore::new(), "a", "limit: 4");
    let check = default_check();
    block_on(async {
        let timeout = Some(Nanos(10 * Nanos::MILLI.0));
        let asked = in_time(alone.engine.admit(&check, timeout)).await.unwrap();
        assert!(matches!(asked, AdmissionOutcome::Rejected(_)), "nobody has said a word");
        let ids = in_time(alone.engine.admit_with_deadline(&check, timeout)).await.unwrap();
        assert!(matches!(ids, AdmissionOutcome::Rejected(_)));
    });
}

#[test]
fn zero_queue_timeout_still_waits_for_a_share() {
    let alone = Replica::with_hour_timeout(&FaultyStore::new(), "a", "limit: 4");
    let check = default_check();
    let passed = block_on(async {
        let asked = alone.engine.admit(&check, Some(Nanos(0)));
        admitted_permits(tokio::join!(asked, alone.engine.report_once()).0.unwrap()).is_some()
    });
    assert!(passed);
}

#[test]
fn share_wait_counts_toward_the_queue_timeout() {
    let store = FaultyStore::new();
    let queue = "limit: 4, queue: {size: 9, timeout: 1h}";
    let mut other = Replica::new(&store, "b", queue);
    (0..4).for_each(|_| assert!(other.try_acquire()));
    let late = Replica::with_hour_timeout(&store, "a", queue);
    let check = default_check();
    block_on(async {
        let mut asked = pin!(late.engine.admit(&check, Some(Nanos::SECOND)));
        assert!(poll_immediate(&mut asked).await.is_none(), "cold");
        late.advance(HALF_SECOND);
        late.engine.report_once().await;
        assert!(poll_immediate(&mut asked).await.is_none(), "in the queue");
        late.advance(HALF_SECOND);
        late.engine.concurrency_limits().sweep();
        let asked = poll_immediate(&mut asked).await;
        assert!(matches!(asked, Some(Ok(AdmissionOutcome::Rejected(_)))), "a second is over");
    });
}

#[test]
fn shadow_mode_requests_a_share_without_waiting() {
    let store = FaultyStore::new();
    let shadow = "limit: 1}, shadow_mode: true}, {key: other, concurrency: {limit: 1";
    let alone = Replica::with_hour_timeout(&store, "a", shadow);
    let check = default_check();
    let held = |admitted| match admitted {
        Some(Ok(AdmissionOutcome::Decided(_, permits))) => permits,
        other => panic!("{other:?}"),
    };
    block_on(async {
        let first = held(poll_immediate(alone.engine.admit(&check, None)).await);
        assert!(first.is_empty(), "it passes without a place");
        alone.engine.report_once().await;
        let second = held(poll_immediate(alone.engine.admit(&check, None)).await);
        assert!(!second.is_empty(), "a share is there now");
    });
}
