//! Tests of the admin port: access token, configuration, explanations, counters and permits.

mod access;
mod actions;
mod audit;
mod bans;
mod budgets;
mod everything;
mod live;
mod pace;
mod recent;
mod record;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use sluicegate::clock::Clock;
use sluicegate::config::diagnostic::SeverityCounts;
use sluicegate::config::raw;
use sluicegate::config::settings::SecretText;
use sluicegate::edge::http::admin::{
    Admin, AdminAccess, ConfigLoads, LoadError, config as shown_config, rlconfig, router,
};
use sluicegate::engine::Engine;
use sluicegate::kernel::concurrency::RequestOutcome as Concluded;
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use tonic::codegen::Service as _;

use crate::edge::{config, empty_engine, engine, node, spanned, two_a_minute};

pub(super) fn admin(token: Option<&str>) -> Router {
    admin_of(engine(two_a_minute()), token)
}

fn admin_of(engine: Arc<Engine>, token: Option<&str>) -> Router {
    let token = token.map(|token| SecretText::new(token).unwrap());
    admin_with(engine, AdminAccess { token, ..AdminAccess::default() })
}

fn admin_with(engine: Arc<Engine>, access: AdminAccess) -> Router {
    let (load_report, config_diff) = (Arc::new(ConfigLoads::default), Arc::default());
    router(Admin { access, engine, load_report, config_diff, mirror: None })
}

