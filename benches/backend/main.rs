//! The cost of a shared Redis store: server CPU, caller latency and Redis CPU.
//!
//! `cargo bench --bench backend` prints a table. Select parts with `-- server`, `-- latency`,
//! `-- redis`, `-- hot` and `-- budgets`. Two more parts run only if selected: `-- leased` measures leased
//! limits, and `-- stall` stops Redis for a minute. `-- file` measures the file store, without Redis.
//!
//! The bench starts its own Redis and connects over loopback.
//! - Server CPU: the real server over gRPC, in turns with the same server that counts in memory.
//! - Redis CPU: reported by Redis (`INFO cpu`) while this process uses the store library. Other
//!   load on the machine does not affect it.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

#[path = "../support/awake.rs"]
mod awake;
mod budgets;
#[path = "../support/charges.rs"]
mod charges;
mod file;
mod lean;
mod leased;
#[path = "../../tests/support/resp.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    reason = "made for the tests, which use the rest"
)]
mod resp;
mod stall;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use sluicegate::kernel::rate::CounterDecision;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::redis::{self, Batching, RedisStore};
use sluicegate::store::{ChargeOutcome, CounterStore, Outcomes, StoreReply};
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use awake::Awake;
use charges::{Way, asked, evalsha};

const CONNECTIONS: usize = 4;
const IN_FLIGHT: usize = 128;
const KEYS: u64 = 1_000;
const QUESTIONS: u64 = 200_000;
const SERVED: u64 = 60_000;
const TURNS: usize = 7;
const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  \
                      rate_limit: {requests_per_unit: 1000000000, unit: day, strategy: gcra}\n";

fn main() {
    let chosen: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_chosen = |part: &str| chosen.is_empty() || chosen.iter().any(|its| its == part);
    println!("{:<58} {:>9} {:>9}", "backend", "measured", "bound");
    if chosen == ["file"] {
        return file::run();
    }
    let store = Store::start();
    if is_chosen("server") {
        server(&store);
    }
    if is_chosen("latency") {
        latency(&store);
    }
    if is_chosen("redis") {
        redis_alone(&store);
        redis_under_load(&store);
    }
    if is_chosen("hot") {
        hot_key(&store);
    }
    if is_chosen("budgets") {
        budgets::run(&store);
    }
    if chosen.iter().any(|its| its == "leased") {
        leased::run(&store);
    }
    if chosen.iter().any(|its| its == "stall") {
        stall::run(&store);
    }
}

fn row(what: &str, measured: f64, unit: &str, bound: &str) {
    println!("{what:<58} {measured:>6.2} {unit:<2} {bound:>9}");
}

/// Server CPU per check, compared with the memory store.
fn server(store: &Store) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let memory = Server::start(dir.path(), &["--store-url", "memory"]);
    let shared = ["--store-url", &store.url(), "--store-timeout", "10s"];
    let strict = Server::start(dir.path(), &shared);
    let client = tokio(1);
    let cost = |server: &Server| client.block_on(cpu_per_question(server));
    cost(&memory);
    cost(&strict);
    let turns: Vec<(f64, f64)> = (0..TURNS).map(|_| (cost(&strict), cost(&memory))).collect();
    row("server CPU a question, memory", median(turns.iter().map(|turn| turn.1)), "us", "");
    row("server CPU a question, strict", median(turns.iter().map(|turn| turn.0)), "us", "");
    let ratio = median(turns.iter().map(|turn| turn.0 / turn.1));
    row("  ratio, 128 in flight over 4 connections", ratio, "", "2.0");
}

/// Latency of one check at 1 in flight: with processors that halt, and kept awake.
fn latency(store: &Store) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let server =
        Server::start(dir.path(), &["--store-url", &store.url(), "--store-timeout", "10s"]);
    let memory = Server::start(dir.path(), &["--store-url", "memory"]);
    let both = |halting: &str| {
        alone(&server, &format!("strict{halting}"), "250");
        alone(&memory, &format!("memory{halting}"), "");
    };
    both("");
    if let Some(_awake) = Awake::please() {
        both(", processors awake");
    }
}

fn alone(server: &Server, name: &str, bound: &str) {
    let mut took = tokio(1).block_on(one_after_the_other(server));
    took.sort_unstable();
    let micros = |part: usize| took[took.len() * part / 100].as_nanos() as f64 / 1_000.0;
    row(&format!("one question at 1 in flight, {name}, p50"), micros(50), "us", bound);
    row(&format!("one question at 1 in flight, {name}, p99"), micros(99), "us", "");
}

