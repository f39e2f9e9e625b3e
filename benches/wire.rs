//! The whole service over gRPC against a handler that returns a constant.
//!
//! `cargo bench --bench wire` prints the server's CPU time per check for each path, the one of the
//! constant, and their ratio. All use the same crates and the same client, each in its own process. The
//! constant runs on tonic's server, as most handlers do. Each gets 4 connections with 32 checks in flight
//! and the same checks, in turns within one run. CPU time comes from the operating system, so it excludes
//! the client.
//!
//! The row of `ext_proc` has a stream with an acquire and a release, against one check of the constant.
//! A last row has the CPU time of Redis per check, beside that of the commands which
//! envoyproxy/ratelimit sends for the same checks: `INCRBY` and `EXPIRE`, over 10 connections, without
//! pipelining of several checks.
//!
//! The rows with Redis need `redis-server`; `-- memory` leaves them out.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)]
#![allow(clippy::disallowed_methods, reason = "a bench waits for Redis")]

#[path = "support/service.rs"]
mod service;
#[path = "support/streams.rs"]
mod streams;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use sluicegate::edge::grpc::{PERMIT_STREAM_PONG_TIMEOUT, PING_INTERVAL};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use service::{ARGUMENTS, CONNECTIONS, IN_FLIGHT, LIMITS, Load, Server, tokio};

/// The constant's server uses the service's allocator.
#[cfg(all(target_os = "linux", feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const CALLS: u64 = 50_000;
const TURNS: usize = 15;
const KEYS: u64 = 1_000;

/// The connections of envoyproxy/ratelimit to Redis by default.
const REFERENCE_CONNECTIONS: usize = 10;

/// A path of the service: its name, the bound of its ratio, its descriptors and the fields of its limit.
struct Path {
    name: &'static str,
    bound: f64,
    descriptors: u64,
    fields: &'static str,
    has_redis: bool,
}

impl Path {
    const fn new(name: &'static str, bound: f64, fields: &'static str, has_redis: bool) -> Self {
        Self { name, bound, descriptors: 1, fields, has_redis }
    }

    fn paths() -> [Self; 4] {
        let memory = Self::new("memory", 0.85, "", false);
        [
            Self { name: "memory, 5 descriptors", bound: 1.15, descriptors: 5, ..memory },
            memory,
            Self::new("leased over Redis", 0.9, ", mode: leased, max_overshoot: 10%", true),
            Self::new("strict over Redis", 1.4, "", true),
        ]
    }

    fn start(&self, redis: &Redis) -> (Server, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let limits = LIMITS.replace("unit: day", &format!("unit: day{}", self.fields));
        std::fs::write(dir.path().join("shop.yaml"), limits).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command.args(ARGUMENTS).arg("--limits-paths").arg(dir.path());
        if self.has_redis {
            command.arg(format!("--store-url=redis://127.0.0.1:{}", redis.port));
            // A busy machine may be slow; the call must not fail.
            command.arg("--store-timeout=2s");
        }
        (Server::start(&mut command), dir)
    }
}

/// A private Redis, killed on drop.
struct Redis {
    process: Option<Child>,
    port: u16,
}

impl Redis {
    fn start() -> Self {
        // A race: another process may take the port before Redis binds it.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--save", "", "--appendonly", "no"]).stdout(Stdio::null());
        let process = command
            .spawn()
            .unwrap_or_else(|error| panic!("no redis-server ({error}); or use `-- memory`"));
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { process: Some(process), port }
    }

    /// Returns the CPU time of Redis since its start, in microseconds.
    fn cpu(&self) -> f64 {
        let id = self.process.as_ref().map_or(0, Child::id);
        service::on_processor(format!("/proc/{id}/schedstat").as_ref()) as f64 / 1_000.0
    }

