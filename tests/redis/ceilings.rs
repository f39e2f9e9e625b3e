//! One ceiling over real processes: five replicas, one Redis, and a backend that counts who is really
//! inside it, while everything that can happen to a process or a store happens to them.
//!
//! The backend's requests go on when their replica dies, as they do behind a proxy. More than the ceiling may be inside
//! only by those who stood between decision and reply while their replica was stopped, at most its share at that time: they
//! are counted and printed. Whoever had to wait else, for whatever reason, is one inside like any other. `docs/reliability.md`
//! keeps the table that this prints; it goes on for two minutes, or for as many as `SLUICEGATE_FLEET_MINUTES` says.

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
const CEILING: i64 = 20;
const TERM: Duration = Duration::from_secs(1);
const MAX_DURATION: Duration = Duration::from_secs(3);
/// How long a replica is stopped, or has no store.
const STRUCK: Duration = Duration::from_secs(2);
/// How long a caller waits for its answer: above what a crowded machine takes.
const PATIENCE: Duration = Duration::from_millis(400);
/// The same of those who are still there when their replica goes on after a stop.
const PATIENT: Duration = Duration::from_millis(2_400);
/// How long one is inside at most, and the impatient few who outlive their replica's term. With the patience of who asked that
/// is below `MAX_DURATION` by 400 ms, so that no place is over before its request is.
const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_millis(2_100);
/// How long the end of a request may take to be told.
const TELLS: Duration = TERM;
/// After the last has told its end, until no place is held: a third of `MAX_DURATION`, so that no deadline gives it back.
const LETS_GO: Duration = Duration::from_secs(1);
/// Requests that want to be inside, at each replica.
const WORKERS: usize = 12;
/// One in so many of them is patient.
const IMPATIENT: usize = 4;
/// How long one is watched after a fault: longer than a lost member's part is kept.
const WATCHED: Duration = Duration::from_secs(5);

/// Who is inside, as the backend sees it.
#[derive(Debug, Default)]
pub(super) struct Inside {
    ceiling: i64,
    pub(super) now: AtomicI64,
    pub(super) most: AtomicI64,
    /// When as many as may be were inside, since somebody began to wait for that.
    full: parking_lot::Mutex<Option<Instant>>,
    /// Those who stood between decision and reply at a stop.
    stood: AtomicI64,
    /// What the replica that was stopped last might have in flight then.
    share_stopped: AtomicI64,
    allowed_for: AtomicI64,
    above: AtomicI64,
    pub(super) entered: AtomicU64,
    over: watch::Sender<bool>,
}

impl Inside {
    pub(super) fn of(ceiling: i64) -> Arc<Self> {
        Arc::new(Self { ceiling, ..Self::default() })
    }

    pub(super) fn enters(&self, stood: bool) {
        if stood {
            self.stood.fetch_add(1, SeqCst);
        }
        let inside = self.now.fetch_add(1, SeqCst) + 1;
        let allowance = self.stood.load(SeqCst).min(self.share_stopped.load(SeqCst));
        self.most.fetch_max(inside, SeqCst);
        if self.ceiling <= inside {
            self.full.lock().get_or_insert_with(now);
        }
        self.allowed_for.fetch_max(allowance, SeqCst);
        self.above.fetch_max(inside - allowance - self.ceiling, SeqCst);
        self.entered.fetch_add(1, SeqCst);
    }

    pub(super) fn leaves(&self, stood: bool) {
        self.now.fetch_sub(1, SeqCst);
        if stood {
            self.stood.fetch_sub(1, SeqCst);
        }
    }

    /// Nobody is to come any more.
    pub(super) fn ends(&self) {
        self.over.send_replace(true);
    }

    pub(super) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// For so long, or until nobody is to come any more.
    async fn stays(&self, lasts: Duration) {
        let mut over = self.over.subscribe();
        let _ = timeout(lasts, over.wait_for(|over| *over)).await;
    }
}

/// From when to when a replica was stopped last.
type Stops = Arc<Vec<parking_lot::Mutex<Option<(Instant, Instant)>>>>;
type Doors = Arc<Vec<parking_lot::Mutex<Option<Channel>>>>;

