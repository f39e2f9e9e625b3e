//! Questions that wait for each other's messages, and what goes back or is borrowed without a question.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::clock::Clock;
use sluicegate::engine::leases::MOST_AT_LEISURE;
use sluicegate::engine::{Answer, Engine, Local, Membership, Policy, Refusal};
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::key::{CounterKey, Counting};
use sluicegate::kernel::units::{Hits, Nanos};
use tokio::task::JoinHandle;

use crate::waiting::PATIENCE;

use super::{Far, NEW_YEAR, admits, ask, at_once, engine, held, pass, publish, question};

/// A hundred at one instant, of which ten may be out, borrowed by ten.
pub(super) const TEN: &str = "- key: k\n  rate_limit: {unit: day, requests_per_unit: 100, strategy: gcra, mode: leased, max_overshoot: 10%, lease_hits: 10}\n";
pub(super) const K: &[(&str, &str)] = &[("k", "v")];

/// Asks in the background; until that question waits for something.
pub(super) async fn asked(engine: &Arc<Engine>, hits: u64) -> JoinHandle<Result<Answer, Refusal>> {
    let engine = Arc::clone(engine);
    let asking = tokio::spawn(async move { ask(&engine, K, hits).await });
    turns().await;
    asking
}

/// All others have their turns.
pub(super) async fn turns() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

pub(super) fn standing(limits: &str) -> (Arc<Far>, Arc<Engine>) {
    let store = Far::new();
    let engine = Arc::new(engine(&store, limits));
    store.stands.store(true, Relaxed);
    (store, engine)
}

pub(super) async fn verdict(asking: JoinHandle<Result<Answer, Refusal>>) -> Verdict {
    let answered = tokio::time::timeout(PATIENCE, asking).await.expect("it waits for nothing");
    answered.unwrap().unwrap().verdict
}

#[tokio::test]
async fn who_waits_for_anothers_message_is_answered_by_what_it_brings() {
    let (store, engine) = standing(TEN);
    let first = asked(&engine, 1).await;
    let others = [asked(&engine, 4).await, asked(&engine, 6).await];
    assert_eq!(store.calls(), 1, "the others wait");
    store.take(0);
    store.answer(0);
    assert_eq!(verdict(first).await, Verdict::Admit);
    for other in others {
        assert_eq!(verdict(other).await, Verdict::Admit);
    }
    assert_eq!((store.calls(), held(&engine)), (1, 0), "ten were lent");
}

#[tokio::test]
async fn what_a_message_brings_whose_question_was_given_up_is_held_for_the_next() {
    let (store, engine) = standing(TEN);
    asked(&engine, 1).await.abort();
    turns().await;
    let next = asked(&engine, 4).await;
    assert_eq!(store.calls(), 1, "the next waits for it");
    store.take(0);
    store.answer(0);
    assert_eq!(verdict(next).await, Verdict::Admit);
    assert_eq!(at_once(&engine, K, 1).map(|answer| answer.verdict), Some(Verdict::Admit));
    assert_eq!((store.calls(), held(&engine)), (1, 10 - 4 - 1));
}

#[test]
fn a_message_is_given_up_where_no_runtime_is_or_it_ends() {
    let (store, engine) = standing(TEN);
    assert!(at_once(&engine, K, 1).is_none(), "the store has to be asked");
    for calls in 2..=3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { drop(asked(&engine, 1).await) });
        assert_eq!(store.calls(), calls, "none is believed to be on its way");
    }
}

#[tokio::test]
async fn questions_that_are_each_answered_too_late_charge_their_own_hits_and_one_lease() {
    let (store, engine) =
        standing(&TEN.replace("unit: day", "on_backend_failure: deny, unit: day"));
    store.takes.store(true, Relaxed);
    let question = question(K, Cost::Charge(Hits(5)));
    for _ in 0..6 {
        engine.decide_within(&question, Some(Nanos(0))).await.unwrap();
        turns().await;
        store.answer_all();
        turns().await;
    }
    let left = left(&store, TEN).await;
    assert!(100 - 6 * 5 - 10 <= left, "{left}");
}

