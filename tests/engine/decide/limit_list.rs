//! Tests of the list `rate_limits`: its limits count like those of separate descriptors.

use std::fmt::Write as _;
use std::sync::Arc;

use sluicegate::config::load;
use sluicegate::engine::{Decision, Engine};
use sluicegate::kernel::decision::{Check, Cost, Descriptor, LimitOverride, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision, Unit};

use crate::edge::engine;
use crate::support::dice::{Dice, seed};
use crate::support::engine::{advance_clock, end_forced_decision, force};

const STRATEGIES: [&str; 4] = ["fixed_window", "gcra", "sliding_window", "sliding_log"];
const TWO_LIMITS: &str = "- {key: k, rate_limits: [{unit: second, requests_per_unit: 2}, \
                          {unit: hour, requests_per_unit: 5}]}\n";

fn engine_of(charge: &str, descriptors: &str) -> Arc<Engine> {
    let text = format!("domain: d\ncharge: {charge}\ndescriptors:\n{descriptors}");
    engine(load([("f", text.as_bytes())], Revision(2), false).unwrap().0)
}

async fn ask(engine: &Engine, keys: &[&str], cost: Cost) -> Decision {
    engine.decide(&check(keys, cost, None)).await.unwrap()
}

fn check<'k>(keys: &[&'k str], cost: Cost, limit: Option<LimitOverride>) -> Check<'k> {
    let descriptor =
        |key: &&'k str| Descriptor { entries: smallvec::smallvec![(*key, "v")], cost, limit };
    Check { domain: "d", descriptors: keys.iter().map(descriptor).collect() }
}

async fn hit(engine: &Engine, hits: u64) -> Decision {
    ask(engine, &["k"], Cost::Charge(Hits(hits))).await
}

fn remaining(decision: &Decision) -> Vec<u64> {
    decision.all_limits().iter().map(|limit| limit.decision.headroom.remaining.0).collect()
}

/// The fields of each limit of a random list. The periods differ.
fn random_limits(dice: &mut Dice) -> Vec<String> {
    let periods = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day];
    let count = usize::try_from(1 + dice.up_to(3)).unwrap();
    let limits = periods.iter().take(count).map(|unit| {
        let (strategy, requests) = (dice.pick(&STRATEGIES), 1 + dice.up_to(9));
        let excess = if dice.once_in(4) { ", on_excess: charge" } else { "" };
        format!("unit: {unit}, requests_per_unit: {requests}, strategy: {strategy}{excess}")
    });
    limits.collect()
}

/// The law of lists: a check of the list decides as a check with one descriptor per limit.
#[tokio::test]
async fn a_list_decides_as_one_descriptor_per_limit() {
    let seed = seed();
    let mut dice = Dice::new(seed);
    for round in 0..60 {
        let (limits, charge) = (random_limits(&mut dice), dice.pick(&["each", "all_or_nothing"]));
        let (mut list, mut apart, mut keys) = (String::new(), String::new(), Vec::new());
        for (fields, key) in limits.iter().zip(["a", "b", "c", "e"]) {
            let _ = write!(list, "{{{fields}}}, ");
            let _ = writeln!(apart, "- {{key: {key}, rate_limit: {{{fields}}}}}");
            keys.push(key);
        }
        let listed = engine_of(charge, &format!("- {{key: k, rate_limits: [{list}]}}\n"));
        let separate = engine_of(charge, &apart);
        for step in 0..60 {
            let hits = Hits(dice.up_to(4));
            let cost = if dice.once_in(9) { Cost::Refund(hits) } else { Cost::Charge(hits) };
            let (one, many) = (ask(&listed, &["k"], cost).await, ask(&separate, &keys, cost).await);
            let context = format!("seed {seed}, {round}/{step} {charge}: {list} {cost:?}");
            assert_eq!(one.verdict, many.verdict, "{context}");
            assert_eq!(one.retry_after, many.retry_after, "{context}");
            assert_eq!(remaining(&one), remaining(&many), "{context}");
            assert_eq!(one.statuses.len(), 1, "{context}");
            let is_denied = one.statuses[0].decision.verdict == Verdict::Deny;
            assert_eq!(is_denied, one.verdict == Verdict::Deny, "{context}");
            let pause = Nanos(dice.pick(&[0, 1_000_000, 700_000_000, 40_000_000_000]));
            advance_clock(&listed, pause);
            advance_clock(&separate, pause);
        }
    }
}

#[tokio::test]
async fn the_status_is_that_of_the_tightest_limit() {
    let engine = engine_of("each", TWO_LIMITS);
    let shown = |decision: &Decision| {
        let status = &decision.statuses[0].decision;
        let name = status.limit.as_ref().unwrap().name.as_deref().unwrap().to_owned();
        (name, status.headroom.remaining.0, decision.verdict)
    };
    // Remaining per second and per hour: 1 and 4, then 0 and 3, then denied and 2.
    for expected in [(1, Verdict::Allow), (0, Verdict::Allow), (0, Verdict::Deny)] {
        let (remaining, verdict) = expected;
        let right = ("per-second".to_owned(), remaining, verdict);
        assert_eq!(shown(&hit(&engine, 1).await), right);
    }
    advance_clock(&engine, Nanos::SECOND);
    assert_eq!(shown(&hit(&engine, 2).await), ("per-hour".to_owned(), 0, Verdict::Allow));
    // Both deny with nothing left: the reset of the longer one matters.
    let denied = hit(&engine, 1).await;
    assert_eq!(shown(&denied), ("per-hour".to_owned(), 0, Verdict::Deny));
    assert_eq!(denied.retry_after, Some(Nanos::from_secs(3_599)));
    assert_eq!(denied.binding, Some(0));
}

