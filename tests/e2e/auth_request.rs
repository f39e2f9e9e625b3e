//! Tests of rate limits through `auth_request` on a real NGINX with the shipped configuration.

use std::net::SocketAddr;

use tempfile::NamedTempFile;

use super::envoy::WhenDown;
use super::nginx::{Nginx, Shipped};
use super::{Limits, Midnight, assert_headers, serve, statuses, upstream};
use crate::support::http1;
use crate::support::ports;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::service::Service;
use crate::support::waiting::for_a_day_with_a_minute_left;

/// Two hooks: `edge` is used by the shipped configurations; `first` has a domain without limits.
pub(super) const HOOKS: &str = r#"[
    {"name": "first", "domain": "other", "descriptors": [[{"remote_address": {}}]]},
    {"name": "edge", "domain": "shop", "descriptors":
        [[{"request_headers": {"header_name": "x-api-key", "descriptor_key": "api_key"}}],
         [{"remote_address": {}}],
         [{"request_headers": {"header_name": ":path", "descriptor_key": "path"}}],
         [{"request_headers": {"header_name": ":method", "descriptor_key": "method"}}]]}]"#;

pub(super) fn serve_hooks(limits: &Limits) -> Service {
    let flags = ["--hooks", HOOKS, "--answers-headers", "draft", "--answers-retry-after", "true"];
    serve(limits.path(), &flags)
}

fn status(ingress: SocketAddr, headers: &[(&str, &str)]) -> u16 {
    http1::get(ingress, "/", headers).unwrap().status
}

#[test]
fn nginx_rate_limit_is_exact_and_headers_reach_the_client() {
    for_a_day_with_a_minute_left();
    let midnight = Midnight::ahead();
    let limits = Limits::per_key(2);
    let service = serve_hooks(&limits);
    let nginx = Nginx::start(upstream::start(), service.http, WhenDown::Deny);
    for left in [1, 0] {
        let admitted = super::ask(nginx.ingress, "one");
        assert_eq!(admitted.status, 200, "{admitted:?}\n{}", nginx.log());
        assert_eq!((admitted.text().as_str(), admitted.header("retry-after")), ("upstream", None));
        assert_headers(&admitted, left, midnight);
    }
    for _ in 0..3 {
        let denied = super::ask(nginx.ingress, "one");
        assert_eq!((denied.status, denied.text().as_str()), (429, "rate limited\n"));
        assert_headers(&denied, 0, midnight);
        assert!(midnight.is_retry_after(&denied), "{denied:?}");
        assert_eq!(denied.header("x-deny-status"), None, "{denied:?}");
    }
    assert_eq!(super::ask(nginx.ingress, "another").status, 200);
    // This request has no API key, so no limit matches.
    assert_eq!(status(nginx.ingress, &[]), 200);
}

#[test]
fn requests_with_a_body_are_limited() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per_key(1);
    let service = serve_hooks(&limits);
    let nginx = Nginx::start(upstream::start(), service.http, WhenDown::Deny);
    let post = || {
        let headers = [("x-api-key", "k")];
        http1::call(nginx.ingress, "POST", "/", &headers, Some(&[b'x'; 8_000])).unwrap().status
    };
    assert_eq!([post(), post()], [200, 429], "{}", nginx.log());
}

#[test]
fn forged_headers_have_no_effect() {
    for_a_day_with_a_minute_left();
    for (key, forged) in [
        ("remote_address", ("x-real-ip", ["192.0.2.1", "192.0.2.2", "192.0.2.3"])),
        ("path", ("x-original-uri", ["/1", "/2", "/3"])),
        ("method", ("x-original-method", ["PUT", "POST", "PATCH"])),
    ] {
        let limits = Limits::per(key, 2);
        let service = serve_hooks(&limits);
        let nginx = Nginx::start(upstream::start(), service.http, WhenDown::Deny);
        let (name, values) = forged;
        let ask = |value| {
            // The hook `first` has a domain without limits.
            let own = [("x-hook", "first"), ("x-deny-status", "503"), (name, value)];
            [status(nginx.ingress, &own), status(nginx.ingress, &[own, own].concat())]
        };
        let statuses = values.map(ask);
        assert_eq!(statuses, [[200; 2], [429; 2], [429; 2]], "{name}\n{}", nginx.log());
        let direct = http1::get(nginx.ingress, "/_sluicegate", &[]).unwrap();
        assert_eq!(direct.status, 404, "the place to ask is open to clients");
    }
}

/// Spellings of `/pay` that NGINX serves like `/pay`, except for the query.
const SPELLINGS_OF_PAY: [&str; 10] = [
    "/pay?a=1",
    "/%70ay",
    "/%70%61%79",
    "//pay",
    "///pay?b=//c",
    "/./pay",
    "/%2e/pay",
    "/a/../pay",
    "/a/%2E%2e/pay",
    "/a%2F..%2Fpay",
];

