//! One engine, or two, and what they hold.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use sluicegate::backend::Cause;
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::engine::leases::{MOST_BYTES, MOST_LEDGERS};
use sluicegate::kernel::decision::{Cost, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::{Far, admits, ask, at_once, engine, held, pass, publish, question};

/// A thousand a day, of which none may pass above a window; nobody comes to its end here.
pub(super) const COUPLED: &str = "- key: k\n  rate_limit: {unit: day, requests_per_unit: 1000, mode: leased, max_overshoot: 0}\n";
/// As many, of which a tenth may be out.
pub(super) const GCRA: &str = "- key: k\n  rate_limit: {unit: day, requests_per_unit: 1000, strategy: gcra, mode: leased, max_overshoot: 10%}\n";
/// Beside either, a limit of two a day that is strict.
const STRICT: &str = "- key: s\n  rate_limit: {unit: day, requests_per_unit: 2}\n";
const K: &[(&str, &str)] = &[("k", "v")];

/// Asks until something is held.
async fn until_held(engine: &sluicegate::engine::Engine) -> u64 {
    for asked in 1..100 {
        assert!(admits(engine, K, 1).await);
        if 4 < held(engine) {
            return asked;
        }
    }
    panic!("nothing is held");
}

#[tokio::test]
async fn a_question_that_is_held_is_answered_at_the_first_poll_without_a_call() {
    for limits in [COUPLED, GCRA] {
        let store = Far::new();
        let engine = engine(&store, limits);
        assert!(at_once(&engine, K, 0).is_none(), "nothing is held yet");
        let asked = until_held(&engine).await;
        let (calls, before) = (store.calls(), held(&engine));
        let answer = at_once(&engine, K, 1).unwrap();
        assert_eq!(
            (answer.verdict, store.calls(), held(&engine)),
            (Verdict::Admit, calls, before - 1)
        );
        let status = &answer.statuses[0].finding;
        assert_eq!(status.reason, Reason::WithinLimit);
        assert_eq!(
            status.room.remaining,
            Hits(1000 - asked - 1),
            "of the key, not of what is held"
        );
    }
}

#[tokio::test]
async fn a_decision_on_a_balance_allocates_nothing() {
    for limits in [COUPLED, GCRA] {
        let store = Far::new();
        let engine = engine(&store, limits);
        until_held(&engine).await;
        // Enough that none of these borrows ahead.
        let question = question(K, Cost::Charge(Hits(1)));
        let before = held(&engine);
        let allocated = allocation_counter::measure(|| {
            let mut deciding = pin!(engine.decide(&question));
            let polled = deciding.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Ok(answer)) if answer.verdict == Verdict::Admit));
        });
        assert_eq!(allocated.count_total, 0, "{allocated:?}");
        assert_eq!(held(&engine), before - 1);
    }
}

#[tokio::test]
async fn a_key_that_is_asked_once_costs_one_call_and_parks_nothing() {
    for limits in [COUPLED, GCRA] {
        let store = Far::new();
        let engine = engine(&store, limits);
        for name in ["a", "b", "c"] {
            assert!(admits(&engine, &[("k", name)], 1).await);
        }
        assert_eq!((store.calls(), held(&engine)), (3, 0));
    }
}

#[tokio::test]
async fn a_peek_answers_for_the_key_and_spends_nothing() {
    for limits in [COUPLED, GCRA] {
        let (store, peek) = (Far::new(), |answer: sluicegate::engine::Answer| {
            answer.statuses[0].finding.room.remaining.0
        });
        let engine = engine(&store, limits);
        assert_eq!(peek(ask(&engine, K, 0).await.unwrap()), 1000);
        assert_eq!(engine.leases().unwrap().sum().keys, 0, "a peek begins nothing");
        let asked = until_held(&engine).await;
        let before = held(&engine);
        assert_eq!(peek(ask(&engine, K, 0).await.unwrap()), 1000 - asked);
        assert_eq!(held(&engine), before);
    }
}

#[tokio::test]
async fn each_answer_says_what_the_limit_has_left_whoever_gives_it() {
    for limits in [COUPLED, GCRA] {
        let store = Far::new();
        let engine = engine(&store, limits);
        for asked in 1..=1000 {
            let answer = ask(&engine, K, 1).await.unwrap();
            assert_eq!(answer.verdict, Verdict::Admit);
            assert_eq!(answer.statuses[0].finding.room.remaining, Hits(1000 - asked));
        }
        assert!(store.calls() < 500, "{} calls", store.calls());
    }
}

