//! Clients of NGINX that leave in the window where the answer to its question arrives: nothing leaks, and without the memory of early
//! releases something does.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::config::settings::Networks;
use sluicegate::edge::Reporting;
use sluicegate::edge::health::{Health, Ready};
use sluicegate::edge::{http, syslog};
use sluicegate::engine::{Engine, Policy};
use sluicegate::kernel::concurrency::register::Bounds;
use sluicegate::kernel::units::{Nanos, Revision};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::envoy::WhenDown;
use super::in_flight::{HOOKS, gauge, over_all, shows};
use super::nginx::{Nginx, Shipped};
use super::upstream;
use crate::service::Service;
use crate::support::dice::Dice;
use crate::support::proxy::{Flow, Proxy, Upstream};
use crate::waiting::{now, soon, until};

const CLIENTS: usize = 4_000;
/// At one time.
const TOGETHER: usize = 64;
/// What a question takes to the service, and its answer back.
const WAY: Duration = Duration::from_millis(10);
/// Requests that stay, which show how long one takes among so many.
const STAYING: usize = 256;
/// Before each it is seen anew how long that is: the machine has others to serve.
const ROUNDS: usize = 4;

/// Nobody is turned away, and no deadline comes to anybody's help.
const CEILING: &str = "limit: 1000, max_duration: 10m";

/// So many times they come where a machine that has others to serve lets them miss the window.
const LOTS: u64 = 4;

/// So many at least that left before it, in it and after it show that the window was met.
const MET: u64 = 100;

/// Datagrams that wait to be read without one being lost: each takes the system less than a kilobyte of two hundred.
const ROOM: usize = 150;

/// Sends what NGINX says of ends on, and counts it.
struct Relay {
    address: SocketAddr,
    passed: Arc<AtomicUsize>,
}

