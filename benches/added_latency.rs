//! Measures the latency that each hook adds to a request through a real Envoy.
//!
//! `cargo bench --bench added_latency` prints a table. It needs the Envoy that `scripts/test.sh`
//! installs.
//!
//! Four Envoys share one upstream: three with the shipped configurations, one without our filters.
//! A client sends requests to each of them in turn over one connection. Other load on the machine
//! therefore affects all of them. The result is the median time of a request, from the first byte
//! sent to the last byte read.
//!
//! Each hook wakes sleeping threads. On a virtual machine a wake takes far longer if idle
//! processors halt. The bench therefore runs twice: with processors that halt, and, if permitted,
//! with processors that are kept awake.

#![allow(missing_docs, clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[path = "support/awake.rs"]
mod awake;

use awake::Awake;

const ROUNDS: usize = 15;
const REQUESTS: usize = 1_000;

const HOOKS: &str = r#"[{"name": "edge", "domain": "edge", "descriptors": [
    [{"generic_key": {"descriptor_key": "upstream", "descriptor_value": "all"}}]]}]"#;
const LIMITS: &str =
    "domain: edge\ndescriptors:\n- key: upstream\n  value: all\n  concurrency: {limit: 100}\n";

/// Name, Envoy configuration, and the maximum added latency in microseconds.
type Case = (&'static str, &'static str, Option<u64>);

const EXT_PROC: &str = include_str!("../config/envoy/ext_proc.yaml");
const CASES: [Case; 4] = [
    ("no filter", EXT_PROC, None),
    ("ext_proc", EXT_PROC, Some(220)),
    ("RLS pair", include_str!("../config/envoy/rls_concurrency.yaml"), Some(250)),
    ("ext_authz + access log", include_str!("../config/envoy/ext_authz_concurrency.yaml"), None),
];

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _ended = self.0.wait();
    }
}

fn main() {
    let home = std::env::temp_dir().join(format!("added-latency-{}", std::process::id()));
    std::fs::create_dir_all(&home).unwrap();
    let (_service, grpc) = service(&home);
    let upstream = upstream();
    let mut direct = client(upstream);
    let mut running = Vec::new();
    let mut clients = Vec::new();
    for (number, (name, text, _)) in CASES.into_iter().enumerate() {
        let bare = if name == "no filter" { without_filters(text) } else { text.to_owned() };
        let (envoy, ingress) = envoy(&home.join(number.to_string()), &bare, upstream, grpc);
        running.push(envoy);
        clients.push(client(ingress));
    }
    println!("one request, p50 over {ROUNDS} rounds of {REQUESTS}, one connection");
    println!("\nidle processors halt as they like");
    measure(&mut clients, &mut direct);
    println!();
    if let Some(_awake) = Awake::or_say() {
        measure(&mut clients, &mut direct);
    }
    drop(running);
    std::fs::remove_dir_all(home).unwrap();
}

fn measure(clients: &mut [TcpStream], direct: &mut TcpStream) {
    let (mut medians, mut alone) = (vec![Vec::new(); CASES.len()], Vec::new());
    for round in 0..=ROUNDS {
        for (client, medians) in clients.iter_mut().zip(&mut medians) {
            let median = median((0..REQUESTS).map(|_| ask(client)).collect());
            // The first round warms up.
            medians.extend((0 < round).then_some(median));
        }
        alone.push(median((0..REQUESTS).map(|_| ask(direct)).collect()));
    }
    print(&medians);
    println!("no Envoy, {} us: two threads that wake each other", median(alone).as_micros());
}

