//! A client, a real Envoy with the shipped configuration, the real binary, and an upstream.
//!
//! Nothing here looks inside: what is held is what the client sees, and that the process ends as it should.

mod auth_request;
mod chaos;
mod compose;
mod cut_short;
mod endings;
mod envoy;
mod ext_authz;
mod fleet;
mod in_flight;
mod in_nginx;
mod leaving;
mod measured;
mod nginx;
mod nginx_endings;
mod observed;
mod rollout;
mod routes;
mod upstream;
mod visits;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use envoy::{Envoy, WhenDown};
use tempfile::TempDir;

use crate::http1::{self, Reply};
use crate::service::Service;
use crate::support::watchers::{Spoiled, Watchers, undisturbed};
use crate::waiting::{Ends, for_a_day_with_a_minute_left, now, unix_seconds, until};

/// Limits of the domain that the shipped Envoy configuration asks about: so many a day for each API key.
struct Limits(TempDir);

impl Limits {
    fn per_key(requests: u64) -> Self {
        let limits = Self(tempfile::tempdir().unwrap());
        limits.become_per_key(requests);
        limits
    }

    /// Replaces the file as an editor does: a new one moved over the old.
    fn become_per_key(&self, requests: u64) {
        let text = format!(
            "domain: shop\ndescriptors:\n- key: api_key\n  \
             rate_limit: {{unit: day, requests_per_unit: {requests}, name: per-key}}\n"
        );
        let prepared = self.0.path().join(".prepared");
        std::fs::write(&prepared, text).unwrap();
        std::fs::rename(prepared, self.path().join("shop.yaml")).unwrap();
    }

    /// So many a day for each value of this key.
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
fn envoy_admits_exactly_the_limit_and_answers_429_from_then_on() {
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
fn clients_at_once_are_admitted_exactly_the_limit_between_them() {
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
fn the_ratelimit_headers_reach_the_client() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per_key(2);
    let service = serve(limits.path(), &["--response-headers", "draft", "--retry-after", "true"]);
    let envoy = Envoy::start(upstream::start(), &[service.grpc], WhenDown::Deny);
    for left in [1, 0] {
        let admitted = ask(envoy.ingress, "k");
        assert_eq!((admitted.status, admitted.header("retry-after")), (200, None));
        assert_headers(&admitted, left);
    }
    let denied = ask(envoy.ingress, "k");
    assert_eq!(denied.status, 429);
    assert_headers(&denied, 0);
    let retry_after = denied.header("retry-after").and_then(|value| value.parse().ok());
    assert!(retry_after.is_some_and(is_until_midnight), "{denied:?}");
}

/// The policy's quota and window, and what is left of it until midnight UTC, when a day of the base language ends.
fn assert_headers(reply: &Reply, left: u64) {
    assert_eq!(reply.header("ratelimit-policy"), Some("\"per-key\";q=2;w=86400"), "{reply:?}");
    let limit = reply.header("ratelimit").unwrap_or_else(|| panic!("{reply:?}"));
    let parts: Vec<&str> = limit.split(';').collect();
    assert_eq!(parts[..2], ["\"per-key\"", &format!("r={left}")], "{limit}");
    let reset: u64 = parts[2].strip_prefix("t=").unwrap().parse().unwrap();
    assert!(is_until_midnight(reset), "{limit}");
}

/// The answer is older than this question, but not by much.
fn is_until_midnight(seconds: u64) -> bool {
    let now = 86_400 - unix_seconds() % 86_400;
    (now..=now + 5).contains(&seconds)
}

#[test]
fn requests_pass_without_a_service_unless_envoy_is_told_to_deny_them() {
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

/// Clients that go on until they are told to stop, and what they were answered.
struct Traffic {
    stop: AtomicBool,
    admitted: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    /// From when those were asked to when they failed.
    failures: Mutex<Vec<(Instant, Instant)>>,
}

impl Traffic {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            stop: false.into(),
            admitted: zero(),
            denied: zero(),
            failed: zero(),
            failures: Mutex::default(),
        }
    }

    /// Sends until stopped.
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
        }
    }

    /// Runs this beside three clients of one key, none of which may fail.
    ///
    /// Spoiled where Envoy gave up as too late every question that failed, and for most of the time that it gives an answer
    /// the machine ran nobody while each of them was asked.
    fn beside(&self, envoy: &Envoy, key: &str, work: impl FnOnce()) -> Result<(), Spoiled> {
        /// Of the filter's 250 ms.
        const MOST: Duration = Duration::from_millis(150);
        let watchers = Watchers::start();
        std::thread::scope(|scope| {
            // Also when the work fails: else the clients would go on, and the test never end.
            let _ends = Ends(&self.stop);
            for _ in 0..3 {
                scope.spawn(|| self.run(envoy.ingress, key));
            }
            work();
        });
        let (pauses, too_late) = (watchers.stop(), envoy.gave_up());
        let failed = self.failed.load(Ordering::Relaxed);
        let failures = self.failures.lock().unwrap();
        let late = failures.iter().map(|&time| pauses.longest(time)).min().unwrap_or_default();
        let why = format!("{failed} failed, {too_late} as too late; watchers were {late:?} late");
        if 0 < failed && failed <= too_late && MOST <= late {
            return Err(Spoiled(why));
        }
        assert_eq!(failed, 0, "{why}");
        Ok(())
    }

    /// Waits until this count has grown by so many.
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
fn a_new_limit_is_in_force_after_a_reload_and_no_request_fails_meanwhile() {
    undisturbed(|| {
        for_a_day_with_a_minute_left();
        let limits = Limits::per_key(1_000_000);
        let service = serve(limits.path(), &[]);
        let envoy = Envoy::start(upstream::start(), &[service.grpc], WhenDown::Deny);
        let traffic = Traffic::new();
        traffic.beside(&envoy, "busy", || {
            Traffic::wait_for(&traffic.admitted, 100);
            assert_eq!(traffic.denied.load(Ordering::Relaxed), 0);
            limits.become_per_key(5);
            Traffic::wait_for(&traffic.denied, 100);
            assert_eq!(statuses(envoy.ingress, "fresh", 8), [(200, 5), (429, 3)].into());
            limits.become_per_key(1_000_000);
            Traffic::wait_for(&traffic.admitted, 100);
        })?;
        let loads = service.loads().unwrap();
        assert_eq!((loads.loaded, loads.refused), (3, 0));
        Ok(())
    });
}

