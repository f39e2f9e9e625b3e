//! A strict concurrency limit under faults: replica processes, one store, and a test backend that
//! counts requests in flight.
//!
//! Guarantees:
//! - The limit is never exceeded while replicas and the store fail.
//! - At the end, no permit is left in the replicas or in the store.
//!
//! Requests continue after their replica is killed, as behind a proxy. Every third caller cancels
//! its acquire before the reply. `benches/RESULTS.md` has some rows of the
//! printed table.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpHeaders, ProcessingRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;

use super::shared_concurrency::{BackendLoad, assert_within_limit, send_check};
use super::{metric, serve};
use crate::support::cluster::Cluster;
use crate::support::dice::{Dice, seed};
use crate::support::proxy::{Proxy, Upstream};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::store_server::{StoreKind, StoreServer};
use crate::support::waiting::{now, until};

const REPLICAS: usize = 4;

const LIMIT: i64 = 10;

const HEARTBEAT: Duration = Duration::from_millis(200);

const MAX_DURATION: Duration = Duration::from_secs(3);

const TIMEOUT: Duration = Duration::from_millis(400);

/// The longest request. It ends before its permit expires, even after the slowest reply.
const LONGEST_REQUEST: Duration = Duration::from_millis(2_400);

const WORKERS: usize = 8;

/// The callers of each replica over a slower store, which serializes the acquires of one limit.
const FEW_WORKERS: usize = 5;

/// The time for which the test observes the fleet after a fault. The permits of a lost replica
/// expire within it, so two faults never overlap.
const OBSERVATION: Duration = Duration::from_secs(4);

type Channels = Arc<Vec<parking_lot::Mutex<Option<Channel>>>>;

struct StrictFleet {
    store: StoreServer,
    limits: tempfile::TempDir,
    proxies: Vec<Proxy>,
    fleet: Vec<Option<Service>>,
    channels: Channels,
    inside: Arc<BackendLoad>,
    runtime: Runtime,
    dice: Dice,
}

fn limits(limit: i64, more: &str) -> tempfile::TempDir {
    let limits = tempfile::tempdir().unwrap();
    let text = format!(
        "domain: d\ndescriptors:\n- key: upstream\n  concurrency: {{limit: {limit}, mode: strict, \
         max_duration: {}ms, on_store_failure: deny{more}}}\n",
        MAX_DURATION.as_millis()
    );
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    limits
}

/// Flags of a replica. PostgreSQL gets more time, because a transaction has two round trips and
/// waits for the locks of others.
fn flags(url: &str, node: &str) -> Vec<String> {
    let (deadline, heartbeat, expiry) = if url.starts_with("postgres") {
        ("300ms", HEARTBEAT * 3, "2s")
    } else {
        ("100ms", HEARTBEAT, "1s")
    };
    let heartbeat = format!("{}ms", heartbeat.as_millis());
    let flags = [
        ["--fleet-replica-name", node],
        ["--store-deadline", deadline],
        ["--fleet-heartbeat", &heartbeat],
        ["--fleet-share-expiry", expiry],
        ["--listen-drain-delay", "0s"],
    ];
    flags.concat().into_iter().map(str::to_owned).collect()
}

pub(super) fn replica(limits: &tempfile::TempDir, url: &str, node: &str, more: &[&str]) -> Service {
    let flags = flags(url, node);
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
    serve(limits.path(), url, &flags)
}

pub(super) fn channel(runtime: &Runtime, service: &Service) -> Channel {
    let endpoint = service.door();
    runtime.block_on(async { endpoint.connect_lazy() })
}

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

