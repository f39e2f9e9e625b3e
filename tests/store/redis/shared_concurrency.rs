//! A shared concurrency limit under faults: five replica processes, one store, and a test backend
//! that counts requests in flight.
//!
//! Guarantees:
//! - Requests in flight never exceed the limit, except for requests delayed by a stopped replica.
//! - These exceptions are at most the share that the replica had when it stopped.
//! - All permits are free after the last release, and none of them expired instead.
//!
//! Requests continue after their replica is killed, as behind a proxy.
//! `benches/RESULTS.md` contains the printed table. The test injects each fault once, then random
//! faults for `SLUICEGATE_FLEET_MINUTES` minutes.

pub(super) mod backend_load;
mod caller;
mod scene_faults;

use std::sync::Arc;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::transport::Channel;

use self::backend_load::{BackendLoad, assert_within_limit};
use super::serve;
use crate::support::dice::{Dice, seed};
use crate::support::log_lines::assert_line_count;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::store_server::{StoreKind, StoreServer};
use crate::support::waiting::{PATIENCE, now, until};

const REPLICAS: usize = 5;

const LIMIT: i64 = 20;

/// Ten heartbeats: a busy machine delays a heartbeat, but not ten.
const SHARE_EXPIRY: Duration = Duration::from_secs(1);

const MAX_DURATION: Duration = Duration::from_millis(2_500);

const WORKERS: usize = 12;

const ONE_PATIENT_IN: usize = 4;

/// The number of requests with which the test observes the fleet after a fault, at the end of the
/// time for which the store reserves the share of a lost replica.
const OBSERVED_REQUESTS: u64 = 100;

/// The start and end of each replica's last stop.
type Stops = Arc<Vec<parking_lot::Mutex<Option<(Instant, Instant)>>>>;

type Channels = Arc<Vec<parking_lot::Mutex<Option<Channel>>>>;

struct SharedFleet {
    store: StoreServer,
    limits: tempfile::TempDir,
    proxies: Vec<Proxy>,
    fleet: Vec<Option<Service>>,
    incarnations: usize,
    channels: Channels,
    stops: Stops,
    callers: Vec<JoinHandle<()>>,
    inside: Arc<BackendLoad>,
    runtime: Runtime,
    dice: Dice,
}

impl SharedFleet {
    fn new(kind: StoreKind, seed: u64) -> Self {
        let store = StoreServer::start(kind);
        let limits = tempfile::tempdir().unwrap();
        let text = format!(
            "domain: d\ndescriptors:\n- key: upstream\n  value: all\n  concurrency: {{limit: {LIMIT}, \
             mode: shared, max_duration: {}s, on_store_failure: deny}}\n",
            MAX_DURATION.as_secs()
        );
        std::fs::write(limits.path().join("d.yaml"), text).unwrap();
        let before = |_| Proxy::before(Upstream::Unix(store.socket()));
        let proxies = (0..REPLICAS).map(before).collect();
        let mut scene = Self {
            proxies,
            limits,
            fleet: Vec::new(),
            incarnations: 0,
            channels: Arc::new((0..REPLICAS).map(|_| parking_lot::Mutex::default()).collect()),
            stops: Arc::new((0..REPLICAS).map(|_| parking_lot::Mutex::default()).collect()),
            callers: Vec::new(),
            inside: BackendLoad::new(LIMIT, MAX_DURATION),
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap(),
            dice: Dice::new(seed),
            store,
        };
        for at in 0..REPLICAS {
            scene.fleet.push(None);
            scene.start(at);
        }
        for at in 0..REPLICAS {
            for worker in 0..WORKERS {
                let caller = Caller {
                    at,
                    channels: Arc::clone(&scene.channels),
                    stops: Arc::clone(&scene.stops),
                    inside: Arc::clone(&scene.inside),
                    is_patient: worker.is_multiple_of(ONE_PATIENT_IN),
                    dice: Dice::new(seed ^ ((at * WORKERS + worker) as u64) << 20),
                };
                scene.callers.push(scene.runtime.spawn(caller.run()));
            }
        }
        scene
    }

    fn start(&mut self, replica: usize) {
        self.incarnations += 1;
        let url = self.store.url_of_proxy(self.proxies[replica].address());
        let share_expiry = format!("{}ms", SHARE_EXPIRY.as_millis());
        let node = format!("replica-{replica}");
        let flags = [
            ["--fleet-replica-name", &node],
            // Shorter than the fault `Silence`.
            ["--store-timeout", "1s"],
            ["--fleet-heartbeat", "100ms"],
            ["--fleet-share-expiry", &share_expiry],
            ["--listen-drain-delay", "0s"],
        ];
        let service = serve(self.limits.path(), &url, &flags.concat());
        let endpoint = service.door();
        let channel = self.runtime.block_on(async { endpoint.connect_lazy() });
        *self.channels[replica].lock() = Some(channel);
        self.fleet[replica] = Some(service);
    }

    fn random_replica(&mut self) -> usize {
        usize::try_from(self.dice.up_to(REPLICAS as u64 - 1)).unwrap()
    }

    fn shares(&self) -> i64 {
        self.fleet.iter().flatten().map(share).sum()
    }

    /// Waits until the shares add up to the limit, then observes the fleet for
    /// `OBSERVED_REQUESTS`. Returns two times as text: until the shares add up, and until requests
    /// in flight reach the limit.
    fn wait_until_full(&self) -> String {
        let began = now();
        self.inside.forget_full();
        let whole = || match self.shares() {
            LIMIT => Ok(began.elapsed()),
            shares => Err(shares.to_string()),
        };
        let took = until("the whole ceiling is given out", whole).unwrap();
        std::thread::sleep(SHARE_EXPIRY.saturating_sub(began.elapsed()));
        self.inside.wait_for_requests(OBSERVED_REQUESTS);
        // The test sets no bound for this time, because it depends on the speed of the machine.
        match self.inside.full_at() {
            Some(at) => format!("{took:.2?}, {LIMIT} inside after {:.2?}", at - began),
            None => format!("{took:.2?}, never {LIMIT} inside until {:.2?}", began.elapsed()),
        }
    }
}