#[tokio::test]
async fn a_question_for_more_than_is_held_leaves_what_is_held_beside_what_the_store_says() {
    for limits in [COUPLED, GCRA] {
        let store = Far::new();
        let engine = engine(&store, limits);
        publish(&engine, "charge: all_or_nothing\n", limits);
        let mut asked = until_held(&engine).await;
        for hits in [held(&engine) + 1, 1] {
            let answer = ask(&engine, K, hits).await.unwrap();
            asked += hits;
            assert_eq!(answer.statuses[0].finding.room.remaining, Hits(1000 - asked), "{hits}");
        }
    }
}

#[tokio::test]
async fn what_is_held_stays_where_it_does_not_do_with_what_the_store_has_left() {
    for limits in [COUPLED, GCRA] {
        let store = Far::new();
        let (one, other) = (engine(&store, limits), engine(&store, limits));
        publish(&one, "charge: all_or_nothing\n", limits);
        let asked = until_held(&one).await;
        let before = held(&one);
        assert!(admits(&other, K, 1000 - asked - before).await);
        for _ in 0..2 {
            assert!(!admits(&one, K, before + 1).await);
            assert_eq!(held(&one), before);
        }
    }
}

#[tokio::test]
async fn what_is_held_stays_where_another_limit_denies_the_question_anyway() {
    let store = Far::new();
    let engine = engine(&store, COUPLED);
    publish(&engine, "charge: all_or_nothing\n", &format!("{COUPLED}{STRICT}"));
    let mut asked = 0;
    while asked < 800 || held(&engine) < 51 {
        assert!(admits(&engine, K, 1).await);
        asked += 1;
    }
    assert!(admits(&engine, &[("s", "v")], 2).await);
    let (before, calls) = (held(&engine), store.calls());
    let hits = 1000 - asked - before + 50;
    assert!(!admits(&engine, &[("k", "v"), ("s", "v")], hits).await);
    assert_eq!((held(&engine), store.calls()), (before, calls + 1));
}

/// At which millisecond how many are left, and for how many milliseconds.
type Left = (u64, (u64, u64));

