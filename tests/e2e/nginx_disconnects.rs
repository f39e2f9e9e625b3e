//! Tests that clients of NGINX that disconnect just when the decision arrives leak no permit.
//!
//! Guarantees:
//! - Clients disconnect before the check, before the decision, and after it.
//! - Some releases arrive before their acquires.
//! - The same clients leak permits if the service keeps no early releases.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::config::settings::Networks;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::body_memory::BodyLimits;
use sluicegate::edge::connection_gate::{ConnectionGate, ListenPort};
use sluicegate::edge::health::{Health, Readiness};
use sluicegate::edge::{http, syslog};
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::concurrency::permit_registry::EarlyReleaseLimits;
use sluicegate::kernel::units::{Nanos, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::envoy::WhenDown;
use super::in_flight::{HOOKS, expect_gauge, gauge, limit_all_requests};
use super::nginx::{Nginx, Shipped};
use super::upstream;
use crate::support::dice::Dice;
use crate::support::proxy::{Flow, Proxy, Upstream};
use crate::support::service::Service;
use crate::support::waiting::{now, soon, until};

/// Disconnecting clients of each round.
const CLIENTS: usize = 1_000;
const MAX_CONCURRENT: usize = 64;
/// Latency in each direction between NGINX and the service.
const ONE_WAY_DELAY: Duration = Duration::from_millis(10);
/// Number of requests that complete in each round, to measure the response time under the load of
/// this test. It varies with the load of the machine.
const PROBES: usize = 64;

/// Allows every request. `max_duration` is too long to hide a leak.
const LIMIT: &str = "limit: 1000, max_duration: 10m";

/// Maximum number of rounds until enough clients disconnect during their check. A busy machine
/// needs more.
const MAX_ROUNDS: u64 = 40;

/// Minimum number of clients that disconnect before, during and after their check.
const MIN_PER_PHASE: u64 = 100;

/// Number of syslog datagrams that fit into a socket buffer: each takes under 1 kB of 200 kB.
pub(super) const MAX_PENDING_DATAGRAMS: usize = 150;

/// The smallest number of disconnecting clients: `SLUICEGATE_DISCONNECTS`, or 2,000.
pub(super) fn min_disconnects() -> usize {
    let variable = std::env::var("SLUICEGATE_DISCONNECTS");
    variable.map_or(2_000, |count| count.parse().unwrap())
}

/// Waits until the service has read all datagrams that wait in its socket buffer.
pub(super) fn wait_until_read(service: SocketAddr) {
    let port = format!(":{:04X}", service.port());
    // Local address and lengths of the queues, as in proc_net_udp(5).
    let is_empty = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, local, _, _, queues, ..] => local.ends_with(&port) && queues.ends_with(":00000000"),
        _ => false,
    };
    until("an empty socket buffer", || {
        let tables = ["/proc/net/udp", "/proc/net/udp6"].map(std::fs::read_to_string);
        let tables = tables.map(Result::unwrap_or_default).concat();
        if tables.lines().any(is_empty) { Ok(()) } else { Err(tables) }
    })
    .unwrap();
}

/// Forwards and counts the syslog datagrams with which NGINX releases permits.
struct Relay {
    address: SocketAddr,
    passed: Arc<AtomicUsize>,
}

