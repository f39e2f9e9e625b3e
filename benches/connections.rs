//! The cost of idle connections, and the time of a health probe beside them.
//!
//! `cargo bench --bench connections` prints, from one run each:
//! - CPU and resident memory of idle gRPC connections that answer pings, for 90 s,
//! - the times of `/livez` beside idle and slow connections on the same port, below and above
//!   `listen.max_connections`.
//!
//! `-- 2000` opens 2,000 idle connections instead of 10,000.

#![allow(
    missing_docs,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used
)]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const IDLE: usize = 10_000;
const SLOW: usize = 500;
/// Three intervals between pings.
const IDLE_TIME: Duration = Duration::from_secs(90);
const PROBES: usize = 200;
const PROBE_PAUSE: Duration = Duration::from_millis(50);
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection preface and an empty SETTINGS frame (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const SETTINGS_ACK: &[u8] = &[0, 0, 0, 4, 1, 0, 0, 0, 0];
const PING_ACK: [u8; 9] = [0, 0, 8, 6, 1, 0, 0, 0, 0];

fn main() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let idle = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(IDLE);
    let client = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    client.block_on(async {
        measure_idle(idle).await;
        println!("/livez, ms: {idle} idle and {SLOW} slow connections on the HTTP port");
        measure_probes("no connection", (idle * 2, 0, 0)).await;
        measure_probes("these", (idle * 2, idle, SLOW)).await;
        measure_probes("these, half of them refused", (idle / 2, idle, SLOW)).await;
    });
}

async fn measure_idle(count: usize) {
    let server = Server::start(count * 2);
    let before = server.resident_kb();
    let (mut clients, pings) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
    for _ in 0..count {
        let client = TcpStream::connect(server.grpc).await.unwrap();
        clients.spawn(answer_frames(client, Arc::clone(&pings)));
    }
    sleep(Duration::from_secs(2)).await;
    let memory = (server.resident_kb() - before) as f64 / count as f64;
    let (cpu, sent) = (server.cpu_seconds(), pings.load(Relaxed));
    sleep(IDLE_TIME).await;
    let cpu = (server.cpu_seconds() - cpu) / IDLE_TIME.as_secs_f64();
    let sent = (pings.load(Relaxed) - sent) as f64 / IDLE_TIME.as_secs_f64();
    assert_eq!(clients.try_join_next().map(Result::unwrap), None, "a connection was closed");
    println!("{count} idle gRPC connections");
    println!("  CPU, % of a core        {:>8.2}", cpu * 100.0);
    println!("  memory, KB each         {memory:>8.1}");
    println!("  pings per second        {sent:>8.0}");
}

/// Answers SETTINGS and PING frames until the server closes the connection.
async fn answer_frames(mut server: TcpStream, pings: Arc<AtomicU64>) {
    server.write_all(PREFACE).await.unwrap();
    let mut head = [0; 9];
    while server.read_exact(&mut head).await.is_ok() {
        let [a, b, c, kind, flags, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        server.read_exact(&mut payload).await.unwrap();
        match (kind, flags) {
            (4, 0) => server.write_all(SETTINGS_ACK).await.unwrap(),
            (6, 0) => {
                pings.fetch_add(1, Relaxed);
                server.write_all(&[&PING_ACK, &*payload].concat()).await.unwrap();
            }
            _ => {}
        }
    }
}

async fn measure_probes(name: &str, (max_connections, idle, slow): (usize, usize, usize)) {
    let server = Server::start(max_connections);
    let mut open = JoinSet::new();
    for nth in 0..idle + slow {
        let client = TcpStream::connect(server.http).await.unwrap();
        open.spawn(send_slowly(client, idle <= nth));
    }
    let mut times = Vec::new();
    for _ in 0..PROBES {
        let began = Instant::now();
        let reply = timeout(PROBE_TIMEOUT, probe(server.http)).await.unwrap().unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        times.push(began.elapsed());
        sleep(PROBE_PAUSE).await;
    }
    times.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
    let (median, longest) = (ms(times[PROBES / 2]), ms(times[PROBES - 1]));
    println!("  beside {name:<28} median {median:>6.2}   longest {longest:>6.2}");
}

/// Keeps a connection open. A slow client sends one byte of a request each second.
async fn send_slowly(mut server: TcpStream, is_slow: bool) {
    while is_slow && server.write_all(b"G").await.is_ok() {
        sleep(Duration::from_secs(1)).await;
    }
    std::future::pending::<()>().await;
}

async fn probe(server: SocketAddr) -> std::io::Result<String> {
    let mut server = TcpStream::connect(server).await?;
    server.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
    let mut reply = String::new();
    server.read_to_string(&mut reply).await?;
    Ok(reply)
}

struct Server {
    process: Child,
    grpc: SocketAddr,
    http: SocketAddr,
    _limits: tempfile::TempDir,
}

impl Server {
    fn start(max_connections: usize) -> Self {
        let limits = tempfile::tempdir().unwrap();
        std::fs::write(limits.path().join("d.yaml"), "domain: d\n").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command.args(["serve", "--listen-host=127.0.0.1", "--telemetry-log-level=error"]);
        command.args(
            ["grpc", "http", "admin", "metrics"].map(|port| format!("--listen-{port}-port=0")),
        );
        command.arg(format!("--listen-max-connections={max_connections}"));
        command.arg("--limits-paths").arg(limits.path());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let (mut grpc, mut http) = (None, None);
        for line in BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap) {
            match line.split_once(" listening on ") {
                Some(("grpc", address)) => grpc = address.parse().ok(),
                Some(("http", address)) => http = address.parse().ok(),
                _ if line == "ready" => break,
                _ => {}
            }
        }
        Self { process, grpc: grpc.unwrap(), http: http.unwrap(), _limits: limits }
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.process.id())).unwrap()
    }

    fn resident_kb(&self) -> u64 {
        let status = self.file("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// CPU time in user and kernel mode: fields 14 and 15, in ticks of 10 ms.
    fn cpu_seconds(&self) -> f64 {
        let stat = self.file("stat");
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
        (ticks(11) + ticks(12)) as f64 / 100.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
