//! Returned, bounded and evicted balances.

use sluicegate::engine::lease::{MAX_LEASED_KEY_BYTES, MAX_LEASED_KEYS};
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::{COUPLED, GCRA, K, STRICT, fill_balance};
use crate::engine::lease::{engine, is_allowed, poll_once, send_check, total_balance};
use crate::support::engine::{advance_clock, check, publish};
use crate::support::faulty_store::FaultyStore;

#[tokio::test]
async fn an_idle_key_returns_its_balance() {
    let store = FaultyStore::new();
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
    let store = FaultyStore::new();
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
    let store = FaultyStore::new();
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
async fn balances_are_bounded_and_evicted_ones_are_returned() {
    let store = FaultyStore::new();
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
    // The keys contain the part of a value that a pattern names.
    let named = "x".repeat(LONG);
    let limits = COUPLED.replace("- key: k\n", &format!("- key: k\n  value: '{named}*'\n"));
    let engine = engine(&FaultyStore::new(), &limits);
    for number in 0..700 {
        let value = format!("{named}{number}");
        let check = check(&[("k", &value)], Cost::Charge(Hits(1)));
        assert_eq!(engine.decide(&check).await.unwrap().verdict, Verdict::Allow);
    }
    let keys = engine.leases().unwrap().totals().keys;
    assert!(0 < keys && keys * LONG <= MAX_LEASED_KEY_BYTES, "{keys} keys");
}