async fn one_after_the_other(server: &Server) -> Vec<Duration> {
    let mut client = server.client().await;
    let mut took = Vec::new();
    for number in 0..6_000 {
        let began = Instant::now();
        client.should_rate_limit(question(number % KEYS)).await.unwrap();
        took.push(began.elapsed());
    }
    took.split_off(1_000)
}

/// Redis CPU of single commands for comparison, one at a time and 64 at a time.
fn redis_alone(store: &Store) {
    let mut client = resp::Client::connect(&store.socket()).unwrap();
    let mut each = |what: &str, commands: &dyn Fn(u64) -> Vec<Vec<Vec<u8>>>, together: u64| {
        let before = store.cpu_micros();
        for round in 0..60_000 / together {
            let mut replies = 0;
            for number in 0..together {
                for command in commands((round * together + number) % KEYS) {
                    client.queue(&command);
                    replies += 1;
                }
            }
            client.flush();
            (0..replies).for_each(|_| drop(client.receive()));
        }
        row(what, (store.cpu_micros() - before) / 60_000.0, "us", "");
    };
    let text = |parts: &[&str]| parts.iter().map(|part| part.as_bytes().to_vec()).collect();
    let incr = |number| {
        let key = format!("scale:{number}");
        vec![text(&["INCRBY", &key, "1"]), text(&["EXPIRE", &key, "86400"])]
    };
    each("Redis CPU: INCRBY + EXPIRE, 1 pair at a time", &incr, 1);
    each("Redis CPU: INCRBY + EXPIRE, 64 pairs at a time", &incr, 64);
    let sha = {
        let mut client = resp::Client::connect(&store.socket()).unwrap();
        client.call(&["SCRIPT", "LOAD", redis::CHARGE_SCRIPT]).text()
    };
    let evalsha = |number| vec![evalsha(&sha, number)];
    each("Redis CPU: EVALSHA of one GCRA, 1 at a time", &evalsha, 1);
    each("Redis CPU: EVALSHA of one GCRA, 64 at a time", &evalsha, 64);
}

fn redis_under_load(store: &Store) {
    for (way, bound) in [(Way::Gcra, "3.5"), (Way::FixedWindow, "1.6")] {
        for batching in [Batching::On, Batching::Off] {
            let bound = if batching == Batching::On { bound } else { "" };
            let cost = store.cpu_per_decision(way, KEYS, batching);
            let what =
                format!("Redis CPU a decision, {way:?}, 128 in flight, batching {batching:?}");
            row(&what, cost, "us", bound);
        }
    }
}

fn hot_key(store: &Store) {
    for way in [Way::Gcra, Way::FixedWindow] {
        let [on, off] =
            [Batching::On, Batching::Off].map(|batching| store.cpu_per_decision(way, 1, batching));
        row(&format!("Redis CPU a decision, {way:?}, one hot key"), on, "us", "");
        row("  decisions per Redis CPU second, times the unbatched", off / on, "", "5");
    }
}

/// A private Redis, killed on drop.
struct Store {
    process: Child,
    dir: tempfile::TempDir,
    port: u16,
}

