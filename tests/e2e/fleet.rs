//! Tests with two replicas behind one Envoy or NGINX: a release that reaches the other replica
//! frees the permit, too.
#![expect(clippy::print_stdout, reason = "what was seen is part of the proof")]

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tempfile::TempDir;

use super::envoy::{Envoy, Shipped, WhenDown, configured};
use super::in_flight::{HOOKS, expect_gauge, gauge, limit_all_requests};
use super::nginx::{Nginx, Shipped as Conf};
use super::upstream;
use crate::support::dice::{Dice, seed};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{now, until};

const CLIENTS: usize = 16;
const EACH: usize = 60;

struct ProxiedFleet {
    _store: Redis,
    _limits: TempDir,
    services: [Service; 2],
}

impl ProxiedFleet {
    fn start(flags: &[&str]) -> Self {
        let (store, limits) = (Redis::start(), tempfile::tempdir().unwrap());
        // Uses mode `local`: in mode `shared`, a new store first waits for a grace period.
        let limit = limit_all_requests("limit: 1000, mode: local, max_duration: 300s");
        let text = format!("domain: edge\ndescriptors:\n{limit}");
        std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
        let url = format!("redis+unix://{}", store.socket().display());
        let services = ["a", "b"].map(|node| {
            let own = [
                "--store-url",
                &url,
                "--fleet-replica-name",
                node,
                "--hooks",
                HOOKS,
                "--listen-syslog-port",
                "0",
            ];
            let late = ["--store-deadline", "500ms"];
            let all = own.iter().chain(&late).chain(flags).map(|&flag| flag.to_owned());
            Service::start(limits.path(), &all.collect::<Vec<_>>()).unwrap()
        });
        let fleet = Self { _store: store, _limits: limits, services };
        fleet.services.iter().for_each(wait_for_both_replicas);
        fleet
    }

    fn in_flight(&self) -> u64 {
        self.services.iter().map(|one| gauge(one.metrics, "sluicegate_requests_in_flight")).sum()
    }

    fn count(&self, series: &str) -> u64 {
        self.services.iter().map(|one| gauge(one.metrics, series)).sum()
    }
}

fn wait_for_both_replicas(service: &Service) {
    until("both are seen", || {
        let shown = http1::get(service.admin, "/fleet", &[]).unwrap().text();
        if shown.matches("\"heartbeat_age_ms\"").count() == 2 { Ok(()) } else { Err(shown) }
    })
    .unwrap();
}

/// Runs many clients of the proxy. Every third client disconnects within 3 ms.
fn run_clients(ingress: SocketAddr) {
    let seed = seed();
    println!("SLUICEGATE_SEED={seed}");
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut dice = Dice::new(seed.wrapping_add(u64::try_from(client).unwrap()));
                for _ in 0..EACH {
                    if dice.once_in(3) {
                        let mut stream = TcpStream::connect(ingress).unwrap();
                        stream.write_all(b"GET / HTTP/1.1\r\nhost: edge\r\n\r\n").unwrap();
                        std::thread::sleep(Duration::from_micros(dice.up_to(3_000)));
                    } else {
                        assert_eq!(http1::get(ingress, "/", &[]).unwrap().status, 200);
                    }
                }
            });
        }
    });
}

const PASSED_ON: &str = r#"sluicegate_forwarded_releases_total{event="delivered"}"#;
const SEARCHED: &str = r#"sluicegate_forwarded_releases_total{event="searched"}"#;
const DROPPED: &str = r#"sluicegate_forwarded_releases_total{event="dropped"}"#;
const LATE: &str = r#"sluicegate_forwarded_releases_total{event="timed_out"}"#;

fn check_for_leaks(shipped: Shipped) {
    let fleet = ProxiedFleet::start(&[]);
    let replicas = fleet.services.each_ref().map(|one| one.grpc);
    let text = configured(shipped, upstream::start(), &replicas, WhenDown::Deny);
    let envoy = Envoy::start_with(text, 2);
    run_clients(envoy.ingress);
    let began = now();
    until("all places are back", || match fleet.in_flight() {
        0 => Ok(()),
        left => Err(format!("{left} left")),
    })
    .unwrap();
    let took = began.elapsed();
    let [passed, searched, dropped, late] =
        [PASSED_ON, SEARCHED, DROPPED, LATE].map(|s| fleet.count(s));
    println!(
        "{shipped:?}: {passed} passed on, {searched} searched, {dropped} dropped, {late} late, {took:?}"
    );
    assert!(0 < passed, "none went the long way");
    assert_eq!(dropped, 0);
}

#[test]
fn two_rate_limit_filters_leak_no_permit() {
    check_for_leaks(Shipped::RlsConcurrency);
}

#[test]
fn ext_authz_with_access_log_leaks_no_permit() {
    check_for_leaks(Shipped::ExtAuthzConcurrency);
}

/// Wrong setup: without a peer port, about half of the permits would last until `max_duration`.
#[test]
fn replicas_without_peer_port_leak_permits() {
    let fleet = ProxiedFleet::start(&["--listen-peer-port", ""]);
    let replicas = fleet.services.each_ref().map(|one| one.grpc);
    let text = configured(Shipped::RlsConcurrency, upstream::start(), &replicas, WhenDown::Deny);
    let envoy = Envoy::start_with(text, 2);
    run_clients(envoy.ingress);
    let leaked = fleet.in_flight();
    println!("without peers: {leaked} of {} leaked", CLIENTS * EACH);
    assert!(10 <= leaked, "{leaked}");
}

#[test]
fn nginx_releases_at_another_replica_leak_no_permit() {
    let fleet = ProxiedFleet::start(&[]);
    let [acquiring, releasing] = &fleet.services;
    let shipped = Conf::Concurrency(releasing.syslog().unwrap());
    let nginx = Nginx::start_as(shipped, upstream::start(), acquiring.http, WhenDown::Allow);
    run_clients(nginx.ingress);
    expect_gauge(acquiring.metrics, "sluicegate_requests_in_flight", 0);
    assert!(0 < gauge(releasing.metrics, PASSED_ON));
    println!("nginx: {} passed on, {} searched", fleet.count(PASSED_ON), fleet.count(SEARCHED));
}
