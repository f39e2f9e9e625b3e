//! Tests of the HTTP endpoints for NGINX: `/check`, and `/acquire`, which keeps a permit while it is
//! open.

mod addresses;
mod permits;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use sluicegate::config::hooks::Hooks;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::body_memory::BodyLimits;
use sluicegate::edge::headers::RateLimitHeaders;
use sluicegate::edge::health::{Health, Readiness};
use sluicegate::edge::http::{CheckPort, router};
use sluicegate::engine::Engine;
use sluicegate::kernel::concurrency::RequestOutcome;
use tokio::sync::watch;
use tonic::codegen::Service as _;

use super::MAX_CONNECTIONS;
use crate::edge::{banning, empty_engine, engine, two_a_minute};

/// The headers that the shipped NGINX configuration sets.
const SET: [(&str, &str); 3] =
    [("x-original-uri", "/a?q=1"), ("x-original-method", "GET"), ("x-real-ip", "192.0.2.7")];

/// Two hooks: `edge` counts by the header `x-key`, and `other` uses the given action.
pub fn hooks(other: &str) -> Hooks {
    let json = format!(
        r#"[{{"name": "edge", "domain": "d", "descriptors":
            [[{{"request_headers": {{"header_name": "x-key", "descriptor_key": "k"}}}}]]}},
            {{"name": "other", "domain": "d", "descriptors": [[{other}]]}}]"#
    );
    serde_json::from_str(&json).unwrap()
}

fn port(engine: Arc<Engine>, hooks: Hooks) -> Router {
    let headers =
        RateLimitHeaders { draft: true, retry_after: true, denied_by: true, compat_names: None };
    let reporting = ReplyOptions { headers, ..ReplyOptions::default() };
    router(
        CheckPort {
            engine,
            reporting,
            health: Health::new(Readiness::Ready),
            hooks: Arc::new(hooks),
            draining: watch::channel(false).1,
            bodies: BodyLimits::default(),
        },
        MAX_CONNECTIONS,
    )
}

fn limited(other: &str) -> Router {
    port(engine(two_a_minute()), hooks(other))
}

/// Calls `/check` and returns status, headers and body of the response.
async fn check(router: &Router, headers: &[(&str, &[u8])]) -> (u16, HeaderMap, String) {
    let mut request = Request::builder().uri("/check");
    for &(name, value) in headers {
        request = request.header(name, value);
    }
    let Ok(response) = router.clone().call(request.body(Body::empty()).unwrap()).await;
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    (head.status.as_u16(), head.headers, String::from_utf8(body.to_vec()).unwrap())
}

fn with<'h>(more: &[(&'h str, &'h str)]) -> Vec<(&'h str, &'h [u8])> {
    SET.iter().chain(more).map(|&(name, value)| (name, value.as_bytes())).collect()
}

async fn status(router: &Router, more: &[(&str, &str)]) -> u16 {
    check(router, &with(more)).await.0
}

#[tokio::test]
async fn denials_return_403_with_headers_for_the_client() {
    let router = limited("");
    for left in [1, 0] {
        let (status, headers, _) = check(&router, &with(&[("x-key", "v")])).await;
        assert_eq!(status, 200);
        assert_eq!(headers["ratelimit-policy"], "\"lim\";q=2;w=60");
        assert_eq!(headers["ratelimit"], format!("\"lim\";r={left};t=60"));
        for absent in ["x-deny-status", "retry-after", "x-sluicegate-denied-by"] {
            assert!(!headers.contains_key(absent), "{absent}");
        }
    }
    let (status, headers, _) = check(&router, &with(&[("x-key", "v")])).await;
    assert_eq!((status, &headers["x-deny-status"]), (403, &"429".parse().unwrap()));
    assert_eq!(
        (&headers["retry-after"], &headers["x-sluicegate-denied-by"]),
        (&"60".parse().unwrap(), &"d.k".parse().unwrap())
    );
    assert_eq!(headers["ratelimit"], "\"lim\";r=0;t=60");
}

