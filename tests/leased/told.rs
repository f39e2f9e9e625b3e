//! What is told with an answer: the wait, and what remains.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::waiting::{K, TEN, asked, standing, turns, verdict};
use super::{admits, ask, pass, question};

/// A hundred an hour, counted in a window and as a debt.
const HOUR: [(&str, u64); 2] = [("fixed_window", 3_600), ("gcra", 36)];

/// What an answer is on its way for.
const WAY: Nanos = Nanos(5_000_000);

#[tokio::test]
async fn who_comes_back_after_the_wait_that_a_remembered_denial_told_is_admitted() {
    for (strategy, waits) in HOUR {
        let limits = format!(
            "- key: k\n  rate_limit: {{unit: hour, requests_per_unit: 100, strategy: {strategy}, mode: leased, max_overshoot: 1}}\n"
        );
        let (store, engine) = standing(&limits);
        store.stands.store(false, Relaxed);
        assert!(admits(&engine, K, 100).await);
        store.stands.store(true, Relaxed);
        store.way.store(WAY.0, Relaxed);
        let denied = asked(&engine, 1).await;
        pass(&engine, WAY);
        store.take(0);
        store.answer(0);
        assert_eq!(verdict(denied).await, Verdict::Deny);
        store.stands.store(false, Relaxed);
        store.way.store(0, Relaxed);
        let calls = store.calls();
        let finding = ask(&engine, K, 1).await.unwrap().statuses.remove(0).finding;
        assert_eq!((finding.verdict, store.calls()), (Verdict::Deny, calls), "it is remembered");
        let wait = finding.retry_after.unwrap();
        assert_eq!(wait, Nanos::from_secs(waits).since(WAY), "{strategy}");
        assert_eq!(finding.room.reset_after, Nanos::from_secs(3_600).since(WAY), "{strategy}");
        pass(&engine, wait);
        assert!(admits(&engine, K, 1).await, "{strategy}");
    }
}

#[tokio::test]
async fn what_remains_for_who_is_charged_alone_counts_what_is_held_here() {
    let (store, engine) = standing(&TEN.replace("lease_hits: 10", "lease_hits: 6"));
    let twice = Arc::clone(&engine);
    let first = tokio::spawn(async move {
        let one = question(K, Cost::Charge(Hits(1)));
        let asked = twice.decide(&one).await;
        // More is borrowed ahead: answers take so long that the lease will be over.
        twice.decide(&one).await.and(asked)
    });
    turns().await;
    let waiter = asked(&engine, 8).await;
    pass(&engine, Nanos::from_secs(11));
    store.take(0);
    store.answer(0);
    assert_eq!(verdict(first).await, Verdict::Admit);
    turns().await;
    assert_eq!((store.calls(), super::held(&engine)), (3, 5), "a charge and a message");
    store.take(1);
    store.answer(1);
    let answer = waiter.await.unwrap().unwrap();
    assert_eq!(answer.verdict, Verdict::Admit);
    assert_eq!(answer.statuses[0].finding.room.remaining, Hits(100 - 1 - 1 - 8));
}
