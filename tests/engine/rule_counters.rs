//! Tests the decisions of each rule: who is counted, how often, and across reloads.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::clock::Clock;
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::decision::{Check, Cost};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::store::Store;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::telemetry::metrics::RuleDecisions;

use crate::support::engine::{block_on, check, check_of, publish, publish_as};
use crate::support::faulty_store::FaultyStore;

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [0; 16]))
}

fn engine_with(store: Arc<dyn Store>, policy: DecisionPolicy, descriptors: &str) -> Engine {
    let engine = Engine::new(Clock::manual(Nanos::from_secs(60)), store, policy);
    publish(&engine, "", descriptors);
    engine
}

fn engine(descriptors: &str) -> Engine {
    engine_with(memory(), DecisionPolicy::default(), descriptors)
}

fn decide(engine: &Engine, times: usize, check: &Check<'_>) {
    for _ in 0..times {
        // A failed check is no decision.
        let _decision = block_on(engine.decide(check));
    }
}

/// The decisions of each rule as `path: allow deny shadow_deny fallback_allow fallback_deny`,
/// without rules that decided nothing.
fn decisions(engine: &Engine) -> Vec<String> {
    let shown = engine.rule_decisions().into_iter().filter(|rule| rule.counts != [0; 5]);
    let shown = shown.map(|RuleDecisions { path, counts, .. }| {
        let counts = counts.map(|count| count.to_string());
        format!("{path}: {}", counts.join(" "))
    });
    shown.collect()
}

const ONE_A_DAY: &str = "rate_limit: {unit: day, requests_per_unit: 1}";

#[test]
fn each_decision_counts_once_for_its_rule() {
    let engine = engine(&format!(
        "- {{key: a, {ONE_A_DAY}}}\n\
         - key: tenant\n  descriptors:\n\
         \x20 - {{key: path, value: /v1.Cart/Add, {ONE_A_DAY}, shadow_mode: true}}\n\
         - {{key: free, rate_limit: {{unlimited: true}}}}\n"
    ));
    decide(&engine, 3, &check_of(&[("a", "x"), ("free", "y"), ("unknown", "z")]));
    let mut nested = check_of(&[("tenant", "t")]);
    nested.descriptors[0].entries.push(("path", "/v1.Cart/Add"));
    decide(&engine, 2, &nested);
    assert_eq!(
        decisions(&engine),
        ["d.a: 1 2 0 0 0", "d.free: 3 0 0 0 0", "d.tenant.path_/v1.Cart/Add: 1 0 1 0 0"]
    );
}

#[test]
fn global_shadow_mode_counts_denials_as_shadow_deny() {
    let policy = DecisionPolicy { is_shadow: true, ..DecisionPolicy::default() };
    let engine = engine_with(memory(), policy, &format!("- {{key: a, {ONE_A_DAY}}}\n"));
    decide(&engine, 3, &check_of(&[("a", "x")]));
    assert_eq!(decisions(&engine), ["d.a: 1 0 2 0 0"]);
}

#[test]
fn a_reload_keeps_counts_and_drops_removed_rules() {
    let (a, b) = (format!("- {{key: a, {ONE_A_DAY}}}\n"), format!("- {{key: b, {ONE_A_DAY}}}\n"));
    let engine = engine(&format!("{a}{b}"));
    decide(&engine, 2, &check_of(&[("a", "x"), ("b", "x")]));
    publish_as(&engine, Revision(2), &format!("- {{key: c, {ONE_A_DAY}}}\n{b}"));
    decide(&engine, 1, &check_of(&[("b", "x"), ("c", "x")]));
    assert_eq!(decisions(&engine), ["d.c: 1 0 0 0 0", "d.b: 1 2 0 0 0"]);
    publish_as(&engine, Revision(3), &a);
    assert_eq!(decisions(&engine), [""; 0]);
}

#[test]
fn rules_beyond_the_bound_share_one_counter() {
    let policy = DecisionPolicy { max_counted_rules: 1, ..DecisionPolicy::default() };
    let rules = ["a", "b", "c"].map(|key| format!("- {{key: {key}, {ONE_A_DAY}}}\n")).concat();
    let engine = engine_with(memory(), policy, &rules);
    decide(&engine, 2, &check_of(&[("a", "x"), ("b", "x"), ("c", "x")]));
    assert_eq!(decisions(&engine), ["d.a: 1 1 0 0 0", "other: 2 2 0 0 0"]);
}

#[test]
fn leases_and_the_deny_cache_count_like_store_calls() {
    let store = FaultyStore::new();
    let limit =
        |mode: &str| format!("rate_limit: {{unit: day, requests_per_unit: 3, mode: {mode}}}");
    let descriptors = format!(
        "- {{key: l, {}}}\n- {{key: c, {}}}\n- {{key: s, {}}}\n",
        limit("leased, max_overshoot: 0"),
        limit("cached_deny"),
        limit("exact")
    );
    let engine = engine_with(store, DecisionPolicy::default(), &descriptors);
    for key in ["l", "c", "s"] {
        decide(&engine, 5, &check_of(&[(key, "x")]));
    }
    assert_eq!(decisions(&engine), ["d.l: 3 2 0 0 0", "d.c: 3 2 0 0 0", "d.s: 3 2 0 0 0"]);
}

#[test]
fn fallbacks_have_verdicts_of_their_own_and_errors_none() {
    let store = FaultyStore::new();
    let rule = |fallback: &str| {
        format!(
            "- {{key: {fallback}, rate_limit: \
             {{unit: day, requests_per_unit: 3, on_store_failure: {fallback}}}}}\n"
        )
    };
    let descriptors = ["allow", "deny", "error"].map(rule).concat();
    let engine = engine_with(store.clone(), DecisionPolicy::default(), &descriptors);
    store.is_unavailable.store(true, Relaxed);
    for key in ["allow", "deny", "error"] {
        decide(&engine, 2, &check_of(&[(key, "x")]));
    }
    assert_eq!(decisions(&engine), ["d.allow: 0 0 0 2 0", "d.deny: 0 0 0 0 2"]);
}

#[test]
fn concurrency_limits_count_with_the_rate_limit_of_their_rule() {
    let engine = engine(
        "- {key: only, concurrency: {limit: 1}}\n\
         - {key: both, concurrency: {limit: 1}, rate_limit: {unit: day, requests_per_unit: 9}}\n\
         - {key: shadow, concurrency: {limit: 1}, shadow_mode: true}\n",
    );
    for key in ["only", "both", "shadow"] {
        let check = check_of(&[(key, "x")]);
        let _in_flight = block_on(engine.admit(&check, None)).unwrap();
        let _rejected = block_on(engine.admit(&check, None)).unwrap();
    }
    assert_eq!(
        decisions(&engine),
        ["d.both: 1 1 0 0 0", "d.only: 1 1 0 0 0", "d.shadow: 1 0 1 0 0"]
    );
}

#[test]
fn peeks_and_refunds_count_as_allowed() {
    let engine = engine(&format!("- {{key: a, {ONE_A_DAY}}}\n"));
    decide(&engine, 1, &check(&[("a", "x")], Cost::Charge(Hits(0))));
    decide(&engine, 1, &check(&[("a", "x")], Cost::Refund(Hits(1))));
    assert_eq!(decisions(&engine), ["d.a: 2 0 0 0 0"]);
}
