//! Every ending of a request releases its permit.
//!
//! Guarantees:
//! - Each ending has a limit of one request of its own, which admits no second request before.
//! - A lost release fails the test, because no expiry frees the permit of a connected Envoy.
//!
//! Not covered:
//! - The time until the release: the filter decides in Envoy, without a call.
//! - Failures of Envoy and of Sluicegate: see the modules `faults` and `outage`.

use std::io::Write as _;
use std::net::TcpStream;

use super::super::super::envoy::Envoy;
use super::super::super::stepwise_upstream::{Visit, Visits};
use super::super::{VERSIONS, launch};
use super::{
    REJECTED, api_key, configuration, fleet_page, in_flight, open, proxies_of, status,
    wait_for_permit, wait_for_waiting,
};
use crate::support::service::Service;
use crate::support::waiting::until;

/// One permit for each key. The key `queued` has a queue, too.
const LIMITS: &str = "domain: shop
descriptors:
- key: api_key
  concurrency: {limit: 1, mode: local}
- key: api_key
  value: queued
  concurrency: {limit: 1, mode: local, queue: {size: 1, timeout: 5m}}
- key: path
  value: /denied
  rate_limit: {unit: day, requests_per_unit: 0}
";

/// Requests of one key, which end in the same way.
struct Ending<'s> {
    service: &'s Service,
    envoy: &'s Envoy,
    upstream: &'s Visits,
    key: &'s str,
}

impl Ending<'_> {
    fn open(&self, path: &str, headers: &str) -> TcpStream {
        open(self.envoy.ingress, path, &[&api_key(self.key), headers].concat())
    }

    /// Sends a request and waits until it waits in the queue.
    fn open_waiting(&self, path: &str) -> TcpStream {
        let client = self.open(path, "");
        wait_for_waiting(self.service, 1);
        client
    }

    fn get(&self, path: &str) -> u16 {
        status(&self.open(path, ""))
    }

    /// Sends a request and waits until it reaches the upstream.
    fn start(&self, path: &str, headers: &str) -> (TcpStream, Visit) {
        let client = self.open(path, headers);
        let visit = self.upstream.next();
        self.expect_in_use();
        (client, visit)
    }

    /// As [`Ending::start`], with the first part of the response sent and read.
    fn start_response(&self) -> (TcpStream, Visit) {
        let (client, mut visit) = self.start("/", "");
        visit.begin();
        assert_eq!(status(&client), 200);
        self.expect_in_use();
        (client, visit)
    }

    fn open_websocket(&self) -> (TcpStream, Visit) {
        let (client, mut visit) = self.start("/", "connection: upgrade\r\nupgrade: websocket\r\n");
        visit.switch();
        assert_eq!(status(&client), 101);
        self.expect_in_use();
        (client, visit)
    }

    /// Requires that the only permit is in use.
    fn expect_in_use(&self) {
        if self.key != "queued" {
            assert_eq!(self.get("/local"), REJECTED, "{}", self.key);
        }
    }

    /// Waits until Envoy itself answers this path, with a permit.
    fn wait_for_status(&self, path: &str, expected: u16) {
        until("a permit", || match self.get(path) {
            status if status == expected => Ok(()),
            status => Err(format!("{}: {path}: {status}\n{}", self.key, self.envoy.log())),
        })
        .unwrap();
    }

    /// Requires that the permit is free soon, and that the next request passes.
    fn expect_free(&self) {
        self.wait_for_status("/local", 204);
        complete_response(self);
        self.wait_for_status("/local", 204);
    }
}

/// The key and the action of an ending.
type Row = (&'static str, fn(&Ending<'_>));

const ENDINGS: [Row; 16] = [
    ("complete-response", complete_response),
    ("streamed-body", |ending| {
        let (_client, visit) = ending.start_response();
        visit.end();
    }),
    ("client-leaves-before-response", |ending| drop(ending.start("/", ""))),
    ("client-leaves-mid-body", client_leaves_mid_body),
    ("queued", client_leaves_the_queue),
    ("upstream-resets-before-headers", |ending| {
        let (client, visit) = ending.start("/", "");
        visit.reset();
        assert_eq!(status(&client), 503);
    }),
    ("upstream-resets-mid-body", |ending| {
        let (_client, visit) = ending.start_response();
        visit.reset();
    }),
    ("client-closes-websocket", |ending| {
        let (client, _visit) = ending.open_websocket();
        drop(client);
        ending.wait_for_status("/local", 204);
    }),
    ("upstream-closes-websocket", |ending| {
        let (_client, visit) = ending.open_websocket();
        visit.reset();
        ending.wait_for_status("/local", 204);
    }),
    ("upstream-times-out", |ending| {
        let client = ending.open("/late", "");
        let _visit = ending.upstream.next();
        assert_eq!(status(&client), 504);
    }),
    ("upstream-refuses", |ending| response_of_envoy(ending, "/refused", 503)),
    ("upstream-is-tried-again", upstream_is_tried_again),
    ("later-filter-rejects", |ending| response_of_envoy(ending, "/rejected", 403)),
    ("direct-response", |ending| response_of_envoy(ending, "/local", 204)),
    ("rate-limit-denies", |ending| response_of_envoy(ending, "/denied", 429)),
    ("next-request-on-connection", next_request_on_connection),
];