#[tokio::test]
async fn a_ban_has_the_status_of_its_penalty() {
    let router = port(engine(banning()), hooks(r#"{"remote_address": {}}"#));
    assert_eq!(status(&router, &[("x-key", "v")]).await, 200);
    for (wanted, wait) in [("429", "60"), ("451", "600"), ("451", "600")] {
        let (status, headers, _) = check(&router, &with(&[("x-key", "v")])).await;
        assert_eq!((status, &headers["x-deny-status"]), (403, &wanted.parse().unwrap()));
        assert_eq!(headers["retry-after"], wait);
        assert_eq!(headers["x-sluicegate-denied-by"], "d.k");
        assert_eq!(headers["ratelimit"], format!("\"lim\";r=0;t={wait}"));
    }
}

#[tokio::test]
async fn the_first_hook_is_the_default() {
    let router = limited(r#"{"remote_address": {}}, {"generic_key": {"descriptor_value": "x"}}"#);
    // An empty hook name selects the first hook. The shipped Lua script sends an empty name.
    for name in ["", "edge"] {
        assert_eq!(status(&router, &[("x-key", "v"), ("x-hook", name)]).await, 200);
    }
    assert_eq!(status(&router, &[("x-key", "v")]).await, 403);
    assert_eq!(status(&router, &[("x-key", "v"), ("x-hook", "other")]).await, 200);
}

#[tokio::test]
async fn hooks_see_the_original_request() {
    let value = |name: &str| {
        format!(r#"{{"request_headers": {{"header_name": "{name}", "descriptor_key": "k"}}}}"#)
    };
    let query = r#"{"query_parameters": {"query_parameter_name": "q", "descriptor_key": "k"}}"#;
    for (action, used_up_by, free) in [
        (value(":path"), ("x-original-uri", "/b"), ("x-original-uri", "/c")),
        (value(":method"), ("x-original-method", "POST"), ("x-original-method", "PUT")),
        (value(":authority"), ("host", "a"), ("host", "b")),
        (query.to_owned(), ("x-original-uri", "/b?q=1"), ("x-original-uri", "/b?q=2")),
    ] {
        let router = limited(&action);
        let ask = async |header: (&str, &str)| {
            let mut headers = with(&[("x-hook", "other")]);
            headers.retain(|(name, _)| *name != header.0);
            let (name, value) = header;
            headers.push((name, value.as_bytes()));
            check(&router, &headers).await.0
        };
        let statuses = [ask(used_up_by).await, ask(used_up_by).await, ask(used_up_by).await];
        assert_eq!(statuses, [200, 200, 403], "{action}");
        assert_eq!(ask(free).await, 200, "{action}");
    }
}

/// As in Envoy's descriptor action. If all header lines counted, a client could add lines to get
/// new counters.
#[tokio::test]
async fn only_the_first_line_of_a_repeated_header_counts() {
    let router = limited("");
    for second in ["b", "c"] {
        assert_eq!(status(&router, &[("x-key", "a"), ("x-key", second)]).await, 200);
    }
    assert_eq!(status(&router, &[("x-key", "a"), ("x-key", "d")]).await, 403);
    assert_eq!(status(&router, &[("x-key", "a")]).await, 403);
    assert_eq!(status(&router, &[("x-key", "d"), ("x-key", "a")]).await, 200);
}

#[tokio::test]
async fn matchers_see_repeated_headers_joined_by_a_comma() {
    let router = limited(
        r#"{"header_value_match": {"descriptor_key": "k", "descriptor_value": "v",
            "headers": [{"name": "x-key", "string_match": {"exact": "a,b"}}]}}"#,
    );
    let other = ("x-hook", "other");
    for _ in 0..2 {
        assert_eq!(status(&router, &[("x-key", "a"), ("x-key", "b"), other]).await, 200);
    }
    assert_eq!(status(&router, &[("x-key", "a,b"), other]).await, 403);
    assert_eq!(status(&router, &[("x-key", "a"), other]).await, 200);
}

#[tokio::test]
async fn requests_with_non_utf8_header_values_are_limited() {
    let router = limited("");
    let mut headers = with(&[]);
    headers.push(("x-key", b"\xff\xfe"));
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(check(&router, &headers).await.0);
    }
    assert_eq!(statuses, [200, 200, 403]);
}

#[tokio::test]
async fn a_request_without_descriptors_is_allowed() {
    let (status, headers, _) = check(&limited(""), &with(&[])).await;
    assert_eq!(status, 200);
    assert!(!headers.contains_key("ratelimit"));
}

#[tokio::test]
async fn an_unchecked_request_stores_no_early_release() {
    let engine = crate::edge::engine_with_concurrency("limit: 1");
    let router = port(Arc::clone(&engine), hooks(""));
    let id = "0123456789abcdef";
    for hook in ["edge", "nobody"] {
        let asked = [("x-hook", hook), ("x-sluicegate-id", id)];
        let _answer = check(&router, &with(&asked)).await;
        assert!(!engine.release(id, None, RequestOutcome::Success, None));
        assert_eq!(engine.early_releases().0, 0, "{hook}: it takes no room among early ones");
    }
}

#[tokio::test]
async fn duplicate_control_headers_are_rejected_and_charge_nothing() {
    let router = limited("");
    for (name, value) in SET.into_iter().chain([("x-hook", "edge")]) {
        let twice = [("x-key", "v"), ("x-hook", "edge"), (name, value)];
        let (status, _, text) = check(&router, &with(&twice)).await;
        assert_eq!(status, 400, "{name}");
        assert!(text.contains(name) && text.contains("is repeated"), "{text}");
    }
    assert_eq!(status(&router, &[("x-key", "v")]).await, 200);
    assert_eq!(status(&router, &[("x-key", "v")]).await, 200, "a counter moved");
}

#[tokio::test]
async fn missing_nginx_headers_are_named_in_the_error() {
    for (missing, _) in SET {
        let mut headers = with(&[("x-key", "v")]);
        headers.retain(|(name, _)| *name != missing);
        let (status, _, text) = check(&limited(""), &headers).await;
        assert_eq!(status, 400);
        assert!(text.contains(missing), "{text}");
    }
}

#[tokio::test]
async fn x_real_ip_must_be_an_address_or_unix() {
    let router = limited(r#"{"remote_address": {}}"#);
    let ask = async |address: &str| {
        let mut headers = with(&[("x-hook", "other")]);
        headers.retain(|(name, _)| *name != "x-real-ip");
        headers.push(("x-real-ip", address.as_bytes()));
        check(&router, &headers).await.0
    };
    for (address, want) in
        [("192.0.2.7", 200), ("2001:db8::1", 200), ("unix:", 200), ("192.0.2.7:1", 400), ("", 400)]
    {
        assert_eq!(ask(address).await, want, "{address}");
    }
}

#[tokio::test]
async fn configuration_and_request_errors_have_distinct_statuses() {
    let unknown = check(&limited(""), &with(&[("x-key", "v"), ("x-hook", "edgy")])).await;
    assert_eq!(unknown.0, 400);
    assert!(unknown.2.contains("edgy") && unknown.2.contains("edge, other"), "{}", unknown.2);
    for name in [vec![], vec![("x-hook", "edge")]] {
        let none = check(&port(engine(two_a_minute()), Hooks::default()), &with(&name)).await;
        assert_eq!(none.0, 501);
        assert!(none.2.contains("hooks"), "{}", none.2);
    }
    let unloaded = check(&port(empty_engine(), hooks("")), &with(&[("x-key", "v")])).await;
    assert_eq!(unloaded.0, 503);
}

#[tokio::test]
async fn a_value_of_64_kib_is_limited() {
    let port = limited("");
    for end in ["a", "b"] {
        let long = "v".repeat(64 * 1024) + end;
        for status in [200, 200, 403] {
            assert_eq!(check(&port, &with(&[("x-key", &long)])).await.0, status, "{end}");
        }
    }
}
