//! Leased limits of questions that are charged as one, and wait while the store is asked for another limit.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::poll_immediate;
use sluicegate::engine::Engine;
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::Hits;

use super::waiting::turns;
use super::{Far, admits, ask, engine, held, publish, question};

const LIMITS: &str = "- key: b\n  rate_limit: {unit: day, requests_per_unit: 1000, mode: leased, max_overshoot: 0}\n\
                      - key: s\n  rate_limit: {unit: day, requests_per_unit: 7}\n";
const AS_ONE: &str = "charge: all_or_nothing\n";
const B: &[(&str, &str)] = &[("b", "v")];
const BOTH: &[(&str, &str)] = &[("b", "v"), ("s", "v")];

/// What becomes of a question that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Denied,
    Admitted,
    GivenUp,
}

/// Of `b` 20 are held here at least, and so many were asked for. `s` has `left`; the store leaves its callers standing.
async fn stocked(left: u64) -> (Arc<Far>, Engine, u64) {
    let store = Far::new();
    let (engine, mut asked) = (engine(&store, LIMITS), 0);
    publish(&engine, AS_ONE, LIMITS);
    assert!(left == 7 || admits(&engine, &[("s", "v")], 7 - left).await);
    while held(&engine) < 20 {
        assert!(admits(&engine, B, 1).await);
        asked += 1;
    }
    store.stands.store(true, Relaxed);
    (store, engine, asked)
}

/// Of `b`, what the store has left and what is held here.
async fn left(store: &Arc<Far>, engine: &Engine) -> u64 {
    store.stands.store(false, Relaxed);
    let other = super::engine(store, LIMITS);
    publish(&other, AS_ONE, LIMITS);
    let there = ask(&other, B, 0).await.unwrap().statuses[0].finding.room.remaining.0;
    there + held(engine)
}

/// Whatever the store is told meanwhile, and whether it hears of it or not.
#[tokio::test]
async fn what_a_question_has_in_hand_while_it_waits_is_spent_by_it_or_by_others() {
    for end in [End::Denied, End::Admitted, End::GivenUp] {
        for is_lost in [false, true] {
            let (store, engine, mut admitted) =
                stocked(if end == End::Denied { 0 } else { 7 }).await;
            let calls = store.calls();
            let asked = question(BOTH, Cost::Charge(Hits(5)));
            {
                let mut waits = pin!(engine.decide(&asked));
                assert!(poll_immediate(&mut waits).await.is_none(), "it is asked for `s`");
                while store.calls() == calls + 1 {
                    assert!(admits(&engine, B, 1).await);
                    admitted += 1;
                }
                store.is_away.store(is_lost, Relaxed);
                store.take(1);
                store.answer(1);
                turns().await;
                store.is_away.store(false, Relaxed);
                if end != End::GivenUp {
                    store.take(0);
                    store.answer(0);
                    let denies = waits.await.unwrap().verdict == Verdict::Deny;
                    assert_eq!(denies, end == End::Denied);
                    admitted += if denies { 0 } else { 5 };
                }
            }
            turns().await;
            assert_eq!(left(&store, &engine).await, 1_000 - admitted, "{end:?}, {is_lost}");
        }
    }
}

#[tokio::test]
async fn what_a_question_puts_back_is_given_back_with_the_rest() {
    let (store, engine, admitted) = stocked(0).await;
    let asked = question(BOTH, Cost::Charge(Hits(5)));
    let mut waits = Box::pin(engine.decide(&asked));
    assert!(poll_immediate(&mut waits).await.is_none(), "it is asked for `s`");
    store.stands.store(false, Relaxed);
    let leases = engine.leases().unwrap();
    leases.give_back().await;
    drop(waits);
    leases.give_back().await;
    assert_eq!((held(&engine), left(&store, &engine).await), (0, 1_000 - admitted));
}
