//! `mode: cached_deny`: a remembered denial needs no store call until its retry-after.
//!
//! The replica's clock is manual. Redis uses real time, and no window or debt ends during a test.

use std::sync::Arc;

use sluicegate::config::load;
use sluicegate::engine::Decision;
use sluicegate::kernel::decision::{Check, Cost, DescriptorDecision, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision};

use super::fallback::new_check;
use super::wrong_clocks::{Connected, connected};
use super::{check as check_service, metric, serve, wait_until_ready};
use crate::support::redis::Redis;
use crate::support::waiting::until;

const RULES: &str = "domain: d
descriptors:
- {key: cached, rate_limit: {unit: day, requests_per_unit: 10, mode: cached_deny}}
- {key: other, rate_limit: {unit: day, requests_per_unit: 10, mode: cached_deny}}
- {key: debt, rate_limit: {per: 100d, requests_per_unit: 10, strategy: gcra, mode: cached_deny}}
- {key: log, rate_limit: {per: 100d, requests_per_unit: 10, strategy: sliding_log, mode: cached_deny}}
- {key: tokens, rate_limit: {per: 100d, requests_per_unit: 10, strategy: gcra, mode: cached_deny, on_excess: charge}}
- {key: strict, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 10, mode: cached_deny}}
- {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 10, mode: cached_deny}}
";

const DAY: Nanos = Nanos::from_secs(86_400);

async fn decide(connected: &Connected, check: &Check<'_>) -> Decision {
    connected.engine.decide(check).await.unwrap()
}

async fn check(
    connected: &Connected,
    keys: &[&str],
    hits: u64,
) -> (Verdict, Vec<DescriptorDecision>) {
    let decision = decide(connected, &new_check(keys, hits)).await;
    (decision.verdict, decision.statuses.into_iter().map(|status| status.decision).collect())
}

async fn refund(connected: &Connected, key: &str, hits: u64) {
    let mut asked = new_check(&[key], hits);
    asked.descriptors[0].cost = Cost::Refund(Hits(hits));
    decide(connected, &asked).await;
}

