//! Tests that refusals of the upstream lower an adaptive limit: three replicas with one Redis, a
//! real Envoy with `ext_proc`, and an upstream that refuses at once.
//!
//! Guarantees:
//! - Refusals lower the fleet's limit and never raise it.
//! - The min RTT is that of served requests, although refusals are ten times faster.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use axum::http::StatusCode;
use tempfile::TempDir;

use super::envoy::{Envoy, Shipped, WhenDown, configured};
use super::in_flight::{HOOKS, limit_all_requests};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{Ends, until};

const CLIENTS: usize = 12;
const START: f64 = 12.0;
const LIMIT: &str = "limit: 12, mode: shared, max_duration: 1s, adaptive: {min: 3, max: 60}";

/// The duration of a served request.
const SERVED: Duration = Duration::from_millis(30);
/// The duration of a refusal.
const REFUSED: Duration = Duration::from_millis(3);

/// An upstream that serves `capacity` requests at once, and refuses all others.
#[derive(Debug, Default)]
struct Upstream {
    capacity: AtomicU32,
    in_flight: AtomicU32,
    served: AtomicU64,
    refused: AtomicU64,
}

impl Upstream {
    fn start() -> (SocketAddr, Arc<Self>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, upstream) = (listener.local_addr().unwrap(), Arc::<Self>::default());
        let serving = Arc::clone(&upstream);
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let app = axum::Router::new().fallback(move || {
                    let upstream = Arc::clone(&serving);
                    async move { upstream.answer().await }
                });
                axum::serve(listener, app).await.unwrap();
            });
        });
        (address, upstream)
    }

    async fn answer(&self) -> StatusCode {
        let before = self.in_flight.fetch_add(1, SeqCst);
        let (count, duration, status) = if before < self.capacity.load(SeqCst) {
            (&self.served, SERVED, StatusCode::OK)
        } else {
            (&self.refused, REFUSED, StatusCode::TOO_MANY_REQUESTS)
        };
        tokio::time::sleep(duration).await;
        self.in_flight.fetch_sub(1, SeqCst);
        count.fetch_add(1, SeqCst);
        status
    }
}

struct Fleet {
    _store: Redis,
    _limits: TempDir,
    services: [Service; 3],
}

impl Fleet {
    fn start() -> Self {
        let (store, limits) = (Redis::start(), tempfile::tempdir().unwrap());
        let text = format!("domain: edge\ndescriptors:\n{}", limit_all_requests(LIMIT));
        std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
        let url = format!("redis+unix://{}", store.socket().display());
        let services = ["a", "b", "c"].map(|name| {
            let flags = ["--store-url", &url, "--fleet-replica-name", name, "--hooks", HOOKS];
            let pace = ["--store-timeout", "9s", "--fleet-heartbeat", "200ms"];
            let flags = flags.iter().chain(&pace).map(|&flag| flag.to_owned());
            Service::start(limits.path(), &flags.collect::<Vec<_>>()).unwrap()
        });
        Self { _store: store, _limits: limits, services }
    }

    /// The values of a metric of the limit, one for each replica that has it.
    fn values(&self, metric: &str) -> Vec<f64> {
        let pages = self
            .services
            .iter()
            .map(|one| http1::get(one.metrics, "/metrics", &[]).unwrap().text());
        let prefix = format!("{metric}{{limit=\"edge.upstream_all\"}} ");
        pages
            .filter_map(|page| page.lines().find_map(|it| it.strip_prefix(&prefix)?.parse().ok()))
            .collect()
    }

    /// Returns the limit of the fleet, the smallest of three sums. A share that moves between two
    /// reads counts twice.
    fn limit(&self) -> f64 {
        let sums = (0..3).map(|_| self.values("sluicegate_concurrency_limit").iter().sum());
        sums.fold(f64::INFINITY, f64::min)
    }

    fn min_rtts(&self) -> Vec<f64> {
        self.values("sluicegate_concurrency_min_rtt_seconds")
    }
}

/// Runs `work` while clients send requests.
fn under_load(ingress: SocketAddr, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    let _reply = http1::get(ingress, "/", &[]);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        work();
    });
}

#[test]
fn refusals_lower_the_fleets_limit_and_are_not_measured() {
    let fleet = Fleet::start();
    let (address, upstream) = Upstream::start();
    let replicas = fleet.services.each_ref().map(|one| one.grpc);
    let text = configured(Shipped::ExtProc, address, &replicas, WhenDown::Deny);
    let envoy = Envoy::start_with(text, 3);
    under_load(envoy.ingress, || {
        until("a lower limit", || {
            let limit = fleet.limit();
            assert!(limit <= START, "refusals raised the limit to {limit}");
            let is_lower = limit <= START / 2.0 && 50 < upstream.refused.load(SeqCst);
            if is_lower { Ok(()) } else { Err(format!("{limit}, {upstream:?}")) }
        })
        .unwrap();
        assert!(fleet.min_rtts().is_empty(), "of nothing but refusals");

        upstream.capacity.store(4, SeqCst);
        until("a min RTT at each replica", || {
            let min_rtts = fleet.min_rtts();
            let served = upstream.served.load(SeqCst);
            if min_rtts.len() == 3 && 100 < served {
                Ok(())
            } else {
                Err(format!("{min_rtts:?}, {served}"))
            }
        })
        .unwrap();
        for min_rtt in fleet.min_rtts() {
            assert!(SERVED.as_secs_f64() <= min_rtt, "{min_rtt} is shorter than a served request");
        }
    });
}
