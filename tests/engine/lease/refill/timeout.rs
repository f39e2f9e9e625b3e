//! Checks whose lease message times out or fails.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::clock::Clock;
use sluicegate::engine::{CheckError, Decision, DecisionPolicy, Engine, LocalFallback, Membership};
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use tokio::task::JoinHandle;

use super::{K, TEN, paused_store, remaining_under, run_other_tasks, spawn_check, verdict};
use crate::engine::lease::{NEW_YEAR, send_check, total_balance};
use crate::support::engine::{advance_clock, check, publish};
use crate::support::faulty_store::FaultyStore;

#[tokio::test]
async fn timed_out_checks_charge_at_most_one_lease() {
    let (store, engine) =
        paused_store(&TEN.replace("unit: day", "on_store_failure: deny, unit: day"));
    store.pauses_only_replies.store(true, Relaxed);
    let check = check(K, Cost::Charge(Hits(5)));
    for _ in 0..6 {
        engine.decide_within(&check, Some(Nanos(0))).await.unwrap();
        run_other_tasks().await;
        store.reply_all();
        run_other_tasks().await;
    }
    let left = remaining_under(&store, TEN).await;
    assert!(100 - 6 * 5 - 10 <= left, "{left}");
}

#[tokio::test]
async fn a_failed_message_also_fails_its_waiting_checks() {
    let limits = TEN.replace("unit: day", "on_store_failure: deny, unit: day");
    let (store, engine) = paused_store(&limits);
    store.is_unavailable.store(true, Relaxed);
    let (first, other) = (spawn_check(&engine, 1).await, spawn_check(&engine, 1).await);
    store.receive(0);
    store.reply(0);
    assert_eq!(verdict(first).await, Verdict::Deny);
    run_other_tasks().await;
    assert!(other.is_finished(), "it was put to the store by itself");
    assert_eq!((verdict(other).await, store.calls()), (Verdict::Deny, 1));
}

/// An engine with the fallback `local`. Store calls are paused.
fn engine_with_local_fallback(store: &Arc<FaultyStore>) -> Arc<Engine> {
    let memory = Arc::new(MemoryStore::new(100, WhenFull::Deny, [1; 16]));
    let local = LocalFallback::new(memory, Arc::new(Membership::new("me", 1, NonZeroU32::MIN)));
    let engine = Engine::new(Clock::manual(NEW_YEAR), store.clone(), DecisionPolicy::default());
    let engine = Arc::new(engine.with_local_fallback(local));
    publish(&engine, "", &TEN.replace("unit: day", "on_store_failure: local, unit: day"));
    store.pauses_calls.store(true, Relaxed);
    engine
}

/// Charges the fallback debt to the recovered store and returns the remaining hits of the limit.
async fn remaining_after_debt_is_paid(store: &Arc<FaultyStore>, engine: &Arc<Engine>) -> Hits {
    store.is_unavailable.store(false, Relaxed);
    store.pauses_calls.store(false, Relaxed);
    let paying = Arc::clone(engine);
    let paying = tokio::spawn(async move { paying.repay_forever().await });
    run_other_tasks().await;
    paying.abort();
    let other = crate::engine::lease::engine(store, TEN);
    send_check(&other, K, 0).await.unwrap().statuses[0].decision.headroom.remaining
}

#[tokio::test]
async fn only_checks_that_were_never_sent_become_fallback_debt() {
    let store = FaultyStore::new();
    let engine = engine_with_local_fallback(&store);
    let first = spawn_check(&engine, 10).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(spawn_check(&engine, 1).await);
    }
    assert_eq!(store.calls(), 1, "the others wait");
    store.is_unavailable.store(true, Relaxed);
    store.receive(0);
    store.reply(0);
    for pending in std::iter::once(first).chain(others) {
        assert_eq!(verdict(pending).await, Verdict::Allow);
    }
    assert_eq!(remaining_after_debt_is_paid(&store, &engine).await, Hits(100 - 3));
}

#[tokio::test]
async fn a_check_that_times_out_while_waiting_becomes_fallback_debt() {
    let store = FaultyStore::new();
    store.timeout_ns.store(Nanos::from_secs(10).0, Relaxed);
    let all = (store.clone(), engine_with_local_fallback(&store));
    for pending in queue_two_checks(&all, 50, [11, 11], Nanos(0)).await {
        assert_eq!(verdict(pending).await, Verdict::Allow);
    }
    assert_eq!(remaining_after_debt_is_paid(&store, &all.1).await, Hits(100 - 50 - 10 - 22));
}

/// A store timeout of ten seconds, and a limit that denies on a store failure.
fn ten_second_timeout() -> (Arc<FaultyStore>, Arc<Engine>) {
    let (store, engine) =
        paused_store(&TEN.replace("unit: day", "on_store_failure: deny, unit: day"));
    store.timeout_ns.store(Nanos::from_secs(10).0, Relaxed);
    (store, engine)
}

/// Queues two checks of `hits` hits behind a check of `first` hits. The store replies when only
/// `left` of the store timeout remains.
async fn queue_two_checks(
    (store, engine): &(Arc<FaultyStore>, Arc<Engine>),
    first: u64,
    hits: [u64; 2],
    left: Nanos,
) -> [JoinHandle<Result<Decision, CheckError>>; 2] {
    let first = spawn_check(engine, first).await;
    let both = [spawn_check(engine, hits[0]).await, spawn_check(engine, hits[1]).await];
    assert_eq!(store.calls(), 1, "both wait");
    advance_clock(engine, Nanos::from_secs(10).since(left));
    store.receive(0);
    store.reply(0);
    assert_eq!(verdict(first).await, Verdict::Allow);
    both
}

#[tokio::test]
async fn a_second_lease_message_waits_only_the_remaining_timeout() {
    let all = ten_second_timeout();
    // 3 hits remain in the store and 10 are leased; one check spends 6 of the 10.
    let [one, other] = queue_two_checks(&all, 87, [6, 6], Nanos::MILLI).await;
    let verdicts = [verdict(one).await, verdict(other).await];
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Allow).count(), 1);
    let (store, engine) = all;
    assert_eq!((store.calls(), total_balance(&engine)), (2, 0), "its message is not answered");
    store.receive(1);
    store.reply(1);
    run_other_tasks().await;
    assert_eq!(
        total_balance(&engine),
        1,
        "of 3 and 4 it was charged 6: what else it brings is held"
    );
}

#[tokio::test]
async fn a_direct_charge_waits_only_the_remaining_timeout() {
    let all = ten_second_timeout();
    let both = queue_two_checks(&all, 50, [11, 11], Nanos::MILLI).await;
    for pending in both {
        assert_eq!(verdict(pending).await, Verdict::Deny);
    }
    assert_eq!(all.0.calls(), 3, "a message, and a charge");
}

#[tokio::test]
async fn a_check_past_its_timeout_sends_nothing() {
    let all = ten_second_timeout();
    let both = queue_two_checks(&all, 50, [11, 11], Nanos(0)).await;
    for pending in both {
        assert_eq!(verdict(pending).await, Verdict::Deny);
    }
    assert_eq!((all.0.calls(), total_balance(&all.1)), (1, 10), "and takes nothing along");
}
