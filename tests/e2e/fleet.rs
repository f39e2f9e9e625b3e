//! Tests with two replicas behind one Envoy or NGINX: a release that reaches the other replica
//! frees the permit, too.
#![expect(clippy::print_stdout, reason = "what was seen is part of the proof")]

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tempfile::TempDir;

use super::envoy::{Envoy, Shipped, WhenDown, configured};
use super::in_flight::{HOOKS, gauge, limit_all_requests};
use super::nginx::{Nginx, Shipped as Conf};
use super::nginx_disconnects::{MAX_PENDING_DATAGRAMS, wait_until_read};
use super::upstream;
use crate::support::dice::{Dice, seed};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{now, until};

const CLIENTS: usize = 16;
/// Requests of each client in a round.
const EACH: usize = 6;
const ROUNDS: usize = 10;

const _: () = assert!(CLIENTS * EACH < MAX_PENDING_DATAGRAMS);

/// Longer than the time for which a replica keeps a release for another one.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(4);

/// Maximum number of fleets. On a busy machine, the replica that must apply a release may be late.
const MAX_FLEETS: usize = 10;

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
            let late = ["--store-timeout", "9s"];
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

/// Runs many clients of the proxy, in rounds. Every third client disconnects within 3 ms.
fn run_clients(ingress: SocketAddr, after_round: impl Fn()) {
    let seed = seed();
    println!("SLUICEGATE_SEED={seed}");
    for round in 0..ROUNDS {
        run_round(ingress, seed.wrapping_add((round * CLIENTS) as u64));
        after_round();
    }
}

fn run_round(ingress: SocketAddr, seed: u64) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS as u64 {
            scope.spawn(move || {
                let mut dice = Dice::new(seed.wrapping_add(client));
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

/// Runs clients of new fleets until one fleet loses no release. A release may be lost only if it
/// counts as too late.
fn check_for_leaks<P>(run: impl Fn(&ProxiedFleet) -> P) {
    let is_complete = (0..MAX_FLEETS).any(|_| {
        let fleet = ProxiedFleet::start(&[]);
        // The proxy must stay until all its releases have arrived.
        let _proxy = run(&fleet);
        let left = wait_for_places(&fleet);
        let [passed, searched, dropped, late] =
            [PASSED_ON, SEARCHED, DROPPED, LATE].map(|series| fleet.count(series));
        println!(
            "{passed} passed on, {searched} searched, {dropped} dropped, {late} late, {left} left"
        );
        assert!(0 < passed, "none went the long way");
        assert_eq!(dropped, 0);
        left == 0
    });
    assert!(is_complete, "each fleet was too late for a release");
}

/// Waits until all places are back, except those of releases that were too late. Returns the
/// number of the latter.
fn wait_for_places(fleet: &ProxiedFleet) -> u64 {
    let (mut last, mut changed_at) = (0, now());
    until("all places are back", || match (fleet.in_flight(), fleet.count(LATE)) {
        (0, _) => Ok(0),
        (left, late) => {
            if left != last {
                (last, changed_at) = (left, now());
            }
            let is_final = FORWARD_TIMEOUT < changed_at.elapsed();
            if is_final && left <= late { Ok(left) } else { Err(format!("{left} left")) }
        }
    })
    .unwrap()
}

fn run_clients_of_envoy(shipped: Shipped, fleet: &ProxiedFleet) -> Envoy {
    let replicas = fleet.services.each_ref().map(|one| one.grpc);
    let text = configured(shipped, upstream::start(), &replicas, WhenDown::Deny);
    let envoy = Envoy::start_with(text, 2);
    run_clients(envoy.ingress, || {});
    envoy
}

#[test]
fn two_rate_limit_filters_leak_no_permit() {
    check_for_leaks(|fleet| run_clients_of_envoy(Shipped::RlsConcurrency, fleet));
}

#[test]
fn ext_authz_with_access_log_leaks_no_permit() {
    check_for_leaks(|fleet| run_clients_of_envoy(Shipped::ExtAuthzConcurrency, fleet));
}

/// Wrong setup: without a peer port, about half of the permits would last until `max_duration`.
#[test]
fn replicas_without_peer_port_leak_permits() {
    let fleet = ProxiedFleet::start(&["--listen-peer-port", "none"]);
    let _envoy = run_clients_of_envoy(Shipped::RlsConcurrency, &fleet);
    let leaked = fleet.in_flight();
    println!("without peers: {leaked} of {} leaked", CLIENTS * EACH * ROUNDS);
    assert!(10 <= leaked, "{leaked}");
}

#[test]
fn nginx_releases_at_another_replica_leak_no_permit() {
    check_for_leaks(|fleet| {
        let [acquiring, releasing] = &fleet.services;
        let syslog = releasing.syslog().unwrap();
        let shipped = Conf::Concurrency(syslog);
        let nginx = Nginx::start_as(shipped, upstream::start(), acquiring.http, WhenDown::Allow);
        // A round has fewer datagrams than fit into the socket buffer.
        run_clients(nginx.ingress, || wait_until_read(syslog));
        nginx
    });
}