/// Five replicas behind proxies that can be cut, and their callers.
struct Scene {
    store: Store,
    limits: tempfile::TempDir,
    proxies: Vec<Proxy>,
    fleet: Vec<Option<Service>>,
    lives: usize,
    /// Where each replica is called.
    doors: Doors,
    stops: Stops,
    callers: Vec<JoinHandle<()>>,
    inside: Arc<Inside>,
    runtime: Runtime,
    dice: Dice,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let store = Store::running();
        let limits = tempfile::tempdir().unwrap();
        let text = format!(
            "domain: d\ndescriptors:\n- key: upstream\n  value: all\n  concurrency: {{limit: {CEILING}, \
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
            lives: 0,
            doors: Arc::new((0..REPLICAS).map(|_| parking_lot::Mutex::default()).collect()),
            stops: Arc::new((0..REPLICAS).map(|_| parking_lot::Mutex::default()).collect()),
            callers: Vec::new(),
            inside: Inside::of(CEILING),
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
                    doors: Arc::clone(&scene.doors),
                    stops: Arc::clone(&scene.stops),
                    inside: Arc::clone(&scene.inside),
                    patient: worker.is_multiple_of(IMPATIENT),
                    dice: Dice::new(seed ^ ((at * WORKERS + worker) as u64) << 20),
                };
                scene.callers.push(scene.runtime.spawn(caller.works()));
            }
        }
        scene
    }

    fn start(&mut self, at: usize) {
        self.lives += 1;
        let url = format!("redis://{}", self.proxies[at].address());
        let term = format!("{}ms", TERM.as_millis());
        let node = format!("replica-{at}");
        let flags = [
            ["--node-id", &node],
            ["--backend-deadline", "50ms"],
            ["--fleet-heartbeat", "200ms"],
            ["--fleet-term", &term],
            ["--drain-delay", "0s"],
        ];
        let service = serve(self.limits.path(), &url, &flags.concat());
        let endpoint = service.door();
        let channel = self.runtime.block_on(async { endpoint.connect_lazy() });
        *self.doors[at].lock() = Some(channel);
        self.fleet[at] = Some(service);
    }

    fn one(&mut self) -> usize {
        usize::try_from(self.dice.up_to(REPLICAS as u64 - 1)).unwrap()
    }

    /// The shares in force, together.
    fn shares(&self) -> i64 {
        self.fleet.iter().flatten().map(share).sum()
    }

    /// After what happened: how long until the whole ceiling is given out, and until the backend was full. Watches on for
    /// as long as what is lost may come to light.
    fn full_again(&self) -> String {
        let began = now();
        *self.inside.full.lock() = None;
        let whole = || match self.shares() {
            CEILING => Ok(began.elapsed()),
            shares => Err(shares.to_string()),
        };
        let took = until("the whole ceiling is given out", whole).unwrap();
        std::thread::sleep(WATCHED.saturating_sub(began.elapsed()));
        // Callers fill it as fast as the machine lets them, so that nothing is promised of that.
        match *self.inside.full.lock() {
            Some(at) => format!("{took:.2?}, {CEILING} inside after {:.2?}", at - began),
            None => format!("{took:.2?}, never {CEILING} inside until {:.2?}", began.elapsed()),
        }
    }

    fn strike(&mut self, fault: Fault) {
        let at = self.one();
        match fault {
            Fault::Kill => self.begin_anew(at),
            Fault::Stop => self.stop(at),
            Fault::Cut => {
                self.proxies[at].refuse(true);
                self.proxies[at].cut();
                std::thread::sleep(STRUCK);
                self.proxies[at].refuse(false);
            }
            Fault::Silence => {
                self.proxies[at].go_silent();
                std::thread::sleep(STRUCK);
                self.proxies[at].pass();
            }
            Fault::Flush => drop(self.store.tell(&["FLUSHALL"])),
            Fault::Restart => {
                self.store.kill();
                std::thread::sleep(TERM / 2);
                self.store.start(&["--port", "0"]);
            }
            Fault::Snapshot => self.restart_with_what_lacks(at),
            Fault::Newcomer => self.restart_before_a_newcomer(at),
            Fault::Rolling => {
                for at in 0..REPLICAS {
                    let mut old = self.fleet[at].take().unwrap();
                    *self.doors[at].lock() = None;
                    old.terminate();
                    old.ended().unwrap();
                    self.start(at);
                }
            }
        }
    }

    /// For two terms.
    fn stop(&self, at: usize) {
        let service = self.fleet[at].as_ref().unwrap();
        self.inside.share_stopped.store(share(service), SeqCst);
        service.signal("STOP");
        let from = now();
        std::thread::sleep(STRUCK);
        *self.stops[at].lock() = Some((from, now()));
        service.signal("CONT");
    }

    fn begin_anew(&mut self, at: usize) {
        *self.doors[at].lock() = None;
        self.fleet[at] = None;
        self.start(at);
    }

    /// A Redis that begins again with a snapshot of before replica `at` began its life. That one has its share and goes on
    /// with it, and is the last whom the new Redis hears.
    fn restart_with_what_lacks(&mut self, at: usize) {
        self.store.tell(&["SAVE"]);
        self.begin_anew(at);
        self.full_again();
        self.restart_with_the_snapshot(&[at], |_| {});
    }

    /// The same, but the first whom the new Redis hears is one that no Redis has ever answered, while all others go on.
    fn restart_before_a_newcomer(&mut self, at: usize) {
        self.store.tell(&["SAVE"]);
        self.full_again();
        let others: Vec<usize> = (0..REPLICAS).filter(|other| *other != at).collect();
        self.restart_with_the_snapshot(&others, |scene| scene.begin_anew(at));
    }

    /// What is done `then`, the new Redis sees before it hears of `unheard`.
    fn restart_with_the_snapshot(&mut self, unheard: &[usize], then: impl FnOnce(&mut Self)) {
        for at in unheard {
            self.proxies[*at].refuse(true);
            self.proxies[*at].cut();
        }
        self.store.kill();
        self.store.start(&["--port", "0"]);
        // It listens before it has read it.
        until("the snapshot is read", || {
            let info = self.store.tell(&["INFO", "persistence"]).text();
            let loaded = info.lines().any(|line| {
                line.strip_prefix("rdb_last_load_keys_loaded:").is_some_and(|keys| keys != "0")
            });
            if loaded { Ok(()) } else { Err(info) }
        })
        .unwrap();
        std::fs::remove_file(self.store.dir.path().join("dump.rdb")).unwrap();
        then(self);
        std::thread::sleep(TERM / 2);
        for at in unheard {
            self.proxies[*at].refuse(false);
        }
    }

    /// Nobody comes any more: all leave at once and say so, and then no replica holds a place, long before a deadline could
    /// have given it back.
    fn empties(&mut self) -> Duration {
        self.inside.ends();
        let callers = std::mem::take(&mut self.callers);
        let all_ended = async {
            for caller in callers {
                soon("the end of a caller", caller).await.unwrap();
            }
        };
        self.runtime.block_on(all_ended);
        let last = now();
        assert_eq!(self.inside.now.load(SeqCst), 0);
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

/// The share that a replica has in force.
fn share(service: &Service) -> i64 {
    let shown = super::fleet::shown(service);
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
    /// A restart with an old state, in which a replica is missing.
    Snapshot,
    /// A restart with an old state, which hears one first that is new.
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

/// What came of a question; a call that fails is no permission.
#[derive(PartialEq, Eq)]
enum Answer {
    Passes,
    TurnedAway,
    GaveUp,
}

/// A caller that wants to be inside again and again.
struct Caller {
    /// Which replica it asks.
    at: usize,
    doors: Doors,
    stops: Stops,
    inside: Arc<Inside>,
    patient: bool,
    dice: Dice,
}

impl Caller {
    async fn works(mut self) {
        while !self.inside.is_over() {
            let door = self.doors[self.at].lock().clone();
            let Some(door) = door else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            let id = format!("{:016x}{:016x}", self.dice.roll(), self.dice.roll());
            let asked = now();
            let answer = self.asks(door.clone(), &id).await;
            if answer == Answer::Passes {
                self.is_inside(self.stood(asked)).await;
            }
            if answer != Answer::TurnedAway {
                // One that gave the call up tells it, too, as a proxy does: what it took must come back.
                let _ = timeout(TELLS, call(door, "sluicegate.release", &id)).await;
            }
            if answer != Answer::Passes {
                sleep(Duration::from_millis(4 + self.dice.up_to(8))).await;
            }
        }
    }

    /// An answer that lay there when its patience was over is none, also where the machine let nobody look at the time.
    async fn asks(&self, door: Channel, id: &str) -> Answer {
        let (patience, asked) = (if self.patient { PATIENT } else { PATIENCE }, now());
        match timeout(patience, call(door, "sluicegate.acquire", id)).await {
            Err(_) => Answer::GaveUp,
            Ok(_) if patience < asked.elapsed() => Answer::GaveUp,
            Ok(Some(Code::Ok)) => Answer::Passes,
            Ok(_) => Answer::TurnedAway,
        }
    }

    /// Whether its replica was stopped, and went on, between its question and its answer.
    fn stood(&self, asked: Instant) -> bool {
        self.stops[self.at].lock().is_some_and(|(from, until)| asked < from && until <= now())
    }

    async fn is_inside(&mut self, stood: bool) {
        let outlives = self.dice.once_in(8) && !self.patient;
        let (least, most) = if outlives { (TERM, LONG) } else { (Duration::from_millis(5), SHORT) };
        let spread = u64::try_from(most.saturating_sub(least).as_millis()).unwrap();
        let lasts = least + Duration::from_millis(self.dice.up_to(spread));
        self.inside.enters(stood);
        self.inside.stays(lasts).await;
        self.inside.leaves(stood);
    }
}

/// What is answered to one descriptor and this reserved word.
pub(super) async fn call(door: Channel, word: &str, id: &str) -> Option<Code> {
    call_of(door, "all", word, id).await
}

/// The same for a descriptor of that value.
pub(super) async fn call_of(door: Channel, value: &str, word: &str, id: &str) -> Option<Code> {
    let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry("upstream", value), entry(word, id)],
        ..RateLimitDescriptor::default()
    };
    let request =
        RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
    let answer = RateLimitServiceClient::new(door).should_rate_limit(request).await.ok()?;
    Some(answer.into_inner().overall_code())
}

