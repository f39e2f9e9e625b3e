//! Tests of `Retry-After`: without other traffic, a denied check succeeds if it is repeated at that
//! time.

use std::fmt::Write as _;
use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::engine::{Decision, Engine};
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision};

use crate::edge::engine;
use crate::support::dice::{Dice, seed};

const STRATEGIES: [&str; 4] = ["fixed_window", "gcra", "sliding_window", "sliding_log"];

/// An engine whose limits file has the descriptors `limits` (YAML). The clock is at the start of a
/// minute.
fn engine_of(limits: &str) -> Arc<Engine> {
    let text = format!("domain: d\ndescriptors:\n{limits}");
    engine(load([("f", text.as_bytes())], Revision(2), false).unwrap().0)
}

fn advance(engine: &Engine, by: Nanos) {
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(by);
}

async fn ask(engine: &Engine, descriptors: &[(&str, Cost)]) -> Decision {
    let descriptors = descriptors.iter().map(|&(key, cost)| Descriptor {
        entries: smallvec::smallvec![(key, "v")],
        cost,
        limit: None,
    });
    let question = Check { domain: "d", descriptors: descriptors.collect() };
    engine.decide(&question).await.unwrap()
}

async fn hit(engine: &Engine, descriptors: &[(&str, u64)]) -> Decision {
    let costs = descriptors.iter().map(|&(key, hits)| (key, Cost::Charge(Hits(hits))));
    ask(engine, &costs.collect::<Vec<_>>()).await
}

/// The limit `a` allows one hit a minute, and `b` one a second. Another client uses up `b`; 0.1 s
/// later, a check of both is denied. Returns its decision.
async fn after_a_is_charged_and_b_denies(strategy: &str) -> (Arc<Engine>, Decision) {
    let engine = engine_of(&format!(
        "- {{key: a, rate_limit: {{unit: minute, requests_per_unit: 1, strategy: {strategy}}}}}\n\
         - {{key: b, rate_limit: {{unit: second, requests_per_unit: 1}}}}\n"
    ));
    assert_eq!(hit(&engine, &[("b", 1)]).await.verdict, Verdict::Allow);
    advance(&engine, Nanos(100_000_000));
    let denied = hit(&engine, &[("a", 1), ("b", 1)]).await;
    assert_eq!(denied.verdict, Verdict::Deny);
    assert_eq!(denied.statuses[0].decision.verdict, Verdict::Allow, "it is charged");
    (engine, denied)
}

#[tokio::test]
async fn retry_after_covers_hits_charged_by_the_denied_check() {
    // Retry-after of each strategy: the rest of the minute; 60 s; the rest of this minute and all
    // of the next; 60 s.
    let waits = [59_900, 60_000, 119_900, 60_000].map(|millis: u64| Nanos(millis * 1_000_000));
    for (strategy, wait) in STRATEGIES.into_iter().zip(waits) {
        let (engine, denied) = after_a_is_charged_and_b_denies(strategy).await;
        assert_eq!(denied.retry_after, Some(wait), "{strategy}");
        advance(&engine, wait);
        let again = hit(&engine, &[("a", 1), ("b", 1)]).await;
        assert_eq!(again.verdict, Verdict::Allow, "{strategy}");
        let (engine, _) = after_a_is_charged_and_b_denies(strategy).await;
        advance(&engine, Nanos(wait.0 - 1_000));
        let early = hit(&engine, &[("a", 1), ("b", 1)]).await;
        assert_eq!(early.verdict, Verdict::Deny, "{strategy}");
    }
}

#[tokio::test]
async fn hits_above_the_limit_have_no_retry_after() {
    for strategy in STRATEGIES {
        let limits = format!(
            "- {{key: k, rate_limit: {{unit: second, requests_per_unit: 3, strategy: {strategy}}}}}\n"
        );
        for twins in [&[("k", 2), ("k", 2)][..], &[("k", 1), ("k", 1), ("k", 2)]] {
            let denied = hit(&engine_of(&limits), twins).await;
            assert_eq!((denied.verdict, denied.retry_after), (Verdict::Deny, None), "{strategy}");
        }
        // These hits are within the limit, but not together with another client's hit.
        let engine = engine_of(&limits);
        hit(&engine, &[("k", 1)]).await;
        let denied = hit(&engine, &[("k", 2), ("k", 1)]).await;
        assert_eq!(denied.verdict, Verdict::Deny, "{strategy}");
        advance(&engine, denied.retry_after.unwrap());
        let again = hit(&engine, &[("k", 2), ("k", 1)]).await;
        assert_eq!(again.verdict, Verdict::Allow, "{strategy}");
    }
}

