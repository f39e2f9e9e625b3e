//! Early refills of low balances.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::engine::lease::MAX_EARLY_REFILLS;
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::units::Nanos;

use super::{K, TEN, paused_store, remaining_under, run_other_tasks, spawn_check, verdict};
use crate::engine::lease::{engine, is_allowed, send_check, total_balance};
use crate::support::engine::advance_clock;
use crate::support::faulty_store::FaultyStore;
use crate::support::waiting::PATIENCE;

#[tokio::test]
async fn a_low_balance_is_refilled_in_the_background() {
    let limits = TEN.replace(", lease_hits: 10", "").replace("100,", "10000,");
    let store = FaultyStore::new();
    let engine = engine(&store, &limits);
    while total_balance(&engine) < 200 {
        assert!(is_allowed(&engine, K, 1).await);
    }
    // The first check got no lease, which delays the next attempt.
    // Over 100 hits in 10 s are 20 hits in 2 s.
    advance_clock(&engine, Nanos::from_secs(2));
    while 20 < total_balance(&engine) {
        assert!(is_allowed(&engine, K, 1).await);
    }
    let (calls, left) = (store.calls(), total_balance(&engine));
    engine.leases().unwrap().upkeep().await;
    run_other_tasks().await;
    assert_eq!(store.calls(), calls + 1);
    assert!(left < total_balance(&engine), "{left} before");
}

#[tokio::test]
async fn a_refill_periodically_starts_early_refills_of_low_balances() {
    let limits = TEN.replace(", lease_hits: 10", "").replace("100,", "10000,");
    let store = FaultyStore::new();
    let engine = engine(&store, &limits);
    let balance = |name| {
        let key = CounterKey::unique("d", [("k", name)].into_iter(), KeyStrategy::Gcra);
        engine.leases().unwrap().balance(&key).0
    };
    let until = async |name, fits: &dyn Fn(u64) -> bool| {
        while !fits(balance(name)) {
            assert!(is_allowed(&engine, &[("k", name)], 1).await);
        }
    };
    for name in ["a", "b"] {
        until(name, &|hits| 200 <= hits).await;
    }
    advance_clock(&engine, Nanos::from_secs(2));
    for (passes, messages) in [(0, 2), (99, 1), (1, 2)] {
        advance_clock(&engine, Nanos(passes * 1_000_000));
        until("a", &|hits| hits <= 20).await;
        until("b", &|hits| hits <= 2).await;
        let (calls, batched) = (store.calls(), store.batched_calls.load(Relaxed));
        assert!(is_allowed(&engine, &[("k", "b")], 1).await);
        run_other_tasks().await;
        assert_eq!(store.calls(), calls + messages, "{passes} ms later");
        let with_another = if messages == 2 { 2 } else { 0 };
        assert_eq!(store.batched_calls.load(Relaxed), batched + with_another, "{passes} ms later");
        assert!(20 < balance("b") && (20 < balance("a")) == (messages == 2));
    }
}

#[tokio::test]
async fn each_upkeep_starts_a_limited_number_of_early_refills() {
    const KEYS: u64 = 100;
    let (store, engine) = paused_store(TEN);
    store.pauses_calls.store(false, Relaxed);
    let names: Vec<String> = (0..KEYS).map(|name| name.to_string()).collect();
    for name in &names {
        assert!(is_allowed(&engine, &[("k", name)], 1).await);
    }
    // Each balance was used recently, so it is not returned, but its lease expires within 2 s.
    advance_clock(&engine, Nanos::from_secs(28));
    for name in &names {
        assert!(is_allowed(&engine, &[("k", name)], 1).await);
    }
    advance_clock(&engine, Nanos::SECOND);
    assert_eq!((store.calls(), total_balance(&engine)), (KEYS, KEYS * 9));
    store.pauses_calls.store(true, Relaxed);
    for sent in [MAX_EARLY_REFILLS as u64, KEYS] {
        engine.leases().unwrap().upkeep().await;
        run_other_tasks().await;
        assert_eq!((store.calls(), store.batched_calls.load(Relaxed)), (KEYS + sent, sent));
        store.resume_all();
        run_other_tasks().await;
    }
}

#[tokio::test]
async fn postponed_early_refills_start_without_another_check() {
    const KEYS: u64 = 100;
    let store = FaultyStore::new();
    let engine = engine(&store, TEN);
    let names: Vec<String> = (0..KEYS).map(|name| name.to_string()).collect();
    for (wait, name) in [0, 28].into_iter().flat_map(|wait| names.iter().map(move |n| (wait, n))) {
        if name == "0" {
            advance_clock(&engine, Nanos::from_secs(wait));
        }
        assert!(is_allowed(&engine, &[("k", name)], 1).await);
    }
    advance_clock(&engine, Nanos::SECOND);
    assert_eq!((store.calls(), total_balance(&engine)), (KEYS, KEYS * 9));
    // One balance runs out, and all other leases expire within 2 s.
    for _ in 0..8 {
        assert!(is_allowed(&engine, &[("k", "0")], 1).await);
    }
    run_other_tasks().await;
    assert_eq!(store.calls(), KEYS + 1 + MAX_EARLY_REFILLS as u64);
    advance_clock(&engine, Nanos(100_000_000));
    let other_refills = async {
        while store.calls() != KEYS + KEYS {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, other_refills).await.expect("it looks again");
}

#[tokio::test]
async fn no_early_refill_starts_during_a_drain() {
    const OTHER: &[(&str, &str)] = &[("k", "w")];
    let (store, engine) = paused_store(TEN);
    let first = spawn_check(&engine, 1).await;
    let slow = Arc::clone(&engine);
    let slow = tokio::spawn(async move { send_check(&slow, OTHER, 1).await });
    // The balance was used recently, so it is not returned, but its lease expires within 2 s.
    advance_clock(&engine, Nanos::from_secs(28));
    let second = spawn_check(&engine, 4).await;
    advance_clock(&engine, Nanos::SECOND);
    let leases = Arc::clone(engine.leases().unwrap());
    let draining = tokio::spawn(async move { leases.return_all().await });
    run_other_tasks().await;
    store.receive(0);
    store.reply(0);
    for pending in [first, second] {
        assert_eq!(verdict(pending).await, Verdict::Allow);
    }
    assert_eq!(total_balance(&engine), 10 - 4);
    engine.leases().unwrap().upkeep().await;
    run_other_tasks().await;
    assert_eq!(store.calls(), 2, "it would be given back before it is there");
    store.pauses_calls.store(false, Relaxed);
    store.receive(1);
    store.reply(1);
    assert_eq!(verdict(slow).await, Verdict::Allow);
    tokio::time::timeout(PATIENCE, draining).await.expect("it waits for nothing").unwrap();
    assert_eq!((total_balance(&engine), remaining_under(&store, TEN).await), (0, 100 - 1 - 4));
}
