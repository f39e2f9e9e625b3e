//! What is held here of a question that is charged as one, where it does only with what the store has left.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::engine::Engine;
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::path::{COUPLED, GCRA};
use super::waiting::{K, TEN, asked, turns, verdict};
use super::{Far, admits, ask, engine, held, pass, publish, question};

pub(super) const AS_ONE: &str = "charge: all_or_nothing\n";

/// An engine whose questions are charged as one.
pub(super) fn as_one(store: &Arc<Far>, limits: &str) -> Engine {
    let engine = engine(store, limits);
    publish(&engine, AS_ONE, limits);
    engine
}

/// Asks `k` until as many hits are held as make a question that neither they nor what the store has left do for, but both
/// do: so many were asked for, and so many it takes.
async fn apart(engine: &Engine) -> (u64, u64) {
    let (others, mut asked) = (held(engine), 0);
    while asked < 800 || held(engine) - others < 51 {
        assert!(admits(engine, K, 1).await);
        asked += 1;
    }
    (asked, 1000 - asked - (held(engine) - others) + 50)
}

async fn remaining(engine: &Engine, key: &str) -> u64 {
    ask(engine, &[(key, "v")], 0).await.unwrap().statuses[0].finding.room.remaining.0
}

/// Five hundred are counted there, of which five come back once.
#[tokio::test]
async fn what_a_question_gives_back_beside_it_comes_back_once() {
    const STRICT: &str = "- key: s\n  rate_limit: {unit: day, requests_per_unit: 1000}\n";
    for limits in [COUPLED, GCRA] {
        let engine = as_one(&Far::new(), &format!("{limits}{STRICT}"));
        assert!(admits(&engine, &[("s", "v")], 500).await);
        let (_, hits) = apart(&engine).await;
        let before = held(&engine);
        let mut both = question(&[("k", "v"), ("s", "v")], Cost::Charge(Hits(hits)));
        both.descriptors[1].cost = Cost::Refund(Hits(5));
        assert_eq!(engine.decide(&both).await.unwrap().verdict, Verdict::Deny);
        turns().await;
        assert_eq!((remaining(&engine, "s").await, held(&engine)), (505, before));
    }
}

/// Ten are held from the second before, and the store has five left: of the ten none comes back to this second.
#[tokio::test]
async fn what_would_not_come_back_stays() {
    const LEASED: &str = ", mode: leased, max_overshoot: 10%, lease_hits: 10";
    for strategy in ["fixed_window", "sliding_window", "sliding_log"] {
        let limits = format!(
            "- key: k\n  rate_limit: {{unit: second, requests_per_unit: 100, strategy: {strategy}{LEASED}}}\n"
        );
        let store = Far::new();
        let one = as_one(&store, &limits);
        while held(&one) < 10 {
            assert!(admits(&one, K, 1).await);
        }
        let other = engine(&store, &limits.replace(LEASED, ""));
        pass(&one, Nanos::SECOND);
        pass(&other, Nanos::SECOND);
        let left = remaining(&other, "k").await;
        assert!(admits(&other, K, left - 5).await);
        assert!(!admits(&one, K, 11).await, "{strategy}");
        assert_eq!(held(&one), 10, "{strategy}");
        assert!(admits(&one, K, 10).await, "{strategy}");
    }
}

/// Two hits and a lease of ten were charged, and the question is for eight more.
#[tokio::test]
async fn what_is_void_when_a_calendar_is_asked_again_is_not_spent() {
    const MONTH: &str = "- key: m\n  rate_limit: {unit: month, requests_per_unit: 10, calendar: {time_zone: Europe/Berlin}}\n";
    let store = Far::new();
    store.ahead.store(Nanos::from_secs(100 * 86_400).0, Relaxed);
    let engine = Arc::new(as_one(&store, &format!("{TEN}{MONTH}")));
    store.stands.store(true, Relaxed);
    let asking = Arc::clone(&engine);
    let asking = tokio::spawn(async move { ask(&asking, &[("k", "v"), ("m", "v")], 8).await });
    turns().await;
    store.stands.store(false, Relaxed);
    assert!(admits(&engine, K, 1).await && admits(&engine, K, 1).await);
    assert_eq!(held(&engine), 10);
    pass(&engine, Nanos::from_secs(30));
    assert_eq!(held(&engine), 0, "its lease is over");
    store.take(0);
    store.answer(0);
    assert_eq!(verdict(asking).await, Verdict::Admit);
    turns().await;
    assert_eq!(remaining(&engine, "k").await, 100 - 2 - 10 - 8);
}

