//! Tests of the list of budgets.

use std::sync::Arc;

use serde_json::json;
use sluicegate::clock::Clock;
use sluicegate::config::settings::DescriptorValues;
use sluicegate::engine::budgets::BudgetUse;
use sluicegate::engine::{DecisionPolicy, Engine, PermitLifetime, RequestStart};
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::memory::{MemoryStore, WhenFull};

use super::{admin_of, get};
use crate::support::engine::publish;

fn engine(values: DescriptorValues) -> Arc<Engine> {
    let policy = DecisionPolicy { descriptor_values: values, ..DecisionPolicy::default() };
    let store = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [0; 16]));
    let engine = Engine::new(Clock::manual(Nanos::from_secs(36_000)), store, policy);
    publish(&engine, "", "- {key: org, budget: {amount: 1k tokens, unit: hour}}\n");
    Arc::new(engine)
}

async fn charge(engine: &Engine, org: &str, hits: u64) {
    let descriptor = |hits| Descriptor {
        entries: std::iter::once(("org", org)).collect(),
        cost: Cost::Charge(Hits(hits)),
        limit: None,
    };
    let check = |descriptors| Check { domain: "d", descriptors };
    let covered = &check(std::iter::empty().collect());
    let check = check(std::iter::once(descriptor(hits)).collect());
    let start = RequestStart { covered, budgets: BudgetUse::Charge };
    engine.admit_request(start, &check, None, PermitLifetime::UntilReleased).await.unwrap();
}

#[tokio::test]
async fn budgets_without_a_descriptor_are_the_met_ones() {
    let engine = engine(DescriptorValues::Shown);
    charge(&engine, "a,b", 100).await;
    charge(&engine, "acme", 700).await;
    charge(&engine, "idle", 0).await;
    let admin = admin_of(Arc::clone(&engine), None);
    let (status, body) = get(&admin, "/budgets?limit=2", None).await;
    let page: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &page["omitted"]), (200, &json!(1)), "{body}");
    let fields = |at: usize, names: [&str; 5]| names.map(|name| page["budgets"][at][name].clone());
    let names = ["domain", "descriptor", "amount_number", "settled_number", "held_number"];
    assert_eq!(json!(fields(0, names)), json!(["d", "org=acme", 1_000, 700, 0]));
    assert_eq!(json!(fields(1, names)), json!(["d", "org=a\\,b", 1_000, 100, 0]));
    let (_, none) = get(&admin, "/budgets?domain=other", None).await;
    assert!(none.contains(r#""budgets":[]"#), "{none}");
    for (query, why) in [
        ("limit=0", "`limit` must be 1 to 1000"),
        ("limit=1001", "`limit` must be 1 to 1000"),
        ("plan=gold", "unknown parameter `plan`; use domain and limit"),
    ] {
        let (status, body) = get(&admin, &format!("/budgets?{query}"), None).await;
        assert!(status == 400 && body.contains(why), "{query}: {body}");
    }
}

#[tokio::test]
async fn hidden_values_are_not_listed() {
    for values in [DescriptorValues::Hashed, DescriptorValues::Hidden] {
        let engine = engine(values);
        charge(&engine, "acme", 700).await;
        let admin = admin_of(Arc::clone(&engine), None);
        let (status, body) = get(&admin, "/budgets", None).await;
        assert!(status == 400 && body.contains("name a descriptor"), "{body}");
        assert!(!body.contains("acme"), "{body}");
        let (status, _) = get(&admin, "/budgets?domain=d&descriptor=org%3Dacme", None).await;
        assert_eq!(status, 200);
    }
}