#[tokio::test]
async fn who_waits_for_a_message_that_fails_is_told_so_and_does_not_wait_again() {
    let limits = TEN.replace("unit: day", "on_backend_failure: deny, unit: day");
    let (store, engine) = standing(&limits);
    store.is_away.store(true, Relaxed);
    let (first, other) = (asked(&engine, 1).await, asked(&engine, 1).await);
    store.take(0);
    store.answer(0);
    assert_eq!(verdict(first).await, Verdict::Deny);
    turns().await;
    assert!(other.is_finished(), "it was put to the store by itself");
    assert_eq!((verdict(other).await, store.calls()), (Verdict::Deny, 1));
}

/// The same, where each replica counts in its own memory what the store does not answer.
fn counting_here(store: &Arc<Far>) -> Arc<Engine> {
    let memory = Arc::new(Memory::new(100, WhenFull::Deny, [1; 16]));
    let local = Local::new(memory, Arc::new(Membership::new("me", 1, NonZeroU32::MIN)));
    let engine = Engine::new(Clock::manual(NEW_YEAR), store.clone(), Policy::default());
    let engine = Arc::new(engine.with_local(local));
    publish(&engine, "", &TEN.replace("unit: day", "on_backend_failure: local, unit: day"));
    store.stands.store(true, Relaxed);
    engine
}

/// What the store has left once it answers and what is owed to it was paid.
async fn left_after_paying(store: &Arc<Far>, engine: &Arc<Engine>) -> Hits {
    store.is_away.store(false, Relaxed);
    store.stands.store(false, Relaxed);
    let paying = Arc::clone(engine);
    let paying = tokio::spawn(async move { paying.pay_on().await });
    turns().await;
    paying.abort();
    let other = super::engine(store, TEN);
    ask(&other, K, 0).await.unwrap().statuses[0].finding.room.remaining
}

#[tokio::test]
async fn who_waited_for_a_message_that_was_late_is_owed_to_the_store_and_who_went_with_it_is_not() {
    let store = Far::new();
    let engine = counting_here(&store);
    let first = asked(&engine, 10).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(asked(&engine, 1).await);
    }
    assert_eq!(store.calls(), 1, "the others wait");
    store.is_away.store(true, Relaxed);
    store.take(0);
    store.answer(0);
    for asking in std::iter::once(first).chain(others) {
        assert_eq!(verdict(asking).await, Verdict::Admit);
    }
    assert_eq!(left_after_paying(&store, &engine).await, Hits(100 - 3));
}

#[tokio::test]
async fn who_waited_all_of_its_time_is_owed_to_the_store() {
    let store = Far::new();
    store.deadline.store(Nanos::from_secs(10).0, Relaxed);
    let all = (store.clone(), counting_here(&store));
    for asking in behind(&all, 50, [11, 11], Nanos(0)).await {
        assert_eq!(verdict(asking).await, Verdict::Admit);
    }
    assert_eq!(left_after_paying(&store, &all.1).await, Hits(100 - 50 - 10 - 22));
}

/// A store of which an answer may take ten seconds, and a limit that denies where none comes.
fn with_ten_seconds() -> (Arc<Far>, Arc<Engine>) {
    let (store, engine) =
        standing(&TEN.replace("unit: day", "on_backend_failure: deny, unit: day"));
    store.deadline.store(Nanos::from_secs(10).0, Relaxed);
    (store, engine)
}

/// Asks for `hits` behind a question for `first`, which is answered when all of its time but `left` is over.
async fn behind(
    (store, engine): &(Arc<Far>, Arc<Engine>),
    first: u64,
    hits: [u64; 2],
    left: Nanos,
) -> [JoinHandle<Result<Answer, Refusal>>; 2] {
    let first = asked(engine, first).await;
    let both = [asked(engine, hits[0]).await, asked(engine, hits[1]).await];
    assert_eq!(store.calls(), 1, "both wait");
    pass(engine, Nanos::from_secs(10).since(left));
    store.take(0);
    store.answer(0);
    assert_eq!(verdict(first).await, Verdict::Admit);
    both
}

