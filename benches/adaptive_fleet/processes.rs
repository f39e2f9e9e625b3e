//! The same experiment with real processes: `serve`, Redis, and clients of `sluicegate.v1.Permits`.
//!
//! The backend is in this process: 20 slots, 0.2 s ± 5 % for each request, and a queue. Each
//! algorithm has a limit, a backend and 200 clients of its own. The clients wait in the queues of the
//! replicas, so every replica is saturated.
//!
//! The drift of a limit is its mean in the last quarter of a run, divided by that in the second
//! quarter.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::{
    AcquireRequest, Descriptor, Entry, Outcome, ReleaseRequest,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::transport::Channel;

use super::dice::Dice;
use super::support::http1;
use super::support::redis::Redis;
use super::support::service::{Service, sluicegate};

const CLIENTS: usize = 200;
const SLOTS: usize = 20;
const SERVICE_MICROS: u64 = 200_000;
/// The pause of a client whose request was rejected.
const RETRY: Duration = Duration::from_millis(500);
const SECONDS: u64 = 180;
const FLEETS: [(&str, usize, bool); 4] =
    [("1 local", 1, false), ("1 shared", 1, false), ("4 even", 4, false), ("4 skewed", 4, true)];

/// Mean values of a part of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    limit: f64,
    /// The requests that the backend serves or queues.
    in_flight: f64,
    /// Seconds.
    rtt: f64,
    /// Finished requests per second.
    goodput: f64,
}

/// Requests at the backend, and sums over finished ones.
struct Backend {
    slots: Semaphore,
    in_flight: AtomicU64,
    finished: AtomicU64,
    latency_micros: AtomicU64,
}

