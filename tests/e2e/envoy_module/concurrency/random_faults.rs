//! Two Envoys, two replicas and one Redis, under random faults.
//!
//! Guarantees:
//! - A request of a killed Envoy counts for `max_duration`, as if the upstream did not notice.
//! - Pauses of Envoys exceed their share expiry, but not `max_duration`.
//! - The test ends after a number of faults, so a slow machine has as many.
//!
//! `SLUICEGATE_SEED` sets the seed.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::super::super::envoy::Envoy;
use super::super::launch;
use super::{Fleet, FleetTimes, KEY, wait_for_permit};
use crate::support::dice::{Dice, seed};
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::{Ends, now, until};

const LIMIT: usize = 6;
const MAX_DURATION: Duration = Duration::from_secs(2);

const TIMES: FleetTimes = FleetTimes { heartbeat: "200ms", share_expiry: "1s" };

/// Processes of each kind.
const COUNT: usize = 2;

/// Clients of each Envoy.
const CLIENTS: usize = 8;

const FAULTS: usize = 8;

/// The smallest number of completed requests.
const COMPLETED: usize = 100;

/// The longest pause of a process in milliseconds. The share expiry is 1 s.
const LONGEST_PAUSE: u64 = 1_400;

/// The pause of a client in milliseconds after a request that did not pass.
const CLIENT_PAUSE: u64 = 3;

/// A fleet whose processes are replaced during the test.
struct FaultyFleet {
    fleet: Fleet,
    addresses: Vec<SocketAddr>,
    replicas: [Mutex<Option<Service>>; COUNT],
    envoys: [Mutex<Option<Envoy>>; COUNT],
    ingresses: [Mutex<Option<SocketAddr>>; COUNT],
    is_over: AtomicBool,
    completed: AtomicUsize,
}

impl FaultyFleet {
    fn start(is_fair: bool) -> Self {
        let fair = if is_fair { ", fair: {by: api_key}" } else { "" };
        let limit = format!(
            "limit: {LIMIT}, queue: {{size: 4, timeout: 100ms}}, max_duration: {MAX_DURATION:?}, \
             on_store_failure: deny{fair}"
        );
        let mut fleet = Fleet::start(TIMES, &limit, (COUNT, COUNT));
        let addresses = fleet.services.iter().map(|service| service.grpc).collect();
        let ingresses = std::array::from_fn(|at| Mutex::new(Some(fleet.ingress(at))));
        // Moves the processes out, in their order.
        fleet.services.reverse();
        fleet.envoys.reverse();
        let replicas = std::array::from_fn(|_| Mutex::new(fleet.services.pop()));
        let envoys = std::array::from_fn(|_| Mutex::new(fleet.envoys.pop()));
        let (is_over, completed) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self { fleet, addresses, replicas, envoys, ingresses, is_over, completed }
    }

    /// Kills, stops and resumes processes at random. Then waits until clients have had
    /// [`COMPLETED`] requests, and half of the limit at once.
    fn disturb(&self, dice: &mut Dice) {
        for _ in 0..FAULTS {
            let at = usize::try_from(dice.up_to(COUNT as u64 - 1)).unwrap();
            let millis = 50 + dice.up_to(LONGEST_PAUSE - 50);
            match dice.up_to(4) {
                0 => self.restart_envoy(at),
                1 => self.restart_replica(at),
                2 => self.stop_replica(at, millis),
                _ => self.stop_envoy(at, millis),
            }
            pause(dice.up_to(300));
        }
        until("enough requests", || {
            let completed = self.completed.load(Relaxed);
            let most = self.fleet.upstream.most_in_flight();
            let is_enough = COMPLETED < completed && LIMIT / 2 <= most;
            if is_enough { Ok(()) } else { Err(format!("{completed}, {most} at once")) }
        })
        .unwrap();
    }

    fn restart_envoy(&self, at: usize) {
        *self.ingresses[at].lock().unwrap() = None;
        drop(self.envoys[at].lock().unwrap().take());
        let text = self.fleet.setup.configuration(self.fleet.upstream.address, self.addresses[at]);
        let envoy = Envoy::launch(text, 0, &launch("1.40"));
        *self.ingresses[at].lock().unwrap() = Some(envoy.ingress);
        *self.envoys[at].lock().unwrap() = Some(envoy);
    }

    fn restart_replica(&self, at: usize) {
        drop(self.replicas[at].lock().unwrap().take());
        *self.replicas[at].lock().unwrap() = Some(self.fleet.setup.serve(self.addresses[at]));
    }

    fn stop_envoy(&self, at: usize, millis: u64) {
        let envoy = self.envoys[at].lock().unwrap();
        envoy.as_ref().unwrap().signal("STOP");
        pause(millis);
        envoy.as_ref().unwrap().signal("CONT");
    }

    fn stop_replica(&self, at: usize, millis: u64) {
        let replica = self.replicas[at].lock().unwrap();
        replica.as_ref().unwrap().signal("STOP");
        pause(millis);
        replica.as_ref().unwrap().signal("CONT");
    }

    /// Sends requests to one Envoy.
    fn send_requests(&self, at: usize, dice: &mut Dice) {
        while !self.is_over.load(Relaxed) {
            let ingress = *self.ingresses[at].lock().unwrap();
            let is_completed = ingress.is_some_and(|ingress| self.send(ingress, dice));
            if is_completed {
                self.completed.fetch_add(1, Relaxed);
            } else {
                pause(CLIENT_PAUSE);
            }
        }
    }

    /// Sends a request, and returns `true` if it was completed.
    fn send(&self, ingress: SocketAddr, dice: &mut Dice) -> bool {
        let (upstream, sent) = (&self.fleet.upstream, now());
        let request = upstream.new_request(&dice.up_to(20));
        let reply = http1::get(ingress, "/", &request.headers(KEY));
        if reply.is_err() {
            upstream.end_at(request.id, sent + MAX_DURATION);
        }
        reply.is_ok_and(|reply| reply.status == 200)
    }

    /// Returns the fleet with the processes that run now.
    fn into_fleet(self) -> Fleet {
        let mut fleet = self.fleet;
        fleet.services = self.replicas.map(|it| it.into_inner().unwrap().unwrap()).into();
        fleet.envoys = self.envoys.map(|it| it.into_inner().unwrap().unwrap()).into();
        fleet
    }
}

/// Sleeps for the duration of a fault, or between requests.
fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

#[test]
fn random_faults_never_exceed_the_limit() {
    let seed = seed();
    let scene = FaultyFleet::start(seed.is_multiple_of(2));
    std::thread::scope(|scope| {
        let _ends = Ends(&scene.is_over);
        for client in 0..CLIENTS * COUNT {
            let (scene, number) = (&scene, client as u64 + 1);
            let mut dice = Dice::new(seed.wrapping_add(number));
            scope.spawn(move || scene.send_requests(client % COUNT, &mut dice));
        }
        scene.disturb(&mut Dice::new(seed));
    });
    let completed = scene.completed.load(Relaxed);
    let most = scene.fleet.upstream.most_in_flight();
    println!("SLUICEGATE_SEED={seed}: {FAULTS} faults, {completed} completed, {most} at once");
    assert!(most <= LIMIT, "SLUICEGATE_SEED={seed}: {most} requests in flight");
    let fleet = scene.into_fleet();
    fleet.envoys.iter().for_each(wait_for_permit);
    fleet.upstream.wait_for_in_flight(0);
    (0..COUNT).for_each(|envoy| fleet.fill_and_empty(LIMIT, &[envoy]));
    assert!(fleet.upstream.most_in_flight() <= LIMIT);
    fleet.wait_until_idle(COUNT);
}