/// A hundred a second, of which 90 are charged and 10 lent at 0 s: what is left, and until when, at some milliseconds.
#[tokio::test]
async fn what_is_left_is_not_what_was_left_when_the_store_was_last_asked() {
    let all = (100, 0);
    let laws: [(&str, &[Left]); 3] = [
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
        // What was charged fades in the second after.
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
    for (strategy, law) in laws {
        let store = Far::new();
        let engine = engine(
            &store,
            &format!(
                "- key: k\n  rate_limit: {{unit: second, requests_per_unit: 100, strategy: {strategy}, mode: leased, \
                 max_overshoot: 10%, lease_hits: 10}}\n"
            ),
        );
        assert!(admits(&engine, K, 90).await);
        let (calls, mut now) = (store.calls(), 0);
        for (millis, left) in law {
            pass(&engine, Nanos((millis - now) * Nanos::MILLI.0));
            now = *millis;
            let room = at_once(&engine, K, 0).unwrap().statuses[0].finding.room;
            let said = (room.remaining.0, room.reset_after.0 / Nanos::MILLI.0);
            assert_eq!(said, *left, "{strategy}, {millis} ms");
        }
        assert_eq!((store.calls(), held(&engine)), (calls, 10));
    }
}

#[tokio::test]
async fn two_engines_admit_the_limit_and_no_more_where_leases_end_with_the_window() {
    let store = Far::new();
    let fleet = [engine(&store, COUPLED), engine(&store, COUPLED)];
    let mut admitted = 0;
    for turn in 0..1_600 {
        admitted += u64::from(admits(&fleet[turn % 2], K, 1).await);
    }
    let held: u64 = fleet.iter().map(held).sum();
    assert!(admitted + held <= 1000, "{admitted} and {held} held");
    assert!(950 <= admitted, "{admitted}");
    assert!(store.calls() < 400, "{} calls", store.calls());
}

#[tokio::test]
async fn denials_are_remembered_beside_the_balance() {
    for limits in [COUPLED, GCRA] {
        let store = Far::new();
        let engine = engine(&store, limits);
        assert!(admits(&engine, K, 1000).await);
        assert!(!admits(&engine, K, 1).await);
        let calls = store.calls();
        assert!(!admits(&engine, K, 1).await);
        assert!(!admits(&engine, K, 1001).await);
        assert_eq!(store.calls(), calls);
        let answer = ask(&engine, K, 1001).await.unwrap();
        assert_eq!(answer.statuses[0].finding.reason, Reason::LargerThanLimit);
    }
}

/// Three at once, and one more each three seconds: what comes after the three waits three seconds for each hit.
#[tokio::test]
async fn who_is_denied_more_hits_than_another_is_told_to_wait_longer() {
    let engine = engine(
        &Far::new(),
        "- key: k\n  rate_limit: {unit: minute, requests_per_unit: 20, strategy: gcra, burst: 3, mode: leased, \
         max_overshoot: 2}\n",
    );
    assert!(admits(&engine, K, 3).await);
    for hits in [1, 3, 2] {
        let waits = ask(&engine, K, hits).await.unwrap().statuses[0].finding.retry_after;
        assert_eq!(waits, Some(Nanos::from_secs(3 * hits)), "{hits} hits");
    }
}

#[tokio::test]
async fn a_question_that_is_denied_as_a_whole_takes_nothing_from_a_balance() {
    for limits in [COUPLED, GCRA] {
        let store = Far::new();
        let engine = engine(&store, limits);
        publish(&engine, "charge: all_or_nothing\n", &format!("{limits}{STRICT}"));
        let both = &[("k", "v"), ("s", "v")];
        assert!(admits(&engine, both, 1).await && admits(&engine, both, 1).await);
        until_held(&engine).await;
        let before = held(&engine);
        let left = ask(&engine, K, 0).await.unwrap().statuses[0].finding.room.remaining;
        for _ in 0..3 {
            let answer = ask(&engine, both, 1).await.unwrap();
            assert_eq!(answer.verdict, Verdict::Deny);
            assert_eq!(answer.statuses[0].finding.verdict, Verdict::Admit);
            assert_eq!(answer.statuses[0].finding.room.remaining, left, "as without the charge");
        }
        assert_eq!(held(&engine), before);
    }
}

#[tokio::test]
async fn a_question_whose_future_is_dropped_puts_back_what_it_took() {
    let store = Far::new();
    let engine = engine(&store, COUPLED);
    publish(&engine, "charge: all_or_nothing\n", &format!("{COUPLED}{STRICT}"));
    until_held(&engine).await;
    let before = held(&engine);
    assert!(at_once(&engine, &[("k", "v"), ("s", "v")], 1).is_none(), "the other has to be asked");
    assert_eq!(held(&engine), before);
}

#[tokio::test]
async fn two_leased_limits_that_are_charged_as_one_come_to_be_answered_here() {
    let store = Far::new();
    let limits = COUPLED.replace("key: k", "key: other").replace("1000", "500");
    let engine = engine(&store, COUPLED);
    publish(&engine, "charge: all_or_nothing\n", &format!("{COUPLED}{limits}"));
    let both = &[("k", "v"), ("other", "v")];
    let mut admitted = 0;
    for _ in 0..700 {
        admitted += u64::from(admits(&engine, both, 1).await);
    }
    assert!((450..=500).contains(&admitted), "{admitted}");
    assert!(store.calls() < 300, "{} calls", store.calls());
    let left = ask(&engine, K, 0).await.unwrap().statuses[0].finding.room.remaining.0;
    assert_eq!(left + admitted, 1000, "what the other denied was not charged here");
}

#[tokio::test]
async fn under_each_the_others_are_charged_though_one_denies() {
    let store = Far::new();
    let engine = engine(&store, &format!("{COUPLED}{STRICT}"));
    let both = &[("k", "v"), ("s", "v")];
    for asked in 1..=20_u64 {
        assert_eq!(admits(&engine, both, 1).await, asked <= 2);
    }
    assert_eq!(ask(&engine, K, 0).await.unwrap().statuses[0].finding.room.remaining, Hits(980));
}

#[tokio::test]
async fn a_shadow_limit_reports_and_a_quota_limit_denies_with_its_group() {
    let store = Far::new();
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
            !at_once(&engine, &[("k", name)], 2000).is_some_and(|a| a.verdict == Verdict::Deny)
        );
        assert!(admits(&engine, &[("k", name), ("q", name)], 1).await);
        let mut admitted = 1;
        for _ in 0..50 {
            let both = [("k", name), ("q", name), ("r", name)];
            admitted += u64::from(admits(&engine, &both, 1).await);
        }
        assert_eq!(admitted, 31, "as long as one of the group admits");
    }
}

