//! One strict ceiling over real processes: replicas, one Redis, and a backend that counts who is really inside
//! it, while replicas and the store are killed, stopped, cut off and made to forget.
//!
//! Requests go on when their replica dies, as they do behind a proxy, and every third caller gives its call up
//! before it is answered. `docs/reliability.md` keeps the table that this prints.

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

use super::ceilings::{Inside, call, holds};
use super::{Store, metric, serve};
use crate::service::Service;
use crate::support::cluster::Cluster;
use crate::support::dice::{Dice, seed};
use crate::support::proxy::{Proxy, Upstream};
use crate::support::resp::Value;
use crate::waiting::{now, until};

const REPLICAS: usize = 4;
const CEILING: i64 = 10;
const BEAT: Duration = Duration::from_millis(200);
const MAX_DURATION: Duration = Duration::from_secs(3);
/// How long a caller waits for its answer.
const PATIENCE: Duration = Duration::from_millis(400);
/// The longest request: what was granted is held for longer, even if the answer took all the patience.
const LONGEST: Duration = Duration::from_millis(2_400);
/// Requests that want to be inside, at each replica.
const WORKERS: usize = 8;
/// How long one is watched after a fault: longer than an id of a lost replica is kept, so that two faults do not
/// meet in it.
const WATCHED: Duration = Duration::from_secs(4);

type Doors = Arc<Vec<parking_lot::Mutex<Option<Channel>>>>;

/// Replicas behind proxies that can be cut, and their callers.
struct Scene {
    store: Store,
    limits: tempfile::TempDir,
    proxies: Vec<Proxy>,
    fleet: Vec<Option<Service>>,
    /// Where each replica is called.
    doors: Doors,
    inside: Arc<Inside>,
    runtime: Runtime,
    dice: Dice,
}

fn limits(limit: i64, more: &str) -> tempfile::TempDir {
    let limits = tempfile::tempdir().unwrap();
    let text = format!(
        "domain: d\ndescriptors:\n- key: upstream\n  concurrency: {{limit: {limit}, mode: strict, \
         max_duration: {}ms, on_backend_failure: deny{more}}}\n",
        MAX_DURATION.as_millis()
    );
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    limits
}

fn flags(node: &str) -> Vec<String> {
    let beat = format!("{}ms", BEAT.as_millis());
    let flags = [
        ["--node-id", node],
        ["--backend-deadline", "100ms"],
        ["--fleet-heartbeat", &beat],
        ["--fleet-term", "1s"],
        ["--drain-delay", "0s"],
    ];
    flags.concat().into_iter().map(str::to_owned).collect()
}

pub(super) fn replica(limits: &tempfile::TempDir, url: &str, node: &str, more: &[&str]) -> Service {
    let flags = flags(node);
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
    serve(limits.path(), url, &flags)
}

pub(super) fn door(runtime: &Runtime, service: &Service) -> Channel {
    let endpoint = service.door();
    runtime.block_on(async { endpoint.connect_lazy() })
}

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

impl Scene {
    fn new(seed: u64) -> Self {
        let store = Store::running();
        let proxies =
            (0..REPLICAS).map(|_| Proxy::before(Upstream::Unix(store.socket()))).collect();
        let mut scene = Self {
            proxies,
            limits: limits(CEILING, ", queue: {size: 4, timeout: 200ms}"),
            fleet: (0..REPLICAS).map(|_| None).collect(),
            doors: Arc::new((0..REPLICAS).map(|_| parking_lot::Mutex::default()).collect()),
            inside: Inside::of(CEILING),
            runtime: runtime(),
            dice: Dice::new(seed),
            store,
        };
        for at in 0..REPLICAS {
            scene.start(at);
            for worker in 0..WORKERS {
                let (doors, inside) = (Arc::clone(&scene.doors), Arc::clone(&scene.inside));
                let dice = Dice::new(seed ^ ((at * WORKERS + worker) as u64) << 20);
                scene.runtime.spawn(work(at, doors, inside, dice));
            }
        }
        scene
    }

    fn start(&mut self, at: usize) {
        let url = format!("redis://{}", self.proxies[at].address());
        let service = replica(&self.limits, &url, &format!("replica-{at}"), &[]);
        *self.doors[at].lock() = Some(door(&self.runtime, &service));
        self.fleet[at] = Some(service);
    }

