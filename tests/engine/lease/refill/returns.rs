//! Balances that a reload or a drain returns.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::engine::Engine;
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::Hits;
use tokio::task::JoinHandle;

use super::{K, TEN, paused_store, remaining_under, run_other_tasks, spawn_check, verdict};
use crate::engine::lease::{engine, is_allowed, send_check, total_balance};
use crate::support::engine::publish;
use crate::support::faulty_store::FaultyStore;
use crate::support::waiting::PATIENCE;

#[tokio::test]
async fn returns_of_many_keys_are_batched() {
    const KEYS: u64 = 40;
    let store = FaultyStore::new();
    let engine = engine(&store, TEN);
    for name in 0..KEYS {
        assert!(is_allowed(&engine, &[("k", &name.to_string())], 1).await);
    }
    assert_eq!((total_balance(&engine), store.batched_calls.load(Relaxed)), (KEYS * 10, 0));
    engine.leases().unwrap().return_all().await;
    assert_eq!((total_balance(&engine), store.batched_calls.load(Relaxed)), (0, KEYS));
}

#[tokio::test]
async fn a_changed_limit_returns_the_old_balance() {
    let store = FaultyStore::new();
    let (one, other) = (engine(&store, TEN), engine(&store, TEN));
    assert!(is_allowed(&one, K, 1).await);
    assert_eq!(total_balance(&one), 10);
    let changed = TEN.replace("day", "hour");
    for engine in [&one, &other] {
        publish(engine, "", &changed);
    }
    let peek =
        async || send_check(&other, K, 0).await.unwrap().statuses[0].decision.headroom.remaining;
    assert_eq!(peek().await, Hits(89));
    assert!(is_allowed(&one, K, 1).await);
    run_other_tasks().await;
    assert_eq!(total_balance(&one), 10, "a lease of the new limit");
    assert_eq!(peek().await, Hits(100 - 2 - 10), "and nothing of the old one is parked");
}

/// The limit of [`TEN`], but per hour instead of per day.
fn reloaded_limit() -> String {
    TEN.replace("day", "hour")
}

fn spawn_tending(engine: &Engine) -> JoinHandle<()> {
    tokio::spawn(Arc::clone(engine.leases().unwrap()).run_upkeep())
}

#[tokio::test]
async fn a_lease_granted_after_a_reload_is_returned() {
    let (store, engine) = paused_store(TEN);
    let tending = spawn_tending(&engine);
    let pending = spawn_check(&engine, 1).await;
    publish(&engine, "", &reloaded_limit());
    run_other_tasks().await;
    store.receive(0);
    store.pauses_calls.store(false, Relaxed);
    store.reply(0);
    assert_eq!(verdict(pending).await, Verdict::Allow);
    run_other_tasks().await;
    assert_eq!((total_balance(&engine), remaining_under(&store, &reloaded_limit()).await), (0, 99));
    tending.abort();
}

/// Sends checks until a refill starts and its call is paused. Returns the number of checks.
async fn start_refill((store, engine): &(Arc<FaultyStore>, Arc<Engine>)) -> u64 {
    store.pauses_calls.store(false, Relaxed);
    assert!(is_allowed(engine, K, 1).await);
    store.pauses_calls.store(true, Relaxed);
    let mut asked = 1;
    while store.calls() == 1 {
        assert!(is_allowed(engine, K, 1).await);
        asked += 1;
    }
    assert!(0 < total_balance(engine), "it is borrowed ahead");
    asked
}

/// Lets the store complete or lose the paused call, and stops pausing calls.
async fn finish_refill(store: &FaultyStore, is_lost: bool) {
    store.is_unavailable.store(is_lost, Relaxed);
    store.receive(0);
    run_other_tasks().await;
    store.is_unavailable.store(false, Relaxed);
    store.pauses_calls.store(false, Relaxed);
    store.reply(0);
    run_other_tasks().await;
}

#[tokio::test]
async fn reload_returns_the_balance_after_pending_borrows_settle() {
    for is_lost in [false, true] {
        let all = paused_store(&TEN.replace("max_overshoot: 10%", "max_overshoot: 40%"));
        let tending = spawn_tending(&all.1);
        let asked = start_refill(&all).await;
        let (store, engine) = all;
        publish(&engine, "", &reloaded_limit());
        run_other_tasks().await;
        finish_refill(&store, is_lost).await;
        assert_eq!(
            (total_balance(&engine), remaining_under(&store, &reloaded_limit()).await),
            (0, 100 - asked),
            "{is_lost}"
        );
        tending.abort();
    }
}

#[tokio::test]
async fn drain_returns_the_balance_after_pending_borrows_settle() {
    let limits = TEN.replace("max_overshoot: 10%", "max_overshoot: 40%");
    for is_lost in [false, true] {
        let all = paused_store(&limits);
        let tending = spawn_tending(&all.1);
        let asked = start_refill(&all).await;
        let (store, engine) = all;
        let leases = Arc::clone(engine.leases().unwrap());
        let draining = tokio::spawn(async move { leases.return_all().await });
        run_other_tasks().await;
        assert_eq!(store.calls(), 2, "it waits for the answer");
        finish_refill(&store, is_lost).await;
        tokio::time::timeout(PATIENCE, draining).await.expect("it waits for nothing").unwrap();
        assert_eq!(
            (total_balance(&engine), remaining_under(&store, &limits).await),
            (0, 100 - asked),
            "{is_lost}"
        );
        tending.abort();
    }
}

#[tokio::test]
async fn a_reload_during_a_borrow_loses_no_hits() {
    for charge in ["", "charge: all_or_nothing\n"] {
        let (store, engine) = paused_store(TEN);
        let first = spawn_check(&engine, 1).await;
        publish(&engine, charge, &reloaded_limit());
        let second = spawn_check(&engine, 2).await;
        store.receive(0);
        store.receive(1);
        store.reply(1);
        assert_eq!(verdict(second).await, Verdict::Allow, "it waits for no other");
        store.reply(0);
        assert_eq!(verdict(first).await, Verdict::Allow);
        store.pauses_calls.store(false, Relaxed);
        assert!(is_allowed(&engine, K, 1).await);
        run_other_tasks().await;
        let total_balance = total_balance(&engine);
        assert!(!charge.is_empty() || total_balance == 10, "a lease of the new limit");
        assert_eq!(
            remaining_under(&store, &reloaded_limit()).await,
            100 - 4 - total_balance,
            "and nothing of the old one is parked"
        );
    }
}
