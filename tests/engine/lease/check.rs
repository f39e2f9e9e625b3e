//! Tests checks of leased limits with one or two engines.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use sluicegate::engine::lease::{MAX_LEASED_KEY_BYTES, MAX_LEASED_KEYS};
use sluicegate::kernel::decision::{Cost, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::StoreFailure;
use sluicegate::store::memory::{MemoryStore, WhenFull};

use super::{
    RemoteStore, advance_clock, check, engine, is_allowed, poll_once, publish, send_check,
    total_balance,
};

/// 1000 hits per day without overshoot, in one window that does not end during a test.
pub(super) const COUPLED: &str = "- key: k\n  rate_limit: {unit: day, requests_per_unit: 1000, mode: leased, max_overshoot: 0}\n";
/// 1000 hits per day, with at most 10 % outstanding.
pub(super) const GCRA: &str = "- key: k\n  rate_limit: {unit: day, requests_per_unit: 1000, strategy: gcra, mode: leased, max_overshoot: 10%}\n";
/// A strict limit of two hits per day.
const STRICT: &str = "- key: s\n  rate_limit: {unit: day, requests_per_unit: 2}\n";
const K: &[(&str, &str)] = &[("k", "v")];

/// Sends checks until the balance is above 4, and returns their number.
async fn fill_balance(engine: &sluicegate::engine::Engine) -> u64 {
    for asked in 1..100 {
        assert!(is_allowed(engine, K, 1).await);
        if 4 < total_balance(engine) {
            return asked;
        }
    }
    panic!("nothing is held");
}

#[tokio::test]
async fn a_check_covered_by_the_balance_needs_no_store_call() {
    for limits in [COUPLED, GCRA] {
        let store = RemoteStore::new();
        let engine = engine(&store, limits);
        assert!(poll_once(&engine, K, 0).is_none(), "nothing is held yet");
        let asked = fill_balance(&engine).await;
        let (calls, before) = (store.calls(), total_balance(&engine));
        let answer = poll_once(&engine, K, 1).unwrap();
        assert_eq!(
            (answer.verdict, store.calls(), total_balance(&engine)),
            (Verdict::Allow, calls, before - 1)
        );
        let status = &answer.statuses[0].decision;
        assert_eq!(status.reason, Reason::WithinLimit);
        assert_eq!(
            status.headroom.remaining,
            Hits(1000 - asked - 1),
            "of the key, not of what is held"
        );
    }
}

#[tokio::test]
async fn a_local_decision_allocates_nothing() {
    for limits in [COUPLED, GCRA] {
        let store = RemoteStore::new();
        let engine = engine(&store, limits);
        fill_balance(&engine).await;
        // The balance is large enough that this check starts no refill.
        let check = check(K, Cost::Charge(Hits(1)));
        let before = total_balance(&engine);
        let allocated = allocation_counter::measure(|| {
            let mut deciding = pin!(engine.decide(&check));
            let polled = deciding.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Ok(answer)) if answer.verdict == Verdict::Allow));
        });
        assert_eq!(allocated.count_total, 0, "{allocated:?}");
        assert_eq!(total_balance(&engine), before - 1);
    }
}

#[tokio::test]
async fn a_single_check_costs_one_call_and_leases_nothing() {
    for limits in [COUPLED, GCRA] {
        let store = RemoteStore::new();
        let engine = engine(&store, limits);
        for name in ["a", "b", "c"] {
            assert!(is_allowed(&engine, &[("k", name)], 1).await);
        }
        assert_eq!((store.calls(), total_balance(&engine)), (3, 0));
    }
}

#[tokio::test]
async fn a_peek_reports_the_limit_and_spends_nothing() {
    for limits in [COUPLED, GCRA] {
        let (store, peek) = (RemoteStore::new(), |answer: sluicegate::engine::Decision| {
            answer.statuses[0].decision.headroom.remaining.0
        });
        let engine = engine(&store, limits);
        assert_eq!(peek(send_check(&engine, K, 0).await.unwrap()), 1000);
        assert_eq!(engine.leases().unwrap().totals().keys, 0, "a peek begins nothing");
        let asked = fill_balance(&engine).await;
        let before = total_balance(&engine);
        assert_eq!(peek(send_check(&engine, K, 0).await.unwrap()), 1000 - asked);
        assert_eq!(total_balance(&engine), before);
    }
}

