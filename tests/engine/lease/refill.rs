//! Tests checks that wait for a pending lease message, and background refills and returns.

mod early;
mod returns;
mod timeout;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::engine::{CheckError, Decision, Engine};
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::Hits;
use tokio::task::JoinHandle;

use super::{engine, is_allowed, poll_once, send_check, total_balance};
use crate::support::engine::publish;
use crate::support::faulty_store::FaultyStore;
use crate::support::waiting::PATIENCE;

/// 100 hits per day as GCRA, with at most 10 outstanding and leases of 10.
pub(super) const TEN: &str = "- key: k\n  rate_limit: {unit: day, requests_per_unit: 100, strategy: gcra, mode: leased, max_overshoot: 10%, lease_hits: 10}\n";

pub(super) const K: &[(&str, &str)] = &[("k", "v")];

/// Starts a check in the background and runs it until it waits.
pub(super) async fn spawn_check(
    engine: &Arc<Engine>,
    hits: u64,
) -> JoinHandle<Result<Decision, CheckError>> {
    let engine = Arc::clone(engine);
    let pending = tokio::spawn(async move { send_check(&engine, K, hits).await });
    run_other_tasks().await;
    pending
}

pub(super) async fn run_other_tasks() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

pub(super) fn paused_store(limits: &str) -> (Arc<FaultyStore>, Arc<Engine>) {
    let store = FaultyStore::new();
    let engine = Arc::new(engine(&store, limits));
    store.pauses_calls.store(true, Relaxed);
    (store, engine)
}

pub(super) async fn verdict(pending: JoinHandle<Result<Decision, CheckError>>) -> Verdict {
    let answered = tokio::time::timeout(PATIENCE, pending).await.expect("it waits for nothing");
    answered.unwrap().unwrap().verdict
}

#[tokio::test]
async fn waiting_checks_use_the_lease_of_a_pending_message() {
    let (store, engine) = paused_store(TEN);
    let first = spawn_check(&engine, 1).await;
    let others = [spawn_check(&engine, 4).await, spawn_check(&engine, 6).await];
    assert_eq!(store.calls(), 1, "the others wait");
    store.receive(0);
    store.reply(0);
    assert_eq!(verdict(first).await, Verdict::Allow);
    for other in others {
        assert_eq!(verdict(other).await, Verdict::Allow);
    }
    assert_eq!((store.calls(), total_balance(&engine)), (1, 0), "ten were lent");
}

#[tokio::test]
async fn the_lease_of_a_canceled_check_serves_the_next() {
    let (store, engine) = paused_store(TEN);
    spawn_check(&engine, 1).await.abort();
    run_other_tasks().await;
    let next = spawn_check(&engine, 4).await;
    assert_eq!(store.calls(), 1, "the next waits for it");
    store.receive(0);
    store.reply(0);
    assert_eq!(verdict(next).await, Verdict::Allow);
    assert_eq!(poll_once(&engine, K, 1).map(|answer| answer.verdict), Some(Verdict::Allow));
    assert_eq!((store.calls(), total_balance(&engine)), (1, 10 - 4 - 1));
}

#[test]
fn a_message_is_abandoned_without_a_runtime() {
    let (store, engine) = paused_store(TEN);
    assert!(poll_once(&engine, K, 1).is_none(), "the store has to be asked");
    for calls in 2..=3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { drop(spawn_check(&engine, 1).await) });
        assert_eq!(store.calls(), calls, "none is believed to be on its way");
    }
}

#[tokio::test]
async fn a_second_lease_message_includes_the_remaining_balance() {
    let (store, engine) = paused_store(TEN);
    let first = spawn_check(&engine, 87).await;
    let both = [spawn_check(&engine, 6).await, spawn_check(&engine, 6).await];
    // 3 hits remain in the store and 10 are leased. One check spends 6 of the 10. The other 4 and
    // the 3 in the store cover the second check.
    store.receive(0);
    store.reply(0);
    assert_eq!(verdict(first).await, Verdict::Allow);
    run_other_tasks().await;
    assert_eq!(store.calls(), 2);
    store.receive(1);
    store.reply(1);
    run_other_tasks().await;
    assert_eq!(store.calls(), 2, "one call for it");
    for pending in both {
        assert_eq!(verdict(pending).await, Verdict::Allow);
    }
}

#[tokio::test]
async fn a_denied_direct_charge_retries_with_the_balance() {
    let limits = TEN.replace("max_overshoot: 10%", "max_overshoot: 40%");
    let (store, engine) = paused_store(&limits);
    // Another replica has the same demand, so each gets half of the remaining hits.
    let other = super::engine(&store, &limits);
    store.pauses_calls.store(false, Relaxed);
    assert!(is_allowed(&other, K, 10).await);
    store.pauses_calls.store(true, Relaxed);
    let first = spawn_check(&engine, 56).await;
    let both = [spawn_check(&engine, 11).await, spawn_check(&engine, 11).await];
    // 10 of 24 remaining hits are leased, too few for either waiting check. Both send a lease
    // message, and one message returns the balance.
    store.receive(0);
    store.reply(0);
    assert_eq!(verdict(first).await, Verdict::Allow);
    run_other_tasks().await;
    assert_eq!(store.calls(), 4);
    // 11 of the 24 hits are charged and 6 are leased. 7 remain, so a check of 11 is denied.
    store.receive(1);
    run_other_tasks().await;
    store.receive(2);
    store.reply(2);
    run_other_tasks().await;
    store.reply(1);
    run_other_tasks().await;
    assert_eq!(store.calls(), 5, "with the six");
    store.receive(3);
    store.reply(3);
    for pending in both {
        assert_eq!(verdict(pending).await, Verdict::Allow);
    }
}

/// Remaining hits under `limits`, as seen by a replica without a balance.
async fn remaining_under(store: &Arc<FaultyStore>, limits: &str) -> u64 {
    store.pauses_calls.store(false, Relaxed);
    send_check(&super::engine(store, limits), K, 0).await.unwrap().statuses[0]
        .decision
        .headroom
        .remaining
        .0
}

#[tokio::test]
async fn a_leased_quota_rule_keeps_its_group_allowed() {
    let strict = |key: &str, words: &str, requests: u32| {
        format!("- key: {key}\n{words}  rate_limit: {{unit: day, requests_per_unit: {requests}}}\n")
    };
    let quota = "  quota_mode: true\n";
    let leased = TEN.replace("key: k\n", &format!("key: k\n{quota}"));
    let store = FaultyStore::new();
    let engine = engine(&store, &leased);
    let all = format!("{leased}{}{}", strict("full", quota, 1), strict("plain", "", 50));
    publish(&engine, "charge: all_or_nothing\n", &all);
    while total_balance(&engine) == 0 {
        assert!(is_allowed(&engine, K, 1).await);
    }
    assert!(is_allowed(&engine, &[("full", "v")], 1).await);
    assert!(is_allowed(&engine, &[("k", "v"), ("full", "v"), ("plain", "v")], 1).await);
    let left =
        send_check(&engine, &[("plain", "v")], 0).await.unwrap().statuses[0].decision.headroom;
    assert_eq!(left.remaining, Hits(49), "what is admitted is charged");
}
