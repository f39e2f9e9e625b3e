//! Concurrency limits through `ext_authz` with an access log.

use std::time::Duration;

use super::{EnvoyScene, gauge, limit_all_requests};
use crate::e2e::envoy::{Shipped, replace_once};
use crate::support::waiting::{now, until};

#[test]
fn ext_authz_limit_is_exact_and_permits_are_released() {
    let reject = "reject: {status: 503, retry_after: 1500ms, body: busy}";
    let scene = EnvoyScene::with_ext_authz_limit(&format!("limit: 2, {reject}"));
    let clients = [scene.send(), scene.send()];
    let [first, second] = [scene.upstream.next(), scene.upstream.next()];
    scene.expect_in_flight(2);
    for _ in 0..5 {
        let rejected = scene.get();
        assert_eq!((rejected.status, rejected.text().as_str()), (503, "busy"));
        assert_eq!(rejected.header("retry-after"), Some("2"));
    }
    first.answer();
    scene.expect_in_flight(1);
    second.answer();
    scene.expect_in_flight(0);
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
    let nothing = r#"sluicegate_permit_ids_total{event="without_permits"}"#;
    scene.expect_gauge(nothing, 5);
    scene.expect_gauge("sluicegate_early_releases", 0);
}

#[test]
fn ext_authz_queues_and_releases_on_disconnect_and_reset() {
    let scene = EnvoyScene::with_ext_authz_limit("limit: 1, queue: {size: 1, timeout: 5m}");
    let client = scene.connect();
    let visit = scene.upstream.next();
    let queued = scene.connect();
    scene.expect_gauge("sluicegate_requests_queued", 1);
    drop(queued);
    scene.expect_gauge("sluicegate_requests_queued", 0);
    scene.expect_in_flight(1);
    let queued = scene.send();
    scene.expect_gauge("sluicegate_requests_queued", 1);
    drop(client);
    let second = scene.upstream.next();
    scene.expect_in_flight(1);
    second.answer();
    assert_eq!(queued.join().unwrap().unwrap().status, 200);
    scene.expect_in_flight(0);
    visit.reset();
    for begun in [false, true] {
        let client = scene.send();
        let mut visit = scene.upstream.next();
        if begun {
            visit.begin();
        }
        scene.expect_in_flight(1);
        visit.reset();
        scene.expect_in_flight(0);
        let reply = client.join().unwrap();
        assert!(reply.is_err() || reply.unwrap().status == if begun { 200 } else { 503 });
    }
}

/// The request of this test lasts three times as long as `max_duration`. On a busy machine, an
/// access log may be later than that: then the permit expires, and the next request is an attempt.
#[test]
fn periodic_access_logs_renew_the_permit() {
    const ATTEMPTS: usize = 10;
    let limit = limit_all_requests("limit: 1, max_duration: 1s");
    let scene = EnvoyScene::changed(Shipped::ExtAuthzConcurrency, &limit, |text| {
        replace_once(text, "access_log_flush_interval: 10s", "access_log_flush_interval: 0.1s");
    });
    assert!((0..ATTEMPTS).any(|_| lasts_beyond_max_duration(&scene)), "each permit expired");
}

/// Sends a request that lasts three times its `max_duration`. Returns `true` if its permit did not
/// expire.
fn lasts_beyond_max_duration(scene: &EnvoyScene) -> bool {
    let count = |event| gauge(scene.service.metrics, event);
    let (renewed, expired) = (count(RENEWED), count(EXPIRED));
    let (began, client) = (now(), scene.send());
    let visit = scene.upstream.next();
    until("thirty entries of a request that goes on", || {
        let entries = count(RENEWED) - renewed;
        let is_long = Duration::from_secs(3) < began.elapsed();
        let is_over = expired < count(EXPIRED) || (30 <= entries && is_long);
        if is_over { Ok(()) } else { Err(entries.to_string()) }
    })
    .unwrap();
    let is_expired = || expired < count(EXPIRED);
    until("a permit that is held or has expired", || {
        let is_held = count("sluicegate_requests_in_flight") == 1;
        if is_held || is_expired() { Ok(()) } else { Err("it is gone".to_owned()) }
    })
    .unwrap();
    let is_expired = is_expired();
    visit.answer();
    assert_eq!(client.join().unwrap().unwrap().status, 200);
    scene.expect_in_flight(0);
    !is_expired
}

const RENEWED: &str = r#"sluicegate_permit_ids_total{event="renewed"}"#;

const EXPIRED: &str = r#"sluicegate_permit_ids_total{event="expired"}"#;
