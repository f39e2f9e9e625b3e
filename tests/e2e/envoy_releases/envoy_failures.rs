//! Envoy or the network fails.
//!
//! Guarantees:
//! - The end of an `ext_proc` stream frees its permits, long before `max_duration`.
//! - Without a stream, a permit whose release is lost is free after `max_duration`.

use std::cell::Cell;
use std::time::Duration;

use sluicegate::edge::grpc::{PERMIT_STREAM_PONG_TIMEOUT, PING_INTERVAL};

use super::{HOOKS, name};
use crate::e2e::envoy::Shipped;
use crate::e2e::in_flight::{EnvoyScene, gauge, limit_all_requests};
use crate::e2e::stepwise_upstream::Visit;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::waiting::until;

/// The time after which the service closes an `ext_proc` stream whose Envoy replies to no ping.
pub(super) const DETECTION_TIME: Duration =
    PING_INTERVAL.saturating_add(PERMIT_STREAM_PONG_TIMEOUT);

/// A limit for two requests. Only a lost release needs a short `max_duration`.
pub(super) const fn limit_for(hook: Shipped) -> &'static str {
    match hook {
        Shipped::ExtProc => "limit: 9, max_duration: 10m",
        _ => "limit: 9, max_duration: 2s",
    }
}

/// Makes an Envoy with two requests in flight fail. All permits must be free again.
fn check_failure(fail: fn(&mut EnvoyScene, &Proxy)) {
    for hook in HOOKS {
        let (mut scene, proxy) = scene_with_proxy(hook, limit_for(hook));
        let _clients = [scene.connect(), scene.connect()];
        let _visits = [scene.upstream.next(), scene.upstream.next()];
        if let Shipped::ExtProc = hook {
            scene.expect_in_flight(2);
            fail(&mut scene, &proxy);
            scene.expect_in_flight(0);
            continue;
        }
        // On a busy machine, `max_duration` may end before the failure.
        scene.expect_gauge(ACQUIRED, 2);
        fail(&mut scene, &proxy);
        scene.expect_in_flight(0);
        wait_for_ends(&scene, 2);
    }
}

/// Waits until all permits with an id are released or have expired. Returns both counts.
///
/// An expired permit is free immediately, but the metrics count it slightly later.
fn wait_for_ends(scene: &EnvoyScene, count: u64) -> [u64; 2] {
    let counted = || match [RELEASED, super::EXPIRED].map(|event| id_events(scene, event)) {
        [released, expired] if released + expired == count => Ok([released, expired]),
        counted => Err(format!("{counted:?} released and expired, of {count}")),
    };
    until("the end of each permit", counted).unwrap()
}

fn id_events(scene: &EnvoyScene, event: &str) -> u64 {
    gauge(scene.service.metrics, event)
}

const ACQUIRED: &str = r#"sluicegate_permit_ids_total{event="acquired"}"#;
const RELEASED: &str = r#"sluicegate_permit_ids_total{event="released"}"#;

/// Starts a scene with a network proxy between Envoy and the service.
pub(super) fn scene_with_proxy(hook: Shipped, limit: &str) -> (EnvoyScene, Proxy) {
    let slot = Cell::new(None);
    let listen = |service| {
        let proxy = Proxy::before(Upstream::Tcp(service));
        let address = proxy.address();
        slot.set(Some(proxy));
        address
    };
    let scene = EnvoyScene::through(hook, &limit_all_requests(limit), |_| {}, listen);
    (scene, slot.take().unwrap())
}

pub(super) fn terminate(scene: &mut EnvoyScene, _: &Proxy) {
    scene.envoy.signal("TERM");
}

pub(super) fn kill(scene: &mut EnvoyScene, _: &Proxy) {
    scene.envoy.kill();
}

pub(super) fn stop(scene: &mut EnvoyScene, _: &Proxy) {
    scene.envoy.signal("STOP");
}

pub(super) fn lose_network(_: &mut EnvoyScene, proxy: &Proxy) {
    proxy.go_silent();
}

#[test]
fn envoy_sigterm_frees_permits() {
    check_failure(terminate);
}

#[test]
fn envoy_sigkill_frees_permits() {
    check_failure(kill);
}

/// A stopped Envoy closes no connection. For `ext_proc`, the service detects it by HTTP/2 pings;
/// otherwise `max_duration` frees the permits.
#[test]
fn envoy_sigstop_frees_permits() {
    check_failure(stop);
}

#[test]
fn network_loss_frees_permits() {
    check_failure(lose_network);
}

/// An Envoy that exits without a drain may drop unsent releases, and no setting of Envoy prevents
/// this.
#[test]
fn drained_envoy_loses_no_release() {
    for hook in [Shipped::RlsConcurrency, Shipped::ExtAuthzConcurrency] {
        for (drained, max_duration) in [(true, "10m"), (false, "2s")] {
            let limit = limit_all_requests(&format!("limit: 99, max_duration: {max_duration}"));
            let scene = EnvoyScene::changed(hook, &limit, |_| {});
            let clients: Vec<_> = (0..20).map(|_| scene.connect()).collect();
            let mut visits: Vec<_> = (0..20).map(|_| scene.upstream.next()).collect();
            scene.expect_gauge(ACQUIRED, 20);
            if drained {
                scene.expect_in_flight(20);
                assert_eq!(scene.envoy.post("/healthcheck/fail"), 200);
                visits.drain(..).for_each(Visit::answer);
                scene.expect_in_flight(0);
            }
            scene.envoy.signal("TERM");
            scene.expect_in_flight(0);
            let [released, expired] = wait_for_ends(&scene, 20);
            println!("{}, drained {drained}: {released} of 20 by their release", name(hook));
            assert!(!drained || expired == 0, "{expired} were lost");
            drop((clients, visits));
        }
    }
}

/// Requests in flight continue without a permit. The restarted service counts only new requests.
#[test]
fn service_restart_fails_no_request_and_leaks_nothing() {
    for hook in HOOKS {
        let (mut scene, proxy) = scene_with_proxy(hook, "limit: 9");
        let client = scene.send();
        let visit = scene.upstream.next();
        scene.expect_in_flight(1);
        scene.restart_service();
        proxy.set_upstream(Upstream::Tcp(scene.service.grpc));
        proxy.cut();
        scene.expect_in_flight(0);
        visit.answer();
        assert_eq!(client.join().unwrap().unwrap().status, 200, "{hook:?}");
        let counted = || {
            let client = scene.send();
            let visit = scene.upstream.next();
            let held = gauge(scene.service.metrics, "sluicegate_requests_in_flight");
            visit.answer();
            assert_eq!(client.join().unwrap().unwrap().status, 200);
            if held == 1 { Ok(()) } else { Err(held.to_string()) }
        };
        until("Envoy asks the next one", counted).unwrap();
        scene.expect_in_flight(0);
    }
}
