//! A shared concurrency limit under faults: five replica processes, one Redis, and a test backend
//! that counts requests in flight.
//!
//! Guarantees:
//! - Requests in flight never exceed the limit, except for requests delayed by a stopped replica.
//! - These exceptions are at most the share that the replica had when it stopped.
//! - All permits are free within a second after the last release.
//!
//! Requests continue after their replica is killed, as behind a proxy. `docs/reliability.md`
//! contains the printed table. The test runs for two minutes, or for `SLUICEGATE_FLEET_MINUTES`
//! minutes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use super::{Store, metric, serve};
use crate::service::Service;
use crate::support::dice::{Dice, seed};
use crate::support::proxy::{Proxy, Upstream};
use crate::waiting::{now, soon, until};

const REPLICAS: usize = 5;
const LIMIT: i64 = 20;
const SHARE_EXPIRY: Duration = Duration::from_secs(1);
const MAX_DURATION: Duration = Duration::from_secs(3);
/// The duration of a stop (SIGSTOP) of a replica, or of a store outage.
const FAULT_DURATION: Duration = Duration::from_secs(2);
/// The usual timeout of a caller, longer than any delay of a loaded machine.
const TIMEOUT: Duration = Duration::from_millis(400);
/// The longer timeout of some callers, which still wait when a stopped replica resumes.
const LONG_TIMEOUT: Duration = Duration::from_millis(2_400);
/// The longest duration of a normal request (`SHORT_REQUEST`), and of a request that outlives the
/// share of its replica (`LONG_REQUEST`). Even after the full timeout of its caller, each ends at
/// least 400 ms before `MAX_DURATION`, so no permit expires early.
const SHORT_REQUEST: Duration = Duration::from_millis(200);
const LONG_REQUEST: Duration = Duration::from_millis(2_100);
/// The timeout of a call that releases a permit.
const RELEASE_TIMEOUT: Duration = SHARE_EXPIRY;
/// The longest allowed time from the last release until no permit is in use. `MAX_DURATION` is
/// three times as long, so the expiry of a permit cannot hide a lost release.
const MAX_RELEASE_DELAY: Duration = Duration::from_secs(1);
const WORKERS: usize = 12;
const ONE_PATIENT_IN: usize = 4;
/// The time for which the test observes the fleet after a fault. It is longer than the store
/// reserves the share of a lost replica.
const OBSERVATION: Duration = Duration::from_secs(5);

/// The requests in flight, as the backend sees them.
#[derive(Debug, Default)]
pub(super) struct BackendLoad {
    limit: i64,
    pub(super) in_flight: AtomicI64,
    pub(super) max_in_flight: AtomicI64,
    /// The time at which requests in flight first reached the limit since the last reset.
    full_at: parking_lot::Mutex<Option<Instant>>,
    /// Requests in flight whose replica was stopped between its decision and its reply.
    delayed: AtomicI64,
    /// The share that the most recently stopped replica had when it stopped.
    share_stopped: AtomicI64,
    max_allowance: AtomicI64,
    excess: AtomicI64,
    pub(super) entered: AtomicU64,
    over: watch::Sender<bool>,
}

impl BackendLoad {
    pub(super) fn of(limit: i64) -> Arc<Self> {
        Arc::new(Self { limit, ..Self::default() })
    }

    pub(super) fn enter(&self, was_delayed: bool) {
        if was_delayed {
            self.delayed.fetch_add(1, SeqCst);
        }
        let inside = self.in_flight.fetch_add(1, SeqCst) + 1;
        let allowance = self.delayed.load(SeqCst).min(self.share_stopped.load(SeqCst));
        self.max_in_flight.fetch_max(inside, SeqCst);
        if self.limit <= inside {
            self.full_at.lock().get_or_insert_with(now);
        }
        self.max_allowance.fetch_max(allowance, SeqCst);
        self.excess.fetch_max(inside - allowance - self.limit, SeqCst);
        self.entered.fetch_add(1, SeqCst);
    }

    pub(super) fn leave(&self, was_delayed: bool) {
        self.in_flight.fetch_sub(1, SeqCst);
        if was_delayed {
            self.delayed.fetch_sub(1, SeqCst);
        }
    }

    pub(super) fn finish(&self) {
        self.over.send_replace(true);
    }

