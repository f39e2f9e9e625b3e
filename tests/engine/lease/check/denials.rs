//! Denials, remembered or by another limit of the check.

use sluicegate::kernel::decision::{Reason, Verdict};
use sluicegate::kernel::units::Nanos;

use super::{COUPLED, GCRA, K, STRICT, fill_balance};
use crate::engine::lease::{engine, is_allowed, poll_once, send_check, total_balance};
use crate::support::engine::publish;
use crate::support::faulty_store::FaultyStore;

#[tokio::test]
async fn a_denied_large_check_leaves_the_balance() {
    for limits in [COUPLED, GCRA] {
        let store = FaultyStore::new();
        let (one, other) = (engine(&store, limits), engine(&store, limits));
        publish(&one, "charge: all_or_nothing\n", limits);
        let asked = fill_balance(&one).await;
        let before = total_balance(&one);
        assert!(is_allowed(&other, K, 1000 - asked - before).await);
        for _ in 0..2 {
            assert!(!is_allowed(&one, K, before + 1).await);
            assert_eq!(total_balance(&one), before);
        }
    }
}

#[tokio::test]
async fn a_denial_by_another_limit_leaves_the_balance() {
    let store = FaultyStore::new();
    let engine = engine(&store, COUPLED);
    publish(&engine, "charge: all_or_nothing\n", &format!("{COUPLED}{STRICT}"));
    let mut asked = 0;
    while asked < 800 || total_balance(&engine) < 51 {
        assert!(is_allowed(&engine, K, 1).await);
        asked += 1;
    }
    assert!(is_allowed(&engine, &[("s", "v")], 2).await);
    let (before, calls) = (total_balance(&engine), store.calls());
    let hits = 1000 - asked - before + 50;
    assert!(!is_allowed(&engine, &[("k", "v"), ("s", "v")], hits).await);
    assert_eq!((total_balance(&engine), store.calls()), (before, calls + 1));
}

#[tokio::test]
async fn remembered_denials_need_no_store_call() {
    for limits in [COUPLED, GCRA] {
        let store = FaultyStore::new();
        let engine = engine(&store, limits);
        assert!(is_allowed(&engine, K, 1000).await);
        assert!(!is_allowed(&engine, K, 1).await);
        let calls = store.calls();
        assert!(!is_allowed(&engine, K, 1).await);
        assert!(!is_allowed(&engine, K, 1001).await);
        assert_eq!(store.calls(), calls);
        let answer = send_check(&engine, K, 1001).await.unwrap();
        assert_eq!(answer.statuses[0].decision.reason, Reason::LargerThanLimit);
    }
}

/// A burst of 3 and one hit per 3 s: after the burst, each hit takes 3 s.
#[tokio::test]
async fn retry_after_grows_with_the_denied_hits() {
    let engine = engine(
        &FaultyStore::new(),
        "- key: k\n  rate_limit: {unit: minute, requests_per_unit: 20, strategy: gcra, burst: 3, mode: leased, \
         max_overshoot: 2}\n",
    );
    assert!(is_allowed(&engine, K, 3).await);
    for hits in [1, 3, 2] {
        let waits = send_check(&engine, K, hits).await.unwrap().statuses[0].decision.retry_after;
        assert_eq!(waits, Some(Nanos::from_secs(3 * hits)), "{hits} hits");
    }
}

#[tokio::test]
async fn an_atomic_denial_spends_no_balance() {
    for limits in [COUPLED, GCRA] {
        let store = FaultyStore::new();
        let engine = engine(&store, limits);
        publish(&engine, "charge: all_or_nothing\n", &format!("{limits}{STRICT}"));
        let both = &[("k", "v"), ("s", "v")];
        assert!(is_allowed(&engine, both, 1).await && is_allowed(&engine, both, 1).await);
        fill_balance(&engine).await;
        let before = total_balance(&engine);
        let left = send_check(&engine, K, 0).await.unwrap().statuses[0].decision.headroom.remaining;
        for _ in 0..3 {
            let answer = send_check(&engine, both, 1).await.unwrap();
            assert_eq!(answer.verdict, Verdict::Deny);
            assert_eq!(answer.statuses[0].decision.verdict, Verdict::Allow);
            assert_eq!(
                answer.statuses[0].decision.headroom.remaining, left,
                "as without the charge"
            );
        }
        assert_eq!(total_balance(&engine), before);
    }
}

#[tokio::test]
async fn a_dropped_check_restores_the_balance() {
    let store = FaultyStore::new();
    let engine = engine(&store, COUPLED);
    publish(&engine, "charge: all_or_nothing\n", &format!("{COUPLED}{STRICT}"));
    fill_balance(&engine).await;
    let before = total_balance(&engine);
    assert!(
        poll_once(&engine, &[("k", "v"), ("s", "v")], 1).is_none(),
        "the other has to be asked"
    );
    assert_eq!(total_balance(&engine), before);
}