fn print(medians: &[Vec<Duration>]) {
    println!(
        "{:<24} {:>10} {:>10} {:>10} {:>14}",
        "hook", "p50", "added", "at most", "added/at most"
    );
    for ((name, _, most), own) in CASES.iter().zip(medians) {
        // Subtracts within a round: a slow round is slow on both sides.
        let added = own.iter().zip(&medians[0]).map(|(own, base)| own.saturating_sub(*base));
        let (p50, added) = (median(own.clone()).as_micros(), median(added.collect()).as_micros());
        let most = most.map(u128::from);
        let (shown, ratio) = most.map_or_else(Default::default, |most| {
            let percent = added * 100 / most;
            (format!("{most} us"), format!("{}.{:02}", percent / 100, percent % 100))
        });
        println!("{name:<24} {p50:>7} us {added:>7} us {shown:>10} {ratio:>14}");
    }
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

fn service(home: &Path) -> (Running, SocketAddr) {
    let limits = home.join("limits.yaml");
    std::fs::write(&limits, LIMITS).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.args([
        "serve",
        "--listen-grpc-port=0",
        "--listen-http-port=0",
        "--listen-admin-port=0",
        "--listen-metrics-port=0",
        "--listen-peer-port=0",
    ]);
    command
        .args([
            "--listen-host=127.0.0.1",
            "--telemetry-log-level=warn",
            "--hooks",
            HOOKS,
            "--limits-paths",
        ])
        .arg(limits);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let grpc =
        lines.find_map(|line| line.strip_prefix("grpc listening on ")?.parse().ok()).unwrap();
    lines.find(|line| line.starts_with("ready")).unwrap();
    (Running(child), grpc)
}

/// Answers each request with two bytes, on one thread per connection.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

fn answer(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let (mut head, mut part) = (Vec::new(), [0; 4096]);
    while let Ok(got @ 1..) = stream.read(&mut part) {
        head.extend_from_slice(&part[..got]);
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        }
    }
}

/// Removes all HTTP filters except the router.
fn without_filters(text: &str) -> String {
    let start = text.find("                http_filters:\n").unwrap()
        + "                http_filters:\n".len();
    let end = text.find("                  - name: envoy.filters.http.router").unwrap();
    [&text[..start], &text[end..]].concat()
}

fn envoy(home: &Path, text: &str, upstream: SocketAddr, grpc: SocketAddr) -> (Running, SocketAddr) {
    std::fs::create_dir_all(home).unwrap();
    let port = |text: String, from: u16, to: u16| {
        text.replace(&format!("port_value: {from}}}"), &format!("port_value: {to}}}"))
    };
    let text = port(port(text.to_owned(), 9901, 0), 10_000, 0);
    let text = port(port(text, 8081, grpc.port()), 9000, upstream.port());
    std::fs::write(home.join("envoy.yaml"), text).unwrap();
    let installed = concat!(env!("CARGO_MANIFEST_DIR"), "/.tools/bin/envoy");
    let binary =
        std::env::var_os("SLUICEGATE_ENVOY").map_or_else(|| installed.into(), PathBuf::from);
    let mut command = Command::new(binary);
    command.arg("--config-path").arg(home.join("envoy.yaml"));
    command.arg("--admin-address-path").arg(home.join("admin"));
    command.args(["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]);
    let envoy = Running(command.spawn().unwrap());
    let admin: SocketAddr =
        patiently(|| std::fs::read_to_string(home.join("admin")).ok()?.trim().parse().ok());
    let ingress = patiently(|| {
        let listeners = page(admin, "/listeners?format=json")?;
        let (_, rest) = listeners.split_once("\"port_value\":")?;
        rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    });
    patiently(|| page(admin, "/clusters")?.contains("sluicegate::127").then_some(()));
    patiently(|| {
        let clusters = page(admin, "/clusters")?;
        let mut flags = clusters
            .lines()
            .filter(|line| line.starts_with("sluicegate::") && line.contains("::health_flags::"));
        flags.all(|line| line.ends_with("::healthy")).then_some(())
    });
    (envoy, SocketAddr::from(([127, 0, 0, 1], ingress)))
}

fn patiently<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "Envoy did not start");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn page(admin: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(admin).ok()?;
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn client(ingress: SocketAddr) -> TcpStream {
    let stream = patiently(|| TcpStream::connect(ingress).ok());
    stream.set_nodelay(true).unwrap();
    stream
}

fn ask(stream: &mut TcpStream) -> Duration {
    let (began, mut answer, mut part) = (Instant::now(), Vec::new(), [0; 4096]);
    stream.write_all(b"GET / HTTP/1.1\r\nhost: edge\r\n\r\n").unwrap();
    while !answer.ends_with(b"\r\n\r\nok") {
        let got = stream.read(&mut part).unwrap();
        assert_ne!(got, 0, "Envoy closed the connection: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&part[..got]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    began.elapsed()
}
