//! End-to-end tests of the real binary behind a real Envoy or NGINX with the shipped configuration.

mod access_log;
mod auth_request;
mod budgets;
mod compose;
mod console;
mod denied_by;
mod envoy;
mod envoy_disconnects;
mod envoy_module;
mod envoy_releases;
mod ext_authz;
mod fleet;
mod in_flight;
mod latency;
mod llm_tokens;
mod nginx;
mod nginx_disconnects;
mod nginx_in_flight;
mod nginx_releases;
mod overload;
mod release_time;
mod rollout;
mod routes;
mod stepwise_upstream;
mod truncated_responses;
mod upstream;
mod upstream_refusals;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use envoy::{Envoy, Shipped, WhenDown, as_shipped};
use tempfile::TempDir;

use crate::support::http1::{self, Reply};
use crate::support::service::Service;
use crate::support::waiting::{Ends, for_a_day_with_a_minute_left, now, unix_seconds, until};

/// A limits file for the domain of the shipped configurations: hits per day for each API key.
struct Limits(TempDir);

impl Limits {
    fn per_key(requests: u64) -> Self {
        let limits = Self(tempfile::tempdir().unwrap());
        limits.replace_per_key(requests);
        limits
    }

    /// Replaces the file by an atomic rename, as editors do.
    fn replace_per_key(&self, requests: u64) {
        let text = format!(
            "domain: shop\ndescriptors:\n- key: api_key\n  \
             rate_limit: {{unit: day, requests_per_unit: {requests}, name: per-key}}\n"
        );
        let prepared = self.0.path().join(".prepared");
        std::fs::write(&prepared, text).unwrap();
        std::fs::rename(prepared, self.path().join("shop.yaml")).unwrap();
    }

    /// A limits file with hits per day for each value of `key`.
    fn per(key: &str, requests: u64) -> Self {
        let limits = Self(tempfile::tempdir().unwrap());
        let text = format!(
            "domain: shop\ndescriptors:\n- key: {key}\n  \
             rate_limit: {{unit: day, requests_per_unit: {requests}}}\n"
        );
        std::fs::write(limits.path().join("shop.yaml"), text).unwrap();
        limits
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

fn serve(limits: &Path, flags: &[&str]) -> Service {
    let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    Service::start(limits, &flags).unwrap()
}

fn ask(ingress: SocketAddr, key: &str) -> Reply {
    http1::get(ingress, "/", &[("x-api-key", key)]).unwrap()
}

fn statuses(ingress: SocketAddr, key: &str, requests: usize) -> BTreeMap<u16, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..requests {
        *counts.entry(ask(ingress, key).status).or_default() += 1;
    }
    counts
}

#[test]
fn requests_over_the_limit_get_429() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per_key(7);
    let service = serve(limits.path(), &[]);
    let envoy = Envoy::start(upstream::start(), &[service.grpc], WhenDown::Deny);
    for request in 1..=20 {
        let reply = ask(envoy.ingress, "one");
        let expected = if request <= 7 { 200 } else { 429 };
        assert_eq!(reply.status, expected, "request {request}: {reply:?}\n{}", envoy.log());
    }
    assert_eq!(
        ask(envoy.ingress, "one").text(),
        "",
        "a denied request must not reach the upstream"
    );
    assert_eq!(ask(envoy.ingress, "another").text(), "upstream");
}

#[test]
fn concurrent_clients_share_the_exact_limit() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per_key(50);
    let service = serve(limits.path(), &[]);
    let envoy = Envoy::start(upstream::start(), &[service.grpc], WhenDown::Deny);
    let mut all: BTreeMap<u16, usize> = BTreeMap::new();
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..8).map(|_| scope.spawn(|| statuses(envoy.ingress, "shared", 20))).collect();
        for (status, count) in clients.into_iter().flat_map(|client| client.join().unwrap()) {
            *all.entry(status).or_default() += count;
        }
    });
    assert_eq!(all, [(200, 50), (429, 110)].into());
}

