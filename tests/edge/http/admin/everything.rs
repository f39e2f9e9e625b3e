//! Tests of `scope=everything`: for a while, all limits are counted and deny nothing.

use std::sync::Arc;

use serde_json::json;
use sluicegate::clock::Clock;
use sluicegate::engine::Engine;
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::Nanos;

use super::{call, spend};
use crate::edge::{engine, two_a_minute};

const EVERYTHING: &str = "?scope=everything";

fn admin(engine: &Arc<Engine>) -> axum::Router {
    super::admin_of(Arc::clone(engine), Some("open-sesame-please"))
}

fn advance(engine: &Engine, by: Nanos) {
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(by);
}

#[tokio::test]
async fn everything_is_allowed_and_counted_until_the_action_ends() {
    let engine = engine(two_a_minute());
    let admin = admin(&engine);
    assert_eq!(spend(&engine, 1).await, Verdict::Allow);
    let path = format!("/force{EVERYTHING}&as=allow&for=30s");
    let (status, reply) = call(&admin, "POST", &path).await;
    assert_eq!((status, &reply["value"]), (200, &json!("allow")), "{reply}");
    assert_eq!(spend(&engine, 1).await, Verdict::Allow);
    assert_eq!(spend(&engine, 1).await, Verdict::Allow, "above the limit");
    let (_, shown) = call(&admin, "GET", "/actions").await;
    let listed = &shown["actions"][0];
    assert_eq!((&listed["scope"], &listed["verdict"]), (&json!("everything"), &json!("allow")));
    let (_, explained) = call(&admin, "GET", "/explain?domain=d&descriptor=k=me").await;
    assert!(explained.to_string().contains("an operator allows everything until"), "{explained}");
    let (_, audit) = call(&admin, "GET", "/audit").await;
    assert_eq!(audit["entries"][0]["scope"], "everything", "{audit}");
    advance(&engine, Nanos::from_secs(29));
    assert_eq!(spend(&engine, 1).await, Verdict::Allow);
    advance(&engine, Nanos::from_secs(1));
    assert_eq!(spend(&engine, 1).await, Verdict::Deny, "the hits were counted");
    assert_eq!(call(&admin, "POST", &format!("/unforce{EVERYTHING}")).await.0, 400);
}

#[tokio::test]
async fn an_operator_ends_the_action_early() {
    let engine = engine(two_a_minute());
    let admin = admin(&engine);
    let path = format!("/force{EVERYTHING}&as=allow&for=1h");
    assert_eq!(call(&admin, "POST", &path).await.0, 200);
    assert_eq!(spend(&engine, 3).await, Verdict::Allow);
    assert_eq!(call(&admin, "POST", &format!("/unforce{EVERYTHING}")).await.0, 200);
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
}

#[tokio::test]
async fn everything_cannot_be_denied_or_have_a_domain() {
    let engine = engine(two_a_minute());
    let admin = admin(&engine);
    for (query, why) in [
        ("&as=deny&for=1h", "must be allow"),
        ("&as=allow&for=1h&domain=d", "has no `domain`"),
        ("&as=allow&for=1h&descriptor=k=v", "has no `descriptor`"),
    ] {
        let (status, reply) = call(&admin, "POST", &format!("/force{EVERYTHING}{query}")).await;
        assert!(status == 400 && reply.to_string().contains(why), "{query}: {reply}");
    }
    assert!(engine.actions().is_empty());
}
