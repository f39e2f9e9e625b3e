//! Tests that `serve` opens its ports after the store has answered.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use crate::support::cluster::Cluster;
use crate::support::ports;
use crate::support::process::Process;
use crate::support::redis::Redis;
use crate::support::sentinel::Watched;
use crate::support::service::Service;
use crate::support::waiting::{now, until};
use crate::support::{http1, service};

const LIMITS: &str = "domain: d\ndescriptors:\n\
- {key: hour, rate_limit: {unit: hour, requests_per_unit: 1000}}\n\
- {key: second, rate_limit: {unit: second, requests_per_unit: 1000}}\n";

fn limits() -> tempfile::TempDir {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), LIMITS).unwrap();
    limits
}

/// Sends a check to the gRPC port as soon as it accepts a connection. Returns the result.
async fn first_check(grpc: SocketAddr) -> Result<Code, tonic::Status> {
    let descriptor = |key: &str| RateLimitDescriptor {
        entries: vec![Entry { key: key.to_owned(), value: "v".to_owned() }],
        ..RateLimitDescriptor::default()
    };
    let request = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: ["hour", "second"].map(descriptor).into(),
        hits_addend: 1,
    };
    let mut client = RateLimitServiceClient::connect(format!("http://{grpc}")).await.unwrap();
    client.should_rate_limit(request).await.map(|reply| reply.into_inner().overall_code())
}

/// Timeouts that a healthy store never reaches, not even on a busy machine.
const LONG_TIMEOUTS: [&str; 4] = ["--store-start-timeout", "120s", "--store-timeout", "20s"];

/// Starts `serve` some times with a healthy store, and asserts that the first check of each start
/// gets a decision.
fn assert_first_check_is_decided(starts: usize, flags: &[&str]) {
    let (limits, runtime) = (limits(), tokio::runtime::Runtime::new().unwrap());
    for start in 0..starts {
        let grpc = ports::free();
        let port = grpc.port().to_string();
        let flags = [flags, &["--listen-grpc-port", &port], &LONG_TIMEOUTS].concat();
        let flags: Vec<_> = flags.into_iter().map(str::to_owned).collect();
        std::thread::scope(|scope| {
            let service = scope.spawn(|| Service::start(limits.path(), &flags).unwrap());
            let connects = || TcpStream::connect(grpc).map(drop).map_err(|error| error.to_string());
            until("the gRPC port accepts", connects).unwrap();
            let code = runtime.block_on(first_check(grpc));
            let service = service.join().unwrap();
            assert_eq!(code.ok(), Some(Code::Ok), "start {start}: {}", service.log());
        });
    }
}

#[test]
fn first_check_after_each_start_is_decided_by_redis() {
    let (store, second) = (Redis::start(), Redis::start());
    assert_first_check_is_decided(20, &["--store-url", &store.url()]);
    let per_second = ["--compat-store-per-second-url", &second.url()];
    assert_first_check_is_decided(5, &[&["--store-url", &store.url()], &per_second[..]].concat());
}

#[test]
fn first_check_after_each_start_is_decided_by_a_cluster() {
    assert_first_check_is_decided(5, &["--store-url", &Cluster::start().url()]);
}

#[test]
fn first_check_after_each_start_is_decided_behind_sentinels() {
    let watched = Watched::start();
    assert_first_check_is_decided(5, &["--store-url", &watched.url("redis+sentinel://")]);
}

#[test]
fn start_waits_no_longer_than_the_start_timeout() {
    let (absent, limits) = (Redis::absent(), limits());
    let flags = ["--store-url", &absent.url(), "--store-start-timeout", "300ms"];
    let began = now();
    let service = Service::start(limits.path(), &flags.map(str::to_owned)).unwrap();
    assert!(Duration::from_millis(300) <= began.elapsed());
    let warnings =
        service.log().matches("did not answer within store.start_timeout (300ms)").count();
    assert_eq!(warnings, 1, "{}", service.log());
}

#[test]
fn waiting_process_is_alive_and_not_ready() {
    let (limits, http) = (limits(), ports::free());
    // A Redis that is stopped accepts connections and never answers.
    let redis = Process::redis(&[]);
    redis.signal("STOP");
    let mut command = service::sluicegate();
    command.args(["serve", "--listen-grpc-port", "0", "--listen-admin-port", "0"]);
    command.args(["--listen-metrics-port", "0", "--store-start-timeout", "1h"]);
    command.args(["--listen-http-port", &http.port().to_string()]);
    command.args(["--store-url", &format!("redis://{}", redis.address())]);
    command.arg("--limits-paths").arg(limits.path());
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut process = command.spawn().unwrap();
    let alive = || match http1::get(http, "/livez", &[]) {
        Ok(reply) if reply.status == 200 => Ok(()),
        reply => Err(format!("{reply:?}")),
    };
    until("the process is alive", alive).unwrap();
    let readiness = http1::get(http, "/readyz", &[]).unwrap();
    assert_eq!(
        (readiness.status, &*readiness.text()),
        (503, "not ready: the store is unavailable\n")
    );
    redis.signal("CONT");
    let ready = || match http1::get(http, "/readyz", &[]) {
        Ok(reply) if reply.status == 200 => Ok(()),
        reply => Err(format!("{reply:?}")),
    };
    let became_ready = until("the process is ready", ready);
    process.kill().unwrap();
    process.wait().unwrap();
    became_ready.unwrap();
}