    /// How long until as many are inside as may be. Watches on for as long as what is lost may come to light.
    fn full_again(&self) -> Duration {
        let began = now();
        let took = until("as many are inside as may be", || match self.inside.now.load(SeqCst) {
            CEILING => Ok(began.elapsed()),
            inside => Err(format!("{inside} inside")),
        });
        std::thread::sleep(WATCHED.saturating_sub(began.elapsed()));
        took.unwrap()
    }

    fn strike(&mut self, fault: Fault) {
        let at = usize::try_from(self.dice.up_to(REPLICAS as u64 - 1)).unwrap();
        match fault {
            Fault::Kill => {
                *self.doors[at].lock() = None;
                self.fleet[at] = None;
                self.start(at);
            }
            Fault::Stop => {
                let service = self.fleet[at].as_ref().unwrap();
                service.signal("STOP");
                std::thread::sleep(BEAT * 6);
                service.signal("CONT");
            }
            Fault::Cut => {
                self.proxies[at].refuse(true);
                self.proxies[at].cut();
                std::thread::sleep(BEAT * 6);
                self.proxies[at].refuse(false);
            }
            Fault::Flush => drop(self.store.tell(&["FLUSHALL"])),
            Fault::Restart => {
                self.store.kill();
                std::thread::sleep(BEAT * 2);
                self.store.start(&["--port", "0"]);
            }
            Fault::Pause => {
                self.store.signal("STOP");
                std::thread::sleep(BEAT * 6);
                self.store.signal("CONT");
            }
        }
    }