#[tokio::test]
async fn other_descriptors_keep_their_places_beside_a_list() {
    let limits =
        format!("{TWO_LIMITS}- {{key: o, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n");
    let engine = engine_of("each", &limits);
    let decision = ask(&engine, &["none", "o", "k", "o", "k"], Cost::Charge(Hits(1))).await;
    let remaining = decision.statuses.iter().map(|status| status.decision.headroom.remaining.0);
    assert_eq!(remaining.collect::<Vec<_>>(), [0, 8, 1, 7, 0]);
    assert_eq!(decision.statuses[0].decision.reason, Reason::NoLimit);
    assert_eq!(decision.binding, Some(4));
}

#[tokio::test]
async fn all_or_nothing_charges_no_limit_of_a_list_if_one_denies() {
    let engine = engine_of("all_or_nothing", TWO_LIMITS);
    hit(&engine, 2).await;
    assert_eq!(hit(&engine, 1).await.verdict, Verdict::Deny);
    assert_eq!(remaining(&hit(&engine, 0).await), [0, 3]);
    let each = engine_of("each", TWO_LIMITS);
    hit(&each, 2).await;
    assert_eq!(hit(&each, 1).await.verdict, Verdict::Deny);
    assert_eq!(remaining(&hit(&each, 0).await), [0, 2], "the hour is charged");
}

#[tokio::test]
async fn a_quota_list_denies_if_one_of_its_limits_denies() {
    let quota = TWO_LIMITS.replace("key: k", "key: k, quota_mode: true");
    let other = "- {key: o, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 4}}\n";
    let engine = engine_of("each", &format!("{quota}{other}"));
    hit(&engine, 2).await;
    let both = ask(&engine, &["k", "o"], Cost::Charge(Hits(1))).await;
    assert_eq!(both.verdict, Verdict::Allow, "the other quota limit allows");
    assert_eq!(both.statuses[0].decision.verdict, Verdict::Deny);
    // 3 and 4 hits are counted per hour, so the denial lasts one second.
    let alone = hit(&engine, 1).await;
    assert_eq!((alone.verdict, alone.retry_after), (Verdict::Deny, Some(Nanos::SECOND)));
}

#[tokio::test]
async fn shadow_mode_and_forced_decisions_apply_to_the_whole_list() {
    let shadow = engine_of("each", &TWO_LIMITS.replace("key: k", "key: k, shadow_mode: true"));
    for _ in 0..9 {
        assert_eq!(hit(&shadow, 1).await.verdict, Verdict::Allow);
    }
    let engine = engine_of("each", TWO_LIMITS);
    let descriptor: (&str, &[(&str, &str)]) = ("d", &[("k", "v")]);
    let forced = force(&engine, descriptor, Verdict::Deny, Nanos::from_secs(60));
    assert_eq!(forced.limit.as_deref(), Some("d.k"));
    let denied = hit(&engine, 1).await;
    assert_eq!((denied.verdict, denied.statuses.len()), (Verdict::Deny, 1));
    assert_eq!(denied.statuses[0].decision.reason, Reason::Forced);
    end_forced_decision(&engine, ("d", &[("k", "v")]));
    assert_eq!(remaining(&hit(&engine, 0).await), [2, 5], "nothing was counted");
}

#[tokio::test]
async fn a_peek_denies_if_one_limit_has_no_hits_left() {
    let engine = engine_of("each", TWO_LIMITS);
    hit(&engine, 2).await;
    let peek =
        async || engine.peek(check(&["k"], Cost::Charge(Hits(1)), None), None).await.unwrap();
    let denied = peek().await;
    assert_eq!((denied.verdict, denied.retry_after), (Verdict::Deny, Some(Nanos::SECOND)));
    assert_eq!((denied.statuses.len(), remaining(&denied)), (1, vec![0, 3]));
    advance_clock(&engine, Nanos::SECOND);
    assert_eq!(peek().await.verdict, Verdict::Allow);
}

#[tokio::test]
async fn a_limit_in_the_request_replaces_the_whole_list() {
    let engine = engine_of("each", TWO_LIMITS);
    let limit = Some(LimitOverride { requests: 9, unit: Unit::Day });
    let decision = engine.decide(&check(&["k"], Cost::Charge(Hits(7)), limit)).await.unwrap();
    assert_eq!((decision.verdict, remaining(&decision)), (Verdict::Allow, vec![2]));
    assert_eq!(remaining(&hit(&engine, 0).await), [2, 5]);
}

#[tokio::test]
async fn replaces_disables_the_named_limit_of_a_list() {
    let replacing = "- {key: o, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: \
                     per-second}]}}\n";
    let engine = engine_of("each", &format!("{TWO_LIMITS}{replacing}"));
    let decision = ask(&engine, &["k", "o"], Cost::Charge(Hits(3))).await;
    assert_eq!(decision.verdict, Verdict::Allow, "3 of 5 per hour");
    assert_eq!(decision.statuses[0].decision.headroom.remaining, Hits(2));
    assert_eq!(remaining(&hit(&engine, 0).await), [2, 2]);
    let denied = ask(&engine, &["k", "o"], Cost::Charge(Hits(3))).await;
    assert_eq!((denied.verdict, denied.denied_by.as_deref()), (Verdict::Deny, Some("d.k")));
}

#[tokio::test]
async fn a_denial_in_shadow_mode_is_tighter_than_fewer_remaining_hits() {
    let list = "- {key: k, shadow_mode: true, rate_limits: [{unit: second, requests_per_unit: 5, \
                strategy: gcra}, {unit: hour, requests_per_unit: 13}]}\n";
    let decision = hit(&engine_of("each", list), 10).await;
    assert_eq!((decision.verdict, remaining(&decision)), (Verdict::Allow, vec![5, 3]));
    assert!(decision.statuses[0].decision.is_denied);
}
