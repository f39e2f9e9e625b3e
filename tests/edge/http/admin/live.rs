//! The admin pages with live counts: `/overview`, `/rules`, `/rule`, `/top` and `/concurrency`.

use std::sync::Arc;

use futures_util::future::poll_immediate;
use serde_json::{Value, json};
use sluicegate::clock::Clock;
use sluicegate::config::settings::DescriptorValues;
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine};
use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};

use crate::support::engine::{advance_clock, check};

const LIMITS: &str = "domain: d
descriptors:
- key: k
  rate_limit: {unit: minute, requests_per_unit: 4, name: lim}
- key: up
  concurrency: {limit: 3}
";

fn engine() -> Arc<Engine> {
    engine_with(DecisionPolicy::default())
}

fn engine_with(policy: DecisionPolicy) -> Arc<Engine> {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]));
    let clock = Clock::manual(Nanos::from_secs(36_000));
    let engine = Arc::new(Engine::new(clock, memory, policy));
    let files = [("d.yaml", LIMITS.as_bytes())];
    engine.publish(Arc::new(sluicegate::config::load(files, Revision(7), false).unwrap().0));
    engine
}

async fn charge(engine: &Engine, value: &str, hits: u64) {
    engine.decide(&check(&[("k", value)], Cost::Charge(Hits(hits)))).await.unwrap();
}

async fn get(engine: &Arc<Engine>, path: &str) -> (u16, String) {
    let engine = Arc::clone(engine);
    super::get(&super::admin_of(engine, None), path, None).await
}