    /// Nobody comes any more: nothing is left inside, here or in the store.
    fn empties(&self) {
        self.inside.ends();
        until("the last has left", || match self.inside.now.load(SeqCst) {
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
        until("the store holds none", || match permits(&self.store) {
            0 => Ok(()),
            held => Err(format!("{held} are held")),
        })
        .unwrap();
    }
}

/// How many the store holds, those whose deadline has come among them.
fn permits(store: &Store) -> i64 {
    let Value::Array(keys) = store.tell(&["KEYS", "*{permits}:c:*"]) else { panic!() };
    let held = keys.iter().map(|key| store.tell(&["ZCARD", &key.text()]).int());
    held.sum()
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
    Cut,
    Flush,
    Restart,
    Pause,
}

/// A caller that wants to be inside again and again.
async fn work(at: usize, doors: Doors, inside: Arc<Inside>, mut dice: Dice) {
    while !inside.is_over() {
        let id = format!("{:016x}{:016x}", dice.roll(), dice.roll());
        let Some(door) = doors[at].lock().clone() else {
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        let gives_up = dice.once_in(3).then(|| Duration::from_millis(dice.up_to(6)));
        let patience = gives_up.unwrap_or(PATIENCE);
        let asked = timeout(patience, call(door.clone(), "sluicegate.acquire", &id)).await;
        if !matches!(asked, Ok(Some(Code::Ok))) {
            if asked.is_err() {
                // As a proxy that gave the call up: what it took must come back.
                let _ = timeout(PATIENCE, call(door, "sluicegate.release", &id)).await;
            }
            sleep(Duration::from_millis(4 + dice.up_to(8))).await;
            continue;
        }
        inside.enters(false);
        let most = if dice.once_in(8) { LONGEST } else { BEAT };
        let lasts = 5 + dice.up_to(u64::try_from(most.as_millis()).unwrap() - 5);
        sleep(Duration::from_millis(lasts)).await;
        inside.leaves(false);
        let _ = timeout(PATIENCE, call(door, "sluicegate.release", &id)).await;
    }
}

#[test]
fn a_ceiling_of_ten_is_never_exceeded_whatever_happens_to_replicas_and_store() {
    let seed = seed();
    println!("SLUICEGATE_SEED={seed}");
    let mut scene = Scene::new(seed);
    println!("{:>8}  full after {:?}", "start", scene.full_again());
    for fault in [Fault::Kill, Fault::Stop, Fault::Cut, Fault::Flush, Fault::Restart, Fault::Pause]
    {
        scene.strike(fault);
        println!("{:>8}  full again after {:?}", format!("{fault:?}"), scene.full_again());
        holds(&scene.inside);
    }
    scene.empties();
    let inside = &scene.inside;
    let (entered, most) = (inside.entered.load(SeqCst), inside.most.load(SeqCst));
    println!("{entered} requests, at most {most} inside of {CEILING}");
    holds(inside);
    assert_eq!(most, CEILING, "and as many as may be were inside");
}

/// Settings with a hook that asks for the ceiling.
pub(super) fn hooks(place: &tempfile::TempDir) -> std::path::PathBuf {
    let settings = place.path().join("server.yaml");
    let hooks = "hooks:\n- name: edge\n  domain: d\n  descriptors:\n  \
                 - [{generic_key: {descriptor_key: upstream, descriptor_value: all}}]\n";
    std::fs::write(&settings, hooks).unwrap();
    settings
}

/// A stream that holds a place, if it got one.
pub(super) async fn stream(door: Channel) -> Option<impl Sized> {
    let headers = Message::RequestHeaders(HttpHeaders::default());
    let asked = ProcessingRequest { request: Some(headers), ..ProcessingRequest::default() };
    let asks = tokio_stream::iter([asked]).chain(tokio_stream::pending());
    let mut replies = ExternalProcessorClient::new(door).process(asks).await.ok()?.into_inner();
    let reply = replies.message().await.ok()??;
    let refused = matches!(
        reply.response,
        Some(envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response::ImmediateResponse(_))
    );
    (!refused).then_some(replies)
}

#[test]
fn streams_of_a_replica_that_is_killed_are_free_after_three_beats_and_no_sooner() {
    let (store, limits, runtime) = (Store::running(), limits(3, ""), runtime());
    let elsewhere = tempfile::tempdir().unwrap();
    let settings = hooks(&elsewhere);
    let more = ["--settings", settings.to_str().unwrap()];
    let mut killed = replica(&limits, &store.url(), "killed", &more);
    let stays = replica(&limits, &store.url(), "stays", &more);
    let doors = [&killed, &stays].map(|service| door(&runtime, service));
    let opens = |at: usize| runtime.block_on(stream(doors[at].clone()));
    let mut streams = Vec::new();
    until("the store is open", || {
        streams.extend(opens(0));
        if streams.len() == 3 { Ok(()) } else { Err(format!("{} streams", streams.len())) }
    })
    .unwrap();
    // Told again and again, they outlive their deadline.
    let began = now();
    while began.elapsed() < BEAT * 5 {
        assert!(opens(1).is_none());
        std::thread::sleep(BEAT / 4);
    }
    assert_eq!(permits(&store), 3);
    killed.kill();
    let began = now();
    until("its places are free", || opens(1).map(drop).ok_or_else(|| stays.log())).unwrap();
    let took = began.elapsed();
    println!("free after {took:?}");
    // It was told within the last beat.
    assert!(BEAT * 7 / 4 < took, "{took:?}");
}

#[test]
fn what_the_metrics_of_all_replicas_say_may_be_in_flight_is_the_ceiling() {
    let (store, limits, runtime) = (Store::running(), limits(CEILING, ""), runtime());
    let fleet = ["a", "b", "c"].map(|node| replica(&limits, &store.url(), node, &[]));
    for (at, service) in fleet.iter().enumerate() {
        let (door, mut id) = (door(&runtime, service), 0);
        until("its place is open", || {
            id += 1;
            let name = format!("replica-{at}-{id:016}");
            let asked = runtime.block_on(acquire(door.clone(), "all", &name));
            if asked == Some(Code::Ok) { Ok(()) } else { Err(service.log()) }
        })
        .unwrap();
    }
    let ceiling = u64::try_from(CEILING).unwrap();
    for series in ["sluicegate_ceilings_limit", "sluicegate_ceiling_limit{ceiling=\"d.upstream\"}"]
    {
        until("each has seen the others", || {
            match fleet.iter().map(|service| metric(service, series)).sum::<u64>() {
                sum if sum == ceiling => Ok(()),
                sum => Err(format!("{series}: {sum}")),
            }
        })
        .unwrap();
    }
}

#[test]
fn a_cluster_counts_each_of_many_ceilings_exactly() {
    let (cluster, limits, runtime) = (Cluster::start(), limits(2, ""), runtime());
    let fleet = ["a", "b"].map(|node| replica(&limits, &cluster.url(), node, &[]));
    let doors = fleet.each_ref().map(|service| door(&runtime, service));
    let acquires = |at: usize, value: &str, id: usize| {
        let door = doors[at % 2].clone();
        runtime.block_on(acquire(door, value, &format!("{value}-{id:016}"))) == Some(Code::Ok)
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

async fn acquire(door: Channel, value: &str, id: &str) -> Option<Code> {
    super::ceilings::call_of(door, value, "sluicegate.acquire", id).await
}