#[test]
fn five_replicas_never_have_more_inside_the_backend_than_the_ceiling_whatever_happens() {
    let minutes: u64 =
        std::env::var("SLUICEGATE_FLEET_MINUTES").map_or(2, |minutes| minutes.parse().unwrap());
    five_replicas_live_through(&Fault::USUAL, Duration::from_secs(60 * minutes));
}

#[test]
fn five_replicas_never_have_more_inside_when_redis_begins_again_with_a_snapshot() {
    five_replicas_live_through(&Fault::OLD_STATES, Duration::ZERO);
}

/// Through these, and then through any until it has gone on for so long.
#[expect(clippy::print_stdout, reason = "the table is part of the proof")]
fn five_replicas_live_through(faults: &[Fault], goes_on: Duration) {
    let seed = seed();
    println!("SLUICEGATE_SEED={seed}");
    let mut scene = Scene::new(seed);
    let began = now();
    println!("{:>8}  whole again after {}", "start", scene.full_again());
    for &fault in faults {
        lives_through(&mut scene, fault);
    }
    let any = [&Fault::USUAL[..], &Fault::OLD_STATES].concat();
    while began.elapsed() < goes_on {
        let fault = scene.dice.pick(&any);
        lives_through(&mut scene, fault);
    }
    let let_go = scene.empties();
    let inside = &scene.inside;
    println!(
        "{} requests, at most {} inside of {CEILING}, allowance {}, {} lives, no place held {let_go:.2?} after the last end",
        inside.entered.load(SeqCst),
        inside.most.load(SeqCst),
        inside.allowed_for.load(SeqCst),
        scene.lives
    );
    holds(inside);
    assert!(
        let_go <= LETS_GO,
        "places were held for {let_go:?} after the last was told to have ended"
    );
}