async fn get_json(engine: &Arc<Engine>, path: &str) -> Value {
    let (status, body) = get(engine, path).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn top_lists_the_keys_with_the_most_hits() {
    let engine = engine();
    charge(&engine, "a", 4).await;
    charge(&engine, "a", 1).await;
    charge(&engine, "<b>", 2).await;
    let row = |descriptor: &str, hits: u64| json!({"domain": "d", "path": "d.k", "descriptor": descriptor, "hits": hits, "error": 0});
    let expected = json!({
        "scope": "replica", "replicas": 1, "live_replicas": 1, "window": "minute", "keys": "shown",
        "all_total": 7, "denied_total": 1,
        "all": [row("k=a", 5), row("k=<b>", 2)], "denied": [row("k=a", 1)],
    });
    assert_eq!(get_json(&engine, "/top").await, expected);
    assert_eq!(get_json(&engine, "/top?path=d.k&limit=20&window=minute").await, expected);
    let one = get_json(&engine, "/top?window=hour&limit=1&domain=d").await;
    assert_eq!(one["all"], json!([row("k=a", 5)]));
    assert_eq!(get_json(&engine, "/top?domain=other").await["all"], json!([]));
}

#[tokio::test]
async fn invalid_queries_are_explained() {
    let engine = engine();
    for (path, status, cause) in [
        ("/top?window=day", 400, "minute or hour"),
        ("/top?limit=0", 400, "1 to 100"),
        ("/top?limit=101", 400, "1 to 100"),
        ("/top?rule=x", 400, "unknown parameter `rule`"),
        ("/rule?domain=d", 400, "`path` is missing"),
        ("/rule?domain=d&path=d.x", 404, "no rule `d.x`"),
        ("/top?path=d.x", 404, "no rule `d.x`"),
        ("/top?domain=e&path=d.k", 404, "no rule `d.k`"),
    ] {
        let (got, body) = get(&engine, path).await;
        assert_eq!(got, status, "{path}: {body}");
        assert!(body.contains(cause), "{path}: {body}");
    }
}

#[tokio::test]
async fn a_rule_has_its_limits_counts_and_history() {
    let engine = engine();
    for hits in [3, 1, 1] {
        charge(&engine, "a", hits).await;
    }
    advance_clock(&engine, Nanos::from_secs(30));
    engine.sample_history();
    let rules = get_json(&engine, "/rules").await;
    assert_eq!((&rules["scope"], &rules["omitted"]), (&json!("replica"), &json!(0)));
    assert_eq!(rules["replicas"], json!(["local"]));
    assert_eq!(rules["replicas_with_omitted_rules"], 0);
    let counts =
        json!({"allow": 2, "deny": 1, "shadow_deny": 0, "fallback_allow": 0, "fallback_deny": 0});
    let expected = json!({
        "domain": "d", "path": "d.k", "location": "d.yaml:3", "shadow": false, "quota": false,
        "limits": [{
            "name": "lim", "requests": 4, "period_s": 60.0, "unit": "minute",
            "strategy": "fixed_window", "mode": "exact", "on_store_failure": "error",
        }],
        "concurrency": null, "counts": counts, "used": 1.0, "forced": null,
    });
    assert_eq!(rules["rules"][0], expected);
    assert_eq!(rules["rules"][1]["concurrency"], json!({"limit": 3, "mode": "local"}));
    assert_eq!(rules["rules"][1]["used"], Value::Null);
    let rule = get_json(&engine, "/rule?domain=d&path=d.k").await;
    assert_eq!((&rule["path"], &rule["counts"]), (&json!("d.k"), &expected["counts"]));
    let history = json!({
        "step_s": 30, "start_unix_s": 36_000, "allow": [2], "deny": [1], "shadow_deny": [0],
        "used": [1.0],
    });
    assert_eq!(rule["history"], history);
    let keys = json!([{"descriptor": "k=a", "hits": 5, "error": 0}]);
    assert_eq!(rule["top"]["hour"]["all"], keys);
    assert_eq!(
        rule["top"]["minute"]["denied"],
        json!([{"descriptor": "k=a", "hits": 1, "error": 0}])
    );
}

#[tokio::test]
async fn concurrency_shows_the_limits_in_use() {
    let engine = engine();
    assert_eq!(get_json(&engine, "/concurrency").await, json!({"limits": [], "omitted": 0}));
    let held = engine.admit(&check(&[("up", "a")], Cost::Charge(Hits(1))), None).await.unwrap();
    advance_clock(&engine, Nanos::from_secs(30));
    engine.sample_history();
    let expected = json!({"limits": [{
        "domain": "d", "path": "d.up", "limit": 3, "in_flight": 1, "waiting": 0,
        "rate_per_second": null, "rtt_us": null, "min_rtt_us": null, "requesters": null, "fleet": null,
        "history": {
            "step_s": 30, "start_unix_s": 36_000, "limit": [3], "in_flight": [1], "waiting": [0],
            "rtt_us": [0],
        },
    }], "omitted": 0});
    assert_eq!(get_json(&engine, "/concurrency").await, expected);
    drop(held);
}

#[tokio::test]
async fn concurrency_shows_who_uses_a_limit() {
    let limits = "domain: d\ndescriptors:\n- key: gpu\n  concurrency:\n    limit: 4\n    \
                  classes: {by: tier, up_to: {gold: 100%, batch: 50%}}\n    \
                  queue: {size: 1, timeout: 1h}\n    fair: {by: customer}\n";
    let engine = engine();
    let files = [("d.yaml", limits.as_bytes())];
    engine.publish(Arc::new(sluicegate::config::load(files, Revision(8), false).unwrap().0));
    let ask = async |customer, tier| {
        let entries = [("gpu", "a"), ("tier", tier), ("customer", customer)];
        let check = check(&entries, Cost::Charge(Hits(1)));
        engine.admit(&check, Some(Nanos(0))).await.unwrap()
    };
    let _held = [ask("acme", "batch").await, ask("acme", "gold").await, ask("", "gold").await];
    for _ in 0..2 {
        assert!(matches!(ask("hog", "batch").await, AdmissionOutcome::Rejected(_)));
    }
    let waits = check(&[("gpu", "a"), ("customer", "late")], Cost::Charge(Hits(1)));
    let mut waits = Box::pin(engine.admit(&waits, None));
    assert!(poll_immediate(&mut waits).await.is_none());
    let row = |customer: Value, [in_flight, waiting]: [u64; 2]| json!({"customer": customer, "weight": 1, "in_flight": in_flight, "waiting": waiting});
    let page = get_json(&engine, "/concurrency").await;
    let expected = json!({
        "classes": [
            {"class": "gold", "part": 4, "in_flight": 2, "waiting": 0, "rejected": 0},
            {"class": "batch", "part": 2, "in_flight": 1, "waiting": 1, "rejected": 2},
        ],
        "customers": [row("acme".into(), [2, 0]), row("late".into(), [0, 1]), row(Value::Null, [1, 0])],
    });
    assert_eq!(sorted_customers(&page["limits"][0]["requesters"]), sorted_customers(&expected));
}

#[tokio::test]
async fn permits_show_values_as_the_setting_selects() {
    for (values, shown) in [(DescriptorValues::Shown, true), (DescriptorValues::Hashed, false)] {
        let policy = DecisionPolicy { descriptor_values: values, ..DecisionPolicy::default() };
        let engine = engine_with(policy);
        let secret = check(&[("up", "secret")], Cost::Charge(Hits(1)));
        let _held = engine.admit(&secret, None).await.unwrap();
        let page = get_json(&engine, "/permits").await;
        for list in ["oldest", "busiest"] {
            let descriptor = page[list][0]["descriptor"].as_str().unwrap();
            assert!(descriptor.starts_with("up="), "{descriptor}");
            assert_eq!(descriptor == "up=secret", shown, "{descriptor}");
        }
    }
}

/// Sorts the customers by name, because those with as many requests are in the order of their
/// hashes.
fn sorted_customers(requesters: &Value) -> Value {
    let mut sorted = requesters.clone();
    sorted["customers"].as_array_mut().unwrap().sort_by_key(|row| row["customer"].to_string());
    sorted
}

#[tokio::test]
async fn the_overview_of_a_replica_without_fleet() {
    let engine = engine();
    charge(&engine, "a", 1).await;
    advance_clock(&engine, Nanos::from_secs(60));
    let page = get_json(&engine, "/overview").await;
    assert_eq!(page["scope"], "replica");
    assert_eq!(page["uptime_s"], 60);
    assert_eq!(page["now_unix_ms"], 36_060_000);
    assert_eq!(page["revision"], 7);
    assert_eq!(page["load_failed"], false);
    assert_eq!(page["store"], json!({"kind": "memory", "failure": null}));
    assert_eq!(page["replicas"].as_array().unwrap().len(), 1);
    assert_eq!(page["replicas"][0]["is_self"], true);
    // The metrics belong to the whole test process.
    assert!(1 <= page["checks"]["allow"].as_u64().unwrap());
    let buckets = page["latency"]["buckets"].as_array().unwrap();
    assert_eq!(buckets.last().unwrap()["le_us"], Value::Null);
    assert_eq!(buckets.last().unwrap()["count"], page["latency"]["count"]);
}
