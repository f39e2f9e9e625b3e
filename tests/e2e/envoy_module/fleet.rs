//! Three Envoys with two workers each, two replicas and one Redis, under random faults.
//!
//! Guarantees:
//! - The upstream never gets more requests than the limit plus `max_overshoot`.
//! - Replies that a killed Envoy never sent count, because the upstream counts requests.
//! - The same assertion catches a proxy that spends its leases twice.
//!
//! Not covered:
//! - Leases that expire while an Envoy is stopped: a lease of this limit lasts 30 s.
//!
//! `SLUICEGATE_ENVOY_RUNS` sets the number of seeds, and `SLUICEGATE_SEED` the first one.

mod replaying_proxy;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

use super::super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::super::upstream;
use super::launch;
use crate::support::dice::{Dice, seed};
use crate::support::http1::Connection;
use crate::support::ports;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{Ends, for_a_day_with_a_minute_left, now, until};

const LIMIT: usize = 10_000;
const MAX_OVERSHOOT: usize = 500;

const ENVOYS: usize = 3;
const REPLICAS: usize = 2;

/// Clients of each Envoy. Envoy spreads their connections over its two workers.
const CLIENTS: usize = 4;

const KEY: (&str, &str) = ("x-api-key", "all");

/// Requests of a client between two pauses.
const BURST: usize = 10;

/// The pause of a client in milliseconds, so that the limit lasts for most of the faults.
const PAUSE_MS: u64 = 60;

/// Time of random faults in each run. Three runs must end within a minute.
const FAULT_TIME: Duration = Duration::from_secs(7);

struct Fleet {
    redis: Redis,
    limits: TempDir,
    replica_addresses: [SocketAddr; REPLICAS],
    replicas: [Mutex<Option<Service>>; REPLICAS],
    envoys: [Mutex<Option<Envoy>>; ENVOYS],
    ingresses: [Mutex<Option<SocketAddr>>; ENVOYS],
    upstream: SocketAddr,
    /// Requests that reached the upstream.
    allowed: Arc<AtomicUsize>,
    is_over: AtomicBool,
}

impl Fleet {
    /// A fleet with this number of Envoys.
    fn start(envoys: usize) -> Self {
        for_a_day_with_a_minute_left();
        let limits = tempfile::tempdir().unwrap();
        let text = format!(
            "domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {{unit: day, \
             requests_per_unit: {LIMIT}, strategy: fixed_window, mode: leased, \
             max_overshoot: {MAX_OVERSHOOT}}}\n"
        );
        std::fs::write(limits.path().join("shop.yaml"), text).unwrap();
        let (upstream, allowed) = upstream::counting();
        let fleet = Self {
            redis: Redis::start(),
            limits,
            replica_addresses: std::array::from_fn(|_| ports::free()),
            replicas: Default::default(),
            envoys: Default::default(),
            ingresses: Default::default(),
            upstream,
            allowed,
            is_over: AtomicBool::new(false),
        };
        (0..REPLICAS).for_each(|at| fleet.start_replica(at));
        (0..envoys).for_each(|at| fleet.start_envoy(at));
        fleet
    }

    /// Starts a replica at its old address.
    fn start_replica(&self, at: usize) {
        let port = self.replica_addresses[at].port().to_string();
        let url = self.redis.url();
        let flags = ["--store-url", &url, "--store-deadline", "200ms", "--listen-grpc-port", &port];
        let flags = flags.map(str::to_owned);
        let started = until("a replica", || Service::start(self.limits.path(), &flags));
        *self.replicas[at].lock().unwrap() = Some(started.unwrap());
    }

    fn start_envoy(&self, at: usize) {
        let replica = self.replica_addresses[at % REPLICAS];
        let mut text = configured(Shipped::Module, self.upstream, &[replica], WhenDown::Deny);
        replace_once(&mut text, "deadline: 20ms", "deadline: 100ms");
        let envoy = Envoy::launch(text, 0, &launch("1.40"));
        *self.ingresses[at].lock().unwrap() = Some(envoy.ingress);
        *self.envoys[at].lock().unwrap() = Some(envoy);
    }

    fn restart_envoy(&self, at: usize) {
        *self.ingresses[at].lock().unwrap() = None;
        drop(self.envoys[at].lock().unwrap().take());
        self.start_envoy(at);
    }

    fn restart_replica(&self, at: usize) {
        drop(self.replicas[at].lock().unwrap().take());
        self.start_replica(at);
    }

    /// Kills, stops and resumes processes at random. Returns the number of faults during which
    /// requests were allowed.
    fn disturb(&self, dice: &mut Dice) -> usize {
        let (began, mut faults) = (now(), 0);
        while began.elapsed() < FAULT_TIME {
            let before = self.allowed();
            let (envoy, replica) = (index(dice, ENVOYS), index(dice, REPLICAS));
            match dice.up_to(5) {
                0 => self.restart_envoy(envoy),
                1 => self.restart_replica(replica),
                2 | 3 => self.stop_and_resume_envoy(envoy, dice),
                _ => self.stop_and_resume_replica(replica, dice),
            }
            pause(dice.up_to(300));
            faults += usize::from(before < self.allowed());
        }
        faults
    }