#[tokio::test]
async fn every_decision_reports_the_remaining_hits() {
    for limits in [COUPLED, GCRA] {
        let store = RemoteStore::new();
        let engine = engine(&store, limits);
        for asked in 1..=1000 {
            let answer = send_check(&engine, K, 1).await.unwrap();
            assert_eq!(answer.verdict, Verdict::Allow);
            assert_eq!(answer.statuses[0].decision.headroom.remaining, Hits(1000 - asked));
        }
        assert!(store.calls() < 500, "{} calls", store.calls());
    }
}

#[tokio::test]
async fn a_check_above_the_balance_reports_total_remaining() {
    for limits in [COUPLED, GCRA] {
        let store = RemoteStore::new();
        let engine = engine(&store, limits);
        publish(&engine, "charge: all_or_nothing\n", limits);
        let mut asked = fill_balance(&engine).await;
        for hits in [total_balance(&engine) + 1, 1] {
            let answer = send_check(&engine, K, hits).await.unwrap();
            asked += hits;
            assert_eq!(
                answer.statuses[0].decision.headroom.remaining,
                Hits(1000 - asked),
                "{hits}"
            );
        }
    }
}

#[tokio::test]
async fn a_denied_large_check_leaves_the_balance() {
    for limits in [COUPLED, GCRA] {
        let store = RemoteStore::new();
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
    let store = RemoteStore::new();
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

/// An instant, and the remaining hits and reset-after at that instant; times in milliseconds.
type HeadroomAt = (u64, (u64, u64));

/// At 0 s, 90 of 100 hits per second are charged and 10 are leased.
#[tokio::test]
async fn a_peek_projects_headroom_to_the_current_time() {
    let all = (100, 0);
    let cases: [(&str, &[HeadroomAt]); 3] = [
        (
            "fixed_window",
            &[
                (0, (10, 1_000)),
                (999, (10, 1)),
                (1_000, (100, 1_000)),
                (1_250, (100, 750)),
                (9_000, (100, 1_000)),
            ],
        ),
        (
            "gcra",
            &[(0, (10, 1_000)), (250, (35, 750)), (999, (100, 1)), (1_000, all), (9_000, all)],
        ),
        // The charged hits fade during the next second.
        (
            "sliding_window",
            &[
                (0, (10, 2_000)),
                (1_000, (10, 1_000)),
                (1_500, (60, 500)),
                (1_750, (85, 250)),
                (2_000, all),
                (9_000, all),
            ],
        ),
    ];
    for (strategy, expected) in cases {
        let store = RemoteStore::new();
        let engine = engine(
            &store,
            &format!(
                "- key: k\n  rate_limit: {{unit: second, requests_per_unit: 100, strategy: {strategy}, mode: leased, \
                 max_overshoot: 10%, lease_hits: 10}}\n"
            ),
        );
        assert!(is_allowed(&engine, K, 90).await);
        let (calls, mut now) = (store.calls(), 0);
        for (millis, left) in expected {
            advance_clock(&engine, Nanos((millis - now) * Nanos::MILLI.0));
            now = *millis;
            let room = poll_once(&engine, K, 0).unwrap().statuses[0].decision.headroom;
            let reported = (room.remaining.0, room.reset_after.0 / Nanos::MILLI.0);
            assert_eq!(reported, *left, "{strategy}, {millis} ms");
        }
        assert_eq!((store.calls(), total_balance(&engine)), (calls, 10));
    }
}

#[tokio::test]
async fn two_replicas_never_exceed_a_window_limit() {
    let store = RemoteStore::new();
    let fleet = [engine(&store, COUPLED), engine(&store, COUPLED)];
    let mut admitted = 0;
    for turn in 0..1_600 {
        admitted += u64::from(is_allowed(&fleet[turn % 2], K, 1).await);
    }
    let total_balance: u64 = fleet.iter().map(total_balance).sum();
    assert!(admitted + total_balance <= 1000, "{admitted} and {total_balance} held");
    assert!(950 <= admitted, "{admitted}");
    assert!(store.calls() < 400, "{} calls", store.calls());
}

#[tokio::test]
async fn remembered_denials_need_no_store_call() {
    for limits in [COUPLED, GCRA] {
        let store = RemoteStore::new();
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
        &RemoteStore::new(),
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
        let store = RemoteStore::new();
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
    let store = RemoteStore::new();
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

#[tokio::test]
async fn atomic_checks_of_two_leases_need_few_calls() {
    let store = RemoteStore::new();
    let limits = COUPLED.replace("key: k", "key: other").replace("1000", "500");
    let engine = engine(&store, COUPLED);
    publish(&engine, "charge: all_or_nothing\n", &format!("{COUPLED}{limits}"));
    let both = &[("k", "v"), ("other", "v")];
    let mut admitted = 0;
    for _ in 0..700 {
        admitted += u64::from(is_allowed(&engine, both, 1).await);
    }
    assert!((450..=500).contains(&admitted), "{admitted}");
    assert!(store.calls() < 300, "{} calls", store.calls());
    let left = send_check(&engine, K, 0).await.unwrap().statuses[0].decision.headroom.remaining.0;
    assert_eq!(left + admitted, 1000, "what the other denied was not charged here");
}

#[tokio::test]
async fn charge_each_charges_despite_another_denial() {
    let store = RemoteStore::new();
    let engine = engine(&store, &format!("{COUPLED}{STRICT}"));
    let both = &[("k", "v"), ("s", "v")];
    for asked in 1..=20_u64 {
        assert_eq!(is_allowed(&engine, both, 1).await, asked <= 2);
    }
    assert_eq!(
        send_check(&engine, K, 0).await.unwrap().statuses[0].decision.headroom.remaining,
        Hits(980)
    );
}

#[tokio::test]
async fn shadow_and_quota_modes_apply_to_leased_limits() {
    let store = RemoteStore::new();
    let shadow = format!("{COUPLED}  shadow_mode: true\n");
    let quota = |key: &str, requests: u32| {
        format!(
            "- key: {key}\n  quota_mode: true\n  rate_limit: {{unit: day, requests_per_unit: {requests}, mode: leased, max_overshoot: 0}}\n"
        )
    };
    let engine = engine(&store, COUPLED);
    for charge in ["", "charge: all_or_nothing\n"] {
        publish(&engine, charge, &format!("{shadow}{}{}", quota("q", 10), quota("r", 30)));
        let name = if charge.is_empty() { "each" } else { "all" };
        assert!(
            !poll_once(&engine, &[("k", name)], 2000).is_some_and(|a| a.verdict == Verdict::Deny)
        );
        assert!(is_allowed(&engine, &[("k", name), ("q", name)], 1).await);
        let mut admitted = 1;
        for _ in 0..50 {
            let both = [("k", name), ("q", name), ("r", name)];
            admitted += u64::from(is_allowed(&engine, &both, 1).await);
        }
        assert_eq!(admitted, 31, "as long as one of the group admits");
    }
}

#[tokio::test]
async fn an_outage_spends_the_balance_before_the_fallback() {
    for (fallback, after) in
        [("allow", Some(Verdict::Allow)), ("deny", Some(Verdict::Deny)), ("error", None)]
    {
        let store = RemoteStore::new();
        let limits =
            COUPLED.replace("unit: day", &format!("on_backend_failure: {fallback}, unit: day"));
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
        let store = RemoteStore::new();
        let limits = limits.replace("unit: day", "on_backend_failure: deny, unit: day");
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
        let store = RemoteStore::new();
        let limits = GCRA.replace("unit: day", "on_backend_failure: deny, unit: day");
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
    let store = RemoteStore::new();
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
    let store = RemoteStore::new();
    let engine = engine(&store, &GCRA.replace("unit: day", "on_backend_failure: deny, unit: day"));
    fill_balance(&engine).await;
    store.is_unavailable.store(true, Relaxed);
    let more = total_balance(&engine) + 1;
    assert!(!is_allowed(&engine, K, more).await);
    assert_eq!(total_balance(&engine), 0);
}

#[tokio::test]
async fn an_idle_key_returns_its_balance() {
    let store = RemoteStore::new();
    let (one, other) = (engine(&store, GCRA), engine(&store, GCRA));
    let asked = fill_balance(&one).await;
    assert!(0 < total_balance(&one));
    for _ in 0..40 {
        advance_clock(&one, Nanos::SECOND);
        advance_clock(&other, Nanos::SECOND);
        one.leases().unwrap().upkeep().await;
    }
    assert_eq!(total_balance(&one), 0);
    assert_eq!(one.leases().unwrap().totals().keys, 0, "and is forgotten");
    assert!(is_allowed(&other, K, 1000 - asked).await, "another has all that is left");
}

#[tokio::test]
async fn lower_demand_returns_the_surplus() {
    const DEMAND: u64 = 80;
    const SECONDS: u64 = 20;
    let store = RemoteStore::new();
    let (one, other) = (engine(&store, GCRA), engine(&store, GCRA));
    let mut asked = 0;
    while total_balance(&one) < DEMAND {
        assert!(is_allowed(&one, K, 1).await);
        asked += 1;
    }
    for _ in 0..SECONDS {
        advance_clock(&one, Nanos::SECOND);
        advance_clock(&other, Nanos::SECOND);
        assert!(is_allowed(&one, K, 1).await);
        one.leases().unwrap().upkeep().await;
    }
    let kept = total_balance(&one);
    assert!(0 < kept && kept <= (DEMAND - SECONDS) / 2, "{kept}");
    assert!(
        is_allowed(&other, K, 1000 - asked - SECONDS - kept).await,
        "another has what is not held"
    );
}

#[tokio::test]
async fn balances_are_returned_only_if_their_limit_changes() {
    let store = RemoteStore::new();
    let engine = std::sync::Arc::new(engine(&store, COUPLED));
    let tending = tokio::spawn(engine.leases().unwrap().clone().run_upkeep());
    tokio::task::yield_now().await;
    fill_balance(&engine).await;
    let before = total_balance(&engine);
    publish(&engine, "", &format!("{COUPLED}{STRICT}"));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(total_balance(&engine), before);
    publish(&engine, "", &COUPLED.replace("1000", "900"));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(total_balance(&engine), 0);
    tending.abort();
}

#[tokio::test]
async fn a_refund_clears_the_remembered_denial() {
    let store = RemoteStore::new();
    let engine = engine(&store, COUPLED);
    assert!(is_allowed(&engine, K, 1000).await && !is_allowed(&engine, K, 1).await);
    let back = check(K, Cost::Refund(Hits(5)));
    assert_eq!(engine.decide(&back).await.unwrap().verdict, Verdict::Allow);
    let mut admitted = 0;
    for _ in 0..10 {
        admitted += u64::from(is_allowed(&engine, K, 1).await);
    }
    assert_eq!(admitted, 4, "the window counted one that it denied");
}

#[tokio::test]
async fn balances_are_bounded_and_evicted_ones_are_returned() {
    let store = RemoteStore::new();
    let engine = engine(&store, COUPLED);
    let names: Vec<String> = (0..MAX_LEASED_KEYS + 3_000).map(|name| name.to_string()).collect();
    for name in &names {
        let check = check(&[("k", name)], Cost::Charge(Hits(1)));
        for _ in 0..3 {
            assert_eq!(engine.decide(&check).await.unwrap().verdict, Verdict::Allow);
        }
    }
    let sum = engine.leases().unwrap().totals();
    assert!(sum.keys <= MAX_LEASED_KEYS, "{sum:?}");
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    let keys = sum.keys;
    let evicted = names.iter().take(100).filter(|name| {
        let peeked = poll_once(&engine, &[("k", name)], 0);
        peeked.is_none()
    });
    let evicted: Vec<_> = evicted.collect();
    assert!(!evicted.is_empty(), "{keys} keys");
    for name in evicted {
        let answer = send_check(&engine, &[("k", name)], 0).await.unwrap();
        assert_eq!(
            answer.statuses[0].decision.headroom.remaining,
            Hits(997),
            "nothing of it is parked"
        );
    }
}

#[tokio::test]
async fn balances_are_bounded_by_the_total_bytes_of_keys() {
    const LONG: usize = 60_000;
    let engine = engine(&RemoteStore::new(), COUPLED);
    for name in 0..700 {
        let name = format!("{name:0LONG$}");
        let check = check(&[("k", &name)], Cost::Charge(Hits(1)));
        assert_eq!(engine.decide(&check).await.unwrap().verdict, Verdict::Allow);
    }
    let keys = engine.leases().unwrap().totals().keys;
    assert!(0 < keys && keys * LONG <= MAX_LEASED_KEY_BYTES, "{keys} keys");
}

#[tokio::test]
async fn with_a_memory_store_leased_limits_are_strict() {
    let memory = std::sync::Arc::new(MemoryStore::new(100, WhenFull::Deny, [7; 16]));
    let clock = sluicegate::clock::Clock::manual(super::NEW_YEAR);
    let engine = sluicegate::engine::Engine::new(
        clock,
        memory,
        sluicegate::engine::DecisionPolicy::default(),
    );
    publish(&engine, "", GCRA);
    for asked in 1..=1_010 {
        assert_eq!(is_allowed(&engine, K, 1).await, asked <= 1_000);
    }
    assert!(engine.leases().is_none());
}
