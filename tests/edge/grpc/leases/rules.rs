//! Tests of the rules that proxies receive.

use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::config::action::{ActionEffect, BoostSize};
use sluicegate::engine::actions::ActionKind;
use sluicegate::engine::{DecisionPolicy, Engine, KeyNaming, PlanSettings};
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate_lease_protocol as wire;
use sluicegate_lease_protocol::api::lease_sizes::Sizes;
use sluicegate_lease_protocol::api::leased_limit::OnFailure;
use sluicegate_lease_protocol::api::rate_strategy::Kind;
use sluicegate_lease_protocol::api::rule_reply::Handling;
use sluicegate_lease_protocol::api::{LeaseSizes, LeasedLimit, RateStrategy, RuleReply};

use super::client::{LEASED, ProxyStream, entries, serve};
use crate::edge::empty_engine;
use crate::support::engine::{advance_clock, allow_everything, force, publish, try_act};

const LEASE: &str = "unit: day, requests_per_unit: 100, mode: leased, max_overshoot: 20";

/// A day in nanoseconds.
const DAY_NS: u64 = 86_400_000_000_000;

async fn handling(fields: &str, descriptors: &str, of: &[(&str, &str)]) -> Handling {
    let engine = empty_engine();
    publish(&engine, fields, descriptors);
    let served = serve(&engine).await;
    ProxyStream::open(&served, 7).await.rule("d", of).await.handling()
}

#[tokio::test]
async fn a_leased_rule_has_its_counter_and_all_numbers() {
    let engine = empty_engine();
    let descriptors = format!(
        "- key: k\n  rate_limit: {{{LEASE}, on_store_failure: deny}}\n\
         - key: p\n  value: a*\n  share_threshold: true\n  shadow_mode: true\n  rate_limit: {{{LEASE}, strategy: gcra, burst: 50}}\n"
    );
    publish(&engine, "", &descriptors);
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    let rule = proxy.rule("d", &[("k", "v")]).await;
    assert_eq!((rule.handling(), &*rule.rule, rule.shadow), (Handling::Leased, "d.k", false));
    assert_eq!((rule.valid_for_us, rule.any_values), (None, false));
    assert_eq!(rule.counter, entries(&[("k", "v")]));
    let strategy = RateStrategy {
        kind: Kind::FixedWindow.into(),
        hits: 100,
        period_ns: DAY_NS,
        ..RateStrategy::default()
    };
    let limit = LeasedLimit {
        name: String::new(),
        requests: 100,
        period_ns: DAY_NS,
        strategy: Some(strategy),
        max_overshoot: Some(20),
        duration_us: 30_000_000,
        sizes: Some(LeaseSizes { sizes: Some(Sizes::Learned(true)) }),
        on_failure: OnFailure::Deny.into(),
    };
    assert_eq!(rule.leased, [limit]);
    let shared = proxy.rule("d", &[("p", "abc")]).await;
    assert_eq!((shared.handling(), shared.shadow), (Handling::Leased, true));
    assert_eq!(shared.counter, entries(&[("p", "a*")]));
    let strategy = shared.leased[0].strategy.as_ref().unwrap();
    let want = Gcra::new(100, Nanos(DAY_NS), 50).unwrap();
    assert_eq!(wire::strategy(strategy), Some(Strategy::Gcra(want)));
}