pub fn run(algorithms: &[&'static str]) {
    let seconds = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(SECONDS);
    println!(
        "algorithm,replicas,limit,in flight,rtt s,goodput/s,limit of one,in flight of one,\
         rtt of one,goodput of one,drift of the limit"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut alone: Vec<Figures> = Vec::new();
    for (name, count, is_skewed) in FLEETS {
        let fleet = RealFleet::start(algorithms, name, count);
        let played = runtime.block_on(fleet.play(algorithms, is_skewed, seconds));
        let last_half: Vec<_> = played.iter().map(|run| mean(&run[run.len() / 2..])).collect();
        if alone.is_empty() {
            alone.clone_from(&last_half);
        }
        for (at, algorithm) in algorithms.iter().enumerate() {
            let quarter = played[at].len() / 4;
            let (second, last) =
                (mean(&played[at][quarter..2 * quarter]), mean(&played[at][3 * quarter..]));
            let (got, one) = (last_half[at], alone[at]);
            println!(
                "{algorithm},{name},{:.1},{:.1},{:.3},{:.1},{:.2},{:.2},{:.2},{:.2},{:.2}",
                got.limit,
                got.in_flight,
                got.rtt,
                got.goodput,
                got.limit / one.limit,
                got.in_flight / one.in_flight,
                got.rtt / one.rtt,
                got.goodput / one.goodput,
                last.limit / second.limit,
            );
        }
    }
}

/// The mean of the seconds, with the latency weighted by finished requests.
fn mean(seconds: &[Figures]) -> Figures {
    let sum = |of: fn(&Figures) -> f64| seconds.iter().map(of).sum::<f64>();
    let (count, goodput) = (seconds.len().max(1) as f64, sum(|second| second.goodput));
    Figures {
        limit: sum(|second| second.limit) / count,
        in_flight: sum(|second| second.in_flight) / count,
        rtt: sum(|second| second.rtt * second.goodput) / goodput.max(1.0),
        goodput: goodput / count,
    }
}

struct RealFleet {
    is_shared: bool,
    replicas: Vec<Service>,
    _store: Redis,
    _limits: tempfile::TempDir,
}

impl RealFleet {
    fn start(algorithms: &[&str], name: &str, count: usize) -> Self {
        let is_shared = name != "1 local";
        let mode = if is_shared { "shared" } else { "local" };
        let rules = algorithms.iter().map(|algorithm| {
            let adaptive = format!("{{algorithm: {algorithm}, min: 4, max: 400}}");
            format!(
                "- key: {algorithm}\n  concurrency: {{limit: 20, adaptive: {adaptive}, mode: \
                 {mode}, max_duration: 10s, queue: {{size: {CLIENTS}, timeout: 60s}}}}\n"
            )
        });
        let (limits, store) = (tempfile::tempdir().unwrap(), Redis::start());
        let text = format!("domain: s\ndescriptors:\n{}", rules.collect::<String>());
        std::fs::write(limits.path().join("limits.yaml"), text).unwrap();
        let url = store.url();
        let mut start = sluicegate();
        started(start.args(["fleet", "start", "--store-url", &url]));
        let flags = ["--store-url", &url, "--fleet-heartbeat", "500ms"].map(str::to_owned);
        let replicas = (0..count).map(|_| Service::start(limits.path(), &flags).unwrap());
        let replicas = replicas.collect();
        Self { is_shared, replicas, _store: store, _limits: limits }
    }

    /// Returns the figures of each second, for each algorithm.
    async fn play(
        &self,
        algorithms: &[&'static str],
        is_skewed: bool,
        seconds: u64,
    ) -> Vec<Vec<Figures>> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        let backends: Vec<_> = algorithms.iter().map(|_| Arc::new(Backend::new())).collect();
        let mut channels = Vec::new();
        for replica in &self.replicas {
            channels.push(PermitsClient::new(replica.door().connect().await.unwrap()));
        }
        for (algorithm, backend) in algorithms.iter().zip(&backends) {
            for number in 0..CLIENTS {
                let replica = match self.replicas.len() {
                    // Two thirds of the clients.
                    others @ 2.. if is_skewed && number % 3 == 0 => 1 + number / 3 % (others - 1),
                    _ if is_skewed => 0,
                    count => number % count,
                };
                clients.spawn(send_requests(
                    channels[replica].clone(),
                    (algorithm, number),
                    Arc::clone(backend),
                    Arc::clone(&is_over),
                ));
            }
        }
        let mut played = vec![Vec::new(); algorithms.len()];
        for _ in 0..seconds {
            for (at, figures) in self.second(algorithms, &backends).await.into_iter().enumerate() {
                played[at].push(figures);
            }
        }
        is_over.store(true, Relaxed);
        clients.join_all().await;
        played
    }

    /// Samples limits and requests in flight ten times.
    async fn second(&self, algorithms: &[&str], backends: &[Arc<Backend>]) -> Vec<Figures> {
        const SAMPLES: u32 = 10;
        let (began, mut in_flight) = (Instant::now(), vec![0.0; backends.len()]);
        for _ in 0..SAMPLES {
            sleep(Duration::from_secs(1) / SAMPLES).await;
            for (sum, backend) in in_flight.iter_mut().zip(backends) {
                *sum += backend.in_flight.load(Relaxed) as f64 / f64::from(SAMPLES);
            }
        }
        let took = began.elapsed().as_secs_f64();
        let all = algorithms.iter().zip(backends).zip(in_flight);
        all.map(|((algorithm, backend), in_flight)| {
            let finished = backend.finished.swap(0, Relaxed) as f64;
            let latency = backend.latency_micros.swap(0, Relaxed) as f64 / 1e6;
            Figures {
                limit: self.limit(algorithm),
                in_flight,
                rtt: latency / finished.max(1.0),
                goodput: finished / took,
            }
        })
        .collect()
    }

    fn limit(&self, algorithm: &str) -> f64 {
        let first = &self.replicas[0];
        if self.is_shared {
            return fleet_limit(first.admin, algorithm).unwrap_or(0.0);
        }
        let page = http1::get(first.metrics, "/metrics", &[]).unwrap().text();
        let series = format!("sluicegate_concurrency_limit{{limit=\"s.{algorithm}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&*series));
        value.map_or(0.0, |value| value.parse().unwrap())
    }
}

fn started(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn fleet_limit(admin: SocketAddr, algorithm: &str) -> Option<f64> {
    let page = http1::get(admin, "/fleet", &[]).unwrap();
    let fleet: Json = serde_json::from_slice(&page.body).unwrap();
    let shares = fleet["shares"]["shared"].as_array()?;
    let name = format!("s_{algorithm}_");
    let share = shares.iter().find(|share| share["limit"].as_str().unwrap().starts_with(&name))?;
    share["fleet_limit"].as_f64()
}

impl Backend {
    fn new() -> Self {
        let slots = Semaphore::new(SLOTS);
        let [in_flight, finished, latency_micros] = [(); 3].map(|()| AtomicU64::new(0));
        Self { slots, in_flight, finished, latency_micros }
    }

    /// Serves a request and returns its latency in microseconds.
    async fn serve(&self, took_micros: u64) -> u64 {
        let admitted = Instant::now();
        self.in_flight.fetch_add(1, Relaxed);
        let slot = self.slots.acquire().await.unwrap();
        sleep(Duration::from_micros(took_micros)).await;
        drop(slot);
        self.in_flight.fetch_sub(1, Relaxed);
        let latency = admitted.elapsed().as_micros() as u64;
        self.finished.fetch_add(1, Relaxed);
        self.latency_micros.fetch_add(latency, Relaxed);
        latency
    }
}

async fn send_requests(
    mut permits: PermitsClient<Channel>,
    (algorithm, number): (&'static str, usize),
    backend: Arc<Backend>,
    is_over: Arc<AtomicBool>,
) {
    let mut dice = Dice::new(number as u64 + 1);
    sleep(RETRY * number as u32 / CLIENTS as u32).await;
    for request in 0.. {
        if is_over.load(Relaxed) {
            return;
        }
        let id = format!("{algorithm}-client-{number}-request-{request}");
        let entries = vec![Entry { key: algorithm.into(), value: "backend".into() }];
        let acquire = AcquireRequest {
            id: id.clone(),
            domain: "s".into(),
            descriptors: vec![Descriptor { entries, hits: None }],
            max_wait_us: None,
        };
        if !permits.acquire(acquire).await.unwrap().into_inner().has_permits {
            sleep(RETRY).await;
            continue;
        }
        let rtt = backend.serve(SERVICE_MICROS * (950 + dice.up_to(100)) / 1_000).await;
        let outcome = Outcome::Success.into();
        let release = ReleaseRequest { id, outcome, rtt_us: Some(rtt), ..Default::default() };
        permits.release(release).await.unwrap();
    }
}