    fn stop_and_resume_envoy(&self, at: usize, dice: &mut Dice) {
        let envoy = self.envoys[at].lock().unwrap();
        envoy.as_ref().unwrap().signal("STOP");
        pause(50 + dice.up_to(1_500));
        envoy.as_ref().unwrap().signal("CONT");
    }

    fn stop_and_resume_replica(&self, at: usize, dice: &mut Dice) {
        let replica = self.replicas[at].lock().unwrap();
        replica.as_ref().unwrap().signal("STOP");
        pause(50 + dice.up_to(1_500));
        replica.as_ref().unwrap().signal("CONT");
    }

    /// Sends requests to one Envoy over one connection, and opens a new one after a failure.
    fn send_requests(&self, at: usize) {
        let mut connection: Option<Connection> = None;
        while !self.is_over.load(Relaxed) {
            let ingress = *self.ingresses[at].lock().unwrap();
            let open = |ingress| Connection::open(ingress).ok();
            connection = connection.or_else(|| ingress.and_then(open));
            let sent = connection
                .as_mut()
                .is_some_and(|connection| (0..BURST).all(|_| connection.get(&[KEY]).is_ok()));
            if !sent {
                connection = None;
            }
            pause(PAUSE_MS);
        }
    }

    /// Runs `work` while all clients send requests.
    fn run_under_load<T>(&self, work: impl FnOnce() -> T) -> T {
        self.is_over.store(false, Relaxed);
        std::thread::scope(|scope| {
            let _ends = Ends(&self.is_over);
            for client in 0..CLIENTS * ENVOYS {
                scope.spawn(move || self.send_requests(client % ENVOYS));
            }
            work()
        })
    }

    /// Sends requests until the limit denies at each Envoy, so that no leased hit is left.
    fn spend_all_hits(&self) {
        for envoy in &self.envoys {
            let envoy = envoy.lock().unwrap();
            let Some(envoy) = envoy.as_ref() else { continue };
            let mut connection = Connection::open(envoy.ingress).unwrap();
            until("the denial of all requests", || {
                let statuses: Vec<u16> =
                    (0..500).map(|_| connection.get(&[KEY]).unwrap()).collect();
                if statuses.iter().all(|status| *status == 429) {
                    Ok(())
                } else {
                    Err(format!("{statuses:?}\n{}", envoy.log()))
                }
            })
            .unwrap();
        }
    }

    fn allowed(&self) -> usize {
        self.allowed.load(Relaxed)
    }
}

fn index(dice: &mut Dice, count: usize) -> usize {
    usize::try_from(dice.up_to(count as u64 - 1)).unwrap()
}

/// Sleeps for the duration of a fault, or between requests.
fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

/// Judges the requests that reached the upstream.
fn is_within_bound(allowed: usize) -> bool {
    allowed <= LIMIT + MAX_OVERSHOOT
}

#[test]
fn three_envoys_allow_the_limit_less_unspent_hits() {
    let fleet = Fleet::start(ENVOYS);
    fleet.run_under_load(|| {
        let most = || match fleet.allowed() {
            few if few < LIMIT - MAX_OVERSHOOT => Err(few.to_string()),
            _ => Ok(()),
        };
        until("the limit", most).unwrap();
    });
    fleet.spend_all_hits();
    let allowed = fleet.allowed();
    assert!(is_within_bound(allowed), "{allowed}");
    // At most `max_overshoot` hits are borrowed and not spent.
    assert!(LIMIT - MAX_OVERSHOOT <= allowed, "{allowed}");
}

#[test]
fn faults_keep_envoys_within_the_limit_plus_max_overshoot() {
    let runs = std::env::var("SLUICEGATE_ENVOY_RUNS").map_or(3, |runs| runs.parse().unwrap());
    let first = seed();
    for seed in (0..runs).map(|run| first.wrapping_add(run)) {
        let fleet = Fleet::start(ENVOYS);
        let faults = fleet.run_under_load(|| fleet.disturb(&mut Dice::new(seed)));
        let before_the_end = fleet.allowed();
        fleet.run_under_load(|| fleet.spend_all_hits());
        let allowed = fleet.allowed();
        println!(
            "SLUICEGATE_SEED={seed}: {faults} faults, {before_the_end} then {allowed} allowed"
        );
        assert!(is_within_bound(allowed), "SLUICEGATE_SEED={seed}: {allowed}");
        // Each fault loses at most the outstanding hits.
        let least = LIMIT.saturating_sub((faults + 1) * MAX_OVERSHOOT).max(MAX_OVERSHOOT);
        assert!(0 < faults && least <= allowed, "SLUICEGATE_SEED={seed}: {allowed} is no proof");
    }
}

#[test]
fn a_proxy_that_replays_its_leases_is_caught() {
    let fleet = Fleet::start(1);
    replaying_proxy::spend_leases_twice(fleet.replica_addresses[1], fleet.upstream, 2_000);
    fleet.run_under_load(|| fleet.spend_all_hits());
    let allowed = fleet.allowed();
    assert!(!is_within_bound(allowed), "{allowed}");
}
