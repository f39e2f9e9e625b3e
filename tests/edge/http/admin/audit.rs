//! Tests of the audit log and of boosts through the admin port.

use std::sync::Arc;

use serde_json::{Value, json};
use sluicegate::config::load;
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::Revision;

use super::{admin_of, call, get, spend};
use crate::edge::{engine, two_a_minute};

const KEY: &str = "?domain=d&descriptor=k=me";

#[tokio::test]
async fn every_change_needs_a_reason() {
    let engine = engine(two_a_minute());
    let router = admin_of(Arc::clone(&engine), Some("open-sesame-please"));
    let send = async |path: &str| {
        let request = axum::http::Request::builder().method("POST").uri(path);
        let request = request.header("authorization", "Bearer open-sesame-please");
        let request = request.body(axum::body::Body::empty()).unwrap();
        let Ok(reply) = tonic::codegen::Service::call(&mut router.clone(), request).await;
        reply.status().as_u16()
    };
    let changes = ["/force{}&as=deny&for=1m", "/boost{}&factor=2&for=1m", "/reset{}", "/refund{}"];
    let long = "x".repeat(201);
    for change in changes.map(|change| change.replace("{}", KEY)) {
        for reason in ["", "&reason=", "&reason=%20", "&reason=a%0Ab", &format!("&reason={long}")] {
            assert_eq!(send(&format!("{change}{reason}")).await, 400, "{change}{reason}");
        }
        assert_eq!(send(&format!("{change}&reason=ticket+7")).await, 200, "{change}");
    }
}

#[tokio::test]
async fn a_parameter_without_effect_is_refused() {
    let router = admin_of(engine(two_a_minute()), Some("open-sesame-please"));
    for (path, name) in [
        (format!("/force{KEY}&as=deny&for=1m&factor=2"), "factor"),
        (format!("/unforce{KEY}&for=1m"), "for"),
        (format!("/boost{KEY}&factor=2&for=1m&scope=key"), "scope"),
        (format!("/unboost{KEY}&limit=5"), "limit"),
        (format!("/reset{KEY}&as=allow"), "as"),
        (format!("/refund{KEY}&hits=1&for=1m"), "for"),
    ] {
        let (status, reply) = call(&router, "POST", &path).await;
        let explains = format!("the parameter `{name}` has no effect here; use domain, descriptor");
        assert!(status == 400 && reply.as_str().unwrap().starts_with(&explains), "{path}: {reply}");
    }
}

#[tokio::test]
async fn audit_page_lists_changes_newest_first() {
    let router = admin_of(engine(two_a_minute()), Some("open-sesame-please"));
    for path in [
        format!("/force{KEY}&as=deny&for=10m"),
        format!("/unforce{KEY}"),
        format!("/boost{KEY}&factor=3&for=1h"),
        format!("/refund{KEY}&hits=20"),
        "/reset?domain=d&descriptor=k=you".to_owned(),
    ] {
        assert_eq!(call(&router, "POST", &path).await.0, 200, "{path}");
    }
    let (_, page) = call(&router, "GET", "/audit").await;
    assert_eq!(page["survives_restart"], false, "the memory store forgets it");
    let shown =
        |entry: &Value| ["action", "descriptor", "limit", "detail"].map(|name| entry[name].clone());
    let entries: Vec<_> = page["entries"].as_array().unwrap().iter().map(shown).collect();
    let wanted = [
        [json!("reset"), json!("k=you"), Value::Null, json!("")],
        [json!("refund"), json!("k=me"), Value::Null, json!("20 hits")],
        [json!("boost"), json!("k=me"), json!("d.k"), json!("x3 for 1h")],
        [json!("unforce"), json!("k=me"), json!("d.k"), json!("")],
        [json!("force"), json!("k=me"), json!("d.k"), json!("deny for 10m")],
    ];
    assert_eq!(entries, wanted);
    let newest = &page["entries"][0];
    assert_eq!((&newest["by"], &newest["reason"]), (&json!("admin"), &json!("ticket 7")));
    let (_, page) = call(&router, "GET", "/audit?descriptor=k=you").await;
    assert_eq!(page["entries"].as_array().unwrap().len(), 1);
    let (_, page) = call(&router, "GET", "/audit?limit=2").await;
    assert_eq!(page["entries"].as_array().unwrap().len(), 2);
    assert_eq!(get(&router, "/audit?colour=red", Some("Bearer open-sesame-please")).await.0, 400);
}

#[tokio::test]
async fn a_boosted_key_gets_its_factor_and_others_do_not() {
    let engine = engine(two_a_minute());
    let router = admin_of(Arc::clone(&engine), Some("open-sesame-please"));
    assert_eq!(spend(&engine, 2).await, Verdict::Allow);
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    assert_eq!(call(&router, "POST", &format!("/reset{KEY}")).await.0, 200);
    assert_eq!(spend(&engine, 2).await, Verdict::Allow);
    let (status, reply) = call(&router, "POST", &format!("/boost{KEY}&factor=3&for=1h")).await;
    assert_eq!((status, &reply["value"]), (200, &json!("x3")));
    assert_eq!(spend(&engine, 4).await, Verdict::Allow, "6 a minute, of which 2 are used");
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    let (_, other) = call(&router, "GET", "/counter?domain=d&descriptor=k=you").await;
    assert_eq!(other["requests"], 2);
    let (_, boosted) = call(&router, "GET", &format!("/counter{KEY}")).await;
    assert_eq!(boosted["requests"], 6);
    let (_, shown) = call(&router, "GET", &format!("/explain{KEY}")).await;
    let outcome = shown["descriptors"][0]["outcome"].as_str().unwrap();
    assert!(outcome.contains("an operator boosts the limit of this key to x3 until "), "{outcome}");
    assert_eq!(call(&router, "POST", &format!("/unboost{KEY}")).await.0, 200);
    let (_, counter) = call(&router, "GET", &format!("/counter{KEY}")).await;
    assert_eq!((&counter["requests"], &counter["remaining"]), (&json!(2), &json!(0)));
    assert_eq!(call(&router, "POST", &format!("/unboost{KEY}")).await.0, 400, "it has ended");
}