fn complete_response(ending: &Ending<'_>) {
    let (client, visit) = ending.start("/", "");
    visit.answer();
    assert_eq!(status(&client), 200);
}

fn client_leaves_mid_body(ending: &Ending<'_>) {
    let (client, visit) = ending.start_response();
    drop(client);
    ending.wait_for_status("/local", 204);
    drop(visit);
}

/// Another request keeps the permit, and its end leaves the permit to the next one.
fn client_leaves_the_queue(ending: &Ending<'_>) {
    let (client, visit) = ending.start("/", "");
    let queued = ending.open_waiting("/");
    assert_eq!(ending.get("/local"), REJECTED, "the queue is full");
    drop(queued);
    // Another thread of Envoy frees the place in the queue.
    wait_for_waiting(ending.service, 0);
    let next = ending.open_waiting("/local");
    visit.answer();
    assert_eq!((status(&client), status(&next)), (200, 204));
}

fn upstream_is_tried_again(ending: &Ending<'_>) {
    let client = ending.open("/again", "");
    ending.upstream.next().reset();
    let second = ending.upstream.next();
    ending.expect_in_use();
    second.answer();
    assert_eq!(status(&client), 200);
}

/// Envoy itself answers this path. While another request has the permit, the limit rejects it.
fn response_of_envoy(ending: &Ending<'_>, path: &str, expected: u16) {
    let (client, visit) = ending.start("/", "");
    if expected != REJECTED {
        assert_eq!(ending.get(path), REJECTED, "{path}");
    }
    visit.answer();
    assert_eq!(status(&client), 200);
    ending.wait_for_status(path, expected);
}

/// The second request on a connection gets its own permit.
fn next_request_on_connection(ending: &Ending<'_>) {
    let mut client = ending.open("/local", "");
    assert_eq!(status(&client), 204);
    let request = format!("GET / HTTP/1.1\r\nhost: edge\r\nx-api-key: {}\r\n\r\n", ending.key);
    client.write_all(request.as_bytes()).unwrap();
    let visit = ending.upstream.next();
    ending.expect_in_use();
    visit.answer();
}

#[test]
fn every_ending_releases_the_permit_in_each_supported_envoy() {
    for version in VERSIONS {
        let limits = tempfile::tempdir().unwrap();
        std::fs::write(limits.path().join("shop.yaml"), LIMITS).unwrap();
        let service = Service::start(limits.path(), &[]).unwrap();
        let upstream = Visits::listen();
        let text = configuration(upstream.address, service.grpc);
        let mut envoy = Envoy::launch(text, 0, &launch(version));
        wait_for_permit(&envoy);
        for (key, end) in ENDINGS {
            let ending = Ending { service: &service, envoy: &envoy, upstream: &upstream, key };
            ending.wait_for_status("/local", 204);
            end(&ending);
            ending.expect_free();
        }
        wait_until_idle(&service, version);
        assert_eq!(envoy.counter("dynamicmodulescustom.panics"), 0, "{version}: {}", envoy.log());
        assert!(envoy.stop().success(), "{version}: {}", envoy.log());
    }
}

/// Waits until `/fleet` has all buckets, without a request in flight.
fn wait_until_idle(service: &Service, version: &str) {
    until("no requests in flight in /fleet", || {
        let page = fleet_page(service);
        let proxies = proxies_of(&page);
        let buckets = proxies.first().and_then(|proxy| proxy["concurrency"].as_array());
        let buckets = buckets.map(Vec::len).unwrap_or_default();
        // The key of `wait_for_permit` has a bucket, too.
        let is_idle = proxies.iter().all(|proxy| in_flight(proxy) == Some(0));
        let is_complete = proxies.len() == 1 && buckets == ENDINGS.len() + 1;
        if is_idle && is_complete { Ok(()) } else { Err(format!("{version}: {page}")) }
    })
    .unwrap();
}