#[tokio::test]
async fn what_is_held_is_spent_while_the_store_is_away_and_then_the_limits_word_counts() {
    for (word, after) in
        [("allow", Some(Verdict::Admit)), ("deny", Some(Verdict::Deny)), ("error", None)]
    {
        let store = Far::new();
        let limits =
            COUPLED.replace("unit: day", &format!("on_backend_failure: {word}, unit: day"));
        let engine = engine(&store, &limits);
        until_held(&engine).await;
        let held = held(&engine);
        store.is_away.store(true, Relaxed);
        for _ in 0..held {
            let answer = ask(&engine, K, 1).await.unwrap();
            assert_eq!(answer.statuses[0].finding.reason, Reason::WithinLimit);
        }
        assert_eq!(ask(&engine, K, 1).await.ok().map(|answer| answer.verdict), after, "{word}");
    }
}

#[tokio::test]
async fn a_question_for_more_than_is_held_leaves_what_is_held_while_nothing_can_be_sent() {
    for limits in [COUPLED, GCRA] {
        let store = Far::new();
        let limits = limits.replace("unit: day", "on_backend_failure: deny, unit: day");
        let engine = engine(&store, &limits);
        until_held(&engine).await;
        let before = held(&engine);
        store.is_cut_off.store(true, Relaxed);
        for _ in 0..3 {
            assert!(!admits(&engine, K, before + 1).await);
            assert_eq!(held(&engine), before);
        }
        for _ in 0..before {
            let answer = ask(&engine, K, 1).await.unwrap();
            assert_eq!(answer.statuses[0].finding.reason, Reason::WithinLimit);
        }
        assert!(!admits(&engine, K, 1).await);
        store.is_cut_off.store(false, Relaxed);
        assert!(admits(&engine, K, 1).await, "none is believed to be on its way");
    }
}

#[tokio::test]
async fn what_went_with_a_message_that_waited_and_was_never_sent_is_held_as_before() {
    for cause in [Cause::Overloaded, Cause::BreakerOpen] {
        let store = Far::new();
        let limits = GCRA.replace("unit: day", "on_backend_failure: deny, unit: day");
        let engine = engine(&store, &limits);
        until_held(&engine).await;
        let before = held(&engine);
        *store.refuses.lock() = Some(cause);
        assert!(!admits(&engine, K, before + 1).await);
        assert_eq!(held(&engine), before, "{cause:?}");
        *store.refuses.lock() = None;
        assert!(admits(&engine, K, before + 1).await, "none is believed to be on its way");
    }
}

#[tokio::test]
async fn what_cannot_be_given_back_while_nothing_can_be_sent_is_held_until_its_lease_is_over() {
    let store = Far::new();
    let engine = engine(&store, GCRA);
    until_held(&engine).await;
    let before = held(&engine);
    store.is_cut_off.store(true, Relaxed);
    // So long that whoever could would give back.
    for _ in 0..20 {
        pass(&engine, Nanos::SECOND);
        engine.leases().unwrap().tend().await;
        assert_eq!(held(&engine), before);
    }
    engine.leases().unwrap().give_back().await;
    assert_eq!(held(&engine), before);
    pass(&engine, Nanos::from_secs(10));
    assert_eq!(held(&engine), 0);
}

#[tokio::test]
async fn what_went_with_a_question_that_the_store_may_have_taken_is_not_held_any_more() {
    let store = Far::new();
    let engine = engine(&store, &GCRA.replace("unit: day", "on_backend_failure: deny, unit: day"));
    until_held(&engine).await;
    store.is_away.store(true, Relaxed);
    let more = held(&engine) + 1;
    assert!(!admits(&engine, K, more).await);
    assert_eq!(held(&engine), 0);
}

#[tokio::test]
async fn what_is_held_of_a_key_that_nobody_asks_for_goes_back() {
    let store = Far::new();
    let (one, other) = (engine(&store, GCRA), engine(&store, GCRA));
    let asked = until_held(&one).await;
    assert!(0 < held(&one));
    for _ in 0..40 {
        pass(&one, Nanos::SECOND);
        pass(&other, Nanos::SECOND);
        one.leases().unwrap().tend().await;
    }
    assert_eq!(held(&one), 0);
    assert_eq!(one.leases().unwrap().sum().keys, 0, "and is forgotten");
    assert!(admits(&other, K, 1000 - asked).await, "another has all that is left");
}