#[tokio::test]
async fn who_waited_for_anothers_message_waits_for_its_own_only_in_what_is_left_of_its_time() {
    let all = with_ten_seconds();
    // Three are left beside the 10 that are lent, of which one takes 6.
    let [one, other] = behind(&all, 87, [6, 6], Nanos::MILLI).await;
    let verdicts = [verdict(one).await, verdict(other).await];
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Admit).count(), 1);
    let (store, engine) = all;
    assert_eq!((store.calls(), held(&engine)), (2, 0), "its message is not answered");
    store.take(1);
    store.answer(1);
    turns().await;
    assert_eq!(held(&engine), 1, "of 3 and 4 it was charged 6: what else it brings is held");
}

#[tokio::test]
async fn who_is_charged_alone_after_a_wait_waits_only_in_what_is_left_of_its_time() {
    let all = with_ten_seconds();
    let both = behind(&all, 50, [11, 11], Nanos::MILLI).await;
    for asking in both {
        assert_eq!(verdict(asking).await, Verdict::Deny);
    }
    assert_eq!(all.0.calls(), 3, "a message, and a charge");
}

#[tokio::test]
async fn who_waited_all_of_its_time_asks_no_more() {
    let all = with_ten_seconds();
    let both = behind(&all, 50, [11, 11], Nanos(0)).await;
    for asking in both {
        assert_eq!(verdict(asking).await, Verdict::Deny);
    }
    assert_eq!((all.0.calls(), held(&all.1)), (1, 10), "and takes nothing along");
}

#[tokio::test]
async fn who_asks_again_after_a_wait_asks_with_what_is_left_of_the_balance() {
    let (store, engine) = standing(TEN);
    let first = asked(&engine, 87).await;
    let both = [asked(&engine, 6).await, asked(&engine, 6).await];
    // Three are left beside the 10 that are lent, of which one takes 6: with the others there are enough.
    store.take(0);
    store.answer(0);
    assert_eq!(verdict(first).await, Verdict::Admit);
    turns().await;
    assert_eq!(store.calls(), 2);
    store.take(1);
    store.answer(1);
    turns().await;
    assert_eq!(store.calls(), 2, "one call for it");
    for asking in both {
        assert_eq!(verdict(asking).await, Verdict::Admit);
    }
}

#[tokio::test]
async fn who_is_denied_what_the_rest_and_the_balance_cover_together_is_asked_again_with_both() {
    let limits = TEN.replace("max_overshoot: 10%", "max_overshoot: 40%");
    let (store, engine) = standing(&limits);
    // Another replica asks for as much, so that each is lent half of what is left.
    let other = super::engine(&store, &limits);
    store.stands.store(false, Relaxed);
    assert!(admits(&other, K, 10).await);
    store.stands.store(true, Relaxed);
    let first = asked(&engine, 56).await;
    let both = [asked(&engine, 11).await, asked(&engine, 11).await];
    // Of 24 ten are lent: too few for either, who ask again, one with them and one alone.
    store.take(0);
    store.answer(0);
    assert_eq!(verdict(first).await, Verdict::Admit);
    turns().await;
    assert_eq!(store.calls(), 4);
    // Of 24 eleven are charged and six lent. Seven are left: eleven are denied.
    store.take(1);
    turns().await;
    store.take(2);
    store.answer(2);
    turns().await;
    store.answer(1);
    turns().await;
    assert_eq!(store.calls(), 5, "with the six");
    store.take(3);
    store.answer(3);
    for asking in both {
        assert_eq!(verdict(asking).await, Verdict::Admit);
    }
}

#[tokio::test]
async fn what_will_soon_run_out_is_borrowed_at_leisure() {
    let limits = TEN.replace(", lease_hits: 10", "").replace("100,", "10000,");
    let store = Far::new();
    let engine = engine(&store, &limits);
    while held(&engine) < 200 {
        assert!(admits(&engine, K, 1).await);
    }
    // Nothing was lent to the first question, which is not tried again at once. More than 100 in ten seconds are
    // 20 in two.
    pass(&engine, Nanos::from_secs(2));
    while 20 < held(&engine) {
        assert!(admits(&engine, K, 1).await);
    }
    let (calls, left) = (store.calls(), held(&engine));
    engine.leases().unwrap().tend().await;
    turns().await;
    assert_eq!(store.calls(), calls + 1);
    assert!(left < held(&engine), "{left} before");
}