/// Proxies with addresses of one network share its counter.
#[tokio::test]
async fn a_leased_network_has_the_counter_of_its_prefix() {
    let engine = empty_engine();
    let descriptors = format!(
        "- {{key: ip, network: 2001:db8::/32, counter_per: /64, rate_limit: {{{LEASE}}}}}\n\
         - {{key: ip, rate_limit: {{{LEASE}}}}}\n"
    );
    publish(&engine, "", &descriptors);
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    for (value, rule, counter) in [
        ("2001:DB8:1:2::3", "d.ip_2001:db8::/32", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::/64", "d.ip_2001:db8::/32", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "d.ip", "192.0.2.7"),
    ] {
        let reply = proxy.rule("d", &[("ip", value)]).await;
        assert_eq!((reply.handling(), &*reply.rule), (Handling::Leased, rule), "{value}");
        assert_eq!(reply.counter, entries(&[("ip", counter)]), "{value}");
    }
}

#[tokio::test]
async fn rules_that_depend_on_others_are_asked() {
    let limit = format!("rate_limit: {{{LEASE}}}");
    let one = |fields: &str| format!("- {{key: k, {fields}}}\n");
    let named = "{key: k, rate_limit: {unit: day, requests_per_unit: 1, name: x}}";
    let replacing = format!("{{key: r, rate_limit: {{{LEASE}, replaces: [{{name: x}}]}}}}");
    let both = format!("- {named}\n- {replacing}\n");
    let strict = one("rate_limit: {unit: day, requests_per_unit: 100}");
    let unlimited = one("rate_limit: {unlimited: true}");
    let concurrent = one(&format!("{limit}, concurrency: {{limit: 3}}"));
    let lists = format!(
        "rate_limits: [{{{LEASE}, name: a}}, {{unit: hour, requests_per_unit: 9, name: b}}]"
    );
    let penalty = "penalty: {after: 1, within: 1m, for: 1m}";
    let banning = limit.replacen("unit:", &format!("{penalty}, unit:"), 1);
    let cases = [
        ("", one(&limit), "k", Handling::Leased),
        ("", one(&limit), "other", Handling::Unlimited),
        ("", unlimited, "k", Handling::Unlimited),
        ("", strict, "k", Handling::Ask),
        ("", concurrent, "k", Handling::Leased),
        ("", one("concurrency: {limit: 3}"), "k", Handling::Unlimited),
        ("", one(&lists), "k", Handling::Ask),
        ("", one(&format!("quota_mode: true, {limit}")), "k", Handling::AskTogether),
        ("", one(&banning), "k", Handling::AskTogether),
        ("", both.clone(), "k", Handling::AskTogether),
        ("", both, "r", Handling::AskTogether),
        ("charge: all_or_nothing\n", one(&limit), "k", Handling::AskTogether),
    ];
    for (fields, descriptors, key, want) in cases {
        let got = handling(fields, &descriptors, &[(key, "v")]).await;
        assert_eq!(got, want, "{fields}{descriptors}{key}");
    }
}

#[tokio::test]
async fn any_values_is_true_only_if_no_value_matches() {
    let engine = empty_engine();
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let descriptors = format!(
        "- {{key: exact, value: a, {limit}}}\n\
         - {{key: pattern, value: 'a*', {limit}}}\n\
         - {{key: under, value: score_a, {limit}}}\n\
         - key: outer\n  descriptors:\n  - {{key: inner, {limit}}}\n\
         - {{key: busy, value: a, concurrency: {{limit: 3}}}}\n"
    );
    publish(&engine, "", &descriptors);
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    for (of, want) in [
        (&[("none", "b")][..], true),
        (&[("exact", "b")], false),
        (&[("pattern", "b")], false),
        // `under` and `score_a`, as `under_score` and `a`.
        (&[("under_score", "b")], false),
        (&[("outer", "b")], true),
        (&[("outer", "b"), ("none", "b")], true),
        (&[("inner", "b")], true),
        (&[("busy", "b")], false),
    ] {
        let rule = proxy.rule("d", of).await;
        assert_eq!((rule.handling(), rule.any_values), (Handling::Unlimited, want), "{of:?}");
    }
    let matched = proxy.rule("d", &[("outer", "b"), ("inner", "b")]).await;
    assert_eq!((matched.handling(), matched.any_values), (Handling::Ask, false));
    assert!(proxy.rule("unknown", &[("exact", "a")]).await.any_values);
}

#[tokio::test]
async fn without_limits_a_proxy_asks() {
    let served = serve(&empty_engine()).await;
    let rule = ProxyStream::open(&served, 7).await.rule("d", &[("k", "v")]).await;
    assert_eq!((rule.handling(), rule.limits), (Handling::Ask, 0));
}

#[tokio::test]
async fn forced_decisions_and_boosts_are_valid_until_their_end() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    let key: &[_] = &[("k", "v")];
    let boost = (ActionKind::BoostKey, ActionEffect::Boost(BoostSize::Factor(2)));
    try_act(&engine, ("d", key), boost, Nanos::from_secs(60)).unwrap();
    let rule = proxy.rule("d", key).await;
    assert_eq!((rule.handling(), rule.valid_for_us), (Handling::Leased, Some(60_000_000)));
    assert_eq!((rule.leased[0].requests, rule.limits), (200, 2));
    let other = proxy.rule("d", &[("k", "other")]).await;
    assert_eq!((other.leased[0].requests, other.valid_for_us), (100, None));
    advance_clock(&engine, Nanos::from_secs(50));
    for (verdict, handling) in
        [(Verdict::Deny, Handling::ForcedDeny), (Verdict::Allow, Handling::ForcedAllow)]
    {
        force(&engine, ("d", key), verdict, Nanos::from_secs(5));
        let rule = proxy.rule("d", key).await;
        assert_eq!((rule.handling(), rule.valid_for_us), (handling, Some(5_000_000)));
        assert_eq!((&*rule.rule, rule.leased.len()), ("d.k", 0));
    }
    advance_clock(&engine, Nanos::from_secs(10));
    let rule = proxy.rule("d", key).await;
    assert_eq!((rule.leased[0].requests, rule.valid_for_us), (100, None));
}

