//! The admin page `/recent`: descriptors that matched no rule.

use std::sync::Arc;

use serde_json::{Value, json};
use sluicegate::clock::Clock;
use sluicegate::config::settings::DescriptorValues;
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};

const LIMITS: &str = "domain: shop
descriptors:
- key: PATH
  rate_limit: {unit: hour, requests_per_unit: 2}
- key: internal
- key: upstream
  concurrency: {limit: 1, queue: {size: 1, timeout: 1s}, fair: {by: customer}, classes: {by: tier, up_to: {a: 100%}}}
";

fn engine(descriptor_values: DescriptorValues) -> Arc<Engine> {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]));
    let policy = DecisionPolicy { descriptor_values, ..DecisionPolicy::default() };
    let engine = Arc::new(Engine::new(Clock::manual(Nanos(0)), memory, policy));
    let files = [("shop.yaml", LIMITS.as_bytes())];
    engine.publish(Arc::new(sluicegate::config::load(files, Revision(1), false).unwrap().0));
    engine
}

/// Decides a check, one second after the last one. Its descriptors have one entry each.
async fn check(engine: &Engine, domain: &str, entries: &[(&str, &str)]) {
    let Clock::Manual(clock) = engine.clock() else { panic!("not a manual clock") };
    clock.advance(Nanos::SECOND);
    let descriptors = entries.iter().map(|&entry| Descriptor {
        entries: [entry].into_iter().collect(),
        cost: Cost::Charge(Hits(1)),
        limit: None,
    });
    let check = Check { domain, descriptors: descriptors.collect() };
    engine.decide(&check).await.unwrap();
}

async fn recent(engine: &Arc<Engine>) -> Value {
    let admin = super::admin_of(Arc::clone(engine), None);
    let (status, body) = super::get(&admin, "/recent", None).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn unmatched_descriptors_are_listed_with_counts_and_nearest_rule() {
    let engine = engine(DescriptorValues::Shown);
    check(&engine, "shop", &[("path", "/pay"), ("PATH", "/pay")]).await;
    check(&engine, "Shop", &[("PATH", "/pay")]).await;
    check(&engine, "shop", &[("path", "/pay")]).await;
    let expected = json!([
        {"domain": "shop", "descriptor": "path=/pay", "reason": "no rule for `path=/pay`",
            "nearest": "`PATH` differs in case", "checks": 2, "last": "1970-01-01T00:00:03Z"},
        {"domain": "Shop", "descriptor": "PATH=/pay", "reason": "no file has this domain",
            "nearest": "the domain `shop` differs in case", "checks": 1, "last": "1970-01-01T00:00:02Z"},
    ]);
    assert_eq!(recent(&engine).await, expected);
}

#[tokio::test]
async fn matched_and_exempt_descriptors_are_not_listed() {
    let engine = engine(DescriptorValues::Shown);
    check(&engine, "shop", &[("PATH", "/pay"), ("internal", "1"), ("upstream", "a")]).await;
    check(&engine, "shop", &[("customer", "acme"), ("tier", "a")]).await;
    assert_eq!(recent(&engine).await, json!([]));
}

#[tokio::test]
async fn the_last_100_descriptors_are_kept() {
    let engine = engine(DescriptorValues::Shown);
    for id in 0..150 {
        check(&engine, "shop", &[("id", &id.to_string())]).await;
    }
    let recent = recent(&engine).await;
    let shown: Vec<_> =
        recent.as_array().unwrap().iter().map(|it| it["descriptor"].clone()).collect();
    let expected: Vec<_> = (50..150).rev().map(|id| json!(format!("id={id}"))).collect();
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn redacted_values_count_together() {
    let engine = engine(DescriptorValues::Hidden);
    check(&engine, "shop", &[("path", "/pay")]).await;
    check(&engine, "shop", &[("path", "/cart")]).await;
    let recent = recent(&engine).await;
    let of = |name: &str| recent[0][name].clone();
    assert_eq!((of("descriptor"), of("checks")), (json!("path=*"), json!(2)), "{recent}");
    assert_eq!(of("reason"), "no rule for `path=*`");
    assert_eq!(of("nearest"), "`PATH` differs in case");
}