impl StrictFleet {
    fn new(kind: StoreKind, seed: u64) -> Self {
        let store = StoreServer::start(kind);
        let proxies =
            (0..REPLICAS).map(|_| Proxy::before(Upstream::Unix(store.socket()))).collect();
        let mut scene = Self {
            proxies,
            limits: limits(LIMIT, ", queue: {size: 4, timeout: 200ms}"),
            fleet: (0..REPLICAS).map(|_| None).collect(),
            channels: Arc::new((0..REPLICAS).map(|_| parking_lot::Mutex::default()).collect()),
            inside: BackendLoad::of(LIMIT),
            runtime: runtime(),
            dice: Dice::new(seed),
            store,
        };
        let slowness = scene.store.slowness();
        let workers = if slowness == 1 { WORKERS } else { FEW_WORKERS };
        for at in 0..REPLICAS {
            scene.start(at);
            for worker in 0..workers {
                let (channels, inside) = (Arc::clone(&scene.channels), Arc::clone(&scene.inside));
                let dice = Dice::new(seed ^ ((at * WORKERS + worker) as u64) << 20);
                scene.runtime.spawn(run_caller(at, channels, inside, (dice, slowness)));
            }
        }
        scene
    }

    fn start(&mut self, replica_index: usize) {
        let url = self.store.url_of_proxy(self.proxies[replica_index].address());
        let service = replica(&self.limits, &url, &format!("replica-{replica_index}"), &[]);
        *self.channels[replica_index].lock() = Some(channel(&self.runtime, &service));
        self.fleet[replica_index] = Some(service);
    }

    /// Waits until requests in flight reach the limit, then observes the fleet for `OBSERVATION`.
    /// Returns the time until the limit was reached.
    fn wait_until_full(&self) -> Duration {
        let began = now();
        // The time is no law: on a busy machine, a slower store needs several waits.
        let wait = || {
            until("as many are inside as may be", || match self.inside.in_flight.load(SeqCst) {
                LIMIT => Ok(began.elapsed()),
                inside => Err(format!("{inside} inside")),
            })
        };
        let took = (0..self.store.slowness()).find_map(|_| wait().ok());
        std::thread::sleep(OBSERVATION.saturating_sub(began.elapsed()));
        took.unwrap_or_else(|| panic!("the limit was not reached: {}", self.logs()))
    }

    fn logs(&self) -> String {
        self.fleet.iter().flatten().map(Service::log).collect()
    }

    fn inject(&mut self, fault: StrictFault) {
        let at = usize::try_from(self.dice.up_to(REPLICAS as u64 - 1)).unwrap();
        match fault {
            StrictFault::Kill => {
                *self.channels[at].lock() = None;
                self.fleet[at] = None;
                self.start(at);
            }
            StrictFault::Stop => {
                let service = self.fleet[at].as_ref().unwrap();
                service.signal("STOP");
                std::thread::sleep(HEARTBEAT * 6);
                service.signal("CONT");
            }
            StrictFault::Cut => {
                self.proxies[at].refuse(true);
                self.proxies[at].cut();
                std::thread::sleep(HEARTBEAT * 6);
                self.proxies[at].refuse(false);
            }
            StrictFault::Flush => self.store.clear(),
            StrictFault::Restart => {
                self.store.kill();
                std::thread::sleep(HEARTBEAT * 2);
                self.store.launch();
            }
            StrictFault::Pause => {
                self.store.signal("STOP");
                std::thread::sleep(HEARTBEAT * 6);
                self.store.signal("CONT");
            }
        }
    }

    /// Stops all callers and waits until no permit is left in the replicas or the store.
    fn drain(&self) {
        self.inside.finish();
        until("the last has left", || match self.inside.in_flight.load(SeqCst) {
            0 => Ok(()),
            inside => Err(inside.to_string()),
        })
        .unwrap();
        for service in self.fleet.iter().flatten() {
            until("no place is held", || match metric(service, "sluicegate_requests_in_flight") {
                0 => Ok(()),
                held => Err(held.to_string()),
            })
            .unwrap();
        }
        until("the store holds none", || match self.store.stored_permits() {
            0 => Ok(()),
            held => Err(format!("{held} are held")),
        })
        .unwrap();
    }
}