#[test]
fn ratelimit_headers_reach_the_client() {
    for_a_day_with_a_minute_left();
    let midnight = Midnight::ahead();
    let limits = Limits::per_key(2);
    let service =
        serve(limits.path(), &["--answers-headers", "draft", "--answers-retry-after", "true"]);
    let envoy = Envoy::start(upstream::start(), &[service.grpc], WhenDown::Deny);
    for left in [1, 0] {
        let admitted = ask(envoy.ingress, "k");
        assert_eq!((admitted.status, admitted.header("retry-after")), (200, None));
        assert_headers(&admitted, left, midnight);
    }
    let denied = ask(envoy.ingress, "k");
    assert_eq!(denied.status, 429);
    assert_headers(&denied, 0, midnight);
    assert!(midnight.is_retry_after(&denied), "{denied:?}");
}

/// Asserts quota, window, remaining hits (`left`) and reset time in the response headers. Day
/// windows end at midnight UTC.
fn assert_headers(reply: &Reply, left: u64, midnight: Midnight) {
    assert_eq!(reply.header("ratelimit-policy"), Some("\"per-key\";q=2;w=86400"), "{reply:?}");
    let limit = reply.header("ratelimit").unwrap_or_else(|| panic!("{reply:?}"));
    let parts: Vec<&str> = limit.split(';').collect();
    assert_eq!(parts[..2], ["\"per-key\"", &format!("r={left}")], "{limit}");
    let reset: u64 = parts[2].strip_prefix("t=").unwrap().parse().unwrap();
    assert!(midnight.is_in(reset), "{limit}");
}

/// The next midnight UTC.
#[derive(Clone, Copy)]
struct Midnight {
    /// Seconds until midnight before the first request.
    most: u64,
}

impl Midnight {
    /// Returns the next midnight. To be called before the first request.
    fn ahead() -> Self {
        Self { most: Self::seconds_left() }
    }

    fn seconds_left() -> u64 {
        86_400 - unix_seconds() % 86_400
    }

    /// Returns `true` if midnight was in `seconds` at some time since [`Midnight::ahead`]. The
    /// clocks of two processes may differ at the boundary of a second.
    fn is_in(self, seconds: u64) -> bool {
        (Self::seconds_left()..=self.most + 1).contains(&seconds)
    }

    fn is_retry_after(self, reply: &Reply) -> bool {
        let seconds = reply.header("retry-after").and_then(|value| value.parse().ok());
        seconds.is_some_and(|seconds| self.is_in(seconds))
    }
}

#[test]
fn failure_mode_applies_without_a_service() {
    let limits = Limits::per_key(0);
    let upstream = upstream::start();
    for (when_down, expected) in [(WhenDown::Allow, 200), (WhenDown::Deny, 500)] {
        let service = serve(limits.path(), &[]);
        let envoy = Envoy::start(upstream, &[service.grpc], when_down);
        assert_eq!(ask(envoy.ingress, "k").status, 429);
        drop(service);
        assert_eq!(statuses(envoy.ingress, "k", 10), [(expected, 10)].into(), "{}", envoy.log());
    }
}

/// Clients that send until stopped, and the counts of their responses.
struct Traffic {
    stop: AtomicBool,
    admitted: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    /// Start and end of each failed request.
    failures: Mutex<Vec<(Instant, Instant)>>,
    /// The time between two requests of a client.
    pause: Duration,
}

impl Traffic {
    fn new() -> Self {
        Self::with_pauses(Duration::ZERO)
    }

