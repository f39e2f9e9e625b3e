//! The fleet of a strict limit under faults: replica processes, one store and callers.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use super::{LIMIT, channel, limits, replica_with, runtime};
use crate::store::redis::metric;
use crate::store::redis::shared_concurrency::backend_load::{BackendLoad, assert_within_limit};
use crate::store::redis::shared_concurrency::send_check;
use crate::support::dice::{Dice, seed};
use crate::support::proxy::{Proxy, Upstream};
use crate::support::service::Service;
use crate::support::store_server::{StoreKind, StoreServer};
use crate::support::waiting::{now, until};

const REPLICAS: usize = 4;

/// The longest duration of a short request.
const SHORT_REQUEST: Duration = Duration::from_millis(200);

/// The times of a fleet.
#[derive(Clone, Copy)]
struct Pace {
    heartbeat: Duration,
    max_duration: Duration,
    /// It outlives three heartbeats, and ends before its permit expires.
    longest_request: Duration,
}

/// PostgreSQL gets more time, because a transaction has two round trips and waits for the locks of
/// others.
fn pace_over(kind: StoreKind) -> Pace {
    let [heartbeat, max_duration, longest_request] = match kind {
        StoreKind::Redis => [300, 2_400, 2_000],
        StoreKind::Postgres => [1_000, 4_000, 3_400],
    }
    .map(Duration::from_millis);
    Pace { heartbeat, max_duration, longest_request }
}

const WORKERS: usize = 8;

/// The callers of each replica over a slower store, which serializes the acquires of one limit.
const FEW_WORKERS: usize = 5;

/// The number of requests with which the test observes the fleet after a fault.
const OBSERVED_REQUESTS: u64 = 60;

type Channels = Arc<Vec<parking_lot::Mutex<Option<Channel>>>>;

struct StrictFleet {
    kind: StoreKind,
    store: StoreServer,
    limits: tempfile::TempDir,
    proxies: Vec<Proxy>,
    fleet: Vec<Option<Service>>,
    channels: Channels,
    inside: Arc<BackendLoad>,
    runtime: Runtime,
    dice: Dice,
}

impl StrictFleet {
    fn new(kind: StoreKind, seed: u64) -> Self {
        let store = StoreServer::start(kind);
        let proxies =
            (0..REPLICAS).map(|_| Proxy::before(Upstream::Unix(store.socket()))).collect();
        let mut scene = Self {
            proxies,
            limits: limits(
                LIMIT,
                pace_over(kind).max_duration,
                ", queue: {size: 4, timeout: 200ms}",
            ),
            fleet: (0..REPLICAS).map(|_| None).collect(),
            channels: Arc::new((0..REPLICAS).map(|_| parking_lot::Mutex::default()).collect()),
            inside: BackendLoad::new(LIMIT, pace_over(kind).max_duration),
            kind,
            runtime: runtime(),
            dice: Dice::new(seed),
            store,
        };
        let workers = if kind == StoreKind::Redis { WORKERS } else { FEW_WORKERS };
        for at in 0..REPLICAS {
            scene.start(at);
            for worker in 0..workers {
                let (channels, inside) = (Arc::clone(&scene.channels), Arc::clone(&scene.inside));
                let dice = Dice::new(seed ^ ((at * WORKERS + worker) as u64) << 20);
                let caller = StrictCaller { at, kind, channels, dice };
                scene.runtime.spawn(caller.run(inside));
            }
        }
        scene
    }

    fn start(&mut self, replica_index: usize) {
        let url = self.store.url_of_proxy(self.proxies[replica_index].address());
        let node = format!("replica-{replica_index}");
        let heartbeat = pace_over(self.kind).heartbeat;
        // Shorter than the fault `Pause`.
        let deadline = format!("{}ms", (heartbeat * 2).as_millis());
        let more = ["--store-timeout", &deadline];
        let service = replica_with(&self.limits, &url, (&node, heartbeat), &more);
        *self.channels[replica_index].lock() = Some(channel(&self.runtime, &service));
        self.fleet[replica_index] = Some(service);
    }