fn share(service: &Service) -> i64 {
    let shown = super::membership::fleet_page(service);
    shown["shares"]["shared"][0]["share"].as_i64().unwrap_or(0)
}

#[derive(Clone, Copy, Debug)]
enum FleetFault {
    Kill,
    Stop,
    Cut,
    Silence,
    Flush,
    Restart,
    /// Redis restarts from a snapshot that lacks one replica.
    Snapshot,
    /// Redis restarts from a snapshot, and a new replica reports first.
    Newcomer,
    Rolling,
}

impl FleetFault {
    const USUAL: [Self; 7] = [
        Self::Kill,
        Self::Stop,
        Self::Cut,
        Self::Silence,
        Self::Flush,
        Self::Restart,
        Self::Rolling,
    ];

    const OLD_STATES: [Self; 2] = [Self::Snapshot, Self::Newcomer];
}

struct Caller {
    at: usize,
    channels: Channels,
    stops: Stops,
    inside: Arc<BackendLoad>,
    is_patient: bool,
    dice: Dice,
}

impl Caller {}

pub(super) async fn send_check(channel: Channel, key: &str, id: &str) -> Option<Code> {
    send_check_for(channel, "all", key, id).await
}

pub(super) async fn send_check_for(
    channel: Channel,
    value: &str,
    key: &str,
    id: &str,
) -> Option<Code> {
    let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry("upstream", value), entry(key, id)],
        ..RateLimitDescriptor::default()
    };
    let request =
        RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
    let answer = RateLimitServiceClient::new(channel).should_rate_limit(request).await.ok()?;
    Some(answer.into_inner().overall_code())
}

#[test]
fn shared_limit_is_never_exceeded_during_faults() {
    let minutes: u64 =
        std::env::var("SLUICEGATE_FLEET_MINUTES").map_or(0, |minutes| minutes.parse().unwrap());
    run_faults(StoreKind::Redis, &FleetFault::USUAL, Duration::from_secs(60 * minutes));
}

/// Asserts that the usual faults, each once, never exceed the limit.
pub fn assert_limit_during_faults(kind: StoreKind) {
    run_faults(kind, &FleetFault::USUAL, Duration::ZERO);
}

#[test]
fn shared_limit_is_never_exceeded_after_a_snapshot_restore() {
    run_faults(StoreKind::Redis, &FleetFault::OLD_STATES, Duration::ZERO);
}

/// Injects each of `faults` once, then random faults for `min_duration`.
#[expect(clippy::print_stdout, reason = "the table is part of the proof")]
fn run_faults(kind: StoreKind, faults: &[FleetFault], min_duration: Duration) {
    let seed = seed();
    println!("SLUICEGATE_SEED={seed}");
    let mut scene = SharedFleet::new(kind, seed);
    let began = now();
    println!("{:>8}  whole again after {}", "start", scene.wait_until_full());
    for &fault in faults {
        run_fault(&mut scene, fault);
    }
    let any = [&FleetFault::USUAL[..], &FleetFault::OLD_STATES].concat();
    while began.elapsed() < min_duration {
        let fault = scene.dice.pick(&any);
        run_fault(&mut scene, fault);
    }
    // Permits whose release the last fault lost expire first.
    std::thread::sleep(MAX_DURATION);
    let release_delay = scene.drain();
    let load = &scene.inside;
    println!(
        "{}, {} lives, no place held {release_delay:.2?} after the last end",
        load.summary(),
        scene.incarnations
    );
    assert_within_limit(load);
}

#[expect(clippy::print_stdout, reason = "the table is part of the proof")]
fn run_fault(scene: &mut SharedFleet, fault: FleetFault) {
    scene.inject(fault);
    let again = scene.wait_until_full();
    let name = format!("{fault:?}");
    println!("{name:>8}  whole again after {again}");
    assert_within_limit(&scene.inside);
}

#[test]
fn empty_redis_denies_permits_for_a_grace_period() {
    let (store, limits) = (Redis::start(), tempfile::tempdir().unwrap());
    let text = "domain: d\ndescriptors: [{key: upstream, value: all, \
                concurrency: {limit: 1, mode: shared, max_duration: 5s, on_store_failure: deny}}]\n";
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    let flags =
        ["--fleet-replica-name", "a", "--fleet-heartbeat", "100ms", "--fleet-share-expiry", "1s"];
    let began = now();
    let service = serve(limits.path(), &store.url(), &flags);
    let is_registered = || match store
        .command(&["HEXISTS", "sluicegatesg:{fleet}:incarnation", "incarnation"])
        .int()
    {
        1 => Ok(()),
        other => Err(other.to_string()),
    };
    until("redis has heard, though nobody asked", is_registered).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = service.door();
        let channel = endpoint.connect().await.unwrap();
        let mut denied = 0;
        let id_of = |id: u32| format!("{id:032}");
        while send_check(channel.clone(), "sluicegate.acquire", &id_of(denied)).await
            != Some(Code::Ok)
        {
            denied += 1;
            assert!(began.elapsed() < PATIENCE, "{}", service.log());
            sleep(Duration::from_millis(10)).await;
        }
        assert_ne!(denied, 0, "what is in flight elsewhere was not known");
    });
    let log = service.log();
    let lines = log.matches("does not know the requests in flight yet").count();
    assert_line_count(lines, 1, began, &log);
}