    fn with_pauses(pause: Duration) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            stop: false.into(),
            admitted: zero(),
            denied: zero(),
            failed: zero(),
            failures: Mutex::default(),
            pause,
        }
    }

    fn run(&self, ingress: SocketAddr, key: &str) {
        while !self.stop.load(Ordering::Relaxed) {
            let asked = now();
            let status = http1::get(ingress, "/", &[("x-api-key", key)]).map(|reply| reply.status);
            let count = match status {
                Ok(200) => &self.admitted,
                Ok(429) => &self.denied,
                _ => {
                    self.failures.lock().unwrap().push((asked, now()));
                    &self.failed
                }
            };
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(self.pause);
        }
    }

    /// Runs `work` while three clients send requests, and requires that none fails.
    fn run_during(&self, envoy: &Envoy, key: &str, work: impl FnOnce()) {
        std::thread::scope(|scope| {
            // Stops the clients even if `work` panics.
            let _ends = Ends(&self.stop);
            for _ in 0..3 {
                scope.spawn(|| self.run(envoy.ingress, key));
            }
            work();
        });
        let failed = self.failed.load(Ordering::Relaxed);
        assert_eq!(failed, 0, "{} checks timed out\n{}", envoy.timeouts(), envoy.log());
    }

    fn wait_for(count: &AtomicU64, more: u64) {
        let before = count.load(Ordering::Relaxed);
        until("traffic", || {
            let now = count.load(Ordering::Relaxed);
            if before + more <= now { Ok(()) } else { Err(format!("{before} then {now}")) }
        })
        .unwrap();
    }
}

#[test]
fn reload_applies_a_new_limit_without_failures() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per_key(1_000_000);
    let service = serve(limits.path(), &[]);
    let envoy = Envoy::start(upstream::start(), &[service.grpc], WhenDown::Deny);
    let traffic = Traffic::new();
    traffic.run_during(&envoy, "busy", || {
        Traffic::wait_for(&traffic.admitted, 100);
        assert_eq!(traffic.denied.load(Ordering::Relaxed), 0);
        limits.replace_per_key(5);
        Traffic::wait_for(&traffic.denied, 100);
        assert_eq!(statuses(envoy.ingress, "fresh", 8), [(200, 5), (429, 3)].into());
        limits.replace_per_key(1_000_000);
        Traffic::wait_for(&traffic.admitted, 100);
    });
    let loads = service.loads().unwrap();
    assert_eq!((loads.loaded, loads.refused), (3, 0));
}

/// The drain delay is six health checks of Envoy, so that a late one fails no request.
#[test]
fn replica_shutdown_fails_no_request() {
    let limits = Limits::per_key(1_000_000);
    let flags = ["--listen-drain-delay", "3s"];
    let mut leaving = serve(limits.path(), &flags);
    let staying = serve(limits.path(), &flags);
    let replicas = [leaving.grpc, staying.grpc];
    // Denies when no replica answers, because only then an unanswered check is visible, as a 500.
    let envoy = Envoy::start(upstream::start(), &replicas, WhenDown::Deny);
    let traffic = Traffic::new();
    traffic.run_during(&envoy, "busy", || {
        for replica in replicas {
            let asked = || match envoy.checks_sent_to(replica) {
                few @ 0..100 => Err(few.to_string()),
                _ => Ok(()),
            };
            until("traffic to both replicas", asked).unwrap();
        }
        leaving.terminate();
        let status = leaving.ended().unwrap();
        assert_eq!(status.code(), Some(0), "{status}\n{}", leaving.log());
        Traffic::wait_for(&traffic.admitted, 500);
    });
    assert_eq!(traffic.denied.load(Ordering::Relaxed), 0);
}

/// The shipped timeouts are for a machine that answers in time, so the first answer counts.
#[test]
fn shipped_limits_match_shipped_envoy_configuration() {
    let shipped = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/limits"));
    let service = serve(shipped, &["--answers-headers", "draft"]);
    let loads = service.loads().unwrap();
    assert_eq!((loads.loaded, loads.refused), (1, 0), "{}", loads.last_error);
    let replicas = [service.grpc];
    let text = as_shipped(Shipped::Rls, upstream::start(), &replicas, WhenDown::Deny);
    let envoy = Envoy::start_with(text, 1);
    until("an answer within the shipped timeout", || match ask(envoy.ingress, "anybody") {
        reply if reply.status == 200 && reply.header("ratelimit-policy").is_some() => Ok(()),
        reply => Err(format!("no limit applied: {reply:?}")),
    })
    .unwrap();
}
