//! Tests of `/record`: its token, its parameters, and the end of a recording.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::response::Response;
use sluicegate::engine::Engine;
use tonic::codegen::Service as _;

use super::{get, spend};
use crate::edge::{engine, two_a_minute};
use crate::recording::read;
use crate::support::waiting::soon;

const TOKEN: Option<&str> = Some("Bearer open-sesame");

fn admin(engine: &Arc<Engine>, token: Option<&str>) -> Router {
    super::admin_of(Arc::clone(engine), token)
}

async fn start(router: &Router, query: &str) -> Response {
    let request = Request::builder().uri(format!("/record?{query}"));
    let request = request.header("authorization", TOKEN.unwrap()).body(Body::empty());
    let Ok(reply) = router.clone().call(request.unwrap()).await;
    reply
}

#[tokio::test]
async fn a_recording_needs_a_token() {
    let engine = engine(two_a_minute());
    let (status, body) = get(&admin(&engine, None), "/record", None).await;
    assert!(status == 403 && body.contains("listen.admin_token"), "{body}");
    let (status, _) = get(&admin(&engine, Some("open-sesame")), "/record", None).await;
    assert_eq!(status, 401);
}

#[tokio::test]
async fn invalid_parameters_are_named() {
    let router = admin(&engine(two_a_minute()), Some("open-sesame"));
    for (query, reason) in [
        ("sample=2", "`sample` must be like 1%, got `2`"),
        ("for=long", "`for` must be a duration such as 10m, got `long`"),
        ("for=2h", "a recording takes 1s to 1h"),
        ("keys=none", "`keys` must be hashed or clear, got `none`"),
        ("rate=1%", "unknown parameter `rate`"),
    ] {
        let (status, body) =
            get(&router, &format!("/record?{}", query.replace('%', "%25")), TOKEN).await;
        assert!(status == 400 && body.contains(reason), "{query}: {status} {body}");
    }
}

#[tokio::test]
async fn a_recording_streams_until_it_is_stopped() {
    let engine = engine(two_a_minute());
    let router = admin(&engine, Some("open-sesame"));
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
    let router = admin(&engine, Some("open-sesame"));
    drop(start(&router, "for=10m").await);
    assert_eq!(start(&router, "for=10m").await.status(), 200);
}