async fn get(router: &Router, path: &str, authorization: Option<&str>) -> (u16, String) {
    let mut request = Request::builder().uri(path);
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    let Ok(reply) = router.clone().call(request.body(Body::empty()).unwrap()).await;
    let status = reply.status().as_u16();
    let body = axum::body::to_bytes(reply.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn get_json(path: &str) -> Value {
    let (status, body) = get(&admin(None), path, None).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn all_admin_pages_require_the_token() {
    let router = admin(Some("open-sesame-please"));
    let wrong = [
        None,
        Some("open-sesame-please"),
        Some("Bearer "),
        Some("Bearer open"),
        Some("Bearer open-sesamE"),
        Some("Bearer open-sesame-please!"),
        Some("bearer open-sesame-please"),
    ];
    for path in [
        "/",
        "/config",
        "/counter",
        "/debug/pprof/profile",
        "/rlconfig",
        "/explain",
        "/fleet",
        "/actions",
        "/audit",
        "/bans",
        "/lift",
        "/whoami",
        "/config/diff",
        "/permits",
        "/overview",
        "/rules",
        "/rule",
        "/top",
        "/concurrency",
        "/record",
        "/nothing",
    ] {
        assert_eq!(get(&router, path, None).await.0, 401, "{path}");
    }
    // At once, because the reply to a wrong token is delayed.
    let replies = wrong.map(|authorization| get(&router, "/config", authorization));
    for (status, body) in futures_util::future::join_all(replies).await {
        assert_eq!(status, 401, "{body}");
    }
    assert_eq!(get(&router, "/config", Some("Bearer open-sesame-please")).await.0, 200);
}

#[tokio::test]
async fn only_the_debug_pages_need_no_token() {
    for token in [None, Some("open-sesame-please")] {
        let token = token.map(|token| SecretText::new(token).unwrap());
        let has_token = token.is_some();
        let access = AdminAccess { token, debug_pages: true, ..AdminAccess::default() };
        let router = admin_with(engine(two_a_minute()), access);
        for path in ["/", "/rlconfig", "/stats", "/nothing"] {
            assert_eq!(get(&router, path, None).await.0, 200, "{path}");
        }
        let (_, list) = get(&router, "/nothing", None).await;
        let paths: Vec<_> = list.lines().map(|line| line.split(": ").next().unwrap()).collect();
        assert_eq!(paths, ["/", "/rlconfig", "/stats"]);
        let (_, why) = get(&router, "/config", None).await;
        assert_eq!(why.contains("no admin token is set"), !has_token, "{why}");
        for path in ["/config", "/explain", "/fleet"] {
            assert_eq!(get(&router, path, None).await.0, 401, "{path}");
            let status_with_token = get(&router, path, Some("Bearer open-sesame-please")).await.0;
            assert_eq!(status_with_token == 401, !has_token, "{path}");
        }
    }
}

#[tokio::test]
async fn unknown_admin_paths_list_all_pages() {
    for path in ["/", "/nothing", "/config/"] {
        let (status, body) = get(&admin(None), path, None).await;
        assert_eq!(status, 200);
        let paths: Vec<_> = body.lines().map(|line| line.split(": ").next().unwrap()).collect();
        assert_eq!(
            paths,
            [
                "/",
                "/actions",
                "/audit",
                "/bans",
                "/boost",
                "/budgets",
                "/concurrency",
                "/config/diff",
                "/config",
                "/console",
                "/counter",
                "/explain",
                "/fleet",
                "/force",
                "/lift",
                "/mirror",
                "/overview",
                "/permits",
                "/recent",
                "/record",
                "/refund",
                "/reset",
                "/rlconfig",
                "/rule",
                "/rules",
                "/set",
                "/stats",
                "/tables",
                "/top",
                "/top_up",
                "/unboost",
                "/unforce",
                "/unset",
                "/whoami"
            ]
        );
    }
}

#[tokio::test]
async fn config_page_is_empty_before_the_first_load() {
    let router = admin_of(empty_engine(), None);
    let (_, body) = get(&router, "/config", None).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["revision"], &body["loaded_at"]), (&json!(0), &json!(null)));
    assert_eq!(get(&router, "/rlconfig", None).await, (200, String::new()));
    assert_eq!(get(&router, "/explain?domain=d&descriptor=k=v", None).await.0, 400);
}

#[test]
fn config_page_shows_limits_in_force_and_the_last_error() {
    let diagnostic = json!({"code": "E01", "line": 7});
    let loads = ConfigLoads {
        successful: 4,
        failed: 2,
        loaded_at: Some(Nanos(1_767_225_600_250_000_000)),
        files: vec!["d.yaml".into()],
        warnings: vec![json!({"code": "W01"})],
        omitted_warnings: 3,
        last_error: Some(LoadError {
            at: Nanos::from_secs(1_767_225_601),
            diagnostics: vec![diagnostic.clone()],
            omitted: SeverityCounts { errors: 5, warnings: 2, notes: 1 },
        }),
    };
    let want = json!({
        "revision": 3, "loads": 4, "rejected": 2, "files": ["d.yaml"],
        "loaded_at": "2026-01-01T00:00:00.25Z",
        "last_error": {"at": "2026-01-01T00:00:01Z", "diagnostics": [diagnostic],
            "more": {"errors": 5, "warnings": 2, "notes": 1}},
        "domains": {"d": {"rules": 2}}, "warnings": [{"code": "W01"}], "more_warnings": 3,
    });
    assert_eq!(shown_config(&loads, Some(&two_a_minute())), want);
}

fn limit(requests: u32, unit: &str, per: &str) -> raw::RateLimit {
    raw::RateLimit {
        requests_per_unit: spanned(requests),
        unit: spanned(unit.into()),
        per: (!per.is_empty()).then(|| spanned(per.into())),
        ..raw::RateLimit::default()
    }
}

#[test]
fn rlconfig_page_uses_the_envoyproxy_ratelimit_format() {
    let mut shadow = node("s", limit(1, "week", ""));
    shadow.shadow_mode = true;
    let mut quota = node("q", limit(2, "second", ""));
    quota.quota_mode = true;
    let mut deep = node("a", limit(7, "day", ""));
    deep.value = spanned("x".into());
    deep.descriptors = vec![node("b", limit(5, "month", ""))];
    let nodes = vec![shadow, quota, deep, node("p", limit(3, "", "90s"))];
    let want = "\
d.a_x.b: unit=MONTH requests_per_unit=5, shadow_mode: false, quota_mode: false
d.a_x: unit=DAY requests_per_unit=7, shadow_mode: false, quota_mode: false
d.p: unit=90s requests_per_unit=3, shadow_mode: false, quota_mode: false
d.q: unit=SECOND requests_per_unit=2, shadow_mode: false, quota_mode: true
d.s: unit=WEEK requests_per_unit=1, shadow_mode: true, quota_mode: false
";
    assert_eq!(rlconfig(&config(nodes)), want);
    let unlimited = "d.u: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false";
    assert!(rlconfig(&two_a_minute()).lines().any(|line| line == unlimited));
}

#[tokio::test]
async fn explain_page_shows_the_rule_and_its_match_steps() {
    let shown = get_json("/explain?domain=d&descriptor=k%3Dv&hits=3").await;
    assert_eq!(shown["known"], true);
    let descriptor = &shown["descriptors"][0];
    let rule = &descriptor["rule"];
    assert_eq!((&rule["path"], &rule["strategy"]), (&json!("d.k"), &json!("fixed_window")));
    assert_eq!(rule["fresh"]["verdict"], "never", "three hits never pass a limit of two");
    let candidates = descriptor["steps"][0]["candidates"].as_array().unwrap().iter();
    let taken: Vec<_> = candidates.filter(|tried| tried["verdict"] == "matched").collect();
    assert_eq!(taken, [&json!({"kind": "bare key", "name": "k", "verdict": "matched"})]);
}

#[tokio::test]
async fn explain_page_shows_why_no_rule_matches() {
    let shown = get_json("/explain?domain=d&descriptor=zz=1&descriptor=k=v,k2=v2").await;
    let reasons = ["no rule on this level matches", "has no descriptors for the next entry"];
    for (descriptor, why) in reasons.into_iter().enumerate() {
        let outcome = shown["descriptors"][descriptor]["outcome"].as_str().unwrap();
        assert!(outcome.contains(why), "{outcome}");
    }
    assert_eq!(shown["descriptors"][1]["rule"], json!(null));
    assert_eq!(get_json("/explain?domain=e&descriptor=k=v").await["known"], false);
}

#[tokio::test]
async fn explain_page_names_missing_and_invalid_parameters() {
    let wrong = [
        ("/explain", "domain"),
        ("/explain?domain=d", "descriptor"),
        ("/explain?domain=d&descriptor=k", "key=value"),
        ("/explain?domain=d&descriptor=k=v&hits=-1", "-1"),
        ("/explain?domain=d&descriptor=k=v&colour=red", "colour"),
    ];
    for (path, word) in wrong {
        let (status, body) = get(&admin(None), path, None).await;
        assert_eq!(status, 400, "{path}");
        assert!(body.contains(word), "{path}: {body}");
    }
}

#[tokio::test]
async fn usage_errors_of_admin_pages_mention_no_other_page() {
    let router = admin(Some("open-sesame-please"));
    for (method, path) in [
        ("GET", "/explain"),
        ("GET", "/counter"),
        ("POST", "/refund"),
        ("POST", "/reset"),
        ("POST", "/unforce"),
        ("POST", "/force?as=deny&for=1m"),
    ] {
        let (status, body) = call(&router, method, path).await;
        let reply = body.as_str().unwrap();
        assert!(status == 400 && reply.contains(" ?domain=d&descriptor=k=v"), "{path}: {reply}");
        assert!(!reply.contains("/explain"), "{path}: {reply}");
    }
}

const KEY: &str = "?domain=d&descriptor=k=me";

/// Calls an admin page with the access token and, for a change, with a reason. A body that is not
/// JSON becomes a JSON string.
pub(super) async fn call(router: &Router, method: &str, path: &str) -> (u16, Value) {
    let separator = if path.contains('?') { '&' } else { '?' };
    let reason =
        if method == "POST" { format!("{separator}reason=ticket+7") } else { String::new() };
    let request = Request::builder().method(method).uri(format!("{path}{reason}"));
    let request = request.header("authorization", "Bearer open-sesame-please");
    let Ok(reply) = router.clone().call(request.body(Body::empty()).unwrap()).await;
    let status = reply.status().as_u16();
    let body = axum::body::to_bytes(reply.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&body).into_owned();
    (status, serde_json::from_slice(&body).unwrap_or(Value::String(text)))
}

pub(super) async fn spend(engine: &Engine, hits: u64) -> Verdict {
    let descriptor = Descriptor {
        entries: smallvec::smallvec![("k", "me")],
        cost: Cost::Charge(Hits(hits)),
        limit: None,
    };
    let question = Check { domain: "d", descriptors: smallvec::smallvec![descriptor] };
    engine.decide(&question).await.unwrap().verdict
}

#[tokio::test]
async fn admin_port_reads_refunds_and_resets_counters() {
    let engine = engine(two_a_minute());
    let router = admin_of(Arc::clone(&engine), Some("open-sesame-please"));
    let (read_counter, grant, reset) =
        (format!("/counter{KEY}"), format!("/refund{KEY}&hits=1"), format!("/reset{KEY}"));
    let left = async |method: &str, path: &str| {
        let (status, body) = call(&router, method, path).await;
        assert_eq!(status, 200, "{path}: {body}");
        body["remaining"].as_u64().unwrap()
    };
    assert_eq!(left("GET", &read_counter).await, 2);
    assert_eq!(left("GET", &read_counter).await, 2, "looking charges nothing");
    assert_eq!(spend(&engine, 2).await, Verdict::Allow);
    assert_eq!(left("GET", &read_counter).await, 0);
    assert_eq!(left("POST", &grant).await, 1);
    assert_eq!(spend(&engine, 1).await, Verdict::Allow);
    // A fixed window also counts denied hits, but a reset clears all of them.
    assert_eq!(spend(&engine, 50).await, Verdict::Deny);
    assert_eq!(call(&router, "POST", &reset).await.0, 200);
    assert_eq!(left("GET", &read_counter).await, 2);
    assert_eq!(spend(&engine, 2).await, Verdict::Allow);
    assert_eq!(call(&router, "GET", &grant).await.0, 405, "a link changes nothing");
}

#[tokio::test]
async fn reading_a_counter_counts_no_decision() {
    let engine = engine(two_a_minute());
    let router = admin_of(Arc::clone(&engine), None);
    spend(&engine, 1).await;
    let counts = || engine.rule_decisions().iter().map(|rule| rule.counts).collect::<Vec<_>>();
    let before = counts();
    assert_eq!(before.iter().flatten().sum::<u64>(), 1);
    for _ in 0..3 {
        let (_, body) = get(&router, &format!("/counter{KEY}"), None).await;
        assert!(body.contains("\"remaining\":1"), "{body}");
    }
    assert_eq!(counts(), before);
}

#[tokio::test]
async fn admin_changes_are_forbidden_if_no_token_is_configured() {
    for path in ["refund", "reset", "force", "unforce"] {
        let (status, body) = call(&admin(None), "POST", &format!("/{path}{KEY}&hits=1")).await;
        assert!(
            status == 403 && body.as_str().unwrap().contains("admin.token_file"),
            "{path}: {body}"
        );
    }
}

#[tokio::test]
async fn invalid_counter_queries_return_the_reason() {
    for (query, words) in [
        ("?domain=d&descriptor=other=x", "no limit counts this descriptor"),
        ("?domain=d&descriptor=k=a&descriptor=k=b", "exactly one descriptor is required, got 2"),
        ("?domain=d", "at least one descriptor"),
    ] {
        let (status, body) =
            call(&admin(Some("open-sesame-please")), "GET", &format!("/counter{query}")).await;
        assert!(
            status == 400 && body.as_str().is_some_and(|b| b.contains(words)),
            "{query}: {body}"
        );
    }
}

#[tokio::test]
async fn reset_rejects_uncounted_descriptors_and_accepts_empty_counters() {
    let router = admin(Some("open-sesame-please"));
    for descriptor in ["other=x", "u=x"] {
        let path = format!("/reset?domain=d&descriptor={descriptor}");
        let (status, reply) = call(&router, "POST", &path).await;
        let reply = reply.as_str().unwrap();
        assert!(status == 400 && reply.contains("no limit counts this descriptor"), "{reply}");
    }
    let (status, reply) = call(&router, "POST", &format!("/reset{KEY}")).await;
    assert_eq!((status, reply), (200, json!("1 counter reset\n")));
}

#[tokio::test]
async fn permits_and_explain_pages_show_requests_in_flight() {
    let engine =
        crate::edge::engine_with_concurrency("limit: 3, adaptive: {algorithm: gradient2, max: 3}");
    let held = crate::edge::acquire_permits(&engine, "first").await;
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(Nanos(7_000_000));
    let _second = crate::edge::acquire_permits(&engine, "second").await;
    let router = admin_of(Arc::clone(&engine), None);
    let json = async |path| {
        let (_, body) = get(&router, path, None).await;
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let shown = json("/permits").await;
    assert_eq!((&shown["in_flight"], &shown["buckets"]), (&json!(2), &json!(2)));
    let permit =
        |descriptor, age_us| json!({"domain": "d", "descriptor": descriptor, "age_us": age_us});
    assert_eq!(shown["oldest"], json!([permit("k=first", 7_000), permit("k=second", 0)]));
    assert_eq!(shown["busiest"][0]["limit"], 3);
    held.release(Concluded::Success, None);
    // The min RTT needs eight samples.
    for _ in 1..8 {
        let held = crate::edge::acquire_permits(&engine, "first").await;
        clock.advance(Nanos(7_000_000));
        held.release(Concluded::Success, None);
    }
    let shown = json("/permits").await;
    let busiest = shown["busiest"].as_array().unwrap();
    let first = busiest.iter().find(|bucket| bucket["descriptor"] == "k=first").unwrap();
    let of_latency = ["rtt_us", "min_rtt_us", "gradient"].map(|name| first[name].clone());
    assert_eq!(of_latency, [json!(7_000), json!(7_000), json!(1.0)]);
    let shown = json("/explain?domain=d&descriptor=k=first").await;
    let now = &shown["descriptors"][0]["concurrency"]["now"];
    let want = json!({"in_flight": 0, "waiting": 0, "limit": 3, "rtt": "7ms", "min_rtt": "7ms", "gradient": 1.0});
    assert_eq!(*now, want);
    let shown = json("/explain?domain=d&descriptor=k=nobody").await;
    assert_eq!(shown["descriptors"][0]["concurrency"].get("now"), None);
}

#[tokio::test]
async fn counter_and_rlconfig_show_each_limit_of_a_list() {
    let text = "domain: d\ndescriptors:\n- {key: k, rate_limits: [{unit: minute, requests_per_unit: \
                2}, {per: 5h, requests_per_unit: 9}]}\n";
    let config = sluicegate::config::load([("a", text.as_bytes())], Revision(1), false).unwrap().0;
    assert_eq!(
        rlconfig(&config),
        "d.k.per-5h: unit=18000s requests_per_unit=9, shadow_mode: false, quota_mode: false\n\
         d.k.per-minute: unit=MINUTE requests_per_unit=2, shadow_mode: false, quota_mode: false\n"
    );
    let engine = engine(config);
    let router = admin_of(engine.clone(), Some("open-sesame-please"));
    spend(&engine, 2).await;
    let (status, body) = call(&router, "GET", &format!("/counter{KEY}")).await;
    assert_eq!((status, &body["limit"]), (200, &json!("per-minute")), "{body}");
    let limits = body["limits"].as_array().unwrap();
    let shown = limits.iter().map(|limit| (&limit["limit"], &limit["remaining"]));
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [(&json!("per-minute"), &json!(0)), (&json!("per-5h"), &json!(7))]
    );
    let (_, body) = call(&router, "POST", &format!("/reset{KEY}")).await;
    assert_eq!(body, json!("2 counters reset\n"));
}