impl Store {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // A race: another process may take the port before Redis binds it.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(dir.path().join("redis.sock"))
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("REDIS IS MISSING: no redis-server here: {error}"));
        let store = Self { process, dir, port };
        let patience = Instant::now();
        while resp::Client::connect(&store.socket()).is_err() {
            assert!(patience.elapsed() < Duration::from_secs(20), "redis does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        store
    }

    /// Used for the bench's own commands, such as INFO.
    fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// User and system CPU time since its start.
    fn cpu_micros(&self) -> f64 {
        let info = resp::Client::connect(&self.socket()).unwrap().call(&["INFO", "cpu"]).text();
        let value = |name: &str| -> f64 {
            info.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
        };
        (value("used_cpu_user:") + value("used_cpu_sys:")) * 1e6
    }

    /// Redis CPU per decision in microseconds, with 128 in flight over `keys` keys.
    fn cpu_per_decision(&self, way: Way, keys: u64, batching: Batching) -> f64 {
        let runtime = tokio(2);
        let backend = Arc::new(self.backend(&runtime, batching));
        ask_all(&runtime, &backend, way, keys, QUESTIONS / 10);
        let before = self.cpu_micros();
        ask_all(&runtime, &backend, way, keys, QUESTIONS);
        (self.cpu_micros() - before) / QUESTIONS as f64
    }

    fn backend(&self, runtime: &Runtime, batching: Batching) -> RedisStore {
        let address = redis::Address { host: "127.0.0.1".to_owned(), port: self.port };
        let (backend, connection) = RedisStore::new(redis::RedisOptions {
            batching,
            call_timeout: Duration::from_secs(20),
            ..redis::RedisOptions::new(redis::RedisTopology::Tcp(address))
        });
        runtime.spawn(connection);
        while backend.current_failure().is_some() {
            std::thread::sleep(Duration::from_millis(5));
        }
        backend
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn ask_all(runtime: &Runtime, backend: &Arc<RedisStore>, way: Way, keys: u64, questions: u64) {
    let left = Arc::new(AtomicU64::new(questions));
    let asker = || {
        let (backend, left) = (Arc::clone(backend), Arc::clone(&left));
        runtime.spawn(async move {
            while let Ok(number) = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
                let charges = asked(at_random(number) % keys, way);
                let outcome = wait(backend.charge(Nanos(0), &charges)).await[0];
                assert!(
                    matches!(outcome, ChargeOutcome::Decided(CounterDecision::Allow(_))),
                    "{outcome:?}"
                );
            }
        })
    };
    let askers: Vec<_> = (0..IN_FLIGHT).map(|_| asker()).collect();
    for asker in askers {
        runtime.block_on(asker).unwrap();
    }
}

async fn wait(reply: StoreReply<'_, Outcomes>) -> Outcomes {
    match reply {
        StoreReply::Ready(outcomes) => outcomes,
        StoreReply::Pending(reply) => reply.await,
    }
}

/// A `sluicegate` process, killed on drop.
struct Server {
    process: Child,
    address: SocketAddr,
    metrics: SocketAddr,
}

impl Server {
    fn start(limits: &std::path::Path, flags: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
            .args([
                "serve",
                "--listen-grpc-port=0",
                "--listen-http-port=0",
                "--listen-admin-port=0",
                "--listen-metrics-port=0",
                "--listen-peer-port=0",
            ])
            .args(["--listen-host=127.0.0.1", "--telemetry-log-level=error", "--limits-paths"])
            .arg(limits)
            .args(flags)
            .env("TOKIO_WORKER_THREADS", "2")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (mut address, mut metrics) = (None, None);
        for line in lines.map(Result::unwrap) {
            if let Some(at) = line.strip_prefix("grpc listening on ") {
                address = Some(at.parse().unwrap());
            }
            if let Some(at) = line.strip_prefix("metrics listening on ") {
                metrics = Some(at.parse().unwrap());
            }
            if line.starts_with("ready") {
                break;
            }
        }
        Self { process, address: address.unwrap(), metrics: metrics.unwrap() }
    }

    async fn client(&self) -> RateLimitServiceClient<Channel> {
        let mut client =
            RateLimitServiceClient::connect(format!("http://{}", self.address)).await.unwrap();
        // The server may not be connected to Redis yet.
        while client.should_rate_limit(question(0)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        client
    }

    fn metric(&self, name: &str) -> u64 {
        let page = self.metrics();
        let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
        page.lines().find_map(value).unwrap_or_else(|| panic!("no {name} in {page}"))
    }

    /// Checks that the store failed to answer.
    fn failures(&self) -> u64 {
        let page = self.metrics();
        let its = page.lines().filter(|line| line.starts_with("sluicegate_store_failures_total{"));
        its.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(self.metrics).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    }

    /// User and system CPU time in clock ticks of 10 ms.
    fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

async fn cpu_per_question(server: &Server) -> f64 {
    let before = server.cpu_ticks();
    let left = Arc::new(AtomicU64::new(SERVED));
    let mut tasks = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = server.client().await;
        let asker = |_| tokio::spawn(ask(client.clone(), Arc::clone(&left)));
        tasks.extend((0..IN_FLIGHT / CONNECTIONS).map(asker));
    }
    for task in tasks {
        task.await.unwrap();
    }
    (server.cpu_ticks() - before) as f64 * 10_000.0 / SERVED as f64
}

async fn ask(mut client: RateLimitServiceClient<Channel>, left: Arc<AtomicU64>) {
    while let Ok(number) = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
        let number = at_random(number) % KEYS;
        let answer = client.should_rate_limit(question(number)).await.unwrap().into_inner();
        assert_eq!(answer.overall_code, Code::Ok as i32);
    }
}

/// Maps `number` to a reproducible pseudo-random number (`SplitMix64`).
fn at_random(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn question(number: u64) -> RateLimitRequest {
    let entry = Entry { key: "api_key".into(), value: format!("client-{number:04}") };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    RateLimitRequest { domain: "shop".into(), descriptors: vec![descriptor], hits_addend: 1 }
}

fn tokio(threads: usize) -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .unwrap()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
