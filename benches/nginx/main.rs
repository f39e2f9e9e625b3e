//! Measures the latency that the rate limit check adds to a request through NGINX.
//!
//! `cargo bench --bench nginx` compares the shipped configurations with and without the check, for
//! one client with one connection. NGINX has one worker, the service runs in this process, and the
//! upstream answers immediately. Requests take turns, so other load on the machine affects both
//! medians.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::config::settings::Networks;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::body_memory::BodyLimits;
use sluicegate::edge::connection_gate::{ConnectionGate, ListenPort};
use sluicegate::edge::health::{Health, Readiness};
use sluicegate::edge::{http, syslog};
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::units::Revision;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use tempfile::TempDir;
use tokio::sync::watch;

const RATE_LIMIT: &str = include_str!("../../config/nginx/rate_limit.conf");
const CONCURRENCY: &str = include_str!("../../config/nginx/concurrency.conf");
const LUA: &str = include_str!("../../config/nginx/concurrency_lua.conf");
const LIMITS: &str = "domain: edge\ndescriptors:\n- key: upstream\n  concurrency: {limit: 100}\n  \
                      rate_limit: {unit: second, requests_per_unit: 1000000}\n";
const HOOKS: &str = r#"[{"name": "edge", "domain": "edge", "descriptors":
    [[{"generic_key": {"descriptor_key": "upstream", "descriptor_value": "all"}}]]}]"#;
/// Measured requests per configuration, after as many for warm-up.
const REQUESTS: usize = 5_000;

struct Nginx {
    process: Child,
    _home: TempDir,
    client: TcpStream,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(Command::new("kill").arg(self.process.id().to_string()).status());
        drop(self.process.wait());
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (asked, releases) = runtime.block_on(serve());
    let upstream = upstream();
    println!("configuration,without p50 us,with p50 us,added p50 us");
    for (name, text, question) in [
        ("rate_limit.conf", RATE_LIMIT, "auth_request /_sluicegate;"),
        ("concurrency.conf", CONCURRENCY, "auth_request /_sluicegate;"),
        ("concurrency_lua.conf", LUA, "access_by_lua_block { sluicegate(\"edge\") }"),
    ] {
        let placed = placed(text, asked, releases, upstream);
        let mut with = start(&placed);
        let mut without = start(&placed.replace(question, ""));
        let (mut slow, mut fast) = (Vec::new(), Vec::new());
        for number in 0..2 * REQUESTS {
            let (bare, asking) = (ask(&mut without.client), ask(&mut with.client));
            if REQUESTS <= number {
                fast.push(bare);
                slow.push(asking);
            }
        }
        let (without, with) = (median(fast), median(slow));
        println!("{name},{without},{with},{}", with.saturating_sub(without));
    }
}

const MAX_CONNECTIONS: usize = 4_096;

async fn serve() -> (SocketAddr, SocketAddr) {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [0; 16]));
    let engine = Arc::new(Engine::new(Clock::system(), memory, DecisionPolicy::default()));
    let (config, _) = config::load([("a.yaml", LIMITS.as_bytes())], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let addresses = (listener.local_addr().unwrap(), socket.local_addr().unwrap());
    let (leave, leaving) = watch::channel(false);
    let ask = http::CheckPort {
        engine: Arc::clone(&engine),
        reporting: ReplyOptions::default(),
        health: Health::new(Readiness::Ready),
        hooks: Arc::new(serde_json::from_str(HOOKS).unwrap()),
        draining: leaving,
        bodies: BodyLimits::default(),
    };
    tokio::spawn(syslog::serve(socket, engine, Networks::loopback()));
    tokio::spawn(async move {
        let gate = ConnectionGate::new(ListenPort::Http, MAX_CONNECTIONS);
        let router = http::router(ask, MAX_CONNECTIONS);
        http::serve(listener, router, gate, std::future::pending()).await;
        drop(leave);
    });
    addresses
}

/// Answers every request with two bytes and closes the connection.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
            drop(stream.read(&mut [0; 4_096]).and_then(|_| stream.write_all(answer)));
        }
    });
    address
}

fn placed(text: &str, asked: SocketAddr, releases: SocketAddr, upstream: SocketAddr) -> String {
    let files = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {kind};"))
        .join(" ");
    let log = if text == CONCURRENCY { "" } else { "access_log off; " };
    text.replace("server 127.0.0.1:8080;", &format!("server {asked};"))
        .replace("\"127.0.0.1\", 8080", &format!("\"127.0.0.1\", {}", asked.port()))
        .replace("server=127.0.0.1:5140", &format!("server={releases}"))
        .replace("server 127.0.0.1:9000;", &format!("server {upstream};"))
        .replace("http {", &format!("http {{ keepalive_requests 1000000; {log}{files}"))
}

fn start(config: &str) -> Nginx {
    let home = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = config.replace("listen 8000;", &format!("listen {free};"));
    std::fs::write(home.path().join("nginx.conf"), text).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-p").arg(home.path()).arg("-c").arg(home.path().join("nginx.conf"));
    command.args(["-g", "daemon off; pid nginx.pid; error_log stderr crit;"]);
    let process = command.stdin(Stdio::null()).spawn().unwrap();
    let client = (0..500).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        TcpStream::connect(free).ok()
    });
    let client = client.unwrap();
    client.set_nodelay(true).unwrap();
    Nginx { process, _home: home, client }
}

fn ask(client: &mut TcpStream) -> Duration {
    let began = Instant::now();
    client.write_all(b"GET / HTTP/1.1\r\nhost: edge\r\n\r\n").unwrap();
    let (mut answer, mut part) = (Vec::new(), [0; 4_096]);
    while !answer.ends_with(b"\r\n\r\nok") {
        let got = client.read(&mut part).unwrap();
        assert!(0 < got, "closed after {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&part[..got]);
    }
    let took = began.elapsed();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    took
}

fn median(mut took: Vec<Duration>) -> u128 {
    took.sort_unstable();
    took[took.len() / 2].as_micros()
}
