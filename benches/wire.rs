//! The whole service on the wire against a handler that answers a constant.
//!
//! Both are made of the same crates, in processes of their own, asked by the same client; the constant is
//! served by tonic's own server, as anybody's handler is, and the service by hyper's connections. Each is asked
//! over 4 connections with 32 questions in flight on each, in turns within one run. What is compared
//! is the server's CPU time per answer, read from the operating system, so the client's share of the
//! machine does not count. `cargo bench --bench wire` prints both and their ratio.

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
use sluicegate::edge::grpc::{PING_AFTER, PONG_WITHIN};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use service::{ARGUMENTS, CONNECTIONS, IN_FLIGHT, LIMITS, Server, tokio};

/// The constant's server has the allocator that the service has.
#[cfg(target_os = "linux")]
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
            .arg("--limits")
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
        .http2_keepalive_interval(Some(PING_AFTER))
        .http2_keepalive_timeout(Some(PONG_WITHIN))
        .add_service(RateLimitServiceServer::new(Constant))
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
        .await
        .unwrap();
}
