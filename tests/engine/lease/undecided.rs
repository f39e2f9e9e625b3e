//! Tests atomic checks that take hits from a lease balance while a strict limit may still deny
//! them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::poll_immediate;
use sluicegate::engine::Engine;
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::Hits;

use super::refill::run_other_tasks;
use super::{engine, is_allowed, send_check, total_balance};
use crate::support::engine::{check, publish};
use crate::support::faulty_store::FaultyStore;

const LIMITS: &str = "- key: b\n  rate_limit: {unit: day, requests_per_unit: 1000, mode: leased, max_overshoot: 0}\n\
                      - key: s\n  rate_limit: {unit: day, requests_per_unit: 7}\n";

const ALL_OR_NOTHING: &str = "charge: all_or_nothing\n";

const B: &[(&str, &str)] = &[("b", "v")];

const BOTH: &[(&str, &str)] = &[("b", "v"), ("s", "v")];

/// Result of a waiting check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckEnd {
    Denied,
    Admitted,
    Canceled,
}

/// Sends checks of the leased limit `b` until its balance is at least 20, leaves `left` hits of the
/// strict limit `s`, and pauses store calls. Also returns the number of allowed hits of `b`.
async fn filled_balance(left: u64) -> (Arc<FaultyStore>, Engine, u64) {
    let store = FaultyStore::new();
    let (engine, mut asked) = (engine(&store, LIMITS), 0);
    publish(&engine, ALL_OR_NOTHING, LIMITS);
    assert!(left == 7 || is_allowed(&engine, &[("s", "v")], 7 - left).await);
    while total_balance(&engine) < 20 {
        assert!(is_allowed(&engine, B, 1).await);
        asked += 1;
    }
    store.pauses_calls.store(true, Relaxed);
    (store, engine, asked)
}

/// Hits of `b` that remain in the store, plus the local balance.
async fn total_left(store: &Arc<FaultyStore>, engine: &Engine) -> u64 {
    store.pauses_calls.store(false, Relaxed);
    let other = super::engine(store, LIMITS);
    publish(&other, ALL_OR_NOTHING, LIMITS);
    let in_store =
        send_check(&other, B, 0).await.unwrap().statuses[0].decision.headroom.remaining.0;
    in_store + total_balance(engine)
}

/// Tries every result of the waiting check, while a lease message is delivered or lost.
#[tokio::test]
async fn undecided_hits_are_never_lost_or_spent_twice() {
    for end in [CheckEnd::Denied, CheckEnd::Admitted, CheckEnd::Canceled] {
        for is_lost in [false, true] {
            let (store, engine, mut admitted) =
                filled_balance(if end == CheckEnd::Denied { 0 } else { 7 }).await;
            let calls = store.calls();
            let check = check(BOTH, Cost::Charge(Hits(5)));
            {
                let mut pending = pin!(engine.decide(&check));
                assert!(poll_immediate(&mut pending).await.is_none(), "it is asked for `s`");
                while store.calls() == calls + 1 {
                    assert!(is_allowed(&engine, B, 1).await);
                    admitted += 1;
                }
                store.is_unavailable.store(is_lost, Relaxed);
                store.receive(1);
                store.reply(1);
                run_other_tasks().await;
                store.is_unavailable.store(false, Relaxed);
                if end != CheckEnd::Canceled {
                    store.receive(0);
                    store.reply(0);
                    let denies = pending.await.unwrap().verdict == Verdict::Deny;
                    assert_eq!(denies, end == CheckEnd::Denied);
                    admitted += if denies { 0 } else { 5 };
                }
            }
            run_other_tasks().await;
            assert_eq!(total_left(&store, &engine).await, 1_000 - admitted, "{end:?}, {is_lost}");
        }
    }
}

#[tokio::test]
async fn hits_of_a_dropped_check_are_returned() {
    let (store, engine, admitted) = filled_balance(0).await;
    let check = check(BOTH, Cost::Charge(Hits(5)));
    let mut pending = Box::pin(engine.decide(&check));
    assert!(poll_immediate(&mut pending).await.is_none(), "it is asked for `s`");
    store.pauses_calls.store(false, Relaxed);
    let leases = engine.leases().unwrap();
    leases.return_all().await;
    drop(pending);
    leases.return_all().await;
    assert_eq!((total_balance(&engine), total_left(&store, &engine).await), (0, 1_000 - admitted));
}