fn script_calls(store: &Redis) -> u64 {
    let stats = store.command(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

fn advance(connected: &Connected, by: Nanos) {
    let sluicegate::clock::Clock::Manual(clock) = connected.engine.clock() else { panic!() };
    clock.advance(by);
}

async fn assert_denied_without_call(on: &Connected, key: &str, hits: u64) -> DescriptorDecision {
    let before = script_calls(&on.store);
    let (verdict, mut found) = check(on, &[key], hits).await;
    assert_eq!((verdict, found[0].reason), (Verdict::Deny, Reason::OverLimit), "{key} {hits}");
    assert_eq!(script_calls(&on.store), before, "{key} {hits}");
    found.remove(0)
}

async fn assert_one_call(on: &Connected, key: &str, hits: u64) -> DescriptorDecision {
    let before = script_calls(&on.store);
    let (_, mut found) = check(on, &[key], hits).await;
    assert_eq!(script_calls(&on.store), before + 1, "{key} {hits}");
    found.remove(0)
}

async fn exhaust(on: &Connected, key: &str) -> DescriptorDecision {
    assert_eq!(assert_one_call(on, key, 10).await.verdict, Verdict::Allow);
    assert_one_call(on, key, 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_denials_need_no_store_call_and_count_down_retry_after() {
    let on = connected(RULES);
    for key in ["cached", "debt", "log"] {
        let first = exhaust(&on, key).await;
        for _ in 0..100 {
            let again = assert_denied_without_call(&on, key, 1).await;
            assert_eq!(again.retry_after, first.retry_after);
            assert_eq!(again.headroom, first.headroom);
        }
        advance(&on, Nanos::from_secs(1));
        let later = assert_denied_without_call(&on, key, 1).await;
        assert_eq!(later.retry_after.map(|left| left.plus(Nanos::SECOND)), first.retry_after);
        assert_eq!(later.headroom.reset_after.plus(Nanos::SECOND), first.headroom.reset_after);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_denial_applies_to_checks_of_equal_or_more_hits() {
    let on = connected(RULES);
    assert_eq!(assert_one_call(&on, "debt", 8).await.verdict, Verdict::Allow);
    let five = assert_one_call(&on, "debt", 5).await;
    assert_eq!((five.verdict, five.headroom.remaining), (Verdict::Deny, Hits(2)));
    assert_eq!(assert_denied_without_call(&on, "debt", 5).await.headroom.remaining, Hits(2));
    let six = assert_denied_without_call(&on, "debt", 6).await;
    let hit = Nanos(10 * DAY.0);
    assert_eq!(six.retry_after, five.retry_after.map(|wait| wait.plus(hit)), "one hit in ten days");
    let never = check(&on, &["debt"], 11).await.1.remove(0);
    assert_eq!((never.reason, never.retry_after), (Reason::LargerThanLimit, None));
    assert_eq!(assert_one_call(&on, "debt", 0).await.verdict, Verdict::Allow);
    assert_eq!(assert_one_call(&on, "debt", 2).await.verdict, Verdict::Allow);
    exhaust(&on, "cached").await;
    assert_one_call(&on, "cached", 0).await;
    assert_eq!(assert_one_call(&on, "log", 8).await.verdict, Verdict::Allow);
    assert_one_call(&on, "log", 5).await;
    assert_denied_without_call(&on, "log", 5).await;
    assert_eq!(
        assert_one_call(&on, "log", 6).await.verdict,
        Verdict::Deny,
        "how long is not known"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn excess_hits_are_charged_despite_a_cached_denial() {
    let on = connected(RULES);
    assert_eq!(assert_one_call(&on, "tokens", 0).await.verdict, Verdict::Allow);
    assert_one_call(&on, "tokens", 12).await;
    let first = assert_one_call(&on, "tokens", 0).await;
    let (wait, most) = (first.retry_after.unwrap(), Nanos(30 * DAY.0));
    assert!(Nanos(most.0 - DAY.0) < wait && wait <= most, "three hits of ten days each: {wait}");
    assert_denied_without_call(&on, "tokens", 0).await;
    assert_one_call(&on, "tokens", 1).await;
    advance(&on, most);
    assert_denied_without_call(&on, "tokens", 0).await;
    advance(&on, Nanos(10 * DAY.0));
    assert_one_call(&on, "tokens", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_denial_ends_exactly_at_retry_after() {
    for charge in ["each", "all_or_nothing"] {
        let on = connected(&format!("charge: {charge}\n{RULES}"));
        for key in ["cached", "debt"] {
            let wait = exhaust(&on, key).await.retry_after.unwrap();
            advance(&on, Nanos(wait.0 - 1));
            assert_denied_without_call(&on, key, 1).await;
            advance(&on, Nanos(1));
            assert_one_call(&on, key, 1).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_and_refunds_clear_cached_denials() {
    let on = connected(RULES);
    exhaust(&on, "cached").await;
    assert_denied_without_call(&on, "cached", 1).await;
    let more = RULES.replace("requests_per_unit: 10", "requests_per_unit: 20");
    let config = load([("d.yaml", more.as_bytes())], Revision(2), false).unwrap().0;
    on.engine.publish(Arc::new(config));
    assert_eq!(assert_one_call(&on, "cached", 1).await.verdict, Verdict::Allow);
    assert_one_call(&on, "cached", 9).await;
    assert_denied_without_call(&on, "cached", 9).await;
    refund(&on, "cached", 5).await;
    advance(&on, Nanos(1));
    let asked = assert_one_call(&on, "cached", 4).await;
    assert_eq!(asked.verdict, Verdict::Allow, "12 counted and 9 denied, 5 back, 4 make 20");
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_limit_calls_the_store_every_time() {
    let on = connected(RULES);
    exhaust(&on, "strict").await;
    for _ in 0..10 {
        assert_eq!(assert_one_call(&on, "strict", 1).await.verdict, Verdict::Deny);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_denial_still_charges_the_other_limits() {
    let on = connected(RULES);
    exhaust(&on, "cached").await;
    exhaust(&on, "shadow").await;
    for left in [9, 8, 7] {
        let before = script_calls(&on.store);
        let (verdict, found) = check(&on, &["cached", "strict", "shadow"], 1).await;
        assert_eq!(verdict, Verdict::Deny);
        let reasons: Vec<_> = found.iter().map(|one| one.reason).collect();
        assert_eq!(reasons, [Reason::OverLimit, Reason::WithinLimit, Reason::OverLimit]);
        assert_eq!(found[1].headroom.remaining, Hits(left));
        assert_eq!(found[2].verdict, Verdict::Allow, "shadow");
        assert_eq!(script_calls(&on.store), before + 1);
    }
    let before = script_calls(&on.store);
    assert_eq!(check(&on, &["cached", "shadow"], 1).await.0, Verdict::Deny);
    assert_eq!(check(&on, &["shadow"], 1).await.0, Verdict::Allow);
    assert_eq!(script_calls(&on.store), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_denial_decides_an_all_or_nothing_check_without_the_store() {
    let on = connected(&format!("charge: all_or_nothing\n{RULES}"));
    for key in ["cached", "shadow", "quota"] {
        exhaust(&on, key).await;
    }
    let before = script_calls(&on.store);
    let (verdict, found) = check(&on, &["strict", "cached", "shadow"], 1).await;
    assert_eq!(verdict, Verdict::Deny);
    let reasons: Vec<_> = found.iter().map(|one| one.reason).collect();
    assert_eq!(reasons, [Reason::Skipped, Reason::OverLimit, Reason::OverLimit]);
    assert!(found[0].limit.is_none() && found[1].limit.is_some());
    assert_eq!(script_calls(&on.store), before);
    // A cached denial of a shadow or quota limit alone cannot deny the check, so the store decides
    // the check.
    assert_eq!(check(&on, &["strict", "shadow"], 1).await.0, Verdict::Allow);
    assert_eq!(check(&on, &["strict", "quota"], 1).await.0, Verdict::Deny);
    assert_eq!(check(&on, &["other", "quota"], 1).await.0, Verdict::Deny);
    assert_eq!(script_calls(&on.store), before + 3);
    let left = check(&on, &["strict"], 0).await.1[0].headroom.remaining;
    assert_eq!(left, Hits(9), "only the question that was admitted was charged");
}

#[tokio::test(flavor = "multi_thread")]
async fn denial_of_a_counter_charged_twice_in_a_check_is_not_cached() {
    let on = connected(&format!("charge: all_or_nothing\n{RULES}"));
    assert_eq!(check(&on, &["cached"], 9).await.0, Verdict::Allow);
    assert_eq!(check(&on, &["cached", "cached"], 1).await.0, Verdict::Deny, "one is left for two");
    assert_eq!(check(&on, &["cached"], 1).await.0, Verdict::Allow);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_charges_beside_a_forced_denial_cache_no_denial() {
    let on = connected(&format!("charge: all_or_nothing\n{RULES}"));
    assert_eq!(check(&on, &["cached"], 9).await.0, Verdict::Allow);
    let minute = Nanos::from_secs(60);
    crate::support::engine::force(&on.engine, ("d", &[("strict", "v")]), Verdict::Deny, minute);
    let (verdict, found) = check(&on, &["strict", "cached", "cached"], 1).await;
    assert_eq!(verdict, Verdict::Deny);
    assert_eq!(found[2].reason, Reason::OverLimit, "one is left for two");
    assert_eq!(check(&on, &["cached"], 1).await.0, Verdict::Allow);
    assert_eq!(check(&on, &["strict", "cached"], 1).await.1[1].verdict, Verdict::Deny);
    assert_denied_without_call(&on, "cached", 1).await;
}

#[test]
fn a_denied_client_succeeds_at_retry_after() {
    let store = Redis::start();
    let limits = tempfile::tempdir().unwrap();
    let text = "domain: d\ndescriptors:\n- {key: k, rate_limit: {per: 400ms, requests_per_unit: 1, \
                strategy: gcra, mode: cached_deny}}\n";
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    let service = serve(limits.path(), &store.url(), &["--store-timeout", "5s"]);
    wait_until_ready(&service);
    let mut admitted = 0;
    until("it passes twice more", || {
        admitted += u32::from(check_service(&service, "k", "v") == 200);
        if admitted < 3 { Err(admitted.to_string()) } else { Ok(()) }
    })
    .unwrap();
    assert!(0 < metric(&service, "sluicegate_cached_denials_total"));
}
