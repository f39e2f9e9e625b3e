//! Tests refunds to leased limits and remembered denials.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::engine::{CheckError, Decision, Engine};
use sluicegate::kernel::decision::{Cost, LimitOverride, Verdict};
use sluicegate::kernel::units::{Hits, Unit};
use tokio::task::JoinHandle;

use super::is_allowed;
use super::refill::{K, paused_store, run_other_tasks, spawn_check, verdict};
use crate::support::engine::check;
use crate::support::faulty_store::FaultyStore;

/// 1000 hits per hour without overshoot.
const HOUR: &str = "- key: k\n  rate_limit: {unit: hour, requests_per_unit: 1000, mode: leased, max_overshoot: 0}\n";

/// An engine that has spent the whole limit, with store calls paused afterwards.
async fn spent_window() -> (Arc<FaultyStore>, Arc<Engine>) {
    let (store, engine) = paused_store(HOUR);
    store.pauses_calls.store(false, Relaxed);
    assert!(is_allowed(&engine, K, 1000).await);
    store.pauses_calls.store(true, Relaxed);
    (store, engine)
}

/// Refunds five hits in the background.
async fn spawn_refund(
    engine: &Arc<Engine>,
    limit: Option<LimitOverride>,
) -> JoinHandle<Result<Decision, CheckError>> {
    let engine = Arc::clone(engine);
    let pending = tokio::spawn(async move {
        let mut back = check(K, Cost::Refund(Hits(5)));
        back.descriptors[0].limit = limit;
        engine.decide(&back).await
    });
    run_other_tasks().await;
    pending
}

#[tokio::test]
async fn a_denial_pending_during_a_refund_is_not_remembered() {
    let (store, engine) = spent_window().await;
    let denied = spawn_check(&engine, 1).await;
    store.receive(0);
    run_other_tasks().await;
    store.pauses_calls.store(false, Relaxed);
    assert_eq!(verdict(spawn_refund(&engine, None).await).await, Verdict::Allow);
    store.reply(0);
    assert_eq!(verdict(denied).await, Verdict::Deny);
    assert!(
        is_allowed(&engine, K, 1).await,
        "the window counted one that it denied, and five came back"
    );
}

#[tokio::test]
async fn a_denial_sent_after_a_refund_but_applied_first_is_not_remembered() {
    for is_answered_first in [false, true] {
        let (store, engine) = spent_window().await;
        let back = spawn_refund(&engine, None).await;
        let denied = spawn_check(&engine, 1).await;
        assert_eq!(store.calls(), 3, "both are on their way");
        store.receive(1);
        run_other_tasks().await;
        store.receive(0);
        for at in if is_answered_first { [0, 1] } else { [1, 0] } {
            store.reply(at);
            run_other_tasks().await;
        }
        assert_eq!((verdict(back).await, verdict(denied).await), (Verdict::Allow, Verdict::Deny));
        store.pauses_calls.store(false, Relaxed);
        assert!(is_allowed(&engine, K, 1).await, "{is_answered_first}");
    }
}

#[tokio::test]
async fn a_refund_with_an_override_clears_the_remembered_denial() {
    let (store, engine) = spent_window().await;
    store.pauses_calls.store(false, Relaxed);
    assert!(!is_allowed(&engine, K, 1).await);
    let calls = store.calls();
    assert!(!is_allowed(&engine, K, 1).await);
    assert_eq!(store.calls(), calls, "it is remembered");
    let limit = LimitOverride { requests: 1000, unit: Unit::Hour };
    assert_eq!(verdict(spawn_refund(&engine, Some(limit)).await).await, Verdict::Allow);
    assert!(is_allowed(&engine, K, 1).await);
}