#[expect(clippy::print_stdout, reason = "the table is part of the proof")]
fn lives_through(scene: &mut Scene, fault: Fault) {
    scene.strike(fault);
    let again = scene.full_again();
    let name = format!("{fault:?}");
    println!("{name:>8}  whole again after {again}");
    holds(&scene.inside);
}

#[test]
fn a_new_redis_hears_of_shared_ceilings_when_a_replica_starts_and_the_log_says_why_it_admits_nothing_yet()
 {
    let (store, limits) = (Store::running(), tempfile::tempdir().unwrap());
    let text = "domain: d\ndescriptors: [{key: upstream, value: all, \
                concurrency: {limit: 1, mode: leased, max_duration: 5s, on_backend_failure: deny}}]\n";
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    let flags = ["--node-id", "a", "--fleet-heartbeat", "100ms", "--fleet-term", "1s"];
    let service = serve(limits.path(), &store.url(), &flags);
    let heard = || match store.tell(&["HEXISTS", "sluicegatesg:{fleet}:lives", "life"]).int() {
        1 => Ok(()),
        other => Err(other.to_string()),
    };
    until("redis has heard, though nobody asked", heard).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = service.door();
        let door = endpoint.connect().await.unwrap();
        let mut turned_away = 0;
        let admitted = |id: u32| format!("{id:032}");
        while call(door.clone(), "sluicegate.acquire", &admitted(turned_away)).await
            != Some(Code::Ok)
        {
            turned_away += 1;
            assert!(turned_away < 2_000, "{}", service.log());
            sleep(Duration::from_millis(10)).await;
        }
        assert_ne!(turned_away, 0, "what is in flight elsewhere was not known");
    });
    let said = service.log().matches("the store does not know yet what is in flight").count();
    assert_eq!(said, 1, "{}", service.log());
}

pub(super) fn holds(inside: &Inside) {
    let (above, most) = (inside.above.load(SeqCst), inside.most.load(SeqCst));
    assert!(above <= 0, "{above} too many inside, {most} at most");
}
