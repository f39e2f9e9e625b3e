//! Tests of `/bans` and `/lift`.

use std::sync::Arc;

use serde_json::json;
use sluicegate::engine::Engine;
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::Nanos;

use super::{admin_of, call, get, spend};
use crate::edge::{banning, engine};
use crate::support::engine::advance_clock;

const TOKEN: &str = "open-sesame-please";
const KEY: &str = "?domain=d&descriptor=k=me";

/// An engine in which the key `k=me` is banned from second 0 to 600.
async fn banned() -> Arc<Engine> {
    let engine = engine(banning());
    assert_eq!(spend(&engine, 1).await, Verdict::Allow);
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    engine
}

#[tokio::test]
async fn bans_are_listed_and_lifted() {
    let engine = banned().await;
    let admin = admin_of(Arc::clone(&engine), Some(TOKEN));
    let listed = json!({
        "bans": [{"domain": "d", "descriptor": "k=me", "rule": "d.k", "limit": "d.k",
            "until_unix_ms": 600_000}],
        "count": 1,
        "values": "shown",
    });
    assert_eq!(call(&admin, "GET", "/bans").await, (200, listed.clone()));
    assert_eq!(call(&admin, "GET", "/bans?domain=d&limit=1").await, (200, listed));
    let none = json!({"bans": [], "count": 0, "values": "shown"});
    assert_eq!(call(&admin, "GET", "/bans?domain=other").await, (200, none.clone()));
    let (status, state) = call(&admin, "GET", &format!("/counter{KEY}")).await;
    assert_eq!((status, &state["reason"]), (200, &json!("banned")));
    assert_eq!(state["reset_after_nanoseconds"], 600_000_000_000_u64);
    let (status, reply) = call(&admin, "POST", &format!("/lift{KEY}")).await;
    assert_eq!(
        (status, &reply["limit"], &reply["descriptor"]),
        (200, &json!("d.k"), &json!("k=me"))
    );
    assert_eq!(reply["replicas"], 1);
    assert_eq!(call(&admin, "GET", "/bans").await, (200, none));
    let (_, audit) = call(&admin, "GET", "/audit").await;
    let entry = &audit["entries"][0];
    let shown = ["action", "by", "reason", "descriptor", "limit"].map(|name| &entry[name]);
    assert_eq!(shown, ["lift", "admin", "ticket 7", "k=me", "d.k"]);
    advance_clock(&engine, Nanos::from_secs(60));
    assert_eq!(spend(&engine, 1).await, Verdict::Allow);
}

#[tokio::test]
async fn a_wrong_lift_changes_nothing() {
    let admin = admin_of(banned().await, Some(TOKEN));
    for path in [
        "/lift?domain=d&descriptor=k=other",
        "/lift?domain=other&descriptor=k=me",
        "/lift?domain=d&descriptor=k=me&descriptor=k=other",
        "/lift?domain=d",
        "/lift?domain=d&descriptor=k=me&for=1h",
    ] {
        assert_eq!(call(&admin, "POST", path).await.0, 400, "{path}");
    }
    assert_eq!(call(&admin, "GET", &format!("/lift{KEY}")).await.0, 405);
    for path in ["/bans?rows=3", "/bans?limit=many"] {
        let (status, text) = get(&admin, path, Some(&format!("Bearer {TOKEN}"))).await;
        assert!(status == 400 && text.starts_with("use /bans?"), "{path}: {text}");
    }
    assert_eq!(call(&admin, "GET", "/bans").await.1["count"], 1);
}
