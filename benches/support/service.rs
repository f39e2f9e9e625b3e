//! Runs the service in its own process, sends checks over gRPC, and measures its CPU per decision.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

pub(crate) const CONNECTIONS: usize = 4;
pub(crate) const IN_FLIGHT: usize = 32;

pub(crate) const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  \
                          rate_limit: {requests_per_unit: 4000000000, unit: day}\n";

/// Arguments of `sluicegate` except its limits: free ports, counters in memory.
pub(crate) const ARGUMENTS: [&str; 8] = [
    "serve",
    "--listen-grpc-port=0",
    "--listen-http-port=0",
    "--listen-admin-port=0",
    "--listen-metrics-port=0",
    "--listen-peer-port=0",
    "--listen-host=127.0.0.1",
    "--telemetry-log-level=warn",
];

pub(crate) type RateLimitClient = RateLimitServiceClient<tonic::transport::Channel>;

/// A server process and its gRPC address.
pub(crate) struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts the process with two worker threads. Returns after it printed `ready`.
    pub(crate) fn start(command: &mut Command) -> Self {
        command.env("TOKIO_WORKER_THREADS", "2").stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
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

    #[allow(dead_code, reason = "who looks at it from outside asks")]
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// A client over a connection of its own.
    #[allow(dead_code, reason = "not every bench needs it")]
    pub(crate) async fn client(&self) -> RateLimitClient {
        RateLimitServiceClient::connect(format!("http://{}", self.address)).await.unwrap()
    }

    /// The URL of its gRPC port.
    #[allow(dead_code, reason = "not every bench needs it")]
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// CPU time of its live threads, in nanoseconds.
    pub(crate) fn on_processors(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        tasks.map(|task| on_processor(&task.unwrap().path().join("schedstat"))).sum()
    }

    /// CPU nanoseconds per decision, for `calls` checks over [`CONNECTIONS`] connections with
    /// [`IN_FLIGHT`] checks on each.
    #[allow(dead_code, reason = "not every bench needs it")]
    pub(crate) async fn cpu_per_call(&self, calls: u64) -> f64 {
        self.cpu_per_call_over(1, calls).await
    }

    /// [`Server::cpu_per_call`] with checks of `keys` clients.
    pub(crate) async fn cpu_per_call_over(&self, keys: u64, calls: u64) -> f64 {
        self.cpu_per_call_under(Load::usual(keys), calls).await
    }

    /// CPU nanoseconds per decision for `calls` checks. They use the connections in turns.
    pub(crate) async fn cpu_per_call_under(&self, load: Load, calls: u64) -> f64 {
        let mut clients = Vec::new();
        for _ in 0..load.connections {
            let address = format!("http://{}", self.address);
            clients.push(RateLimitServiceClient::connect(address).await.unwrap());
        }
        let (clients, left) = (Arc::new(clients), Arc::new(AtomicU64::new(calls)));
        let before = self.on_processors();
        let worker = |_| tokio::spawn(ask(Arc::clone(&clients), load, Arc::clone(&left)));
        let tasks: Vec<_> = (0..load.in_flight).map(worker).collect();
        for task in tasks {
            task.await.unwrap();
        }
        (self.on_processors() - before) as f64 / calls as f64
    }
}

/// The load of a measurement.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    /// The checks in flight on all connections.
    pub(crate) in_flight: usize,
    pub(crate) keys: u64,
    /// The descriptors of each check, each with another key.
    pub(crate) descriptors: u64,
}

impl Load {
    /// Checks with one descriptor, [`IN_FLIGHT`] on each of [`CONNECTIONS`].
    pub(crate) const fn usual(keys: u64) -> Self {
        Self { connections: CONNECTIONS, in_flight: CONNECTIONS * IN_FLIGHT, keys, descriptors: 1 }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// CPU time in nanoseconds, from a `schedstat` file.
pub(crate) fn on_processor(schedstat: &std::path::Path) -> u64 {
    let text = std::fs::read_to_string(schedstat).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

pub(crate) fn tokio(threads: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .unwrap()
}

async fn ask(clients: Arc<Vec<RateLimitClient>>, load: Load, left: Arc<AtomicU64>) {
    while let Ok(number) = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
        let clients_of_check = number..number + load.descriptors;
        let check =
            check_of(clients_of_check.map(|client| descriptor(client % load.keys)).collect());
        let index = usize::try_from(number).unwrap() % clients.len();
        let mut client = clients[index].clone();
        let answer = client.should_rate_limit(check).await.unwrap().into_inner();
        assert_eq!(answer.overall_code, Code::Ok as i32);
    }
}

/// A check with this many descriptors, each for another client.
#[allow(dead_code, reason = "not every bench needs it")]
pub(crate) fn question(descriptors: u64) -> RateLimitRequest {
    check_of((0..descriptors).map(descriptor).collect())
}

/// A check of one entry.
#[allow(dead_code, reason = "not every bench needs it")]
pub(crate) fn check_of_entry(key: &str, value: &str) -> RateLimitRequest {
    check_of(vec![descriptor_of(Entry { key: key.into(), value: value.into() })])
}

fn descriptor(client: u64) -> RateLimitDescriptor {
    descriptor_of(Entry { key: "api_key".into(), value: format!("client-{client:04}") })
}

fn descriptor_of(entry: Entry) -> RateLimitDescriptor {
    RateLimitDescriptor { entries: vec![entry], ..Default::default() }
}

fn check_of(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 1 }
}
