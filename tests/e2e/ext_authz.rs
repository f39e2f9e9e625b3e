//! A client, a real Envoy with the shipped `config/envoy/ext_authz.yaml`, the real binary, and an upstream.

use std::net::SocketAddr;

use super::auth_request::{HOOKS, serve_hooks};
use super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::{Limits, ask, assert_headers, is_until_midnight, serve, statuses, upstream};
use crate::http1;
use crate::waiting::for_a_day_with_a_minute_left;

fn envoy(upstream: SocketAddr, replica: SocketAddr, when_down: WhenDown) -> Envoy {
    Envoy::start_with(patient(upstream, replica, when_down), 1)
}

/// What is tested is not how busy this machine is.
fn patient(upstream: SocketAddr, replica: SocketAddr, when_down: WhenDown) -> String {
    let mut text = configured(Shipped::ExtAuthz, upstream, &[replica], when_down);
    replace_once(
        &mut text,
        "                        timeout: 0.25s",
        "                        timeout: 20s",
    );
    text
}

#[test]
fn envoy_admits_exactly_the_limit_and_answers_429_from_then_on_with_the_headers() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per_key(2);
    let service = serve_hooks(&limits);
    let envoy = envoy(upstream::start(), service.grpc, WhenDown::Deny);
    for left in [1, 0] {
        let admitted = ask(envoy.ingress, "one");
        assert_eq!(admitted.status, 200, "{admitted:?}\n{}", envoy.log());
        assert_eq!((admitted.text().as_str(), admitted.header("retry-after")), ("upstream", None));
        assert_headers(&admitted, left);
    }
    for _ in 0..3 {
        let denied = ask(envoy.ingress, "one");
        assert_eq!((denied.status, denied.text().as_str()), (429, "rate limited\n"));
        assert_headers(&denied, 0);
        let retry_after = denied.header("retry-after").and_then(|value| value.parse().ok());
        assert!(retry_after.is_some_and(is_until_midnight), "{denied:?}");
    }
    assert_eq!(ask(envoy.ingress, "another").status, 200);
}

#[test]
fn what_a_client_forges_has_no_effect() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per("remote_address", 2);
    let service = serve_hooks(&limits);
    let envoy = envoy(upstream::start(), service.grpc, WhenDown::Deny);
    // The hook `first` asks about a domain without limits.
    let forged = [("hook", "first"), ("x-hook", "first"), ("x-real-ip", "192.0.2.1")];
    let xff = [("x-forwarded-for", "192.0.2.1")];
    let asked = [&forged[..1], &forged[1..2], &forged[2..], &[forged[2]; 2], &xff[..], &[]];
    let statuses = asked.map(|headers| http1::get(envoy.ingress, "/", headers).unwrap().status);
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429], "{}", envoy.log());
}

/// As Envoy's own action takes the first. With the others in it, each would be a client with a limit of its own.
#[test]
fn a_second_line_of_a_header_makes_no_counter_of_its_own() {
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
fn requests_pass_without_a_service_unless_envoy_is_told_to_deny_them() {
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
fn a_hook_that_is_not_set_is_a_service_that_does_not_answer() {
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

/// Envoy tells `ext_authz` of its peer, which here is the balancer.
#[test]
fn behind_a_trusted_balancer_the_address_is_the_clients() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per("remote_address", 1);
    let service = serve_hooks(&limits);
    let mut text = patient(upstream::start(), service.grpc, WhenDown::Deny);
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
