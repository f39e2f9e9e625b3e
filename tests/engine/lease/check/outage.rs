//! Balances during a store outage.

use std::sync::atomic::Ordering::Relaxed;

use sluicegate::kernel::decision::{Reason, Verdict};
use sluicegate::kernel::units::Nanos;
use sluicegate::store::StoreFailure;

use super::{COUPLED, GCRA, K, fill_balance};
use crate::engine::lease::{engine, is_allowed, send_check, total_balance};
use crate::support::engine::advance_clock;
use crate::support::faulty_store::FaultyStore;

#[tokio::test]
async fn an_outage_spends_the_balance_before_the_fallback() {
    for (fallback, after) in
        [("allow", Some(Verdict::Allow)), ("deny", Some(Verdict::Deny)), ("error", None)]
    {
        let store = FaultyStore::new();
        let limits =
            COUPLED.replace("unit: day", &format!("on_store_failure: {fallback}, unit: day"));
        let engine = engine(&store, &limits);
        fill_balance(&engine).await;
        let total_balance = total_balance(&engine);
        store.is_unavailable.store(true, Relaxed);
        for _ in 0..total_balance {
            let answer = send_check(&engine, K, 1).await.unwrap();
            assert_eq!(answer.statuses[0].decision.reason, Reason::WithinLimit);
        }
        assert_eq!(
            send_check(&engine, K, 1).await.ok().map(|answer| answer.verdict),
            after,
            "{fallback}"
        );
    }
}

#[tokio::test]
async fn a_disconnected_store_leaves_the_balance() {
    for limits in [COUPLED, GCRA] {
        let store = FaultyStore::new();
        let limits = limits.replace("unit: day", "on_store_failure: deny, unit: day");
        let engine = engine(&store, &limits);
        fill_balance(&engine).await;
        let before = total_balance(&engine);
        store.is_disconnected.store(true, Relaxed);
        for _ in 0..3 {
            assert!(!is_allowed(&engine, K, before + 1).await);
            assert_eq!(total_balance(&engine), before);
        }
        for _ in 0..before {
            let answer = send_check(&engine, K, 1).await.unwrap();
            assert_eq!(answer.statuses[0].decision.reason, Reason::WithinLimit);
        }
        assert!(!is_allowed(&engine, K, 1).await);
        store.is_disconnected.store(false, Relaxed);
        assert!(is_allowed(&engine, K, 1).await, "none is believed to be on its way");
    }
}

#[tokio::test]
async fn an_unsent_lease_message_restores_the_balance() {
    for cause in [StoreFailure::Overloaded, StoreFailure::BreakerOpen] {
        let store = FaultyStore::new();
        let limits = GCRA.replace("unit: day", "on_store_failure: deny, unit: day");
        let engine = engine(&store, &limits);
        fill_balance(&engine).await;
        let before = total_balance(&engine);
        *store.rejection.lock() = Some(cause);
        assert!(!is_allowed(&engine, K, before + 1).await);
        assert_eq!(total_balance(&engine), before, "{cause:?}");
        *store.rejection.lock() = None;
        assert!(is_allowed(&engine, K, before + 1).await, "none is believed to be on its way");
    }
}

#[tokio::test]
async fn a_balance_is_kept_until_expiry_while_the_store_is_disconnected() {
    let store = FaultyStore::new();
    let engine = engine(&store, GCRA);
    fill_balance(&engine).await;
    let before = total_balance(&engine);
    store.is_disconnected.store(true, Relaxed);
    // Long enough for an idle key to return its balance.
    for _ in 0..20 {
        advance_clock(&engine, Nanos::SECOND);
        engine.leases().unwrap().upkeep().await;
        assert_eq!(total_balance(&engine), before);
    }
    engine.leases().unwrap().return_all().await;
    assert_eq!(total_balance(&engine), before);
    advance_clock(&engine, Nanos::from_secs(10));
    assert_eq!(total_balance(&engine), 0);
}

#[tokio::test]
async fn a_timed_out_lease_message_loses_its_returned_balance() {
    let store = FaultyStore::new();
    let engine = engine(&store, &GCRA.replace("unit: day", "on_store_failure: deny, unit: day"));
    fill_balance(&engine).await;
    store.is_unavailable.store(true, Relaxed);
    let more = total_balance(&engine) + 1;
    assert!(!is_allowed(&engine, K, more).await);
    assert_eq!(total_balance(&engine), 0);
}