#[derive(Clone, Copy, Debug)]
enum StrictFault {
    Kill,
    Stop,
    Cut,
    Flush,
    Restart,
    Pause,
}

async fn run_caller(
    caller: usize,
    channels: Channels,
    load: Arc<BackendLoad>,
    (mut dice, slowness): (Dice, u64),
) {
    while !load.is_finished() {
        let id = format!("{:016x}{:016x}", dice.roll(), dice.roll());
        let Some(channel) = channels[caller].lock().clone() else {
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        let gives_up = dice.once_in(3).then(|| Duration::from_millis(dice.up_to(6 * slowness)));
        let patience = gives_up.unwrap_or(TIMEOUT);
        let asked = timeout(patience, send_check(channel.clone(), "sluicegate.acquire", &id)).await;
        if !matches!(asked, Ok(Some(Code::Ok))) {
            if asked.is_err() {
                // Releases the id after a timeout, as a proxy does: the replica may have granted
                // the permit.
                let _ = timeout(TIMEOUT, send_check(channel, "sluicegate.release", &id)).await;
            }
            sleep(Duration::from_millis(4 + dice.up_to(8))).await;
            continue;
        }
        load.enter(false);
        let most = if dice.once_in(8) { LONGEST_REQUEST } else { HEARTBEAT };
        let lasts = 5 + dice.up_to(u64::try_from(most.as_millis()).unwrap() - 5);
        sleep(Duration::from_millis(lasts)).await;
        load.leave(false);
        let _ = timeout(TIMEOUT, send_check(channel, "sluicegate.release", &id)).await;
    }
}

#[test]
fn strict_limit_is_never_exceeded_during_faults() {
    assert_limit_during_faults(StoreKind::Redis);
}

/// Asserts that faults of replicas and of the store never exceed the limit.
#[expect(clippy::print_stdout, reason = "the table is part of the proof")]
pub fn assert_limit_during_faults(kind: StoreKind) {
    let seed = seed();
    println!("SLUICEGATE_SEED={seed}");
    let mut scene = StrictFleet::new(kind, seed);
    println!("{:>8}  full after {:?}", "start", scene.wait_until_full());
    for fault in [
        StrictFault::Kill,
        StrictFault::Stop,
        StrictFault::Cut,
        StrictFault::Flush,
        StrictFault::Restart,
        StrictFault::Pause,
    ] {
        scene.inject(fault);
        println!("{:>8}  full again after {:?}", format!("{fault:?}"), scene.wait_until_full());
        assert_within_limit(&scene.inside);
    }
    scene.drain();
    let inside = &scene.inside;
    let (entered, most) = (inside.entered.load(SeqCst), inside.max_in_flight.load(SeqCst));
    println!("{entered} requests, at most {most} inside of {LIMIT}");
    assert_within_limit(inside);
    assert_eq!(most, LIMIT, "and as many as may be were inside");
}

pub(super) fn write_hook_settings(place: &tempfile::TempDir) -> std::path::PathBuf {
    let settings = place.path().join("server.yaml");
    let hooks = "hooks:\n- name: edge\n  domain: d\n  descriptors:\n  \
                 - [{generic_key: {descriptor_key: upstream, descriptor_value: all}}]\n";
    std::fs::write(&settings, hooks).unwrap();
    settings
}

/// Opens a stream that keeps a permit. Returns `None` if the permit was denied.
pub(super) async fn open_stream(channel: Channel) -> Option<impl Sized> {
    let headers = Message::RequestHeaders(HttpHeaders::default());
    let asked = ProcessingRequest { request: Some(headers), ..ProcessingRequest::default() };
    let asks = tokio_stream::iter([asked]).chain(tokio_stream::pending());
    let mut replies = ExternalProcessorClient::new(channel).process(asks).await.ok()?.into_inner();
    let reply = replies.message().await.ok()??;
    let refused = matches!(
        reply.response,
        Some(envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response::ImmediateResponse(_))
    );
    (!refused).then_some(replies)
}

#[test]
fn streams_of_a_killed_replica_expire_after_three_heartbeats() {
    let store = StoreServer::start(StoreKind::Redis);
    let (limits, runtime) = (limits(3, ""), runtime());
    let settings_dir = tempfile::tempdir().unwrap();
    let settings = write_hook_settings(&settings_dir);
    let more = ["--settings", settings.to_str().unwrap()];
    let mut killed = replica(&limits, &store.url(), "killed", &more);
    let stays = replica(&limits, &store.url(), "stays", &more);
    let channels = [&killed, &stays].map(|service| channel(&runtime, service));
    let opens = |at: usize| runtime.block_on(open_stream(channels[at].clone()));
    let mut streams = Vec::new();
    until("the store is open", || {
        streams.extend(opens(0));
        if streams.len() == 3 { Ok(()) } else { Err(format!("{} streams", streams.len())) }
    })
    .unwrap();
    // Heartbeats renew the permits of open streams past their deadline.
    let began = now();
    while began.elapsed() < HEARTBEAT * 5 {
        assert!(opens(1).is_none());
        std::thread::sleep(HEARTBEAT / 4);
    }
    assert_eq!(store.stored_permits(), 3);
    killed.kill();
    let began = now();
    until("its places are free", || opens(1).map(drop).ok_or_else(|| stays.log())).unwrap();
    let took = began.elapsed();
    println!("free after {took:?}");
    // The last heartbeat of the killed replica may be one heartbeat interval old.
    assert!(HEARTBEAT * 7 / 4 < took, "{took:?}");
}

#[test]
fn limit_metrics_of_all_replicas_add_up() {
    let (store, limits, runtime) = (Redis::start(), limits(LIMIT, ""), runtime());
    let fleet = ["a", "b", "c"].map(|node| replica(&limits, &store.url(), node, &[]));
    for (at, service) in fleet.iter().enumerate() {
        let (channel, mut id) = (channel(&runtime, service), 0);
        until("its place is open", || {
            id += 1;
            let name = format!("replica-{at}-{id:016}");
            let asked = runtime.block_on(acquire(channel.clone(), "all", &name));
            if asked == Some(Code::Ok) { Ok(()) } else { Err(service.log()) }
        })
        .unwrap();
    }
    let limit = u64::try_from(LIMIT).unwrap();
    for series in
        ["sluicegate_concurrency_limits", "sluicegate_concurrency_limit{limit=\"d.upstream\"}"]
    {
        until("each has seen the others", || {
            match fleet.iter().map(|service| metric(service, series)).sum::<u64>() {
                sum if sum == limit => Ok(()),
                sum => Err(format!("{series}: {sum}")),
            }
        })
        .unwrap();
    }
}

#[test]
fn a_cluster_enforces_each_concurrency_limit_exactly() {
    let (cluster, limits, runtime) = (Cluster::start(), limits(2, ""), runtime());
    let fleet = ["a", "b"].map(|node| replica(&limits, &cluster.url(), node, &[]));
    let channels = fleet.each_ref().map(|service| channel(&runtime, service));
    let acquires = |at: usize, value: &str, id: usize| {
        let channel = channels[at % 2].clone();
        runtime.block_on(acquire(channel, value, &format!("{value}-{id:016}"))) == Some(Code::Ok)
    };
    for number in 0..24 {
        let value = format!("value{number}");
        let mut id = 0;
        until("its place is open", || {
            id += 1;
            if acquires(id, &value, id) { Ok(()) } else { Err(fleet[0].log()) }
        })
        .unwrap();
        let passed = (1..6).filter(|more| acquires(id + more, &value, id + more)).count();
        assert_eq!(passed, 1, "{value}");
    }
}

async fn acquire(channel: Channel, value: &str, id: &str) -> Option<Code> {
    super::shared_concurrency::send_check_for(channel, value, "sluicegate.acquire", id).await
}
