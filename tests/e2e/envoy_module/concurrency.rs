//! Tests of concurrency limits that real Envoys enforce.
//!
//! Guarantees:
//! - Requests in flight are counted from both ends: the upstream and the clients.
//! - Each Envoy of a [`Fleet`] has a client certificate, and its replicas serve no other clients.
//! - A leaked permit fails a test, because each test fills the limit again at its end.

mod endings;
mod fair_fleet;
mod faults;
mod fleet;
mod outage;
mod pace;
mod queue;
mod random_faults;
mod recording_upstream;
mod requesters;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use tempfile::TempDir;

use super::super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::super::envoy_releases::with_endings;
use super::certificates::Certificates;
use super::{launch, settle_with};
use crate::support::http1;
use crate::support::ports;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, until};
use recording_upstream::RecordingUpstream;

/// The value of `x-api-key` in most tests.
const KEY: &str = "ann";

/// Envoy's response to requests that a limit rejects.
const REJECTED: u16 = 503;

/// The times of a fleet. They are short, because an empty Redis grants shares only after
/// `share_expiry` and `max_duration`, and permits of a strict limit after three heartbeats.
#[derive(Clone, Copy, Debug)]
struct FleetTimes {
    heartbeat: &'static str,
    share_expiry: &'static str,
}

/// Shares that a late process keeps for two seconds.
const SHARED: FleetTimes = FleetTimes { heartbeat: "200ms", share_expiry: "2s" };

/// As [`SHARED`], and permits of a strict limit that a late process keeps for 1.5 seconds.
const STRICT: FleetTimes = FleetTimes { heartbeat: "500ms", share_expiry: "2s" };

/// The files and the store of a fleet.
struct FleetSetup {
    times: FleetTimes,
    redis: Redis,
    limits: TempDir,
    certificates: Certificates,
}

/// Sluicegate with Redis, and Envoys.
struct Fleet {
    setup: FleetSetup,
    services: Vec<Service>,
    envoys: Vec<Envoy>,
    upstream: RecordingUpstream,
}

impl Fleet {
    /// Starts `replicas` and `envoys`, with a concurrency limit for each `x-api-key`. Returns when
    /// all Envoys have a share.
    fn start(times: FleetTimes, limit: &str, (replicas, envoys): (usize, usize)) -> Self {
        let (redis, limits) = (Redis::start(), limits_of(limit));
        let setup = FleetSetup { times, redis, limits, certificates: Certificates::new() };
        let services: Vec<_> = (0..replicas).map(|_| setup.serve(ports::free())).collect();
        let upstream = RecordingUpstream::start();
        let start_envoy = |number: usize| {
            let text = setup.configuration(upstream.address, services[number % replicas].grpc);
            Envoy::launch(text, 0, &launch("1.40"))
        };
        let envoys: Vec<_> = (0..envoys).map(start_envoy).collect();
        let mut fleet = Self { setup, services, envoys: Vec::new(), upstream };
        for envoy in envoys {
            fleet.add_envoy(envoy);
        }
        fleet
    }

    /// Adds an Envoy, and waits until it has a share.
    fn add_envoy(&mut self, envoy: Envoy) {
        wait_for_permit(&envoy);
        self.envoys.push(envoy);
    }

    /// Starts a killed replica again, at its old address.
    fn restart_service(&mut self, replica: usize) {
        let address = self.services[replica].grpc;
        self.services[replica] = self.setup.serve(address);
    }

    fn ingress(&self, envoy: usize) -> SocketAddr {
        self.envoys[envoy].ingress
    }

    /// Sends a request whose response the upstream holds until [`RecordingUpstream::release`].
    fn get_held(&self, envoy: usize) -> u16 {
        let request = self.upstream.new_request(&"until released");
        let reply = http1::get(self.ingress(envoy), "/", &request.headers(KEY)).unwrap();
        reply.status
    }

    /// As [`Fleet::get_held`], repeated until it is not rejected.
    fn get_held_until_allowed(&self, envoy: usize) {
        until("a permit", || match self.get_held(envoy) {
            200 => Ok(()),
            status => Err(status.to_string()),
        })
        .unwrap();
    }

    /// Requires that each Envoy rejects a request.
    fn expect_rejections(&self) {
        for envoy in 0..self.envoys.len() {
            assert_eq!(self.get_held(envoy), REJECTED, "{}", self.envoys[envoy].log());
        }
    }

    /// Waits until an Envoy rejects a short request. Earlier ones may pass.
    fn wait_for_rejection(&self, envoy: usize) {
        until("a rejection", || {
            let request = self.upstream.new_request(&0);
            match http1::get(self.ingress(envoy), "/", &request.headers(KEY)).unwrap() {
                reply if reply.status == REJECTED => Ok(()),
                reply => Err(format!("{reply:?}\n{}", self.envoys[envoy].log())),
            }
        })
        .unwrap();
    }