    /// Waits until requests in flight reach the limit, then observes the fleet for
    /// `OBSERVED_REQUESTS`. Returns the time until the limit was reached.
    fn wait_until_full(&self) -> Duration {
        let began = now();
        self.inside.fill().unwrap_or_else(|why| panic!("{why}: {}", self.logs()));
        let took = began.elapsed();
        self.inside.wait_for_requests(OBSERVED_REQUESTS);
        took
    }

    fn logs(&self) -> String {
        self.fleet.iter().flatten().map(Service::log).collect()
    }

    fn inject(&mut self, fault: StrictFault) {
        let at = usize::try_from(self.dice.up_to(REPLICAS as u64 - 1)).unwrap();
        // The store releases permits of streams that are unreported for three heartbeat intervals.
        let pace = pace_over(self.kind);
        let outage = pace.heartbeat * 4;
        match fault {
            StrictFault::Kill => {
                *self.channels[at].lock() = None;
                self.fleet[at] = None;
                self.start(at);
                // Nobody reports the permits of the killed replica, so they expire before the next
                // fault.
                std::thread::sleep(pace.max_duration);
            }
            StrictFault::Stop => {
                let service = self.fleet[at].as_ref().unwrap();
                service.signal("STOP");
                std::thread::sleep(outage);
                service.signal("CONT");
            }
            StrictFault::Cut => {
                self.proxies[at].refuse(true);
                self.proxies[at].cut();
                std::thread::sleep(outage);
                self.proxies[at].refuse(false);
            }
            StrictFault::Flush => self.store.clear(),
            StrictFault::Restart => {
                self.store.kill();
                std::thread::sleep(pace.heartbeat);
                self.store.launch();
            }
            StrictFault::Pause => {
                self.store.signal("STOP");
                std::thread::sleep(outage);
                self.store.signal("CONT");
            }
        }
    }

    /// Stops all callers and waits until no permit is left in the replicas or the store.
    fn drain(&self) {
        self.inside.finish();
        until("the last has left", || match self.inside.in_flight() {
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

struct StrictCaller {
    at: usize,
    kind: StoreKind,
    channels: Channels,
    dice: Dice,
}

impl StrictCaller {
    async fn run(mut self, load: Arc<BackendLoad>) {
        // Shorter than a stop of the replica.
        let call_timeout = pace_over(self.kind).heartbeat * 3;
        while !load.is_finished() {
            let id = format!("{:016x}{:016x}", self.dice.roll(), self.dice.roll());
            let Some(channel) = self.channels[self.at].lock().clone() else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            let (patience, asked) = (self.patience().unwrap_or(call_timeout), now());
            let acquire = send_check(channel.clone(), "sluicegate.acquire", &id);
            let reply = timeout(patience, acquire).await;
            let is_allowed = matches!(reply, Ok(Some(Code::Ok)));
            if is_allowed {
                let request = load.enter(asked, false);
                load.wait(request, self.request_duration()).await;
                load.leave(request);
            }
            if is_allowed || reply.is_err() {
                // Releases the id after a timeout too, as a proxy does: the replica may have
                // granted the permit.
                let _ = timeout(call_timeout, send_check(channel, "sluicegate.release", &id)).await;
            }
            if !is_allowed {
                sleep(Duration::from_millis(4 + self.dice.up_to(8))).await;
            }
        }
    }

    /// The time after which an impatient caller cancels its acquire, about as long as the call.
    fn patience(&mut self) -> Option<Duration> {
        let longest = if self.kind == StoreKind::Redis { 6 } else { 30 };
        self.dice.once_in(3).then(|| Duration::from_millis(self.dice.up_to(longest)))
    }

    fn request_duration(&mut self) -> Duration {
        let longest = pace_over(self.kind).longest_request;
        let most = if self.dice.once_in(8) { longest } else { SHORT_REQUEST };
        Duration::from_millis(5 + self.dice.up_to(u64::try_from(most.as_millis()).unwrap() - 5))
    }
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
    println!("{}", inside.summary());
    assert_within_limit(inside);
    assert_eq!(inside.max_in_flight(), LIMIT, "and as many as may be were inside");
}