impl Relay {
    fn to(service: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // On a busy machine, many datagrams arrive before this thread runs. The operating system
        // may allow a smaller buffer.
        SockRef::from(&socket).set_recv_buffer_size(8 << 20).unwrap();
        let (address, passed) = (socket.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counts = Arc::clone(&passed);
        std::thread::spawn(move || {
            let mut datagram = [0; 2_048];
            while let Ok(length) = socket.recv(&mut datagram) {
                socket.send_to(&datagram[..length], service).unwrap();
                let passed = counts.fetch_add(1, Relaxed) + 1;
                if passed.is_multiple_of(MAX_PENDING_DATAGRAMS) {
                    wait_until_read(service);
                }
            }
        });
        Self { address, passed }
    }

    /// Waits until the datagrams that have not arrived yet fit into a socket buffer.
    async fn wait_for_capacity(&self, requests: usize) {
        let behind = async {
            while self.passed.load(Relaxed) + MAX_PENDING_DATAGRAMS < requests {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon("ends of requests", behind).await;
    }

    fn wait_until_passed(&self, count: usize) {
        until("an end for every request", || match self.passed.load(Relaxed) {
            passed if count <= passed => Ok(()),
            passed => Err(format!("{passed} of {count}")),
        })
        .unwrap();
    }
}

/// Runs a round of clients that disconnect at random times around the check. Returns the number of
/// all requests, including `sent`.
fn disconnect_clients(ingress: SocketAddr, relay: Option<&Relay>, seed: u64, sent: usize) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pace = async |requests| {
        if let Some(relay) = relay {
            relay.wait_for_capacity(requests).await;
        }
    };
    let mut dice = Dice::new(seed);
    runtime.block_on(async {
        let pace_probes = async |probes| pace(sent + probes).await;
        let mut took: Vec<_> =
            run_concurrently(PROBES, pace_probes, |_| complete_request(ingress)).await;
        took.sort_unstable();
        let median: u64 = took[PROBES / 2].as_micros().try_into().unwrap();
        // Clients stay up to twice the measured response time, because the load may rise.
        let stays: Vec<_> = (0..CLIENTS).map(|_| median / 8 + dice.up_to(2 * median)).collect();
        let abandon =
            |client: usize| abandon_request(ingress, Duration::from_micros(stays[client]));
        run_concurrently(CLIENTS, async |left| pace(sent + PROBES + left).await, abandon).await;
    });
    sent + PROBES + CLIENTS
}

/// Runs `count` clients with bounded concurrency. `pace` delays the start of each client.
async fn run_concurrently<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    count: usize,
    pace: impl AsyncFn(usize),
    client: impl Fn(usize) -> F,
) -> Vec<T> {
    let (mut clients, mut done) = (JoinSet::new(), Vec::new());
    for number in 0..count {
        pace(number).await;
        clients.spawn(client(number));
        if MAX_CONCURRENT <= clients.len() {
            done.push(clients.join_next().await.unwrap().unwrap());
        }
    }
    done.extend(clients.join_all().await);
    done
}

async fn ask(ingress: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(ingress).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    stream
}

async fn complete_request(ingress: SocketAddr) -> Duration {
    let began = now();
    let mut answer = Vec::new();
    let mut asked = ask(ingress).await;
    soon("an answer", asked.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    began.elapsed()
}

async fn abandon_request(ingress: SocketAddr, after: Duration) {
    let _stream = ask(ingress).await;
    tokio::time::sleep(after).await;
}

#[test]
fn disconnects_during_the_check_leak_no_permit() {
    let limits = tempfile::tempdir().unwrap();
    let text = format!("domain: edge\ndescriptors:\n{}", limit_all_requests(LIMIT));
    std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
    let flags = ["--hooks", HOOKS, "--listen-syslog-port", "0"].map(str::to_owned);
    for lua in [false, true] {
        let service = Service::start(limits.path(), &flags).unwrap();
        let between = Proxy::before(Upstream::Tcp(service.http));
        between.both(Flow::Delay(ONE_WAY_DELAY));
        let relay = Relay::to(service.syslog().unwrap());
        let shipped = if lua { Shipped::Lua } else { Shipped::Concurrency(relay.address) };
        let (upstream, came) = upstream::counting();
        let nginx = Nginx::start_as(shipped, upstream, between.address(), WhenDown::Deny);
        // With Lua, NGINX sends no syslog datagrams.
        let datagrams = (!lua).then_some(&relay);
        let ids = |event: &str| {
            gauge(service.metrics, &format!("sluicegate_permit_ids_total{{event=\"{event}\"}}"))
        };
        let mut sent = 0;
        let mut is_met = |round| {
            sent = disconnect_clients(nginx.ingress, datagrams, round, sent);
            if let Some(relay) = datagrams {
                relay.wait_until_passed(sent);
            }
            expect_gauge(service.metrics, "sluicegate_requests_in_flight", 0);
            let [held, early, over] = ["released", "early_release", "already_released"].map(ids);
            println!(
                "lua {lua}: 0 leaked; {held} released, {early} came first, {over} of them used"
            );
            let (admitted, came) = (gauge(service.metrics, ADMITTED), came.load(Relaxed) as u64);
            println!("lua {lua}: {admitted} of {sent} were admitted, {came} came to the upstream");
            // A client that disconnected before its check is not counted in `admitted`; before its
            // decision, not in `came`.
            let completed = round * PROBES as u64;
            let counts = [completed, came, admitted, sent as u64];
            let is_met = counts.is_sorted_by(|fewer, more| fewer + MIN_PER_PHASE <= *more);
            let is_early = lua || (MIN_PER_PHASE < held && 0 < over);
            is_met && is_early && min_disconnects() as u64 <= sent as u64 - completed
        };
        let most = MAX_ROUNDS.max(min_disconnects() as u64 / CLIENTS as u64 + 1);
        assert!((1..=most).any(&mut is_met), "the window was missed");
    }
}

const ADMITTED: &str = r#"sluicegate_edge_requests_total{protocol="nginx",outcome="allow"}"#;

/// An engine without early releases.
pub(super) fn engine_without_early_releases(limit: &str) -> Arc<Engine> {
    let memory = Arc::new(MemoryStore::new(10, WhenFull::Deny, [0; 16]));
    let none = EarlyReleaseLimits { per_source: 0, total: 0, lifetime: Nanos::SECOND };
    let engine = Engine::new(Clock::system(), memory, DecisionPolicy::default());
    let engine = Arc::new(engine.with_early_releases(none));
    let text = format!("domain: edge\ndescriptors:\n{}", limit_all_requests(limit));
    let (config, _) = config::load([("a.yaml", text.as_bytes())], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
    engine
}

const MAX_CONNECTIONS: usize = 4_096;

/// Serves the HTTP and syslog endpoints for NGINX.
fn serve_nginx_endpoints(runtime: &Runtime, engine: &Arc<Engine>) -> (SocketAddr, SocketAddr) {
    let ask = http::CheckPort {
        engine: Arc::clone(engine),
        reporting: ReplyOptions::default(),
        health: Health::new(Readiness::Ready),
        hooks: Arc::new(serde_json::from_str(HOOKS).unwrap()),
        draining: watch::channel(false).1,
        bodies: BodyLimits::default(),
    };
    let (listener, socket) = runtime.block_on(async {
        let any = "127.0.0.1:0";
        let listener = tokio::net::TcpListener::bind(any).await.unwrap();
        (listener, tokio::net::UdpSocket::bind(any).await.unwrap())
    });
    let addresses = (listener.local_addr().unwrap(), socket.local_addr().unwrap());
    let gate = ConnectionGate::new(ListenPort::Http, MAX_CONNECTIONS);
    let router = http::router(ask, MAX_CONNECTIONS);
    runtime.spawn(http::serve(listener, router, gate, std::future::pending()));
    runtime.spawn(syslog::serve(socket, Arc::clone(engine), Networks::loopback()));
    addresses
}

#[test]
fn disconnects_leak_permits_without_early_releases() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let engine = engine_without_early_releases(LIMIT);
    let (http, syslog) = serve_nginx_endpoints(&runtime, &engine);
    let between = Proxy::before(Upstream::Tcp(http));
    between.both(Flow::Delay(ONE_WAY_DELAY));
    let relay = Relay::to(syslog);
    let shipped = Shipped::Concurrency(relay.address);
    let nginx = Nginx::start_as(shipped, upstream::start(), between.address(), WhenDown::Deny);
    let (mut sent, mut leaked) = (0, 0);
    let leaks = |round| {
        sent = disconnect_clients(nginx.ingress, Some(&relay), round, sent);
        relay.wait_until_passed(sent);
        wait_until_read(syslog);
        leaked = engine.concurrency_limits().totals().in_flight;
        10 <= leaked
    };
    assert!((1..=MAX_ROUNDS).any(leaks), "{leaked} leaked");
    println!("without tombstones: {leaked} leaked of {sent}");
}
