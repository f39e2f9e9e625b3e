//! What is told with an answer: the wait, and what remains.

use std::sync::atomic::Ordering::Relaxed;

use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::Nanos;

use super::waiting::{K, asked, standing, verdict};
use super::{admits, ask, pass};

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