#[tokio::test]
async fn what_a_demand_that_has_fallen_will_not_ask_for_goes_back() {
    const DEMAND: u64 = 80;
    const SECONDS: u64 = 20;
    let store = Far::new();
    let (one, other) = (engine(&store, GCRA), engine(&store, GCRA));
    let mut asked = 0;
    while held(&one) < DEMAND {
        assert!(admits(&one, K, 1).await);
        asked += 1;
    }
    for _ in 0..SECONDS {
        pass(&one, Nanos::SECOND);
        pass(&other, Nanos::SECOND);
        assert!(admits(&one, K, 1).await);
        one.leases().unwrap().tend().await;
    }
    let kept = held(&one);
    assert!(0 < kept && kept <= (DEMAND - SECONDS) / 2, "{kept}");
    assert!(admits(&other, K, 1000 - asked - SECONDS - kept).await, "another has what is not held");
}

#[tokio::test]
async fn a_reload_that_changes_a_leased_limit_gives_back_and_one_that_does_not_keeps() {
    let store = Far::new();
    let engine = std::sync::Arc::new(engine(&store, COUPLED));
    let tending = tokio::spawn(engine.leases().unwrap().clone().tend_on());
    tokio::task::yield_now().await;
    until_held(&engine).await;
    let before = held(&engine);
    publish(&engine, "", &format!("{COUPLED}{STRICT}"));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(held(&engine), before);
    publish(&engine, "", &COUPLED.replace("1000", "900"));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(held(&engine), 0);
    tending.abort();
}

#[tokio::test]
async fn a_refund_goes_to_the_store_and_drops_a_denial() {
    let store = Far::new();
    let engine = engine(&store, COUPLED);
    assert!(admits(&engine, K, 1000).await && !admits(&engine, K, 1).await);
    let back = question(K, Cost::Refund(Hits(5)));
    assert_eq!(engine.decide(&back).await.unwrap().verdict, Verdict::Admit);
    let mut admitted = 0;
    for _ in 0..10 {
        admitted += u64::from(admits(&engine, K, 1).await);
    }
    assert_eq!(admitted, 4, "the window counted one that it denied");
}

#[tokio::test]
async fn ledgers_are_bounded_and_one_that_goes_gives_back() {
    let store = Far::new();
    let engine = engine(&store, COUPLED);
    let names: Vec<String> = (0..MOST_LEDGERS + 3_000).map(|name| name.to_string()).collect();
    for name in &names {
        let question = question(&[("k", name)], Cost::Charge(Hits(1)));
        for _ in 0..3 {
            assert_eq!(engine.decide(&question).await.unwrap().verdict, Verdict::Admit);
        }
    }
    let sum = engine.leases().unwrap().sum();
    assert!(sum.keys <= MOST_LEDGERS, "{sum:?}");
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    let keys = sum.keys;
    let gone = names.iter().take(100).filter(|name| {
        let peeked = at_once(&engine, &[("k", name)], 0);
        peeked.is_none()
    });
    let gone: Vec<_> = gone.collect();
    assert!(!gone.is_empty(), "{keys} keys");
    for name in gone {
        let answer = ask(&engine, &[("k", name)], 0).await.unwrap();
        assert_eq!(answer.statuses[0].finding.room.remaining, Hits(997), "nothing of it is parked");
    }
}

#[tokio::test]
async fn ledgers_of_long_keys_are_bounded_by_their_bytes() {
    const LONG: usize = 60_000;
    let engine = engine(&Far::new(), COUPLED);
    for name in 0..700 {
        let name = format!("{name:0LONG$}");
        let question = question(&[("k", &name)], Cost::Charge(Hits(1)));
        assert_eq!(engine.decide(&question).await.unwrap().verdict, Verdict::Admit);
    }
    let keys = engine.leases().unwrap().sum().keys;
    assert!(0 < keys && keys * LONG <= MOST_BYTES, "{keys} keys");
}

#[tokio::test]
async fn over_a_store_at_hand_a_leased_limit_is_strict() {
    let memory = std::sync::Arc::new(Memory::new(100, WhenFull::Deny, [7; 16]));
    let clock = sluicegate::clock::Clock::manual(super::NEW_YEAR);
    let engine =
        sluicegate::engine::Engine::new(clock, memory, sluicegate::engine::Policy::default());
    publish(&engine, "", GCRA);
    for asked in 1..=1_010 {
        assert_eq!(admits(&engine, K, 1).await, asked <= 1_000);
    }
    assert!(engine.leases().is_none());
}
