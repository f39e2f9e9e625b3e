//! The whole service over gRPC against a handler that returns a constant.
//!
//! `cargo bench --bench wire` prints the server's CPU time per decision for both, and their ratio.
//! Both use the same crates and the same client, each in its own process. The constant runs on
//! tonic's server, as most handlers do; the service uses hyper's connections. Each gets 4
//! connections with 32 checks in flight, in turns within one run. CPU time comes from the operating
//! system, so it excludes the client.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)]

#[path = "support/service.rs"]
mod service;

use std::process::Command;

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

use service::{ARGUMENTS, CONNECTIONS, IN_FLIGHT, LIMITS, Server, tokio};

/// The constant's server uses the service's allocator.
#[cfg(all(target_os = "linux", feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const CALLS: u64 = 100_000;
const TURNS: usize = 15;

fn main() {
    if std::env::args().any(|arg| arg == "--constant") {
        return tokio(2).block_on(serve_constant());
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let ours = Server::start(
        Command::new(env!("CARGO_BIN_EXE_sluicegate"))
            .args(ARGUMENTS)
            .arg("--limits-paths")
            .arg(dir.path()),
    );
    let constant = Server::start(Command::new(std::env::current_exe().unwrap()).arg("--constant"));
    let client = tokio(1);
    let cost = |server: &Server| client.block_on(server.cpu_per_call(CALLS)) / 1_000.0;
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
