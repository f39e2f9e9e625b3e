//! Long values have the same counters in proxies and in the service.

use sluicegate::engine::Engine;
use sluicegate::kernel::decision::{Check as ServiceCheck, Cost, Descriptor, Verdict};
use sluicegate::kernel::units::Hits;
use smallvec::smallvec;

use super::*;

const KINDS: [&str; 2] = ["user", "path"];

/// A rule without a value and a pattern, both with `limit`.
fn rules(limit: &str) -> String {
    let rule = |key: &str| format!("- {{key: {key}, rate_limit: {{unit: day, {limit}}}}}\n");
    [rule("user"), rule("path, value: '/pay/*/end'")].concat()
}

/// A value of 60 kB, which the rule for `key` matches.
fn long(key: &str, number: u32) -> String {
    let text = "v".repeat(60_000);
    if key == "path" { format!("/pay/{text}{number}/end") } else { format!("{text}{number}") }
}

/// Decides one hit in the service itself.
async fn decide_in_service(engine: &Engine, key: &str, value: &str) -> Verdict {
    let entries = smallvec![(key, value)];
    let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
    let check = ServiceCheck { domain: "d", descriptors: smallvec![descriptor] };
    engine.decide(&check).await.unwrap().verdict
}

#[tokio::test]
async fn a_strict_limit_counts_long_values_of_proxies_and_the_service_together() {
    let engine = engine(&rules("requests_per_unit: 3"));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    for key in KINDS {
        let (value, other) = (long(key, 1), long(key, 2));
        let ask = async |value: &str| decide_all(&proxy, &[&[(key, value)]]).await.verdict;
        assert_eq!(ask(&value).await, RuleVerdict::Allow, "{key}");
        assert_eq!(decide_in_service(&engine, key, &value).await, Verdict::Allow, "{key}");
        assert_eq!(ask(&value).await, RuleVerdict::Allow, "{key}");
        assert_eq!(decide_in_service(&engine, key, &value).await, Verdict::Deny, "{key}");
        assert_eq!(ask(&value).await, RuleVerdict::Deny, "{key}");
        assert_eq!(ask(&other).await, RuleVerdict::Allow, "{key}");
        let short = if key == "path" { "/pay/1/end" } else { "v" };
        assert_eq!(ask(short).await, RuleVerdict::Allow, "{key}");
    }
}

/// Sends requests until 200 are allowed. A busy machine may borrow later than a request waits.
async fn spend(proxy: &Limiter, key: &str, value: &str) {
    let (mut allowed, mut failed) = (0, 0);
    while allowed < 200 {
        match decide_all(proxy, &[&[(key, value)]]).await.verdict {
            RuleVerdict::Allow => allowed += 1,
            RuleVerdict::FallbackDeny => failed += 1,
            verdict => panic!("{verdict:?} after {allowed}"),
        }
        assert!(failed < 100, "{key}: {allowed} allowed");
    }
}

// The server has a thread of its own, because decisions without a call never yield.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_leases_hits_of_long_values() {
    let limit = "requests_per_unit: 1000, strategy: fixed_window, mode: leased, max_overshoot: 100";
    let engine = engine(&rules(limit));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let mut expected = Vec::new();
    for (leased, key) in KINDS.into_iter().enumerate() {
        let value = long(key, 1);
        spend(&proxy, key, &value).await;
        assert_eq!(proxy.leased().0, leased + 1, "{key}");
        let mut allowed = 200;
        while decide_in_service(&engine, key, &value).await == Verdict::Allow {
            allowed += 1;
        }
        // The proxy has at most `max_overshoot` unspent hits.
        assert!((900..=1_000).contains(&allowed), "{key}: {allowed}");
        expected.push(allowed);
    }
    let counts = || {
        let rules = engine.rule_decisions();
        let count = |path: &str| rules.iter().find(|rule| &*rule.path == path).unwrap().counts[0];
        vec![count("d.user"), count("d.path_/pay/*/end")]
    };
    until("the report", || counts() == expected).await;
}

#[tokio::test]
async fn a_changed_pattern_applies_to_long_values() {
    let engine = engine("- {key: path, rate_limit: {unit: day, requests_per_unit: 100}}\n");
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let value = long("path", 1);
    let ask = async || decide_all(&proxy, &[&[("path", &*value)]]).await.verdict;
    assert_eq!(ask().await, RuleVerdict::Allow);
    publish_as(&engine, Revision(2), &rules("requests_per_unit: 0"));
    let denied = async {
        while ask().await != RuleVerdict::Deny {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the new rule", denied).await;
}

#[tokio::test]
async fn nine_descriptors_of_60_kb_are_limited() {
    let engine = engine(&rules("requests_per_unit: 1"));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let values: Vec<_> = (0..9).map(|number| long("user", number)).collect();
    let pairs: Vec<_> = values.iter().map(|value| [("user", &**value)]).collect();
    let descriptors: Vec<&[(&str, &str)]> = pairs.iter().map(|pair| &pair[..]).collect();
    assert_eq!(decide_all(&proxy, &descriptors).await.verdict, RuleVerdict::Allow);
    assert_eq!(decide_all(&proxy, &descriptors).await.verdict, RuleVerdict::Deny);
}
