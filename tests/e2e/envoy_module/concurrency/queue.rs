//! Requests that wait in Envoy for a permit.
//!
//! Guarantees:
//! - The queue timeouts are longer than the filter's `deadline`.
//! - The answers of all rejections are those of the limits file.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::super::super::envoy::{Envoy, replace_once};
use super::super::super::stepwise_upstream::Visits;
use super::super::launch;
use super::{
    KEY, REJECTED, api_key, configuration, open, settle, status, wait_for_key, wait_for_permit,
    wait_for_waiting,
};
use crate::support::http1::{self, Reply};
use crate::support::service::Service;
use crate::support::waiting::{now, until};

/// The key `hasty` has a short queue timeout.
const LIMITS: &str = r#"domain: shop
descriptors:
- key: api_key
  concurrency:
    limit: 1
    mode: local
    queue: {size: 2, timeout: 10m}
    reject: {status: 429, retry_after: 1500ms, body: "busy, retry shortly"}
- key: api_key
  value: hasty
  concurrency:
    limit: 1
    mode: local
    queue: {size: 2, timeout: 300ms}
    reject: {status: 529, retry_after: 3s, body: "too slow"}
- key: api_key
  value: without-queue
  concurrency: {limit: 1, mode: local}
"#;

const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

struct Scene {
    service: Service,
    envoy: Envoy,
    upstream: Visits,
}

impl Scene {
    fn start() -> Self {
        let limits = tempfile::tempdir().unwrap();
        std::fs::write(limits.path().join("shop.yaml"), LIMITS).unwrap();
        let service = Service::start(limits.path(), &[]).unwrap();
        let upstream = Visits::listen();
        let mut text = configuration(upstream.address, service.grpc);
        replace_once(&mut text, "deadline: 1s", "deadline: 20ms");
        let envoy = Envoy::launch(text, 0, &launch("1.40"));
        wait_for_permit(&envoy);
        // Fetches the rules, so that no request waits for Sluicegate.
        for key in ["hasty", "without-queue"] {
            wait_for_key(&envoy, key);
        }
        settle(&envoy);
        Self { service, envoy, upstream }
    }

    fn send(&self, key: &'static str) -> JoinHandle<Reply> {
        let ingress = self.envoy.ingress;
        std::thread::spawn(move || get(ingress, key))
    }

    fn wait_for_waiting(&self, count: u64) {
        wait_for_waiting(&self.service, count);
    }

    /// Requires a rejection, and returns its response code details.
    fn expect_rejection(&self, reply: &Reply, expected: (u16, Option<&str>, &str)) -> String {
        let found = (reply.status, reply.header("retry-after"), &*reply.text());
        assert_eq!(found, expected, "{}", self.envoy.log());
        // Of the other requests, those that have ended got 204.
        until("the access log of a rejection", || {
            let log = self.envoy.written_access_log();
            let last = log.lines().last().and_then(|line| serde_json::from_str(line).ok());
            match last.unwrap_or(Value::Null) {
                last if last["response_code"] == expected.0 => {
                    Ok(last["details"].as_str().unwrap().to_owned())
                }
                _ => Err(log),
            }
        })
        .unwrap()
    }
}

fn get(ingress: SocketAddr, key: &str) -> Reply {
    http1::get(ingress, "/", &[("x-api-key", key)]).unwrap()
}

#[test]
fn waiting_requests_get_the_permit_and_one_more_is_rejected() {
    let scene = Scene::start();
    let before = scene.envoy.counter("dynamicmodulescustom.fallback_denied");
    let first = scene.send(KEY);
    let visit = scene.upstream.next();
    let waiting = [scene.send(KEY), scene.send(KEY)];
    scene.wait_for_waiting(2);
    // The queue timeout is longer than the test.
    let reply = get(scene.envoy.ingress, KEY);
    let details = scene.expect_rejection(&reply, (429, Some("2"), "busy, retry shortly"));
    assert_eq!(details, "sluicegate_queue_full");
    visit.answer();
    assert_eq!(first.join().unwrap().status, 200);
    for _ in &waiting {
        scene.upstream.next().answer();
    }
    for client in waiting {
        assert_eq!(client.join().unwrap().status, 200);
    }
    scene.wait_for_waiting(0);
    settle(&scene.envoy);
    assert_eq!(scene.envoy.counter("dynamicmodulescustom.fallback_denied"), before);
}

#[test]
fn a_request_waits_for_the_queue_timeout_not_for_the_deadline() {
    let scene = Scene::start();
    let first = scene.send("hasty");
    let visit = scene.upstream.next();
    let sent = now();
    let reply = get(scene.envoy.ingress, "hasty");
    let time = sent.elapsed();
    assert!(SHORT_TIMEOUT <= time, "{time:?}");
    let details = scene.expect_rejection(&reply, (529, Some("3"), "too slow"));
    assert_eq!(details, "sluicegate_queue_timeout");
    visit.answer();
    assert_eq!(first.join().unwrap().status, 200);
    assert_eq!(status(&open(scene.envoy.ingress, "/local", &api_key("hasty"))), 204);
}

#[test]
fn without_a_queue_a_request_over_the_limit_gets_503() {
    let scene = Scene::start();
    let first = scene.send("without-queue");
    let visit = scene.upstream.next();
    let reply = get(scene.envoy.ingress, "without-queue");
    let details = scene.expect_rejection(&reply, (REJECTED, None, ""));
    assert_eq!(details, "sluicegate_concurrency_limit_reached");
    visit.answer();
    assert_eq!(first.join().unwrap().status, 200);
}
