//! Tests of `/record`: its token, its parameters, and the end of a recording.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::response::Response;
use serde_json::Value;
use sluicegate::engine::Engine;
use tonic::codegen::Service as _;

use super::{get, spend};
use crate::edge::{engine, two_a_minute};
use crate::recording::read;
use crate::support::waiting::soon;

const TOKEN: Option<&str> = Some("Bearer open-sesame-please");

fn admin(engine: &Arc<Engine>, token: Option<&str>) -> Router {
    super::admin_of(Arc::clone(engine), token)
}

async fn post(router: &Router, query: &str, token: Option<&str>) -> Response {
    let mut request = Request::builder().method("POST").uri(format!("/record?{query}"));
    if let Some(token) = token {
        request = request.header("authorization", token);
    }
    let Ok(reply) = router.clone().call(request.body(Body::empty()).unwrap()).await;
    reply
}

async fn start(router: &Router, query: &str) -> Response {
    post(router, &format!("{query}&reason=ticket+7"), TOKEN).await
}

async fn status_and_text(reply: Response) -> (u16, String) {
    let status = reply.status().as_u16();
    let body = to_bytes(reply.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_recording_needs_a_post_with_a_token() {
    let engine = engine(two_a_minute());
    let router = admin(&engine, Some("open-sesame-please"));
    let reply = post(&admin(&engine, None), "reason=ticket+7", None).await;
    let (status, body) = status_and_text(reply).await;
    assert!(status == 403 && body.contains("admin.token"), "{body}");
    assert_eq!(post(&router, "reason=ticket+7", None).await.status(), 401);
    assert_eq!(get(&router, "/record?reason=ticket+7", TOKEN).await.0, 405);
}

#[tokio::test]
async fn a_recording_needs_a_reason_for_the_audit_log() {
    let engine = engine(two_a_minute());
    let router = admin(&engine, Some("open-sesame-please"));
    let (status, body) = status_and_text(post(&router, "for=10m", TOKEN).await).await;
    assert!(status == 400 && body.contains("a reason is required"), "{body}");
    assert_eq!(start(&router, "for=10m&sample=1%25").await.status(), 200);
    let (_, body) = get(&router, "/audit", TOKEN).await;
    let audit: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(audit["entries"].as_array().unwrap().len(), 1);
    let entry = &audit["entries"][0];
    assert_eq!([&entry["by"], &entry["action"], &entry["reason"]], ["admin", "record", "ticket 7"]);
    assert_eq!(entry["detail"], "hashed keys, 1% of the descriptors for 10m");
}

#[tokio::test]
async fn invalid_parameters_are_named() {
    let router = admin(&engine(two_a_minute()), Some("open-sesame-please"));
    for (query, reason) in [
        ("sample=2", "`sample` must be like 1%, got `2`"),
        ("for=long", "`for` must be a duration such as 10m, got `long`"),
        ("for=2h", "a recording takes 1s to 1h"),
        ("keys=none", "`keys` must be hashed or clear, got `none`"),
        ("rate=1%", "unknown parameter `rate`"),
    ] {
        let reply = start(&router, &query.replace('%', "%25")).await;
        let (status, body) = status_and_text(reply).await;
        assert!(status == 400 && body.contains(reason), "{query}: {status} {body}");
    }
}

#[tokio::test]
async fn a_recording_streams_until_it_is_stopped() {
    let engine = engine(two_a_minute());
    let router = admin(&engine, Some("open-sesame-please"));
    let reply = start(&router, "for=10m&keys=clear").await;
    assert_eq!(reply.status(), 200);
    assert_eq!(start(&router, "for=10m").await.status(), 409);
    spend(&engine, 1).await;
    engine.stop_recording();
    let body = soon("the body", to_bytes(reply.into_body(), usize::MAX)).await.unwrap();
    assert_eq!(read(&body).unwrap().end.unwrap().recorded, 1);
}

#[tokio::test]
async fn a_disconnected_client_ends_the_recording() {
    let engine = engine(two_a_minute());
    let router = admin(&engine, Some("open-sesame-please"));
    drop(start(&router, "for=10m").await);
    assert_eq!(start(&router, "for=10m").await.status(), 200);
}