impl Relay {
    fn to(service: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // On a crowded machine many come before this is woken; the system gives as much as it may.
        SockRef::from(&socket).set_recv_buffer_size(8 << 20).unwrap();
        let (address, passed) = (socket.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counts = Arc::clone(&passed);
        std::thread::spawn(move || {
            let mut datagram = [0; 2_048];
            while let Ok(length) = socket.recv(&mut datagram) {
                socket.send_to(&datagram[..length], service).unwrap();
                counts.fetch_add(1, Relaxed);
            }
        });
        Self { address, passed }
    }

    /// Waits until no more ends are under way, of so many requests, than a socket has room for.
    async fn keeps_up(&self, requests: usize) {
        let behind = async {
            while self.passed.load(Relaxed) + ROOM < requests {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon("ends of requests", behind).await;
    }

    fn has_passed(&self, count: usize) {
        until("an end for every request", || match self.passed.load(Relaxed) {
            passed if count <= passed => Ok(()),
            passed => Err(format!("{passed} of {count}")),
        })
        .unwrap();
    }
}

/// Sends requests and leaves: from before the question has arrived to after its answer has. How many requests were sent, with
/// those `sent` before.
fn leave(ingress: SocketAddr, relay: Option<&Relay>, seed: u64, sent: usize) -> usize {
    const STAY: usize = STAYING / ROUNDS;
    const LEAVE: usize = CLIENTS / ROUNDS;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let may = async |requests| {
        if let Some(relay) = relay {
            relay.keeps_up(requests).await;
        }
    };
    let mut dice = Dice::new(seed);
    runtime.block_on(async {
        for before in (0..ROUNDS).map(|round| sent + round * (STAY + LEAVE)) {
            let may_stay = async |sent| may(before + sent).await;
            let mut took: Vec<_> = together(STAY, may_stay, |_| stay(ingress)).await;
            took.sort_unstable();
            let whole: u64 = took[STAY / 2].as_micros().try_into().unwrap();
            // Twice as long: the machine may be busier while they leave than while those stayed.
            let stays: Vec<_> = (0..LEAVE).map(|_| whole / 8 + dice.up_to(2 * whole)).collect();
            let goes = |client: usize| go(ingress, Duration::from_micros(stays[client]));
            together(LEAVE, async |sent| may(before + STAY + sent).await, goes).await;
        }
    });
    sent + STAYING + CLIENTS
}

/// So many of them, some at a time, each once it may.
async fn together<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    count: usize,
    may: impl AsyncFn(usize),
    client: impl Fn(usize) -> F,
) -> Vec<T> {
    let (mut clients, mut done) = (JoinSet::new(), Vec::new());
    for number in 0..count {
        may(number).await;
        clients.spawn(client(number));
        if TOGETHER <= clients.len() {
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

async fn stay(ingress: SocketAddr) -> Duration {
    let began = now();
    let mut answer = Vec::new();
    let mut asked = ask(ingress).await;
    soon("an answer", asked.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    began.elapsed()
}

async fn go(ingress: SocketAddr, after: Duration) {
    let _stream = ask(ingress).await;
    tokio::time::sleep(after).await;
}

#[test]
fn of_four_thousand_clients_that_leave_as_the_answer_arrives_none_keeps_a_place() {
    let limits = tempfile::tempdir().unwrap();
    let text = format!("domain: edge\ndescriptors:\n{}", over_all(CEILING));
    std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
    let flags = ["--hooks", HOOKS, "--syslog-port", "0"].map(str::to_owned);
    for lua in [false, true] {
        let service = Service::start(limits.path(), &flags).unwrap();
        let between = Proxy::before(Upstream::Tcp(service.http));
        between.both(Flow::Delay(WAY));
        let relay = Relay::to(service.syslog().unwrap());
        let shipped = if lua { Shipped::Lua } else { Shipped::Concurrency(relay.address) };
        let (upstream, came) = upstream::counting();
        let nginx = Nginx::start_as(shipped, upstream, between.address(), WhenDown::Deny);
        // Lua sends no datagrams.
        let datagrams = (!lua).then_some(&relay);
        let ids = |event: &str| {
            gauge(service.metrics, &format!("sluicegate_permit_ids_total{{event=\"{event}\"}}"))
        };
        let mut sent = 0;
        let mut is_met = |lot| {
            sent = leave(nginx.ingress, datagrams, lot, sent);
            if let Some(relay) = datagrams {
                relay.has_passed(sent);
            }
            shows(service.metrics, "sluicegate_requests_in_flight", 0);
            let [held, early, over] = ["released", "early", "over"].map(ids);
            println!(
                "lua {lua}: 0 leaked; {held} released, {early} came first, {over} of them used"
            );
            let (admitted, came) = (gauge(service.metrics, ADMITTED), came.load(Relaxed) as u64);
            println!("lua {lua}: {admitted} of {sent} were admitted, {came} came to the upstream");
            // Who was not admitted left before its question came, and who was and is not at the upstream before the answer did.
            let counts = [lot * STAYING as u64, came, admitted, sent as u64];
            let is_met = counts.is_sorted_by(|fewer, more| fewer + MET <= *more);
            is_met && (lua || (MET < held && 0 < over))
        };
        assert!((1..=LOTS).any(&mut is_met), "the window was missed");
    }
}

const ADMITTED: &str = r#"sluicegate_edge_requests_total{protocol="nginx",outcome="admit"}"#;

/// What remembers no release that came first, under this ceiling.
pub(super) fn forgetful(ceiling: &str) -> Arc<Engine> {
    let memory = Arc::new(Memory::new(10, WhenFull::Deny, [0; 16]));
    let none = Bounds { per_source: 0, total: 0, keep: Nanos::SECOND };
    let engine = Engine::new(Clock::system(), memory, Policy::default());
    let engine = Arc::new(engine.with_early_releases(none));
    let text = format!("domain: edge\ndescriptors:\n{}", over_all(ceiling));
    let (config, _) = config::load([("a.yaml", text.as_bytes())], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
    engine
}

/// Places that nobody gives back, as soon as there are ten.
pub(super) fn leaked(engine: &Engine) -> u64 {
    let leaked = until("leaks", || match engine.ceilings().total().in_flight {
        few @ 0..10 => Err(format!("{few} leaked")),
        some => Ok(some),
    });
    leaked.unwrap()
}

/// Its doors for NGINX: HTTP and syslog.
fn doors(runtime: &Runtime, engine: &Arc<Engine>) -> (SocketAddr, SocketAddr) {
    let ask = http::Ask {
        engine: Arc::clone(engine),
        reporting: Reporting::default(),
        health: Health::new(Ready::Yes),
        hooks: Arc::new(serde_json::from_str(HOOKS).unwrap()),
        leaving: watch::channel(false).1,
    };
    let (listener, socket) = runtime.block_on(async {
        let any = "127.0.0.1:0";
        let listener = tokio::net::TcpListener::bind(any).await.unwrap();
        (listener, tokio::net::UdpSocket::bind(any).await.unwrap())
    });
    let addresses = (listener.local_addr().unwrap(), socket.local_addr().unwrap());
    runtime.spawn(http::serve(listener, http::router(ask), std::future::pending()));
    runtime.spawn(syslog::serve(socket, Arc::clone(engine), Networks::loopback()));
    addresses
}

#[test]
fn without_the_memory_of_early_releases_the_same_clients_leave_places_behind() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let engine = forgetful(CEILING);
    let (http, syslog) = doors(&runtime, &engine);
    let between = Proxy::before(Upstream::Tcp(http));
    between.both(Flow::Delay(WAY));
    let relay = Relay::to(syslog);
    let shipped = Shipped::Concurrency(relay.address);
    let nginx = Nginx::start_as(shipped, upstream::start(), between.address(), WhenDown::Deny);
    relay.has_passed(leave(nginx.ingress, Some(&relay), 1, 0));
    println!("without tombstones: {} leaked of {CLIENTS}", leaked(&engine));
}
