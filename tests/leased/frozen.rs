//! Leased limits beside one that an operator holds shut, charged as one.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::poll_immediate;
use sluicegate::engine::Engine;
use sluicegate::kernel::decision::{Cost, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::{Far, ask, at_once, engine, held, publish, question};

const LIMITS: &str = "- key: a\n  rate_limit: {unit: day, requests_per_unit: 10}\n\
                      - key: b\n  rate_limit: {unit: day, requests_per_unit: 1000, mode: leased, max_overshoot: 0}\n\
                      - key: c\n  rate_limit: {unit: day, requests_per_unit: 1000, strategy: gcra, mode: leased, \
                      max_overshoot: 10%}\n";
/// Beside these one that is asked of the store.
const STRICT: &str = "- key: s\n  rate_limit: {unit: day, requests_per_unit: 7}\n";
const SHUT: (&str, &str) = ("a", "v");

#[tokio::test]
async fn beside_a_limit_held_shut_nothing_is_spent_of_what_is_held_here() {
    for beside in [&[("b", "v")][..], &[("c", "v")], &[("b", "v"), ("c", "v")]] {
        let store = Far::new();
        let engine = engine(&store, LIMITS);
        publish(&engine, "charge: all_or_nothing\n", LIMITS);
        for entry in beside {
            for _ in 0..50 {
                ask(&engine, &[*entry], 1).await.unwrap();
            }
        }
        assert!(at_once(&engine, beside, 1).is_some(), "all of it is held");
        let left = async || {
            let peeked = ask(&engine, beside, 0).await.unwrap().statuses;
            peeked.iter().map(|status| status.finding.room.remaining).collect::<Vec<Hits>>()
        };
        let (before, calls, all) = (held(&engine), store.calls(), left().await);
        engine.freeze(("d", &[SHUT]), Verdict::Deny, Nanos::from_secs(60)).unwrap();
        let asked: Vec<_> = [&[SHUT], beside].concat();
        for _ in 0..5 {
            let answer = ask(&engine, &asked, 1).await.unwrap();
            assert_eq!(answer.verdict, Verdict::Deny);
            for (status, left) in answer.statuses[1..].iter().zip(&all) {
                let found = &status.finding;
                assert_eq!(found.verdict, Verdict::Admit);
                assert_eq!(found.reason, Reason::WithinLimit);
                assert_eq!(found.room.remaining, *left, "as without the charge");
            }
        }
        assert_eq!((held(&engine), left().await), (before, all), "{beside:?}");
        assert_eq!(store.calls(), calls, "what is held answers without a call");
    }
}

/// Limits that are charged as one, of which `a` is held shut, `s` is strict, and of `b` 950 are left and so many of them held
/// here, enough for five.
async fn beside_a_strict_one() -> (Arc<Far>, Engine, u64) {
    let store = Far::new();
    let (engine, limits) = (engine(&store, LIMITS), format!("{LIMITS}{STRICT}"));
    publish(&engine, "charge: all_or_nothing\n", &limits);
    for _ in 0..50 {
        ask(&engine, &[("b", "v")], 1).await.unwrap();
    }
    engine.freeze(("d", &[SHUT]), Verdict::Deny, Nanos::from_secs(60)).unwrap();
    let here = held(&engine);
    assert!(5 <= here, "{here}");
    (store, engine, here)
}

#[tokio::test]
async fn beside_a_limit_held_shut_what_is_held_here_answers_though_another_is_asked_of_the_store() {
    let (_store, engine, before) = beside_a_strict_one().await;
    for _ in 0..3 {
        let answer = ask(&engine, &[SHUT, ("b", "v"), ("s", "v")], 1).await.unwrap();
        assert_eq!(answer.verdict, Verdict::Deny);
        let left = [1, 2].map(|at: usize| answer.statuses[at].finding.room.remaining);
        assert_eq!(left, [Hits(950), Hits(7)]);
        assert_eq!(held(&engine), before);
    }
}

/// What it had in hand meanwhile would be lost to a message that is written before it is put back.
#[tokio::test]
async fn beside_a_limit_held_shut_nothing_is_taken_while_the_store_is_asked_for_another() {
    let (store, engine, before) = beside_a_strict_one().await;
    store.stands.store(true, Relaxed);
    let asked = question(&[SHUT, ("b", "v"), ("s", "v")], Cost::Charge(Hits(5)));
    let mut waits = Box::pin(engine.decide(&asked));
    assert!(poll_immediate(&mut waits).await.is_none(), "it is asked for `s`");
    assert_eq!(held(&engine), before);
    store.take(0);
    store.answer(0);
    assert_eq!(waits.await.unwrap().statuses[1].finding.room.remaining, Hits(950));
    assert_eq!(held(&engine), before);
}