#[tokio::test]
async fn a_boost_never_lowers_a_limit_that_a_reload_raised() {
    let engine = engine(two_a_minute());
    let router = admin_of(Arc::clone(&engine), Some("open-sesame-please"));
    assert_eq!(call(&router, "POST", &format!("/boost{KEY}&limit=5&for=1h")).await.0, 200);
    for (limits, requests) in [
        ("rate_limit: {unit: minute, requests_per_unit: 3}", 5),
        ("rate_limit: {unit: minute, requests_per_unit: 9}", 9),
        (
            "rate_limits: [{unit: second, requests_per_unit: 1}, {unit: day, requests_per_unit: 9}]",
            1,
        ),
    ] {
        let text = format!("domain: d\ndescriptors:\n- {{key: k, {limits}}}\n");
        let config = load([("f", text.as_bytes())], Revision(2), false).unwrap().0;
        engine.publish(Arc::new(config));
        let (_, counter) = call(&router, "GET", &format!("/counter{KEY}")).await;
        assert_eq!(counter["requests"], requests, "{limits}");
    }
}

#[tokio::test]
async fn values_that_share_a_counter_share_its_actions() {
    let text = "domain: d\ndescriptors:\n- {key: path, value: /pay*, share_threshold: true, \
                rate_limit: {unit: minute, requests_per_unit: 2}}\n";
    let engine = engine(load([("f", text.as_bytes())], Revision(2), false).unwrap().0);
    let router = admin_of(Arc::clone(&engine), Some("open-sesame-please"));
    let boost = async |value: &str, factor: u32| {
        let path = format!("/boost?domain=d&descriptor=path={value}&factor={factor}&for=1h");
        assert_eq!(call(&router, "POST", &path).await.0, 200);
    };
    boost("/pay/1", 2).await;
    boost("/pay/2", 5).await;
    assert_eq!(engine.actions().len(), 1, "the second replaces the first");
    let (_, counter) = call(&router, "GET", "/counter?domain=d&descriptor=path=/pay/1").await;
    assert_eq!(counter["requests"], 10);
    let (_, shown) = call(&router, "GET", "/explain?domain=d&descriptor=path=/pay/3").await;
    let outcome = shown["descriptors"][0]["outcome"].as_str().unwrap();
    assert!(outcome.contains("boosts the limit of this key to x5"), "{outcome}");
}

#[tokio::test]
async fn impossible_boosts_are_refused() {
    let text = "domain: d\ndescriptors:\n\
                - {key: k, rate_limit: {unit: minute, requests_per_unit: 10}}\n\
                - {key: l, rate_limits: [{unit: second, requests_per_unit: 2}, {unit: day, requests_per_unit: 9}]}\n\
                - {key: g, rate_limit: {unit: year, requests_per_unit: 10, strategy: gcra}}\n";
    let config = load([("f", text.as_bytes())], Revision(2), false).unwrap().0;
    let router = admin_of(engine(config), Some("open-sesame-please"));
    for (query, words) in [
        ("descriptor=k=me&limit=10&for=1h", "the limit is 10 already"),
        ("descriptor=k=me&limit=0&for=1h", "`limit`"),
        ("descriptor=k=me&factor=1&for=1h", "`factor`"),
        ("descriptor=k=me&factor=2&limit=30&for=1h", "either"),
        ("descriptor=k=me&factor=2&for=25h", "1s to 24h"),
        ("descriptor=l=me&limit=30&for=1h", "2 limits"),
        ("descriptor=g=me&limit=4294967295&for=1h", "does not work"),
        ("descriptor=zz=me&factor=2&for=1h", "no rate limit matches"),
    ] {
        let (status, reply) = call(&router, "POST", &format!("/boost?domain=d&{query}")).await;
        let explains = matches!(&reply, Value::String(text) if text.contains(words));
        assert!(status == 400 && explains, "{query}: {reply}");
    }
    let path = "/boost?domain=d&descriptor=l=me&factor=2&for=1h";
    assert_eq!(call(&router, "POST", path).await.0, 200, "a factor suits several limits");
}

#[tokio::test]
async fn a_forced_key_takes_precedence_over_its_forced_rule() {
    let engine = engine(two_a_minute());
    let router = admin_of(Arc::clone(&engine), Some("open-sesame-please"));
    let force = async |verdict: &str, scope: &str| {
        let path = format!("/force{KEY}&as={verdict}&for=1h&scope={scope}");
        assert_eq!(call(&router, "POST", &path).await.0, 200);
    };
    force("deny", "rule").await;
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    force("allow", "key").await;
    assert_eq!(spend(&engine, 100).await, Verdict::Allow);
    let (_, actions) = call(&router, "GET", "/actions").await;
    let scopes: Vec<_> =
        actions["actions"].as_array().unwrap().iter().map(|action| &action["scope"]).collect();
    assert_eq!(scopes, ["rule", "key"]);
    assert_eq!(call(&router, "POST", &format!("/unforce{KEY}&scope=key")).await.0, 200);
    assert_eq!(spend(&engine, 1).await, Verdict::Deny, "the rule is still forced");
}