#[tokio::test]
async fn shadow_mode_of_everything_reaches_proxies_until_its_end() {
    let engine = empty_engine();
    let ceiling = "- {key: up, concurrency: {limit: 1, max_duration: 60s}}\n";
    publish(&engine, "", &format!("{LEASED}{ceiling}"));
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    allow_everything(&engine, Nanos::from_secs(60));
    let rule = proxy.rule("d", &[("k", "v")]).await;
    assert_eq!((rule.shadow, rule.valid_for_us), (true, Some(60_000_000)));
    let rule = proxy.rule("d", &[("up", "a")]).await;
    assert_eq!(rule.valid_for_us, Some(60_000_000));
    assert!(rule.concurrency.unwrap().shadow);
    advance_clock(&engine, Nanos::from_secs(60));
    let rule = proxy.rule("d", &[("k", "v")]).await;
    assert_eq!((rule.shadow, rule.valid_for_us), (false, None));
}

#[tokio::test]
async fn a_calendar_limit_is_valid_until_its_window_ends() {
    let engine = empty_engine();
    let limit = format!("- key: k\n  rate_limit: {{{LEASE}, calendar: {{time_zone: UTC}}}}\n");
    publish(&engine, "", &limit);
    advance_clock(&engine, Nanos::from_secs(10 * 86_400 + 86_390));
    let served = serve(&engine).await;
    let rule = ProxyStream::open(&served, 7).await.rule("d", &[("k", "v")]).await;
    assert_eq!((rule.handling(), rule.valid_for_us), (Handling::Leased, Some(10_000_000)));
    let strategy = rule.leased[0].strategy.as_ref().unwrap();
    let day = |number: u64| number * 86_400_000_000;
    assert_eq!(strategy.kind(), Kind::CalendarWindow);
    assert_eq!(strategy.window_starts_us, [9, 10, 11, 12].map(day));
}

#[tokio::test]
async fn a_calendar_limit_from_noon_travels_as_its_window_starts() {
    let engine = empty_engine();
    let calendar = "calendar: {time_zone: UTC, starts_at: 12:00}";
    publish(&engine, "", &format!("- key: k\n  rate_limit: {{{LEASE}, {calendar}}}\n"));
    advance_clock(&engine, Nanos::from_secs(10 * 86_400 + 43_190));
    let served = serve(&engine).await;
    let rule = ProxyStream::open(&served, 7).await.rule("d", &[("k", "v")]).await;
    assert_eq!((rule.handling(), rule.valid_for_us), (Handling::Leased, Some(10_000_000)));
    let strategy = rule.leased[0].strategy.as_ref().unwrap();
    let noon = |number: u64| number * 86_400_000_000 + 43_200_000_000;
    assert_eq!(strategy.window_starts_us, [8, 9, 10, 11].map(noon));
}

/// Serves one leased rule with this policy, and returns its reply.
async fn rule_with(policy: DecisionPolicy) -> RuleReply {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]));
    let engine = Arc::new(Engine::new(Clock::manual(Nanos(0)), memory, policy));
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    ProxyStream::open(&served, 7).await.rule("d", &[("k", "v")]).await
}

#[tokio::test]
async fn settings_of_the_service_change_the_handling() {
    let usual = DecisionPolicy::default();
    let planning = |planning| DecisionPolicy { planning, ..usual };
    let rule = rule_with(DecisionPolicy { is_shadow: true, ..usual }).await;
    assert_eq!((rule.handling(), rule.shadow), (Handling::Leased, true));
    let quota = PlanSettings { quota_for_all: true, ..PlanSettings::default() };
    assert_eq!(rule_with(planning(quota)).await.handling(), Handling::AskTogether);
    // Counters of envoyproxy/ratelimit are never leased.
    let compatible = PlanSettings { keys: KeyNaming::Envoyproxy, ..PlanSettings::default() };
    assert_eq!(rule_with(planning(compatible)).await.handling(), Handling::Ask);
}
