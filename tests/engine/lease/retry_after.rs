//! Tests retry-after and remaining hits of leased limits.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::refill::{K, TEN, paused_store, run_other_tasks, spawn_check, verdict};
use super::{is_allowed, send_check};
use crate::support::engine::{advance_clock, check};

/// 100 hits per hour, as a fixed window and as GCRA, with the retry-after in seconds.
const HOUR: [(&str, u64); 2] = [("fixed_window", 3_600), ("gcra", 36)];

/// Delay of a store call.
const CALL_DELAY: Nanos = Nanos(5_000_000);

#[tokio::test]
async fn a_remembered_denial_has_an_exact_retry_after() {
    for (strategy, waits) in HOUR {
        let limits = format!(
            "- key: k\n  rate_limit: {{unit: hour, requests_per_unit: 100, strategy: {strategy}, mode: leased, max_overshoot: 1}}\n"
        );
        let (store, engine) = paused_store(&limits);
        store.pauses_calls.store(false, Relaxed);
        assert!(is_allowed(&engine, K, 100).await);
        store.pauses_calls.store(true, Relaxed);
        store.delay_ns.store(CALL_DELAY.0, Relaxed);
        let denied = spawn_check(&engine, 1).await;
        advance_clock(&engine, CALL_DELAY);
        store.receive(0);
        store.reply(0);
        assert_eq!(verdict(denied).await, Verdict::Deny);
        store.pauses_calls.store(false, Relaxed);
        store.delay_ns.store(0, Relaxed);
        let calls = store.calls();
        let finding = send_check(&engine, K, 1).await.unwrap().statuses.remove(0).decision;
        assert_eq!((finding.verdict, store.calls()), (Verdict::Deny, calls), "it is remembered");
        let wait = finding.retry_after.unwrap();
        assert_eq!(wait, Nanos::from_secs(waits).since(CALL_DELAY), "{strategy}");
        assert_eq!(
            finding.headroom.reset_after,
            Nanos::from_secs(3_600).since(CALL_DELAY),
            "{strategy}"
        );
        advance_clock(&engine, wait);
        assert!(is_allowed(&engine, K, 1).await, "{strategy}");
    }
}

#[tokio::test]
async fn remaining_after_a_direct_charge_includes_the_balance() {
    let (store, engine) = paused_store(&TEN.replace("lease_hits: 10", "lease_hits: 6"));
    let shared = Arc::clone(&engine);
    let first = tokio::spawn(async move {
        let one = check(K, Cost::Charge(Hits(1)));
        let asked = shared.decide(&one).await;
        // Starts a refill, because the lease would expire before a slow reply.
        shared.decide(&one).await.and(asked)
    });
    run_other_tasks().await;
    let second = spawn_check(&engine, 8).await;
    advance_clock(&engine, Nanos::from_secs(11));
    store.receive(0);
    store.reply(0);
    assert_eq!(verdict(first).await, Verdict::Allow);
    run_other_tasks().await;
    assert_eq!((store.calls(), super::total_balance(&engine)), (3, 5), "a charge and a message");
    store.receive(1);
    store.reply(1);
    let answer = second.await.unwrap().unwrap();
    assert_eq!(answer.verdict, Verdict::Allow);
    assert_eq!(answer.statuses[0].decision.headroom.remaining, Hits(100 - 1 - 1 - 8));
}