/// Leaves of `b` what `one` holds, and the store nothing.
async fn only_held(one: &Engine, other: &Engine) {
    let mut asked = 0;
    while held(one) < 5 {
        assert!(admits(one, &[("b", "v")], 1).await);
        asked += 1;
    }
    assert!(admits(other, &[("b", "v")], 1000 - asked - held(one)).await);
}

/// Of `b` the store has nothing left; the question passes without it.
#[tokio::test]
async fn what_does_beside_a_limit_that_may_deny_is_handed_back() {
    const QUOTA: &str = "  quota_mode: true\n";
    for words in [["", "  shadow_mode: true\n"], [QUOTA, QUOTA]] {
        let other = COUPLED.replace("key: k", "key: b");
        let limits = format!("{GCRA}{}{other}{}", words[0], words[1]);
        let store = Far::new();
        let (one, other) = (as_one(&store, &limits), engine(&store, &limits));
        only_held(&one, &other).await;
        let (asked, hits) = apart(&one).await;
        let answer = ask(&one, &[("k", "v"), ("b", "v")], hits).await.unwrap();
        assert_eq!(answer.verdict, Verdict::Admit, "{words:?}");
        assert_eq!(answer.statuses[0].finding.room.remaining, Hits(1000 - asked - hits));
    }
}

/// Neither is admitted without the other, and the store has too little left for one of them.
#[tokio::test]
async fn nothing_goes_back_for_a_question_that_another_limit_denies_all_the_same() {
    let limits = format!("{GCRA}{}", COUPLED.replace("key: k", "key: b"));
    let store = Far::new();
    let (one, other) = (as_one(&store, &limits), engine(&store, &limits));
    only_held(&one, &other).await;
    let (_, hits) = apart(&one).await;
    let before = held(&one);
    assert!(!admits(&one, &[("k", "v"), ("b", "v")], hits).await);
    assert_eq!(held(&one), before);
}

#[tokio::test]
async fn who_waits_for_what_another_handed_back_is_admitted_where_the_store_has_enough_then() {
    let store = Far::new();
    let engine = Arc::new(as_one(&store, COUPLED));
    let (_, hits) = apart(&engine).await;
    store.stands.store(true, Relaxed);
    let given_up = asked(&engine, hits).await;
    let waits = asked(&engine, hits).await;
    // It is denied, and finds that the store has the rest. The other is denied while what is held is on its way.
    for at in [0, 2, 1] {
        store.take(at);
        store.answer(at);
        turns().await;
    }
    assert_eq!((store.standing.lock().len(), held(&engine)), (4, 0));
    given_up.abort();
    store.stands.store(false, Relaxed);
    store.take(3);
    store.answer(3);
    assert_eq!(verdict(waits).await, Verdict::Admit);
}

/// Ten are held here of a hundred.
#[tokio::test]
async fn a_question_that_names_a_counter_twice_takes_the_sum_of_both() {
    let cases = [
        (86, [7, 7], Verdict::Admit),
        (86, [8, 7], Verdict::Deny),
        (86, [7, 8], Verdict::Deny),
        (78, [11, 11], Verdict::Admit),
        (78, [11, 12], Verdict::Deny),
    ];
    for (asked, hits, law) in cases {
        let store = Far::new();
        let engine = engine(&store, TEN);
        assert!(admits(&engine, K, asked).await);
        publish(&engine, AS_ONE, TEN);
        assert_eq!(held(&engine), 10);
        let mut twice = question(&[("k", "v"), ("k", "v")], Cost::Charge(Hits(hits[0])));
        twice.descriptors[1].cost = Cost::Charge(Hits(hits[1]));
        assert_eq!(engine.decide(&twice).await.unwrap().verdict, law, "{asked}, {hits:?}");
        assert!(law == Verdict::Admit || held(&engine) == 10, "{asked}, {hits:?}");
    }
}