#[test]
fn a_replica_that_is_told_to_go_takes_no_request_with_it() {
    let limits = Limits::per_key(1_000_000);
    undisturbed(|| {
        let flags = ["--drain-delay", "1500ms"];
        let mut leaving = serve(limits.path(), &flags);
        let staying = serve(limits.path(), &flags);
        let replicas = [leaving.grpc, staying.grpc];
        // A question that nobody answered shows as a 500 only where Envoy denies then.
        let envoy = Envoy::start(upstream::start(), &replicas, WhenDown::Deny);
        let traffic = Traffic::new();
        traffic.beside(&envoy, "busy", || {
            for replica in replicas {
                let asked = || match envoy.asked(replica) {
                    few @ 0..100 => Err(few.to_string()),
                    _ => Ok(()),
                };
                until("traffic to both replicas", asked).unwrap();
            }
            leaving.terminate();
            let status = leaving.ended().unwrap();
            assert_eq!(status.code(), Some(0), "{status}\n{}", leaving.log());
            Traffic::wait_for(&traffic.admitted, 500);
        })?;
        assert_eq!(traffic.denied.load(Ordering::Relaxed), 0);
        Ok(())
    });
}

#[test]
fn the_shipped_limits_answer_what_the_shipped_envoy_asks() {
    let shipped = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config/limits"));
    let service = serve(shipped, &["--response-headers", "draft"]);
    let loads = service.loads().unwrap();
    assert_eq!((loads.loaded, loads.refused), (1, 0), "{}", loads.last_error);
    let envoy = Envoy::start(upstream::start(), &[service.grpc], WhenDown::Deny);
    let reply = ask(envoy.ingress, "anybody");
    assert_eq!(reply.status, 200);
    assert!(reply.header("ratelimit-policy").is_some(), "no limit applied: {reply:?}");
}