    pub(super) fn is_finished(&self) -> bool {
        *self.over.borrow()
    }

    async fn wait(&self, duration: Duration) {
        let mut over = self.over.subscribe();
        let _ = timeout(duration, over.wait_for(|over| *over)).await;
    }
}

/// The start and end of each replica's last stop.
type Stops = Arc<Vec<parking_lot::Mutex<Option<(Instant, Instant)>>>>;
type Channels = Arc<Vec<parking_lot::Mutex<Option<Channel>>>>;

struct Scene {
    store: Store,
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

impl Scene {
    fn new(seed: u64) -> Self {
        let store = Store::running();
        let limits = tempfile::tempdir().unwrap();
        let text = format!(
            "domain: d\ndescriptors:\n- key: upstream\n  value: all\n  concurrency: {{limit: {LIMIT}, \
             mode: leased, max_duration: {}s, on_backend_failure: deny}}\n",
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
            inside: BackendLoad::of(LIMIT),
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
        let url = format!("redis://{}", self.proxies[replica].address());
        let share_expiry = format!("{}ms", SHARE_EXPIRY.as_millis());
        let node = format!("replica-{replica}");
        let flags = [
            ["--fleet-replica-name", &node],
            ["--store-deadline", "50ms"],
            ["--fleet-heartbeat", "200ms"],
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

    /// Waits until the shares add up to the limit, then observes the fleet for `OBSERVATION`.
    /// Returns two times as text: until the shares add up, and until requests in flight reach the
    /// limit.
    fn wait_until_full(&self) -> String {
        let began = now();
        *self.inside.full_at.lock() = None;
        let whole = || match self.shares() {
            LIMIT => Ok(began.elapsed()),
            shares => Err(shares.to_string()),
        };
        let took = until("the whole ceiling is given out", whole).unwrap();
        std::thread::sleep(OBSERVATION.saturating_sub(began.elapsed()));
        // The test sets no bound for this time, because it depends on the speed of the machine.
        match *self.inside.full_at.lock() {
            Some(at) => format!("{took:.2?}, {LIMIT} inside after {:.2?}", at - began),
            None => format!("{took:.2?}, never {LIMIT} inside until {:.2?}", began.elapsed()),
        }
    }

    fn inject(&mut self, fault: Fault) {
        let at = self.random_replica();
        match fault {
            Fault::Kill => self.restart_replica(at),
            Fault::Stop => self.stop(at),
            Fault::Cut => {
                self.proxies[at].refuse(true);
                self.proxies[at].cut();
                std::thread::sleep(FAULT_DURATION);
                self.proxies[at].refuse(false);
            }
            Fault::Silence => {
                self.proxies[at].go_silent();
                std::thread::sleep(FAULT_DURATION);
                self.proxies[at].pass();
            }
            Fault::Flush => drop(self.store.command(&["FLUSHALL"])),
            Fault::Restart => {
                self.store.kill();
                std::thread::sleep(SHARE_EXPIRY / 2);
                self.store.start(&["--port", "0"]);
            }
            Fault::Snapshot => self.restore_snapshot_without_replica(at),
            Fault::Newcomer => self.restore_snapshot_then_new_replica(at),
            Fault::Rolling => {
                for at in 0..REPLICAS {
                    let mut old = self.fleet[at].take().unwrap();
                    *self.channels[at].lock() = None;
                    old.terminate();
                    old.ended().unwrap();
                    self.start(at);
                }
            }
        }
    }

    fn stop(&self, replica: usize) {
        let service = self.fleet[replica].as_ref().unwrap();
        self.inside.share_stopped.store(share(service), SeqCst);
        service.signal("STOP");
        let from = now();
        std::thread::sleep(FAULT_DURATION);
        *self.stops[replica].lock() = Some((from, now()));
        service.signal("CONT");
    }

    fn restart_replica(&mut self, replica: usize) {
        *self.channels[replica].lock() = None;
        self.fleet[replica] = None;
        self.start(replica);
    }

    /// Restores a snapshot of Redis that was taken before the given replica restarted. This replica
    /// keeps its share and reports last.
    fn restore_snapshot_without_replica(&mut self, replica: usize) {
        self.store.command(&["SAVE"]);
        self.restart_replica(replica);
        self.wait_until_full();
        self.restore_snapshot(&[replica], |_| {});
    }

    /// Restores a snapshot of Redis. The first report comes from a new replica that is in no
    /// snapshot.
    fn restore_snapshot_then_new_replica(&mut self, replica: usize) {
        self.store.command(&["SAVE"]);
        self.wait_until_full();
        let others: Vec<usize> = (0..REPLICAS).filter(|other| *other != replica).collect();
        self.restore_snapshot(&others, |scene| scene.restart_replica(replica));
    }

    /// Restarts Redis from its snapshot and runs `then` while the `disconnected` replicas cannot
    /// report.
    fn restore_snapshot(&mut self, disconnected: &[usize], then: impl FnOnce(&mut Self)) {
        for at in disconnected {
            self.proxies[*at].refuse(true);
            self.proxies[*at].cut();
        }
        self.store.kill();
        self.store.start(&["--port", "0"]);
        // Redis accepts connections before it has loaded the snapshot.
        until("the snapshot is read", || {
            let info = self.store.command(&["INFO", "persistence"]).text();
            let loaded = info.lines().any(|line| {
                line.strip_prefix("rdb_last_load_keys_loaded:").is_some_and(|keys| keys != "0")
            });
            if loaded { Ok(()) } else { Err(info) }
        })
        .unwrap();
        std::fs::remove_file(self.store.dir.path().join("dump.rdb")).unwrap();
        then(self);
        std::thread::sleep(SHARE_EXPIRY / 2);
        for at in disconnected {
            self.proxies[*at].refuse(false);
        }
    }

    /// Stops all callers. Returns the time until no replica has a permit in use.
    fn drain(&mut self) -> Duration {
        self.inside.finish();
        let callers = std::mem::take(&mut self.callers);
        let all_ended = async {
            for caller in callers {
                soon("the end of a caller", caller).await.unwrap();
            }
        };
        self.runtime.block_on(all_ended);
        let last = now();
        assert_eq!(self.inside.in_flight.load(SeqCst), 0);
        for service in self.fleet.iter().flatten() {
            until("no place is held", || match metric(service, "sluicegate_requests_in_flight") {
                0 => Ok(()),
                held => Err(held.to_string()),
            })
            .unwrap();
        }
        last.elapsed()
    }
}

fn share(service: &Service) -> i64 {
    let shown = super::fleet::fleet_page(service);
    shown["shares"]["ceilings"][0]["share"].as_i64().unwrap_or(0)
}

#[derive(Clone, Copy, Debug)]
enum Fault {
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

impl Fault {
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

/// The result of an acquire. A failed call counts as denied.
#[derive(PartialEq, Eq)]
enum AcquireResult {
    Allowed,
    Denied,
    TimedOut,
}

struct Caller {
    at: usize,
    channels: Channels,
    stops: Stops,
    inside: Arc<BackendLoad>,
    is_patient: bool,
    dice: Dice,
}

impl Caller {
    async fn run(mut self) {
        while !self.inside.is_finished() {
            let channel = self.channels[self.at].lock().clone();
            let Some(channel) = channel else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            let id = format!("{:016x}{:016x}", self.dice.roll(), self.dice.roll());
            let asked = now();
            let result = self.acquire(channel.clone(), &id).await;
            if result == AcquireResult::Allowed {
                self.run_request(self.was_stopped_since(asked)).await;
            }
            if result != AcquireResult::Denied {
                // Releases the id after a timeout too, as a proxy does: the replica may have
                // granted the permit.
                let _ =
                    timeout(RELEASE_TIMEOUT, send_check(channel, "sluicegate.release", &id)).await;
            }
            if result != AcquireResult::Allowed {
                sleep(Duration::from_millis(4 + self.dice.up_to(8))).await;
            }
        }
    }

    /// Acquires a permit for `id`. A reply after the timeout counts as a timeout, even if the
    /// machine delayed this task.
    async fn acquire(&self, channel: Channel, id: &str) -> AcquireResult {
        let (limit, asked) = (if self.is_patient { LONG_TIMEOUT } else { TIMEOUT }, now());
        match timeout(limit, send_check(channel, "sluicegate.acquire", id)).await {
            Err(_) => AcquireResult::TimedOut,
            Ok(_) if limit < asked.elapsed() => AcquireResult::TimedOut,
            Ok(Some(Code::Ok)) => AcquireResult::Allowed,
            Ok(_) => AcquireResult::Denied,
        }
    }

    /// Returns `true` if the replica was stopped and resumed between the acquire and its reply.
    fn was_stopped_since(&self, acquire_started: Instant) -> bool {
        self.stops[self.at]
            .lock()
            .is_some_and(|(from, until)| acquire_started < from && until <= now())
    }

    async fn run_request(&mut self, was_delayed: bool) {
        let outlives = self.dice.once_in(8) && !self.is_patient;
        let (least, most) = if outlives {
            (SHARE_EXPIRY, LONG_REQUEST)
        } else {
            (Duration::from_millis(5), SHORT_REQUEST)
        };
        let spread = u64::try_from(most.saturating_sub(least).as_millis()).unwrap();
        let duration = least + Duration::from_millis(self.dice.up_to(spread));
        self.inside.enter(was_delayed);
        self.inside.wait(duration).await;
        self.inside.leave(was_delayed);
    }
}

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
        std::env::var("SLUICEGATE_FLEET_MINUTES").map_or(2, |minutes| minutes.parse().unwrap());
    run_faults(&Fault::USUAL, Duration::from_secs(60 * minutes));
}

#[test]
fn shared_limit_is_never_exceeded_after_a_snapshot_restore() {
    run_faults(&Fault::OLD_STATES, Duration::ZERO);
}

/// Injects each of `faults` once, then random faults for `min_duration`.
#[expect(clippy::print_stdout, reason = "the table is part of the proof")]
fn run_faults(faults: &[Fault], min_duration: Duration) {
    let seed = seed();
    println!("SLUICEGATE_SEED={seed}");
    let mut scene = Scene::new(seed);
    let began = now();
    println!("{:>8}  whole again after {}", "start", scene.wait_until_full());
    for &fault in faults {
        run_fault(&mut scene, fault);
    }
    let any = [&Fault::USUAL[..], &Fault::OLD_STATES].concat();
    while began.elapsed() < min_duration {
        let fault = scene.dice.pick(&any);
        run_fault(&mut scene, fault);
    }
    let release_delay = scene.drain();
    let load = &scene.inside;
    println!(
        "{} requests, at most {} inside of {LIMIT}, allowance {}, {} lives, no place held {release_delay:.2?} after the last end",
        load.entered.load(SeqCst),
        load.max_in_flight.load(SeqCst),
        load.max_allowance.load(SeqCst),
        scene.incarnations
    );
    assert_within_limit(load);
    assert!(
        release_delay <= MAX_RELEASE_DELAY,
        "places were held for {release_delay:?} after the last was told to have ended"
    );
}

#[expect(clippy::print_stdout, reason = "the table is part of the proof")]
fn run_fault(scene: &mut Scene, fault: Fault) {
    scene.inject(fault);
    let again = scene.wait_until_full();
    let name = format!("{fault:?}");
    println!("{name:>8}  whole again after {again}");
    assert_within_limit(&scene.inside);
}

#[test]
fn empty_redis_denies_permits_for_a_grace_period() {
    let (store, limits) = (Store::running(), tempfile::tempdir().unwrap());
    let text = "domain: d\ndescriptors: [{key: upstream, value: all, \
                concurrency: {limit: 1, mode: leased, max_duration: 5s, on_backend_failure: deny}}]\n";
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    let flags =
        ["--fleet-replica-name", "a", "--fleet-heartbeat", "100ms", "--fleet-share-expiry", "1s"];
    let service = serve(limits.path(), &store.url(), &flags);
    let is_registered =
        || match store.command(&["HEXISTS", "sluicegatesg:{fleet}:lives", "life"]).int() {
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
            assert!(denied < 2_000, "{}", service.log());
            sleep(Duration::from_millis(10)).await;
        }
        assert_ne!(denied, 0, "what is in flight elsewhere was not known");
    });
    let log_lines = service.log().matches("does not know the requests in flight yet").count();
    assert_eq!(log_lines, 1, "{}", service.log());
}

pub(super) fn assert_within_limit(load: &BackendLoad) {
    let (above, most) = (load.excess.load(SeqCst), load.max_in_flight.load(SeqCst));
    assert!(above <= 0, "{above} too many inside, {most} at most");
}
