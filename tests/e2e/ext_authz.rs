//! Tests of rate limits through `ext_authz` on a real Envoy with the shipped configuration.

use std::net::SocketAddr;

use super::auth_request::{HOOKS, serve_hooks};
use super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::{Limits, Midnight, ask, assert_headers, serve, statuses, upstream};
use crate::support::http1;
use crate::support::waiting::for_a_day_with_a_minute_left;

fn envoy(upstream: SocketAddr, replica: SocketAddr, when_down: WhenDown) -> Envoy {
    Envoy::start_with(configured(Shipped::ExtAuthz, upstream, &[replica], when_down), 1)
}

#[test]
fn ext_authz_rate_limit_is_exact_and_headers_reach_the_client() {
    for_a_day_with_a_minute_left();
    let midnight = Midnight::ahead();
    let limits = Limits::per_key(2);
    let service = serve_hooks(&limits);
    let envoy = envoy(upstream::start(), service.grpc, WhenDown::Deny);
    for left in [1, 0] {
        let admitted = ask(envoy.ingress, "one");
        assert_eq!(admitted.status, 200, "{admitted:?}\n{}", envoy.log());
        assert_eq!((admitted.text().as_str(), admitted.header("retry-after")), ("upstream", None));
        assert_headers(&admitted, left, midnight);
    }
    for _ in 0..3 {
        let denied = ask(envoy.ingress, "one");
        assert_eq!((denied.status, denied.text().as_str()), (429, "rate limited\n"));
        assert_headers(&denied, 0, midnight);
        assert!(midnight.is_retry_after(&denied), "{denied:?}");
    }
    assert_eq!(ask(envoy.ingress, "another").status, 200);
}

#[test]
fn forged_headers_have_no_effect() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per("remote_address", 2);
    let service = serve_hooks(&limits);
    let envoy = envoy(upstream::start(), service.grpc, WhenDown::Deny);
    // The hook `first` has a domain without limits.
    let forged = [("hook", "first"), ("x-hook", "first"), ("x-real-ip", "192.0.2.1")];
    let xff = [("x-forwarded-for", "192.0.2.1")];
    let asked = [&forged[..1], &forged[1..2], &forged[2..], &[forged[2]; 2], &xff[..], &[]];
    let statuses = asked.map(|headers| http1::get(envoy.ingress, "/", headers).unwrap().status);
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429], "{}", envoy.log());
}

/// As in Envoy's descriptor action. If values were joined, each combination would have its own
/// counter.
#[test]
fn repeated_header_counts_by_its_first_value() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per_key(2);
    let service = serve_hooks(&limits);
    let envoy = envoy(upstream::start(), service.grpc, WhenDown::Deny);
    let statuses = ["1", "2", "3"].map(|line| {
        let lines = [("x-api-key", "k"), ("x-api-key", line)];
        http1::get(envoy.ingress, "/", &lines).unwrap().status
    });
    assert_eq!(statuses, [200, 200, 429], "{}", envoy.log());
}

#[test]
fn failure_mode_applies_without_a_service() {
    let limits = Limits::per_key(0);
    let upstream = upstream::start();
    for (when_down, expected) in [(WhenDown::Allow, 200), (WhenDown::Deny, 503)] {
        let service = serve_hooks(&limits);
        let envoy = envoy(upstream, service.grpc, when_down);
        assert_eq!(ask(envoy.ingress, "k").status, 429);
        drop(service);
        assert_eq!(statuses(envoy.ingress, "k", 10), [(expected, 10)].into(), "{}", envoy.log());
    }
}

#[test]
fn failure_mode_applies_when_the_hook_is_missing() {
    let limits = Limits::per_key(5);
    let other = HOOKS.replace("\"edge\"", "\"other\"");
    for flags in [vec![], vec!["--hooks", &*other]] {
        let service = serve(limits.path(), &flags);
        for (when_down, expected) in [(WhenDown::Allow, 200), (WhenDown::Deny, 503)] {
            let envoy = envoy(upstream::start(), service.grpc, when_down);
            assert_eq!(ask(envoy.ingress, "k").status, expected, "{}", envoy.log());
        }
    }
}

/// `ext_authz` sends Envoy's direct peer, here a load balancer, so the address comes from a header.
#[test]
fn client_address_is_used_behind_a_trusted_balancer() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per("remote_address", 1);
    let service = serve_hooks(&limits);
    let upstream = upstream::start();
    let mut text = configured(Shipped::ExtAuthz, upstream, &[service.grpc], WhenDown::Deny);
    let trusting = "use_remote_address: true\n                xff_num_trusted_hops: 1";
    replace_once(&mut text, "use_remote_address: true", trusting);
    let envoy = Envoy::start_with(text, 1);
    let from = |client: &str| {
        let headers = [("x-forwarded-for", client)];
        http1::get(envoy.ingress, "/", &headers).unwrap().status
    };
    let statuses = [from("192.0.2.1"), from("192.0.2.1"), from("192.0.2.2")];
    assert_eq!(statuses, [200, 429, 200], "{}", envoy.log());
}
