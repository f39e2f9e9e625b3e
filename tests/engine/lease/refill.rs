//! Tests checks that wait for a pending lease message, and background refills and returns.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::clock::Clock;
use sluicegate::engine::lease::MAX_EARLY_REFILLS;
use sluicegate::engine::{CheckError, Decision, DecisionPolicy, Engine, LocalFallback, Membership};
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use tokio::task::JoinHandle;

use crate::support::waiting::PATIENCE;

use super::{
    NEW_YEAR, RemoteStore, advance_clock, check, engine, is_allowed, poll_once, publish,
    send_check, total_balance,
};

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

pub(super) fn paused_store(limits: &str) -> (Arc<RemoteStore>, Arc<Engine>) {
    let store = RemoteStore::new();
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
async fn timed_out_checks_charge_at_most_one_lease() {
    let (store, engine) =
        paused_store(&TEN.replace("unit: day", "on_backend_failure: deny, unit: day"));
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
    let limits = TEN.replace("unit: day", "on_backend_failure: deny, unit: day");
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
fn engine_with_local_fallback(store: &Arc<RemoteStore>) -> Arc<Engine> {
    let memory = Arc::new(MemoryStore::new(100, WhenFull::Deny, [1; 16]));
    let local = LocalFallback::new(memory, Arc::new(Membership::new("me", 1, NonZeroU32::MIN)));
    let engine = Engine::new(Clock::manual(NEW_YEAR), store.clone(), DecisionPolicy::default());
    let engine = Arc::new(engine.with_local_fallback(local));
    publish(&engine, "", &TEN.replace("unit: day", "on_backend_failure: local, unit: day"));
    store.pauses_calls.store(true, Relaxed);
    engine
}

/// Charges the fallback debt to the recovered store and returns the remaining hits of the limit.
async fn remaining_after_debt_is_paid(store: &Arc<RemoteStore>, engine: &Arc<Engine>) -> Hits {
    store.is_unavailable.store(false, Relaxed);
    store.pauses_calls.store(false, Relaxed);
    let paying = Arc::clone(engine);
    let paying = tokio::spawn(async move { paying.repay_forever().await });
    run_other_tasks().await;
    paying.abort();
    let other = super::engine(store, TEN);
    send_check(&other, K, 0).await.unwrap().statuses[0].decision.headroom.remaining
}

#[tokio::test]
async fn only_checks_that_were_never_sent_become_fallback_debt() {
    let store = RemoteStore::new();
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
    let store = RemoteStore::new();
    store.timeout_ns.store(Nanos::from_secs(10).0, Relaxed);
    let all = (store.clone(), engine_with_local_fallback(&store));
    for pending in queue_two_checks(&all, 50, [11, 11], Nanos(0)).await {
        assert_eq!(verdict(pending).await, Verdict::Allow);
    }
    assert_eq!(remaining_after_debt_is_paid(&store, &all.1).await, Hits(100 - 50 - 10 - 22));
}

/// A store timeout of ten seconds, and a limit that denies on a store failure.
fn ten_second_timeout() -> (Arc<RemoteStore>, Arc<Engine>) {
    let (store, engine) =
        paused_store(&TEN.replace("unit: day", "on_backend_failure: deny, unit: day"));
    store.timeout_ns.store(Nanos::from_secs(10).0, Relaxed);
    (store, engine)
}

/// Queues two checks of `hits` hits behind a check of `first` hits. The store replies when only
/// `left` of the store timeout remains.
async fn queue_two_checks(
    (store, engine): &(Arc<RemoteStore>, Arc<Engine>),
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

#[tokio::test]
async fn a_low_balance_is_refilled_in_the_background() {
    let limits = TEN.replace(", lease_hits: 10", "").replace("100,", "10000,");
    let store = RemoteStore::new();
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
    let store = RemoteStore::new();
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
    let store = RemoteStore::new();
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
async fn returns_of_many_keys_are_batched() {
    const KEYS: u64 = 40;
    let store = RemoteStore::new();
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
    let store = RemoteStore::new();
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

/// Remaining hits under `limits`, as seen by a replica without a balance.
async fn remaining_under(store: &Arc<RemoteStore>, limits: &str) -> u64 {
    store.pauses_calls.store(false, Relaxed);
    send_check(&super::engine(store, limits), K, 0).await.unwrap().statuses[0]
        .decision
        .headroom
        .remaining
        .0
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
async fn start_refill((store, engine): &(Arc<RemoteStore>, Arc<Engine>)) -> u64 {
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
async fn finish_refill(store: &RemoteStore, is_lost: bool) {
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

#[tokio::test]
async fn a_leased_quota_rule_keeps_its_group_allowed() {
    let strict = |key: &str, words: &str, requests: u32| {
        format!("- key: {key}\n{words}  rate_limit: {{unit: day, requests_per_unit: {requests}}}\n")
    };
    let quota = "  quota_mode: true\n";
    let leased = TEN.replace("key: k\n", &format!("key: k\n{quota}"));
    let store = RemoteStore::new();
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
