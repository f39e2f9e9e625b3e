//! Leased limits under `charge: all_or_nothing`: charged from the balance, or strictly in the store's
//! atomic call.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::engine::Engine;
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::path::{COUPLED, GCRA};
use super::waiting::{K, TEN, turns, verdict};
use super::{Far, admits, ask, engine, held, pass, publish, question};

const ALL_OR_NOTHING: &str = "charge: all_or_nothing\n";
const STRATEGIES: [&str; 4] = ["gcra", "fixed_window", "sliding_window", "sliding_log"];

fn engine_all_or_nothing(store: &Arc<Far>, limits: &str) -> Engine {
    let engine = engine(store, limits);
    publish(&engine, ALL_OR_NOTHING, limits);
    engine
}

async fn remaining(engine: &Engine, key: &str) -> u64 {
    ask(engine, &[(key, "v")], 0).await.unwrap().statuses[0].finding.room.remaining.0
}

/// An engine with a balance of 10 beside a store that has `left` hits of 100.
async fn ten_beside(strategy: &str, left: u64) -> (Arc<Far>, Engine) {
    let limits = TEN.replace("gcra", strategy);
    let store = Far::new();
    let one = engine_all_or_nothing(&store, &limits);
    let mut charged = 0;
    while held(&one) < 10 {
        assert!(admits(&one, K, 1).await);
        charged += 1;
    }
    let other =
        engine(&store, &limits.replace(", mode: leased, max_overshoot: 10%, lease_hits: 10", ""));
    assert!(admits(&other, K, 100 - charged - 10 - left).await);
    (store, one)
}

#[tokio::test]
async fn balance_alone_or_store_alone_must_cover_the_hits() {
    for strategy in STRATEGIES {
        for (hits, law) in [(10, true), (11, false), (15, false), (16, false)] {
            let (store, one) = ten_beside(strategy, 5).await;
            let before = store.calls();
            assert_eq!(admits(&one, K, hits).await, law, "{strategy} {hits}");
            assert_eq!(store.calls() - before, u64::from(!law), "{strategy} {hits}");
            assert_eq!(held(&one), if law { 0 } else { 10 }, "{strategy} {hits}");
        }
    }
}

#[tokio::test]
async fn a_store_that_covers_the_hits_leaves_the_balance() {
    for strategy in STRATEGIES {
        let (_, one) = ten_beside(strategy, 20).await;
        assert!(admits(&one, K, 15).await, "{strategy}");
        assert_eq!(held(&one), 10, "{strategy}");
    }
}

/// The denied check refunds 5 of 500 hits.
#[tokio::test]
async fn a_denied_check_refunds_once() {
    const STRICT: &str = "- key: s\n  rate_limit: {unit: day, requests_per_unit: 1000}\n";
    for limits in [COUPLED, GCRA] {
        let engine = engine_all_or_nothing(&Far::new(), &format!("{limits}{STRICT}"));
        assert!(admits(&engine, &[("s", "v")], 500).await);
        while held(&engine) < 51 {
            assert!(admits(&engine, K, 1).await);
        }
        let before = held(&engine);
        let mut both = question(&[("k", "v"), ("s", "v")], Cost::Charge(Hits(1000)));
        both.descriptors[1].cost = Cost::Refund(Hits(5));
        assert_eq!(engine.decide(&both).await.unwrap().verdict, Verdict::Deny);
        turns().await;
        assert_eq!((remaining(&engine, "s").await, held(&engine)), (505, before));
    }
}

#[tokio::test]
async fn an_expired_lease_is_not_spent_after_a_stale_calendar() {
    const MONTH: &str = "- key: m\n  rate_limit: {unit: month, requests_per_unit: 10, calendar: {time_zone: Europe/Berlin}}\n";
    let store = Far::new();
    store.ahead.store(Nanos::from_secs(100 * 86_400).0, Relaxed);
    let engine = Arc::new(engine_all_or_nothing(&store, &format!("{TEN}{MONTH}")));
    store.stands.store(true, Relaxed);
    let asking = Arc::clone(&engine);
    let asking = tokio::spawn(async move { ask(&asking, &[("k", "v"), ("m", "v")], 8).await });
    turns().await;
    store.stands.store(false, Relaxed);
    assert!(admits(&engine, K, 1).await && admits(&engine, K, 1).await);
    assert_eq!(held(&engine), 10);
    pass(&engine, Nanos::from_secs(30));
    assert_eq!(held(&engine), 0, "the lease has expired");
    store.take(0);
    store.answer(0);
    assert_eq!(verdict(asking).await, Verdict::Admit);
    turns().await;
    assert_eq!(remaining(&engine, "k").await, 100 - 2 - 10 - 8);
}

#[tokio::test]
async fn a_denial_by_another_limit_returns_the_balance() {
    let limits = format!("{TEN}- key: b\n  rate_limit: {{unit: day, requests_per_unit: 5}}\n");
    let engine = engine_all_or_nothing(&Far::new(), &limits);
    while held(&engine) < 10 {
        assert!(admits(&engine, K, 1).await);
    }
    assert!(!admits(&engine, &[("k", "v"), ("b", "v")], 6).await);
    assert_eq!(held(&engine), 10);
    assert!(admits(&engine, &[("k", "v"), ("b", "v")], 5).await);
    assert_eq!(held(&engine), 5);
}

/// A balance of 10 beside 4 hits left in the store: the first descriptor empties the balance.
#[tokio::test]
async fn two_descriptors_on_one_counter_are_charged_one_after_the_other() {
    let cases = [
        ([7, 3], Verdict::Admit),
        ([7, 4], Verdict::Admit),
        ([7, 5], Verdict::Deny),
        ([11, 3], Verdict::Deny),
    ];
    for (hits, law) in cases {
        let (_, engine) = ten_beside("gcra", 4).await;
        let mut twice = question(&[("k", "v"), ("k", "v")], Cost::Charge(Hits(hits[0])));
        twice.descriptors[1].cost = Cost::Charge(Hits(hits[1]));
        assert_eq!(engine.decide(&twice).await.unwrap().verdict, law, "{hits:?}");
        assert!(law == Verdict::Admit || held(&engine) == 10, "{hits:?}");
    }
}
