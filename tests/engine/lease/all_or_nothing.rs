//! Tests leased limits with `charge: all_or_nothing`, charged from the balance or in the store.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::engine::Engine;
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::check::{COUPLED, GCRA};
use super::refill::{K, TEN, run_other_tasks, verdict};
use super::{engine, is_allowed, send_check, total_balance};
use crate::support::engine::{advance_clock, check, publish};
use crate::support::faulty_store::FaultyStore;

const ALL_OR_NOTHING: &str = "charge: all_or_nothing\n";

const STRATEGIES: [&str; 4] = ["gcra", "fixed_window", "sliding_window", "sliding_log"];

fn engine_all_or_nothing(store: &Arc<FaultyStore>, limits: &str) -> Engine {
    let engine = engine(store, limits);
    publish(&engine, ALL_OR_NOTHING, limits);
    engine
}

async fn remaining(engine: &Engine, key: &str) -> u64 {
    send_check(engine, &[(key, "v")], 0).await.unwrap().statuses[0].decision.headroom.remaining.0
}

/// An engine with a balance of 10, and a store in which `left` of 100 hits remain.
async fn engine_with_ten(strategy: &str, left: u64) -> (Arc<FaultyStore>, Engine) {
    let limits = TEN.replace("gcra", strategy);
    let store = FaultyStore::new();
    let one = engine_all_or_nothing(&store, &limits);
    let mut charged = 0;
    while total_balance(&one) < 10 {
        assert!(is_allowed(&one, K, 1).await);
        charged += 1;
    }
    let strict =
        engine(&store, &limits.replace(", mode: leased, max_overshoot: 10%, lease_hits: 10", ""));
    assert!(is_allowed(&strict, K, 100 - charged - 10 - left).await);
    (store, one)
}

#[tokio::test]
async fn either_the_balance_or_the_store_must_cover_all_hits() {
    for strategy in STRATEGIES {
        for (hits, is_covered) in [(10, true), (11, false), (15, false), (16, false)] {
            let (store, one) = engine_with_ten(strategy, 5).await;
            let before = store.calls();
            assert_eq!(is_allowed(&one, K, hits).await, is_covered, "{strategy} {hits}");
            assert_eq!(store.calls() - before, u64::from(!is_covered), "{strategy} {hits}");
            assert_eq!(total_balance(&one), if is_covered { 0 } else { 10 }, "{strategy} {hits}");
        }
    }
}

#[tokio::test]
async fn a_check_covered_by_the_store_leaves_the_balance() {
    for strategy in STRATEGIES {
        let (_, one) = engine_with_ten(strategy, 20).await;
        assert!(is_allowed(&one, K, 15).await, "{strategy}");
        assert_eq!(total_balance(&one), 10, "{strategy}");
    }
}

/// The denied check refunds 5 of 500 hits.
#[tokio::test]
async fn a_denied_check_refunds_once() {
    const STRICT: &str = "- key: s\n  rate_limit: {unit: day, requests_per_unit: 1000}\n";
    for limits in [COUPLED, GCRA] {
        let engine = engine_all_or_nothing(&FaultyStore::new(), &format!("{limits}{STRICT}"));
        assert!(is_allowed(&engine, &[("s", "v")], 500).await);
        while total_balance(&engine) < 51 {
            assert!(is_allowed(&engine, K, 1).await);
        }
        let before = total_balance(&engine);
        let mut both = check(&[("k", "v"), ("s", "v")], Cost::Charge(Hits(1000)));
        both.descriptors[1].cost = Cost::Refund(Hits(5));
        assert_eq!(engine.decide(&both).await.unwrap().verdict, Verdict::Deny);
        run_other_tasks().await;
        assert_eq!((remaining(&engine, "s").await, total_balance(&engine)), (505, before));
    }
}

#[tokio::test]
async fn an_expired_lease_is_not_spent_when_a_stale_check_is_retried() {
    const MONTH: &str = "- key: m\n  rate_limit: {unit: month, requests_per_unit: 10, calendar: {time_zone: Europe/Berlin}}\n";
    let store = FaultyStore::new();
    store.clock_lead_ns.store(Nanos::from_secs(100 * 86_400).0, Relaxed);
    let engine = Arc::new(engine_all_or_nothing(&store, &format!("{TEN}{MONTH}")));
    store.pauses_calls.store(true, Relaxed);
    let pending = Arc::clone(&engine);
    let pending =
        tokio::spawn(async move { send_check(&pending, &[("k", "v"), ("m", "v")], 8).await });
    run_other_tasks().await;
    store.pauses_calls.store(false, Relaxed);
    assert!(is_allowed(&engine, K, 1).await && is_allowed(&engine, K, 1).await);
    assert_eq!(total_balance(&engine), 10);
    advance_clock(&engine, Nanos::from_secs(30));
    assert_eq!(total_balance(&engine), 0, "the lease has expired");
    store.receive(0);
    store.reply(0);
    assert_eq!(verdict(pending).await, Verdict::Allow);
    run_other_tasks().await;
    assert_eq!(remaining(&engine, "k").await, 100 - 2 - 10 - 8);
}

#[tokio::test]
async fn a_denial_by_another_limit_returns_the_balance() {
    let limits = format!("{TEN}- key: b\n  rate_limit: {{unit: day, requests_per_unit: 5}}\n");
    let engine = engine_all_or_nothing(&FaultyStore::new(), &limits);
    while total_balance(&engine) < 10 {
        assert!(is_allowed(&engine, K, 1).await);
    }
    assert!(!is_allowed(&engine, &[("k", "v"), ("b", "v")], 6).await);
    assert_eq!(total_balance(&engine), 10);
    assert!(is_allowed(&engine, &[("k", "v"), ("b", "v")], 5).await);
    assert_eq!(total_balance(&engine), 5);
}

/// The balance is 10 and the store has 4 hits left; the first descriptor empties the balance.
#[tokio::test]
async fn repeated_counters_are_charged_in_order() {
    let cases = [
        ([7, 3], Verdict::Allow),
        ([7, 4], Verdict::Allow),
        ([7, 5], Verdict::Deny),
        ([11, 3], Verdict::Deny),
    ];
    for (hits, expected) in cases {
        let (_, engine) = engine_with_ten("gcra", 4).await;
        let mut twice = check(&[("k", "v"), ("k", "v")], Cost::Charge(Hits(hits[0])));
        twice.descriptors[1].cost = Cost::Charge(Hits(hits[1]));
        assert_eq!(engine.decide(&twice).await.unwrap().verdict, expected, "{hits:?}");
        assert!(expected == Verdict::Allow || total_balance(&engine) == 10, "{hits:?}");
    }
}