#[tokio::test]
async fn who_borrows_ahead_takes_along_what_others_will_soon_need_but_not_all_the_time() {
    let limits = TEN.replace(", lease_hits: 10", "").replace("100,", "10000,");
    let store = Far::new();
    let engine = engine(&store, &limits);
    let balance = |name| {
        let key = CounterKey::injective("d", [("k", name)].into_iter(), Counting::Gcra);
        engine.leases().unwrap().balance(&key).0
    };
    let until = async |name, fits: &dyn Fn(u64) -> bool| {
        while !fits(balance(name)) {
            assert!(admits(&engine, &[("k", name)], 1).await);
        }
    };
    for name in ["a", "b"] {
        until(name, &|held| 200 <= held).await;
    }
    pass(&engine, Nanos::from_secs(2));
    for (passes, messages) in [(0, 2), (99, 1), (1, 2)] {
        pass(&engine, Nanos(passes * 1_000_000));
        until("a", &|held| held <= 20).await;
        until("b", &|held| held <= 2).await;
        let (calls, together) = (store.calls(), store.together.load(Relaxed));
        assert!(admits(&engine, &[("k", "b")], 1).await);
        turns().await;
        assert_eq!(store.calls(), calls + messages, "{passes} ms later");
        let with_another = if messages == 2 { 2 } else { 0 };
        assert_eq!(store.together.load(Relaxed), together + with_another, "{passes} ms later");
        assert!(20 < balance("b") && (20 < balance("a")) == (messages == 2));
    }
}

#[tokio::test]
async fn so_many_keys_are_borrowed_for_at_leisure_at_one_time_and_the_others_at_the_next_look() {
    const KEYS: u64 = 100;
    let (store, engine) = standing(TEN);
    store.stands.store(false, Relaxed);
    let names: Vec<String> = (0..KEYS).map(|name| name.to_string()).collect();
    for name in &names {
        assert!(admits(&engine, &[("k", name)], 1).await);
    }
    // Somebody asked of late, so that nothing is given back, and each lease ends within two seconds.
    pass(&engine, Nanos::from_secs(28));
    for name in &names {
        assert!(admits(&engine, &[("k", name)], 1).await);
    }
    pass(&engine, Nanos::SECOND);
    assert_eq!((store.calls(), held(&engine)), (KEYS, KEYS * 9));
    store.stands.store(true, Relaxed);
    for sent in [MOST_AT_LEISURE as u64, KEYS] {
        engine.leases().unwrap().tend().await;
        turns().await;
        assert_eq!((store.calls(), store.together.load(Relaxed)), (KEYS + sent, sent));
        store.go_on();
        turns().await;
    }
}

