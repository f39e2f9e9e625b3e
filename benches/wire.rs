//! The whole service on the wire against a handler that answers a constant.
//!
//! Both are made of the same crates, in processes of their own, asked by the same client; the constant is
//! served by tonic's own server, as anybody's handler is, and the service by hyper's connections. Each is asked
//! over 4 connections with 32 questions in flight on each, in turns within one run. What is compared
//! is the server's CPU time per answer, read from the operating system, so the client's share of the
//! machine does not count. `cargo bench --bench wire` prints both and their ratio.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use sluicegate::edge::grpc::KEEPALIVE;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// The constant's server has the allocator that the service has.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const CONNECTIONS: usize = 4;
const IN_FLIGHT: usize = 32;
const CALLS: u64 = 100_000;
const TURNS: usize = 15;
const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  \
                      rate_limit: {requests_per_unit: 4000000000, unit: day}\n";

fn main() {
    if std::env::args().any(|arg| arg == "--constant") {
        return tokio(2).block_on(serve_constant());
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let ours = Server::start(
        Command::new(env!("CARGO_BIN_EXE_sluicegate"))
            .args([
                "serve",
                "--grpc-port=0",
                "--http-port=0",
                "--admin-port=0",
                "--metrics-port=0",
                "--peer-port=0",
            ])
            .args(["--host=127.0.0.1", "--threads=2", "--log-level=warn"])
            .arg("--limits")
            .arg(dir.path()),
    );
    let constant = Server::start(Command::new(std::env::current_exe().unwrap()).arg("--constant"));
    let client = tokio(1);
    let cost = |server: &Server| client.block_on(cpu_per_call(server));
    cost(&ours);
    cost(&constant);
    let turns: Vec<(f64, f64)> = (0..TURNS).map(|_| (cost(&ours), cost(&constant))).collect();
    let ours = median(turns.iter().map(|turn| turn.0));
    let constant = median(turns.iter().map(|turn| turn.1));
    let ratio = median(turns.iter().map(|turn| turn.0 / turn.1));
    println!("server CPU per ShouldRateLimit, {CONNECTIONS} connections x {IN_FLIGHT} in flight");
    println!("  sluicegate          {ours:>7.2} us");
    println!("  constant answer     {constant:>7.2} us");
    println!("  ratio               {ratio:>7.3}   (median of {TURNS} turns of {CALLS} calls)");
}

fn tokio(threads: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .unwrap()
}

/// A server process and where it answers.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut address = None;
        for line in lines.map(Result::unwrap) {
            if let Some(at) = line.strip_prefix("grpc listening on ") {
                address = Some(at.parse().unwrap());
            }
            if line.starts_with("ready") {
                break;
            }
        }
        Self { process, address: address.unwrap() }
    }

    /// User and system time, in clock ticks of a hundredth of a second.
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

/// Microseconds of the server's CPU for one answer.
async fn cpu_per_call(server: &Server) -> f64 {
    let before = server.cpu_ticks();
    let left = Arc::new(AtomicU64::new(CALLS));
    let mut tasks = Vec::new();
    for _ in 0..CONNECTIONS {
        let address = format!("http://{}", server.address);
        let client = RateLimitServiceClient::connect(address).await.unwrap();
        let workers = (0..IN_FLIGHT).map(|_| tokio::spawn(ask(client.clone(), Arc::clone(&left))));
        tasks.extend(workers);
    }
    for task in tasks {
        task.await.unwrap();
    }
    (server.cpu_ticks() - before) as f64 * 10_000.0 / CALLS as f64
}

async fn ask(mut client: RateLimitServiceClient<tonic::transport::Channel>, left: Arc<AtomicU64>) {
    while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
        let answer = client.should_rate_limit(question()).await.unwrap().into_inner();
        assert_eq!(answer.overall_code, Code::Ok as i32);
    }
}

fn question() -> RateLimitRequest {
    let entry = Entry { key: "api_key".into(), value: "client-0001".into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    RateLimitRequest { domain: "shop".into(), descriptors: vec![descriptor], hits_addend: 1 }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Answers every question alike, with a reply of the size of ours.
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

/// With the transport's settings as `edge::grpc` has them.
async fn serve_constant() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("grpc listening on {}\nready", listener.local_addr().unwrap());
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(RateLimitServiceServer::new(Constant))
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
        .await
        .unwrap();
}