#[test]
fn no_spelling_of_a_path_evades_its_limit() {
    for_a_day_with_a_minute_left();
    let hooks = HOOKS.replace(r#""name": "edge","#, r#""name": "edge", "path": "normalized","#);
    let limits = Limits::per("path", 1);
    let service = serve(limits.path(), &["--hooks", &hooks]);
    let nginx = Nginx::start(upstream::start(), service.http, WhenDown::Deny);
    let status = |path| http1::get(nginx.ingress, path, &[]).unwrap().status;
    assert_eq!([status("/pay"), status("/pay")], [200, 429], "{}", nginx.log());
    for spelling in SPELLINGS_OF_PAY {
        assert_eq!(status(spelling), 429, "{spelling}\n{}", nginx.log());
    }
    for other in ["/PAY", "/pay/", "/pay%3Fa=1", "/pay.", "/payments"] {
        assert_eq!(status(other), 200, "{other}");
    }
}

#[test]
fn failure_mode_applies_without_a_service() {
    let limits = Limits::per_key(0);
    let upstream = upstream::start();
    for (when_down, expected) in [(WhenDown::Allow, 200), (WhenDown::Deny, 500)] {
        let service = serve_hooks(&limits);
        let nginx = Nginx::start(upstream, service.http, when_down);
        assert_eq!(super::ask(nginx.ingress, "k").status, 429);
        drop(service);
        let got = statuses(nginx.ingress, "k", 10);
        assert_eq!(got, [(expected, 10)].into(), "{}", nginx.log());
    }
}

#[test]
fn failure_mode_applies_while_no_limits_are_loaded() {
    let broken = NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(broken.path(), "domain: ''\n").unwrap();
    let flags = ["--hooks", HOOKS, "--limits-required-at-start", "false"];
    let service = serve(broken.path(), &flags);
    for shipped in [Shipped::RateLimit, Shipped::Ingress] {
        for (when_down, expected) in [(WhenDown::Allow, 200), (WhenDown::Deny, 500)] {
            let nginx = Nginx::start_as(shipped, upstream::start(), service.http, when_down);
            assert_eq!(super::ask(nginx.ingress, "k").status, expected, "{}", nginx.log());
        }
    }
}

#[test]
fn ingress_nginx_returns_429_and_applies_the_failure_mode() {
    for_a_day_with_a_minute_left();
    let midnight = Midnight::ahead();
    for (when_down, expected) in [(WhenDown::Allow, 200), (WhenDown::Deny, 500)] {
        let limits = Limits::per_key(1);
        let service = serve_hooks(&limits);
        let nginx = Nginx::start_as(Shipped::Ingress, upstream::start(), service.http, when_down);
        assert_eq!(super::ask(nginx.ingress, "k").status, 200, "{}", nginx.log());
        let denied = super::ask(nginx.ingress, "k");
        assert!(denied.status == 429 && midnight.is_retry_after(&denied), "{denied:?}");
        drop(service);
        let got = statuses(nginx.ingress, "k", 10);
        assert_eq!(got, [(expected, 10)].into(), "{}", nginx.log());
    }
}

#[test]
fn failure_mode_applies_when_the_store_is_unavailable() {
    let limits = Limits::per_key(5);
    let backend = format!("redis://{}", ports::free());
    let service = serve(limits.path(), &["--hooks", HOOKS, "--store-url", &backend]);
    for (when_down, expected) in [(WhenDown::Allow, 200), (WhenDown::Deny, 500)] {
        let nginx = Nginx::start(upstream::start(), service.http, when_down);
        assert_eq!(super::ask(nginx.ingress, "k").status, expected, "{}", nginx.log());
    }
    let metrics = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let counted =
        "sluicegate_edge_requests_total{protocol=\"nginx\",outcome=\"store_unavailable\"} 2\n";
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn service_without_hooks_fails_requests_despite_failure_mode_allow() {
    let limits = Limits::per_key(5);
    let service = serve(limits.path(), &[]);
    let nginx = Nginx::start(upstream::start(), service.http, WhenDown::Allow);
    assert_eq!(super::ask(nginx.ingress, "k").status, 500);
    assert!(nginx.log().contains("501"), "{}", nginx.log());
}

#[test]
fn nginx_checks_share_a_connection_and_survive_its_loss() {
    let limits = Limits::per_key(1_000_000);
    let service = serve_hooks(&limits);
    let between = Proxy::before(Upstream::Tcp(service.http));
    let nginx = Nginx::start(upstream::start(), between.address(), WhenDown::Deny);
    assert_eq!(statuses(nginx.ingress, "k", 50), [(200, 50)].into(), "{}", nginx.log());
    assert_eq!(between.accepted(), 1, "connections for 50 questions, one after another");
    // A connection to the service that broke while idle fails no request.
    for method in ["GET", "POST"] {
        between.cut();
        let reply = http1::call(nginx.ingress, method, "/", &[("x-api-key", "k")], None).unwrap();
        assert_eq!(reply.status, 200, "{method}\n{}", nginx.log());
    }
}

#[test]
fn shipped_settings_and_limits_match_shipped_nginx_configuration() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
    let settings = format!("{config}/start.yaml");
    let limits = format!("{config}/limits");
    let service = serve(limits.as_ref(), &["--settings", &settings]);
    let nginx = Nginx::start(upstream::start(), service.http, WhenDown::Deny);
    let reply = super::ask(nginx.ingress, "anybody");
    assert_eq!(reply.status, 200, "{reply:?}\n{}", nginx.log());
    let policies = reply.header("ratelimit-policy").unwrap();
    assert!(policies.contains("per-key") && policies.contains("per-address"), "{policies}");
}

#[test]
fn too_many_headers_do_not_bypass_the_limit() {
    let limits = Limits::per_key(0);
    let service = serve_hooks(&limits);
    let nginx = Nginx::start(upstream::start(), service.http, WhenDown::Allow);
    for (count, expected) in [(80, 429), (900, 500)] {
        let names: Vec<String> = (0..count).map(|number| format!("x-{number}")).collect();
        let mut headers: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "v")).collect();
        headers.push(("x-api-key", "k"));
        assert_eq!(status(nginx.ingress, &headers), expected, "{}", nginx.log());
    }
}
