//! Requests that wait in Envoy for a permit.
//!
//! Guarantees:
//! - The queue timeouts are longer than the filter's `deadline` of 20 ms.
//! - The answers of all rejections are those of the limits file.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::super::super::envoy::Envoy;
use super::super::super::stepwise_upstream::Visits;
use super::super::launch;
use super::{KEY, REJECTED, api_key, fleet_page, open, status, wait_for_permit, with_details};
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
    queue: {size: 2, timeout: 15s}
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

const LONG_TIMEOUT: Duration = Duration::from_secs(15);
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
        let text = with_details(upstream.address, service.grpc);
        let envoy = Envoy::launch(text, 0, &launch("1.40"));
        wait_for_permit(&envoy);
        // Fetches the rules, so that no request waits for Sluicegate.
        for key in ["hasty", "without-queue"] {
            assert_eq!(status(&open(envoy.ingress, "/local", &api_key(key))), 204);
        }
        Self { service, envoy, upstream }
    }

    fn send(&self, key: &'static str) -> JoinHandle<Reply> {
        let ingress = self.envoy.ingress;
        std::thread::spawn(move || get(ingress, key))
    }

    /// Waits until `/fleet` shows this many waiting requests.
    fn wait_for_waiting(&self, count: u64) {
        until("waiting requests", || {
            let page = fleet_page(&self.service);
            let buckets = page["proxies"][0]["concurrency"].as_array().cloned().unwrap_or_default();
            let waiting = buckets.iter().filter_map(|bucket| bucket["waiting"].as_u64());
            if waiting.sum::<u64>() == count { Ok(()) } else { Err(page.to_string()) }
        })
        .unwrap();
    }

    /// Requires a rejection, and returns its response code details.
    fn expect_rejection(&self, reply: &Reply, expected: (u16, Option<&str>, &str)) -> String {
        let found = (reply.status, reply.header("retry-after"), &*reply.text());
        assert_eq!(found, expected, "{}", self.envoy.log());
        let completed = self.envoy.counter("http.ingress.downstream_rq_completed");
        let log = self.envoy.access_log(usize::try_from(completed).unwrap());
        let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        assert_eq!(last["response_code"], expected.0, "{log}");
        last["details"].as_str().unwrap().to_owned()
    }
}

fn get(ingress: SocketAddr, key: &str) -> Reply {
    http1::get(ingress, "/", &[("x-api-key", key)]).unwrap()
}

#[test]
fn waiting_requests_get_the_permit_and_one_more_is_rejected() {
    let scene = Scene::start();
    let first = scene.send(KEY);
    let visit = scene.upstream.next();
    let waiting = [scene.send(KEY), scene.send(KEY)];
    scene.wait_for_waiting(2);
    let sent = now();
    let reply = get(scene.envoy.ingress, KEY);
    assert!(sent.elapsed() < LONG_TIMEOUT / 2, "it waited");
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
    assert_eq!(scene.envoy.counter("dynamicmodulescustom.fallback_denied"), 0);
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