    /// Sends the commands of envoyproxy/ratelimit for [`CALLS`] checks. Returns the CPU time of Redis
    /// per check.
    fn cpu_of_increments(&self) -> f64 {
        let connect = |_| TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut connections: Vec<_> = (0..REFERENCE_CONNECTIONS).map(connect).collect();
        for connection in &connections {
            connection.set_nodelay(true).unwrap();
        }
        let began = self.cpu();
        let numbers: Vec<u64> = (0..CALLS).collect();
        for numbers in numbers.chunks(REFERENCE_CONNECTIONS) {
            for (connection, number) in connections.iter_mut().zip(numbers) {
                let key = format!("shop_api_key_client-{:04}_1767225600", number % KEYS);
                let commands = format!(
                    "*3\r\n$6\r\nINCRBY\r\n${0}\r\n{key}\r\n$1\r\n1\r\n\
                     *3\r\n$6\r\nEXPIRE\r\n${0}\r\n{key}\r\n$5\r\n86400\r\n",
                    key.len()
                );
                connection.write_all(commands.as_bytes()).unwrap();
            }
            for connection in connections.iter_mut().take(numbers.len()) {
                let mut replies = BufReader::new(connection).lines();
                assert!(replies.next().is_some() && replies.next().is_some());
            }
        }
        (self.cpu() - began) / CALLS as f64
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

fn main() {
    let is_asked = |word: &str| std::env::args().any(|arg| arg == word);
    if is_asked("--constant") {
        return tokio(2).block_on(serve_constant());
    }
    let only_memory = is_asked("memory");
    let redis = if only_memory { Redis { process: None, port: 0 } } else { Redis::start() };
    let constant = Server::start(Command::new(std::env::current_exe().unwrap()).arg("--constant"));
    let client = tokio(1);
    println!("server CPU per ShouldRateLimit, {CONNECTIONS} connections x {IN_FLIGHT} in flight");
    println!("{:<24} {:>8} {:>9} {:>6} {:>6}", "path", "us", "constant", "ratio", "bound");
    for path in Path::paths().iter().filter(|path| !(path.has_redis && only_memory)) {
        let (ours, _limits) = path.start(&redis);
        let load = Load { descriptors: path.descriptors, ..Load::usual(KEYS) };
        let cost =
            |server: &Server| client.block_on(server.cpu_per_call_under(load, CALLS)) / 1_000.0;
        cost(&ours);
        cost(&constant);
        let turns: Vec<_> = (0..TURNS).map(|_| (cost(&ours), cost(&constant))).collect();
        let ours = median(turns.iter().map(|turn| turn.0));
        let constant = median(turns.iter().map(|turn| turn.1));
        let ratio = median(turns.iter().map(|turn| turn.0 / turn.1));
        println!("{:<24} {ours:>8.2} {constant:>9.2} {ratio:>6.3} {:>6}", path.name, path.bound);
    }
    measure_requests_in_flight(&client, &constant);
    if !only_memory {
        let path = &Path::paths()[3];
        let (server, _limits) = path.start(&redis);
        let ours = || {
            let began = redis.cpu();
            client.block_on(server.cpu_per_call_under(Load::usual(KEYS), CALLS));
            (redis.cpu() - began) / CALLS as f64
        };
        ours();
        let turns: Vec<_> = (0..TURNS).map(|_| (ours(), redis.cpu_of_increments())).collect();
        let ours = median(turns.iter().map(|turn| turn.0));
        let increments = median(turns.iter().map(|turn| turn.1));
        let ratio = median(turns.iter().map(|turn| turn.0 / turn.1));
        println!(
            "{:<24} {:>8} {:>9} {:>6} {:>6}",
            "Redis' own CPU", "us", "commands", "ratio", "bound"
        );
        println!("{:<24} {ours:>8.2} {increments:>9.2} {ratio:>6.3} {:>6}", path.name, 0.25);
    }
}

/// An acquire and a release by `ext_proc`, against one check of the constant.
fn measure_requests_in_flight(client: &::tokio::runtime::Runtime, constant: &Server) {
    let dir = tempfile::tempdir().unwrap();
    let (limits, settings) = (dir.path().join("limits"), dir.path().join("server.yaml"));
    std::fs::create_dir(&limits).unwrap();
    std::fs::write(limits.join("shop.yaml"), streams::LIMITS).unwrap();
    std::fs::write(&settings, streams::SETTINGS).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.args(ARGUMENTS).arg("--limits-paths").arg(limits).arg("--settings").arg(settings);
    let ours = Server::start(&mut command);
    let cost = || {
        let request = client.block_on(streams::cpu_per_request(&ours, KEYS, CALLS));
        let check = client.block_on(constant.cpu_per_call_under(Load::usual(KEYS), CALLS));
        (request / 1_000.0, check / 1_000.0)
    };
    cost();
    let turns: Vec<_> = (0..TURNS).map(|_| cost()).collect();
    let ours = median(turns.iter().map(|turn| turn.0));
    let constant = median(turns.iter().map(|turn| turn.1));
    let ratio = median(turns.iter().map(|turn| turn.0 / turn.1));
    println!("{:<24} {ours:>8.2} {constant:>9.2} {ratio:>6.3} {:>6}", "ext_proc, both", 2.0);
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Answers every check alike, with a reply of realistic size.
struct Constant;

#[tonic::async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(
        &self,
        _request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let limit = RateLimit { requests_per_unit: 4_000_000_000, unit: 4, ..Default::default() };
        let status = DescriptorStatus {
            code: Code::Ok as i32,
            current_limit: Some(limit),
            limit_remaining: 3_999_999_999,
            duration_until_reset: Some(envoy_types::pb::google::protobuf::Duration {
                seconds: 3_600,
                nanos: 0,
            }),
            ..Default::default()
        };
        let code = Code::Ok as i32;
        Ok(Response::new(RateLimitResponse {
            overall_code: code,
            statuses: vec![status],
            ..Default::default()
        }))
    }
}

/// Uses the transport settings of `edge::grpc`.
async fn serve_constant() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("grpc listening on {}\nready", listener.local_addr().unwrap());
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PERMIT_STREAM_PONG_TIMEOUT))
        .add_service(RateLimitServiceServer::new(Constant))
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
        .await
        .unwrap();
}