#[tokio::test]
async fn retry_after_ignores_shadow_limits_and_waits_for_one_quota_limit() {
    let minute = "rate_limit: {unit: minute, requests_per_unit: 1}";
    let engine = engine_of(&format!(
        "- {{key: quota, quota_mode: true, {minute}}}\n- {{key: shadow, shadow_mode: true, {minute}}}\n\
         - {{key: second, rate_limit: {{unit: second, requests_per_unit: 1}}}}\n"
    ));
    hit(&engine, &[("second", 1)]).await;
    let shadow = hit(&engine, &[("shadow", 1), ("second", 1)]).await;
    assert_eq!(shadow.retry_after, Some(Nanos::SECOND));
    let quota = hit(&engine, &[("quota", 1), ("second", 1)]).await;
    assert_eq!(quota.retry_after, Some(Nanos::from_secs(60)));
    advance(&engine, Nanos::from_secs(60));
    let again = hit(&engine, &[("quota", 1), ("second", 1)]).await;
    assert_eq!(again.verdict, Verdict::Allow);
}

fn limits(dice: &mut Dice) -> String {
    let mut text = String::new();
    for key in ["a", "b", "c"] {
        let [requests, seconds] = [dice.up_to(4) + 1, dice.pick(&[1, 7, 60])];
        let standing = dice.pick(&["", "", "", "quota_mode: true, ", "shadow_mode: true, "]);
        let strategy = dice.pick(&STRATEGIES);
        let limit = format!("requests_per_unit: {requests}, per: {seconds}s, strategy: {strategy}");
        writeln!(text, "- {{key: {key}, {standing}rate_limit: {{{limit}}}}}").unwrap();
    }
    text
}

/// Draws a check with one to three descriptors, possibly of the same counter.
fn draw_check(dice: &mut Dice) -> Vec<(&'static str, Cost)> {
    let mut descriptor = || {
        let hits = Hits(dice.up_to(3));
        let cost = if dice.once_in(8) { Cost::Refund(hits) } else { Cost::Charge(hits) };
        (dice.pick(&["a", "b", "c", "unknown"]), cost)
    };
    let most = [descriptor(), descriptor(), descriptor()];
    most[..dice.pick(&[1, 2, 3])].into()
}

#[tokio::test]
async fn a_denied_check_succeeds_at_retry_after_or_never() {
    let first = seed();
    let (mut passed, mut never) = (0, 0);
    for seed in (0..400).map(|offset| first.wrapping_add(offset)) {
        let mut dice = Dice::new(seed);
        let limits = limits(&mut dice);
        let engine = engine_of(&limits);
        for _ in 0..20 {
            advance(&engine, Nanos(dice.up_to(2_000_000_000)));
            let asked = draw_check(&mut dice);
            let answer = ask(&engine, &asked).await;
            if answer.verdict == Verdict::Allow {
                continue;
            }
            // After ten minutes, all counters of this test are empty.
            let wait = answer.retry_after.unwrap_or(Nanos::from_secs(600));
            advance(&engine, wait);
            let again = ask(&engine, &asked).await.verdict;
            let retry_after = answer.retry_after;
            let expected = if retry_after.is_some() { Verdict::Allow } else { Verdict::Deny };
            assert_eq!(
                again, expected,
                "SLUICEGATE_SEED={seed}: {retry_after:?} {asked:?}\n{limits}"
            );
            if retry_after.is_some() { passed += 1 } else { never += 1 }
        }
    }
    assert!(0 < passed && 0 < never, "{passed} passed, {never} never, from {first}");
}
