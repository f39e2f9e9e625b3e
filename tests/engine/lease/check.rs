//! Tests checks of leased limits with one or two engines.

mod denials;
mod outage;
mod returns;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use sluicegate::kernel::decision::{Cost, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::memory::{MemoryStore, WhenFull};

use super::{engine, is_allowed, poll_once, send_check, total_balance};
use crate::support::engine::{advance_clock, check, publish};
use crate::support::faulty_store::FaultyStore;

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
        let store = FaultyStore::new();
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
        let store = FaultyStore::new();
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
        let store = FaultyStore::new();
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
        let (store, peek) = (FaultyStore::new(), |answer: sluicegate::engine::Decision| {
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
        let store = FaultyStore::new();
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
        let store = FaultyStore::new();
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
        let store = FaultyStore::new();
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
    let store = FaultyStore::new();
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
async fn atomic_checks_of_two_leases_need_few_calls() {
    let store = FaultyStore::new();
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
    let store = FaultyStore::new();
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
    let store = FaultyStore::new();
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
async fn a_refund_clears_the_remembered_denial() {
    let store = FaultyStore::new();
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
