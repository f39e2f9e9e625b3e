//! Tests leased limits in atomic checks with a forced deny.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::poll_immediate;
use sluicegate::engine::Engine;
use sluicegate::kernel::decision::{Cost, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::{engine, poll_once, send_check, total_balance};
use crate::support::engine::{check, force, publish};
use crate::support::faulty_store::FaultyStore;

const LIMITS: &str = "- key: a\n  rate_limit: {unit: day, requests_per_unit: 10}\n\
                      - key: b\n  rate_limit: {unit: day, requests_per_unit: 1000, mode: leased, max_overshoot: 0}\n\
                      - key: c\n  rate_limit: {unit: day, requests_per_unit: 1000, strategy: gcra, mode: leased, \
                      max_overshoot: 10%}\n";

/// An additional strict limit.
const STRICT: &str = "- key: s\n  rate_limit: {unit: day, requests_per_unit: 7}\n";

const FORCED_DENY: (&str, &str) = ("a", "v");

#[tokio::test]
async fn a_forced_deny_spends_no_balance() {
    for leased_entries in [&[("b", "v")][..], &[("c", "v")], &[("b", "v"), ("c", "v")]] {
        let store = FaultyStore::new();
        let engine = engine(&store, LIMITS);
        publish(&engine, "charge: all_or_nothing\n", LIMITS);
        for entry in leased_entries {
            for _ in 0..50 {
                send_check(&engine, &[*entry], 1).await.unwrap();
            }
        }
        assert!(poll_once(&engine, leased_entries, 1).is_some(), "all of it is held");
        let left = async || {
            let peeked = send_check(&engine, leased_entries, 0).await.unwrap().statuses;
            peeked.iter().map(|status| status.decision.headroom.remaining).collect::<Vec<Hits>>()
        };
        let (before, calls, all) = (total_balance(&engine), store.calls(), left().await);
        force(&engine, ("d", &[FORCED_DENY]), Verdict::Deny, Nanos::from_secs(60));
        let entries: Vec<_> = [&[FORCED_DENY], leased_entries].concat();
        for _ in 0..5 {
            let answer = send_check(&engine, &entries, 1).await.unwrap();
            assert_eq!(answer.verdict, Verdict::Deny);
            for (status, left) in answer.statuses[1..].iter().zip(&all) {
                let decision = &status.decision;
                assert_eq!(decision.verdict, Verdict::Allow);
                assert_eq!(decision.reason, Reason::WithinLimit);
                assert_eq!(decision.headroom.remaining, *left, "as without the charge");
            }
        }
        assert_eq!((total_balance(&engine), left().await), (before, all), "{leased_entries:?}");
        assert_eq!(store.calls(), calls, "what is held answers without a call");
    }
}

/// An engine with an atomic domain: `a` is forced to deny, `s` is strict, and 950 hits of `b`
/// remain. The local balance of `b` is at least 5.
async fn forced_deny_with_strict_limit() -> (Arc<FaultyStore>, Engine, u64) {
    let store = FaultyStore::new();
    let (engine, limits) = (engine(&store, LIMITS), format!("{LIMITS}{STRICT}"));
    publish(&engine, "charge: all_or_nothing\n", &limits);
    for _ in 0..50 {
        send_check(&engine, &[("b", "v")], 1).await.unwrap();
    }
    force(&engine, ("d", &[FORCED_DENY]), Verdict::Deny, Nanos::from_secs(60));
    let local_balance = total_balance(&engine);
    assert!(5 <= local_balance, "{local_balance}");
    (store, engine, local_balance)
}

#[tokio::test]
async fn a_forced_deny_with_a_strict_limit_spends_no_balance() {
    let (_store, engine, before) = forced_deny_with_strict_limit().await;
    for _ in 0..3 {
        let answer = send_check(&engine, &[FORCED_DENY, ("b", "v"), ("s", "v")], 1).await.unwrap();
        assert_eq!(answer.verdict, Verdict::Deny);
        let left = [1, 2].map(|at: usize| answer.statuses[at].decision.headroom.remaining);
        assert_eq!(left, [Hits(950), Hits(7)]);
        assert_eq!(total_balance(&engine), before);
    }
}

/// Reason: hits that a denied check took from the balance would be missing in a lease message that
/// is sent before they are put back.
#[tokio::test]
async fn a_forced_deny_leaves_the_balance_during_a_store_call() {
    let (store, engine, before) = forced_deny_with_strict_limit().await;
    store.pauses_calls.store(true, Relaxed);
    let check = check(&[FORCED_DENY, ("b", "v"), ("s", "v")], Cost::Charge(Hits(5)));
    let mut pending = Box::pin(engine.decide(&check));
    assert!(poll_immediate(&mut pending).await.is_none(), "it is asked for `s`");
    assert_eq!(total_balance(&engine), before);
    store.receive(0);
    store.reply(0);
    assert_eq!(pending.await.unwrap().statuses[1].decision.headroom.remaining, Hits(950));
    assert_eq!(total_balance(&engine), before);
}