    /// Fills the limit with requests of these Envoys, and requires that all Envoys reject one more.
    /// Then lets all requests end.
    fn fill_and_empty(&self, limit: usize, envoys: &[usize]) {
        std::thread::scope(|scope| {
            for client in 0..limit {
                scope.spawn(move || self.get_held_until_allowed(envoys[client % envoys.len()]));
            }
            self.upstream.wait_for_in_flight(limit);
            self.expect_rejections();
            self.upstream.release(limit);
        });
        self.upstream.wait_for_in_flight(0);
    }

    /// Waits until `/fleet` has no request in flight at all these proxies.
    fn wait_until_idle(&self, proxies: usize) {
        until("no requests in flight in /fleet", || {
            let pages: Vec<_> = self.services.iter().map(fleet_page).collect();
            let listed = pages.iter().flat_map(proxies_of);
            let loads: Vec<_> = listed.map(|proxy| in_flight(&proxy)).collect();
            let is_idle = loads.iter().all(|load| *load == Some(0));
            if is_idle && loads.len() == proxies { Ok(()) } else { Err(format!("{pages:?}")) }
        })
        .unwrap();
    }
}

fn limits_of(limit: &str) -> TempDir {
    let text = format!("domain: shop\ndescriptors:\n- key: api_key\n  concurrency: {{{limit}}}\n");
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("shop.yaml"), text).unwrap();
    limits
}

impl FleetSetup {
    /// Starts Sluicegate with this address for Envoys.
    fn serve(&self, address: SocketAddr) -> Service {
        let (url, port) = (self.redis.url(), address.port().to_string());
        let FleetTimes { heartbeat, share_expiry } = self.times;
        let store = ["--store-url", &url, "--store-timeout", "9s", "--listen-grpc-port", &port];
        let times = ["--fleet-heartbeat", heartbeat, "--fleet-share-expiry", share_expiry];
        let flags = store.iter().chain(&times).map(|&flag| flag.to_owned());
        let flags: Vec<_> = flags.chain(self.certificates.flags()).collect();
        until("Sluicegate", || Service::start(self.limits.path(), &flags)).unwrap()
    }

    /// The configuration of an Envoy with a certificate of its own.
    fn configuration(&self, upstream: SocketAddr, service: SocketAddr) -> String {
        let mut text = configuration(upstream, service);
        self.certificates.add_to(&mut text, service);
        text
    }
}

/// The shipped configuration, with routes that Envoy answers, and with response code details in
/// the access log.
fn configuration(upstream: SocketAddr, service: SocketAddr) -> String {
    let mut text = configured(Shipped::Module, upstream, &[service], WhenDown::Deny);
    with_endings(&mut text);
    let code = "response_code: \"%RESPONSE_CODE%\"\n";
    let details = "                          details: \"%RESPONSE_CODE_DETAILS%\"\n";
    replace_once(&mut text, code, &[code, details].concat());
    text
}

/// Sends a request, with lines of headers.
fn open(ingress: SocketAddr, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(ingress).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: edge\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Reads the status of the next response.
fn status(mut stream: &TcpStream) -> u16 {
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    std::str::from_utf8(&head[9..]).unwrap().parse().unwrap()
}

fn api_key(key: &str) -> String {
    format!("x-api-key: {key}\r\n")
}

/// Waits until Envoy admits a request, which it answers itself.
fn wait_for_permit(envoy: &Envoy) {
    wait_for_key(envoy, KEY);
}

/// As [`wait_for_permit`], with another value of `x-api-key`.
fn wait_for_key(envoy: &Envoy, key: &str) {
    until("a permit", || match status(&open(envoy.ingress, "/local", &api_key(key))) {
        204 => Ok(()),
        status => Err(format!("{status}\n{}", envoy.log())),
    })
    .unwrap();
}

/// Waits until the counters include all earlier requests, by a request with [`KEY`].
fn settle(envoy: &Envoy) {
    settle_with(envoy, || status(&open(envoy.ingress, "/local", &api_key(KEY))));
}

fn fleet_page(service: &Service) -> Value {
    let reply = http1::get(service.admin, "/fleet", &[]).unwrap();
    serde_json::from_slice(&reply.body).unwrap()
}

/// Waits until `/fleet` shows this many waiting requests of the first proxy.
fn wait_for_waiting(service: &Service, count: u64) {
    until("waiting requests", || {
        let page = fleet_page(service);
        let buckets = page["proxies"][0]["concurrency"].as_array().cloned().unwrap_or_default();
        let waiting = buckets.iter().filter_map(|bucket| bucket["waiting"].as_u64());
        if waiting.sum::<u64>() == count { Ok(()) } else { Err(page.to_string()) }
    })
    .unwrap();
}

fn proxies_of(page: &Value) -> Vec<Value> {
    page["proxies"].as_array().cloned().unwrap_or_default()
}

/// The sum of the requests in flight of one proxy, over its buckets. `None` before its first report.
fn in_flight(proxy: &Value) -> Option<u64> {
    let buckets = proxy["concurrency"].as_array().filter(|buckets| !buckets.is_empty())?;
    buckets.iter().map(|bucket| bucket["in_flight"].as_u64()).sum()
}
