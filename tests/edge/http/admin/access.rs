//! Tests of the access to the admin port: tokens, roles, browsers, and hostile requests.

use std::fs;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use sluicegate::config::settings::{HeaderName, SecretText};
use sluicegate::edge::http::admin::AdminAccess;
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::Nanos;
use tempfile::TempDir;
use tonic::codegen::Service as _;

use super::{admin_of, admin_with, spend};
use crate::edge::{engine, two_a_minute};
use crate::support::engine::advance_clock;

const FORCE: &str = "/force?domain=d&descriptor=k=me&as=deny&for=1m&reason=abuse";

struct Reply {
    status: u16,
    headers: HeaderMap,
    text: String,
}

async fn send(router: &Router, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let Ok(reply) = router.clone().call(request.body(Body::empty()).unwrap()).await;
    let (status, headers) = (reply.status().as_u16(), reply.headers().clone());
    let body = axum::body::to_bytes(reply.into_body(), usize::MAX).await.unwrap();
    Reply { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
}

fn token_files(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

fn named_tokens(directory: &TempDir) -> AdminAccess {
    let trusted_header = HeaderName::new("x-forwarded-user");
    let access = AdminAccess { trusted_header, ..AdminAccess::default() };
    access.with_directory(directory.path()).unwrap()
}

fn alice_and_grafana() -> TempDir {
    token_files(&[
        ("operate.alice", "alice-secret-token\n"),
        ("view.grafana", "grafana-secret-token"),
    ])
}

const ALICE: (&str, &str) = ("authorization", "Bearer alice-secret-token");
const GRAFANA: (&str, &str) = ("authorization", "Bearer grafana-secret-token");

#[tokio::test]
async fn only_a_token_with_the_role_operate_makes_changes() {
    let files = alice_and_grafana();
    let engine = engine(two_a_minute());
    let router = admin_with(Arc::clone(&engine), named_tokens(&files));
    let wrong = ("authorization", "Bearer alice-secret-toke");
    for (headers, read, change) in
        [(&[][..], 401, 401), (&[wrong], 401, 401), (&[GRAFANA], 200, 403)]
    {
        assert_eq!(send(&router, "GET", "/actions", headers).await.status, read, "{headers:?}");
        assert_eq!(send(&router, "POST", FORCE, headers).await.status, change, "{headers:?}");
    }
    let refused = send(&router, "POST", FORCE, &[GRAFANA]).await.text;
    assert_eq!(refused, "the token `grafana` has the role view; a change needs operate\n");
    assert_eq!(spend(&engine, 1).await, Verdict::Allow, "nothing is forced");
    assert_eq!(send(&router, "POST", FORCE, &[ALICE]).await.status, 200);
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    assert_eq!(&*engine.actions()[0].by, "alice");
}

#[tokio::test]
async fn whoami_names_the_token_and_its_role() {
    let files = alice_and_grafana();
    let router = admin_with(engine(two_a_minute()), named_tokens(&files));
    let whoami = async |headers: &[(&str, &str)]| {
        let text = send(&router, "GET", "/whoami", headers).await.text;
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let alice = json!({"name": "alice", "role": "operate", "can_change": true, "why_not": null});
    assert_eq!(whoami(&[ALICE]).await, alice);
    let grafana = whoami(&[GRAFANA]).await;
    assert_eq!((&grafana["role"], &grafana["can_change"]), (&json!("view"), &json!(false)));
    let proxied = whoami(&[ALICE, ("x-forwarded-user", "bob")]).await;
    assert_eq!(proxied["name"], "bob", "the proxy's token vouches for the header");
    let direct = send(&router, "GET", "/whoami", &[("x-forwarded-user", "bob")]).await;
    assert_eq!(direct.status, 401, "the header alone is no authentication");
}

#[tokio::test]
async fn token_files_rotate_without_a_restart() {
    let files = alice_and_grafana();
    let engine = engine(two_a_minute());
    let router = admin_with(Arc::clone(&engine), named_tokens(&files));
    let status = async |token| send(&router, "GET", "/config", &[token]).await.status;
    assert_eq!(status(ALICE).await, 200);
    fs::write(files.path().join("operate.alice"), "new-secret-of-alice").unwrap();
    let new = ("authorization", "Bearer new-secret-of-alice");
    assert_eq!(status(new).await, 401, "read less than a second ago");
    advance_clock(&engine, Nanos::SECOND);
    assert_eq!([status(new).await, status(ALICE).await], [200, 401]);
    fs::write(files.path().join("alice"), "x").unwrap();
    advance_clock(&engine, Nanos::SECOND);
    assert_eq!(status(new).await, 401, "an invalid file name disables all tokens");
}

/// Polls each reply once: a reply without a delay is ready at the first poll.
#[tokio::test]
async fn only_replies_to_wrong_tokens_wait_and_only_some() {
    let router = admin_of(engine(two_a_minute()), Some("open-sesame-please"));
    let right = [("authorization", "Bearer open-sesame-please")];
    let wrong = [("authorization", "Bearer open-sesame-pleasE")];
    let ready = |headers: &[(&str, &str)]| {
        let reply = send(&router, "GET", "/config", headers).now_or_never();
        reply.map(|reply| reply.status)
    };
    assert_eq!((ready(&right), ready(&[])), (Some(200), Some(401)));
    let mut waiting: Vec<_> =
        (0..32).map(|_| Box::pin(send(&router, "GET", "/config", &wrong))).collect();
    for reply in &mut waiting {
        assert!(reply.now_or_never().is_none());
    }
    assert_eq!((ready(&wrong), ready(&right), ready(&[])), (Some(429), Some(200), Some(401)));
    drop(waiting);
    assert_eq!(ready(&wrong), None, "it waits in a free place");
}

#[test]
fn invalid_token_directories_are_errors() {
    for (name, text, words) in [
        ("alice", "secret", "must be view.NAME or operate.NAME"),
        ("admin.alice", "secret", "must be view.NAME or operate.NAME"),
        ("operate.", "secret", "must be view.NAME or operate.NAME"),
        ("operate.alice", "two words", "printable ASCII without blanks"),
        ("operate.alice", "", "printable ASCII without blanks"),
        ("operate.alice", "fifteen-letters", "shorter than 16 characters"),
    ] {
        let files = token_files(&[(name, text)]);
        let error = AdminAccess::default().with_directory(files.path()).err().unwrap();
        assert!(error.contains(words) && error.contains("admin.token_dir"), "{error}");
        assert!(text.is_empty() || !error.contains(text), "{error}");
    }
    let hidden = token_files(&[("..data", "x y"), ("view.a", "a-long-secret-token")]);
    assert!(AdminAccess::default().with_directory(hidden.path()).is_ok());
}

#[tokio::test]
async fn a_page_of_another_origin_changes_nothing() {
    let engine = engine(two_a_minute());
    let router = admin_of(Arc::clone(&engine), Some("open-sesame-please"));
    let token = ("authorization", "Bearer open-sesame-please");
    let host = ("host", "127.0.0.1:6070");
    for foreign in [
        [("sec-fetch-site", "cross-site"), host],
        [("sec-fetch-site", "same-site"), host],
        [("origin", "http://evil.example"), host],
        [("origin", "null"), host],
    ] {
        let reply = send(&router, "POST", FORCE, &[token, foreign[0], foreign[1]]).await;
        assert_eq!(reply.status, 403, "{foreign:?}: {}", reply.text);
    }
    assert_eq!(engine.actions(), []);
    let own = [token, host, ("origin", "http://127.0.0.1:6070"), ("sec-fetch-site", "same-origin")];
    assert_eq!(send(&router, "POST", FORCE, &own).await.status, 200);
}

#[tokio::test]
async fn names_that_resolve_to_this_machine_are_refused_without_a_token() {
    let open = admin_of(engine(two_a_minute()), None);
    let status = async |router: &Router, headers: &[(&str, &str)]| {
        send(router, "GET", "/config", headers).await.status
    };
    for host in ["127.0.0.1:6070", "localhost:6070", "[::1]:6070"] {
        assert_eq!(status(&open, &[("host", host)]).await, 200, "{host}");
    }
    for host in ["evil.example", "evil.example:6070", "127.0.0.1.evil.example"] {
        assert_eq!(status(&open, &[("host", host)]).await, 403, "{host}");
    }
    let closed = admin_of(engine(two_a_minute()), Some("open-sesame-please"));
    let with_token = [("host", "gate.example"), ("authorization", "Bearer open-sesame-please")];
    assert_eq!(status(&closed, &with_token).await, 200, "the token is proof enough");
}

#[tokio::test]
async fn all_pages_restrict_browsers() {
    let router = admin_of(engine(two_a_minute()), None);
    for path in ["/", "/config", "/nothing", "/explain"] {
        let headers = send(&router, "GET", path, &[]).await.headers;
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers["x-frame-options"], "DENY");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["cache-control"], "no-store");
    }
}

#[tokio::test]
async fn a_key_with_html_is_never_served_as_html() {
    let engine = engine(two_a_minute());
    let router = admin_of(Arc::clone(&engine), Some("open-sesame-please"));
    let token = ("authorization", "Bearer open-sesame-please");
    let path = "/force?domain=d&descriptor=k=%3Cscript%3Ealert(1)%3C/script%3E&as=deny&for=1m\
                &scope=key&reason=%3Cimg%20src=x%3E";
    assert_eq!(send(&router, "POST", path, &[token]).await.status, 200);
    for path in ["/actions", "/audit", "/explain?domain=d&descriptor=k=%3Cb%3E"] {
        let reply = send(&router, "GET", path, &[token]).await;
        assert_eq!(reply.headers["content-type"], "application/json", "{path}");
    }
    let invalid = send(&router, "GET", "/explain?domain=d&descriptor=%3Cb%3E", &[token]).await;
    assert!(invalid.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
}

#[tokio::test]
async fn a_token_setting_and_a_token_directory_work_together() {
    let files = alice_and_grafana();
    let token = SecretText::new("open-sesame-please");
    let access = AdminAccess { token, ..named_tokens(&files) };
    let router = admin_with(engine(two_a_minute()), access);
    for token in [ALICE, ("authorization", "Bearer open-sesame-please")] {
        assert_eq!(send(&router, "GET", "/config", &[token]).await.status, 200);
    }
}