#[tokio::test]
async fn who_finds_more_at_leisure_than_goes_at_one_time_looks_again_of_itself() {
    const KEYS: u64 = 100;
    let store = Far::new();
    let engine = engine(&store, TEN);
    let names: Vec<String> = (0..KEYS).map(|name| name.to_string()).collect();
    for (wait, name) in [0, 28].into_iter().flat_map(|wait| names.iter().map(move |n| (wait, n))) {
        if name == "0" {
            pass(&engine, Nanos::from_secs(wait));
        }
        assert!(admits(&engine, &[("k", name)], 1).await);
    }
    pass(&engine, Nanos::SECOND);
    assert_eq!((store.calls(), held(&engine)), (KEYS, KEYS * 9));
    // One of them runs out, and all others end within two seconds.
    for _ in 0..8 {
        assert!(admits(&engine, &[("k", "0")], 1).await);
    }
    turns().await;
    assert_eq!(store.calls(), KEYS + 1 + MOST_AT_LEISURE as u64);
    pass(&engine, Nanos(100_000_000));
    let the_others = async {
        while store.calls() != KEYS + KEYS {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, the_others).await.expect("it looks again");
}

#[tokio::test]
async fn what_is_given_back_for_many_keys_goes_together() {
    const KEYS: u64 = 40;
    let store = Far::new();
    let engine = engine(&store, TEN);
    for name in 0..KEYS {
        assert!(admits(&engine, &[("k", &name.to_string())], 1).await);
    }
    assert_eq!((held(&engine), store.together.load(Relaxed)), (KEYS * 10, 0));
    engine.leases().unwrap().give_back().await;
    assert_eq!((held(&engine), store.together.load(Relaxed)), (0, KEYS));
}

#[tokio::test]
async fn what_was_held_under_other_numbers_goes_back() {
    let store = Far::new();
    let (one, other) = (engine(&store, TEN), engine(&store, TEN));
    assert!(admits(&one, K, 1).await);
    assert_eq!(held(&one), 10);
    let changed = TEN.replace("day", "hour");
    for engine in [&one, &other] {
        publish(engine, "", &changed);
    }
    let peek = async || ask(&other, K, 0).await.unwrap().statuses[0].finding.room.remaining;
    assert_eq!(peek().await, Hits(89));
    assert!(admits(&one, K, 1).await);
    turns().await;
    assert_eq!(held(&one), 10, "a lease of the new limit");
    assert_eq!(peek().await, Hits(100 - 2 - 10), "and nothing of the old one is parked");
}

/// What a replica over `store` that holds nothing sees of what is left, under `limits`.
async fn left(store: &Arc<Far>, limits: &str) -> u64 {
    store.stands.store(false, Relaxed);
    ask(&super::engine(store, limits), K, 0).await.unwrap().statuses[0].finding.room.remaining.0
}

/// [`TEN`] after a reload.
fn other() -> String {
    TEN.replace("day", "hour")
}

fn tending(engine: &Engine) -> JoinHandle<()> {
    tokio::spawn(Arc::clone(engine.leases().unwrap()).tend_on())
}

#[tokio::test]
async fn what_a_message_brings_after_other_limits_came_into_force_goes_back() {
    let (store, engine) = standing(TEN);
    let tending = tending(&engine);
    let asking = asked(&engine, 1).await;
    publish(&engine, "", &other());
    turns().await;
    store.take(0);
    store.stands.store(false, Relaxed);
    store.answer(0);
    assert_eq!(verdict(asking).await, Verdict::Admit);
    turns().await;
    assert_eq!((held(&engine), left(&store, &other()).await), (0, 99));
    tending.abort();
}

/// Asks until more is borrowed ahead, by a message that stands. The hits asked for.
async fn ahead((store, engine): &(Arc<Far>, Arc<Engine>)) -> u64 {
    store.stands.store(false, Relaxed);
    assert!(admits(engine, K, 1).await);
    store.stands.store(true, Relaxed);
    let mut asked = 1;
    while store.calls() == 1 {
        assert!(admits(engine, K, 1).await);
        asked += 1;
    }
    assert!(0 < held(engine), "it is borrowed ahead");
    asked
}

/// The store takes the one message that stands, and answers it or not; nothing stands from then on.
async fn settle(store: &Far, is_lost: bool) {
    store.is_away.store(is_lost, Relaxed);
    store.take(0);
    turns().await;
    store.is_away.store(false, Relaxed);
    store.stands.store(false, Relaxed);
    store.answer(0);
    turns().await;
}

#[tokio::test]
async fn what_is_held_when_more_is_on_its_way_goes_back_once_that_is_there_or_lost() {
    for is_lost in [false, true] {
        let all = standing(&TEN.replace("max_overshoot: 10%", "max_overshoot: 40%"));
        let tending = tending(&all.1);
        let asked = ahead(&all).await;
        let (store, engine) = all;
        publish(&engine, "", &other());
        turns().await;
        settle(&store, is_lost).await;
        assert_eq!((held(&engine), left(&store, &other()).await), (0, 100 - asked), "{is_lost}");
        tending.abort();
    }
}

#[tokio::test]
async fn what_is_held_at_a_drain_when_more_is_on_its_way_goes_back_once_that_is_there_or_lost() {
    let limits = TEN.replace("max_overshoot: 10%", "max_overshoot: 40%");
    for is_lost in [false, true] {
        let all = standing(&limits);
        let tending = tending(&all.1);
        let asked = ahead(&all).await;
        let (store, engine) = all;
        let leases = Arc::clone(engine.leases().unwrap());
        let draining = tokio::spawn(async move { leases.give_back().await });
        turns().await;
        assert_eq!(store.calls(), 2, "it waits for the answer");
        settle(&store, is_lost).await;
        tokio::time::timeout(PATIENCE, draining).await.expect("it waits for nothing").unwrap();
        assert_eq!((held(&engine), left(&store, &limits).await), (0, 100 - asked), "{is_lost}");
        tending.abort();
    }
}

#[tokio::test]
async fn nothing_is_borrowed_at_leisure_while_a_drain_waits_for_what_is_on_its_way() {
    const OTHER: &[(&str, &str)] = &[("k", "w")];
    let (store, engine) = standing(TEN);
    let first = asked(&engine, 1).await;
    let slow = Arc::clone(&engine);
    let slow = tokio::spawn(async move { ask(&slow, OTHER, 1).await });
    // Somebody asks of late, so that the tending gives nothing back, and the lease ends within two seconds.
    pass(&engine, Nanos::from_secs(28));
    let second = asked(&engine, 4).await;
    pass(&engine, Nanos::SECOND);
    let leases = Arc::clone(engine.leases().unwrap());
    let draining = tokio::spawn(async move { leases.give_back().await });
    turns().await;
    store.take(0);
    store.answer(0);
    for asking in [first, second] {
        assert_eq!(verdict(asking).await, Verdict::Admit);
    }
    assert_eq!(held(&engine), 10 - 4);
    engine.leases().unwrap().tend().await;
    turns().await;
    assert_eq!(store.calls(), 2, "it would be given back before it is there");
    store.stands.store(false, Relaxed);
    store.take(1);
    store.answer(1);
    assert_eq!(verdict(slow).await, Verdict::Admit);
    tokio::time::timeout(PATIENCE, draining).await.expect("it waits for nothing").unwrap();
    assert_eq!((held(&engine), left(&store, TEN).await), (0, 100 - 1 - 4));
}

#[tokio::test]
async fn what_is_asked_under_other_limits_while_a_message_is_on_its_way_strands_nothing() {
    for charge in ["", "charge: all_or_nothing\n"] {
        let (store, engine) = standing(TEN);
        let first = asked(&engine, 1).await;
        publish(&engine, charge, &other());
        let second = asked(&engine, 2).await;
        store.take(0);
        store.take(1);
        store.answer(1);
        assert_eq!(verdict(second).await, Verdict::Admit, "it waits for no other");
        store.answer(0);
        assert_eq!(verdict(first).await, Verdict::Admit);
        store.stands.store(false, Relaxed);
        assert!(admits(&engine, K, 1).await);
        turns().await;
        let held = held(&engine);
        assert!(!charge.is_empty() || held == 10, "a lease of the new limit");
        assert_eq!(
            left(&store, &other()).await,
            100 - 4 - held,
            "and nothing of the old one is parked"
        );
    }
}

#[tokio::test]
async fn a_quota_group_does_not_deny_where_one_of_it_is_held() {
    let strict = |key: &str, words: &str, requests: u32| {
        format!("- key: {key}\n{words}  rate_limit: {{unit: day, requests_per_unit: {requests}}}\n")
    };
    let quota = "  quota_mode: true\n";
    let leased = TEN.replace("key: k\n", &format!("key: k\n{quota}"));
    let store = Far::new();
    let engine = engine(&store, &leased);
    let all = format!("{leased}{}{}", strict("full", quota, 1), strict("plain", "", 50));
    publish(&engine, "charge: all_or_nothing\n", &all);
    while held(&engine) == 0 {
        assert!(admits(&engine, K, 1).await);
    }
    assert!(admits(&engine, &[("full", "v")], 1).await);
    assert!(admits(&engine, &[("k", "v"), ("full", "v"), ("plain", "v")], 1).await);
    let left = ask(&engine, &[("plain", "v")], 0).await.unwrap().statuses[0].finding.room;
    assert_eq!(left.remaining, Hits(49), "what is admitted is charged");
}
