//! Tests of limits that a real Envoy enforces with a real Sluicegate.
//!
//! Guarantees:
//! - Expected counts are exact: one Envoy spends all hits that it borrows.
//! - A test is repeated if a reply is later than the filter waits: 100 ms for a borrow.
//!
//! Not covered:
//! - Several Envoys.

use std::io::Write as _;
use std::net::TcpStream;

use serde_json::Value;

use super::super::envoy::{Envoy, Launch, Shipped, WhenDown, configured};
use super::super::{Midnight, ask, serve, upstream};
use super::{
    LateReply, counted_fallbacks, fallbacks, get, launch, repeat_until_decided, settle,
    wait_for_counts,
};
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

/// The oldest and the newest supported version.
const VERSIONS: [&str; 2] = ["1.38", "1.40"];

const LEASED: &str = "strategy: fixed_window, mode: leased, max_overshoot: 2";

pub(super) struct Scene {
    pub(super) service: Service,
    pub(super) envoy: Envoy,
    _limits: tempfile::TempDir,
}

impl Scene {
    /// An Envoy whose limit has this many requests a day for each `x-api-key`.
    fn start(launch: &Launch, requests: u64, fields: &str, when_down: WhenDown) -> Self {
        let limits = tempfile::tempdir().unwrap();
        write_limit(&limits, requests, fields);
        let service = serve(limits.path(), &[]);
        let envoy = Envoy::launch(configuration(&service, when_down), 0, launch);
        let scene = Self { service, envoy, _limits: limits };
        scene.wait_until_connected();
        scene
    }

    /// Waits until Envoy decides a request without its failure rule.
    fn wait_until_connected(&self) {
        until("the connection to Sluicegate", || {
            let before = fallbacks(&self.envoy);
            get(&self.envoy, "/", &[]);
            if fallbacks(&self.envoy) == before { Ok(()) } else { Err(self.envoy.log()) }
        })
        .unwrap();
    }

    /// Sends requests of one key. Returns their statuses if no failure rule decided.
    fn statuses(&self, key: &str, requests: usize) -> Result<Vec<u16>, LateReply> {
        let ingress = self.envoy.ingress;
        self.decided(|| (0..requests).map(|_| ask(ingress, key).status).collect())
    }

    /// Returns the result of requests if no failure rule decided one.
    fn decided<T>(&self, send: impl FnOnce() -> T) -> Result<T, LateReply> {
        let before = fallbacks(&self.envoy);
        let result = send();
        if fallbacks(&self.envoy) == before { Ok(result) } else { Err(LateReply) }
    }

    fn counter(&self, name: &str) -> u64 {
        self.envoy.counter(&format!("dynamicmodulescustom.{name}"))
    }

    /// Waits until `count` more requests than `before` wait for Sluicegate.
    fn wait_for_waits(&self, before: u64, count: u64) {
        until("waiting requests", || match self.counter("waits") - before {
            waits if waits < count => Err(format!("{waits}\n{}", self.envoy.log())),
            _ => Ok(()),
        })
        .unwrap();
    }
}

fn write_limit(limits: &tempfile::TempDir, requests: u64, fields: &str) {
    let text = format!(
        "domain: shop\ndescriptors:\n- key: api_key\n  \
         rate_limit: {{unit: day, requests_per_unit: {requests}, {fields}}}\n"
    );
    std::fs::write(limits.path().join("shop.yaml"), text).unwrap();
}

fn configuration(service: &Service, when_down: WhenDown) -> String {
    configured(Shipped::Module, upstream::start(), &[service.grpc], when_down)
}

fn launch_with_panic(version: &'static str, hook: &str) -> Launch {
    let mut launch = launch(version);
    launch.environment.push(("SLUICEGATE_PLANT_PANIC", hook.into()));
    launch
}

#[test]
fn a_ban_inside_envoy_has_the_status_of_its_penalty() {
    for version in VERSIONS {
        for fields in [LEASED, "mode: exact"] {
            repeat_until_decided(|| check_ban(version, fields));
        }
    }
}

fn check_ban(version: &'static str, fields: &str) -> Result<(), LateReply> {
    for_a_day_with_a_minute_left();
    let fields = format!("{fields}, penalty: {{after: 3, within: 1h, for: 1h, status: 451}}");
    let scene = Scene::start(&launch(version), 2, &fields, WhenDown::Deny);
    let wanted = [200, 200, 429, 429, 429, 451, 451];
    assert_eq!(scene.statuses("ann", wanted.len())?, wanted, "{version} {fields}");
    assert_eq!(scene.statuses("bob", 2)?, [200, 200], "{version} {fields}");
    Ok(())
}

#[test]
fn envoy_denies_over_the_limit_with_headers_metadata_and_counters() {
    for version in VERSIONS {
        for fields in [LEASED, "mode: exact"] {
            repeat_until_decided(|| check_denials(version, fields));
        }
    }
}

fn check_denials(version: &'static str, fields: &str) -> Result<(), LateReply> {
    for_a_day_with_a_minute_left();
    let midnight = Midnight::ahead();
    let scene = Scene::start(&launch(version), 20, fields, WhenDown::Deny);
    let ingress = scene.envoy.ingress;
    let replies: Vec<_> = scene.decided(|| (0..25).map(|_| ask(ingress, "ann")).collect())?;
    let (allowed, denied) = replies.split_at(20);
    for reply in allowed {
        assert_eq!((reply.status, reply.text().as_str()), (200, "upstream"), "{version} {fields}");
        assert_eq!(reply.header("ratelimit-policy"), Some("\"default\";q=20;w=86400"), "{reply:?}");
        assert_eq!(reply.header("retry-after"), None);
    }
    for reply in denied {
        assert_eq!((reply.status, reply.text().as_str()), (429, ""), "{version} {fields}");
        assert_eq!(reply.header("x-envoy-ratelimited"), Some("true"), "{reply:?}");
        assert!(midnight.is_retry_after(reply), "{reply:?}");
        assert_eq!(reply.header("ratelimit-policy"), Some("\"default\";q=20;w=86400"), "{reply:?}");
    }
    let rule = |verdict: &str| scene.counter(&format!("{verdict}.rule.shop.api_key"));
    assert_eq!((rule("allowed"), rule("denied")), (20, 5), "{version} {fields}");
    let others = counted_fallbacks(&scene.envoy) + scene.counter("allowed.rule.none");
    let lines = scene.envoy.access_log(25 + usize::try_from(others).unwrap());
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap());
    // Requests to `/login` only settle the counters.
    let lines: Vec<Value> = lines.filter(|line: &Value| line["path"] == "/").collect();
    let with =
        |code: u16| lines.iter().rev().take(25).filter(move |line| line["response_code"] == code);
    assert!(with(200).all(|line| line["decision"].is_null() && line["denied_by"].is_null()));
    assert!(with(429).all(|line| line["decision"] == "deny"), "{lines:?}");
    assert!(with(429).all(|line| line["denied_by"] == "shop.api_key"), "{lines:?}");
    assert_eq!((with(200).count(), with(429).count()), (20, 5), "{version} {fields}");
    Ok(())
}

/// The request waits while Sluicegate is stopped. An attempt counts if Sluicegate resumes before
/// the end of the wait.
#[test]
fn a_request_that_waits_for_its_first_borrow_is_answered() {
    for version in VERSIONS {
        let scene = Scene::start(&launch(version), 1_000, LEASED, WhenDown::Deny);
        let mut keys = 0..;
        repeat_until_decided(|| {
            scene.wait_until_connected();
            let key = format!("key-{}", keys.next().unwrap_or(0));
            let reply = scene.decided(|| ask_while_stopped(&scene, &key))?;
            assert_eq!(reply.status, 200, "{version}: {reply:?}\n{}", scene.envoy.log());
            assert!(reply.header("ratelimit-policy").is_some(), "no limit decided: {reply:?}");
            Ok(())
        });
    }
}

/// Sends a request while Sluicegate is stopped, until it waits.
fn ask_while_stopped(scene: &Scene, key: &str) -> http1::Reply {
    let before = scene.counter("waits");
    scene.service.signal("STOP");
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(scene.envoy.ingress, key));
        scene.wait_for_waits(before, 1);
        scene.service.signal("CONT");
        asked.join().unwrap()
    })
}

const ABORTED: u64 = 20;

/// Requests are aborted while they wait. An attempt counts if not all of their waits ended before.
#[test]
fn aborted_waiting_requests_leave_envoy_alive() {
    for version in VERSIONS {
        let mut scene = Scene::start(&launch(version), 1_000, LEASED, WhenDown::Deny);
        let mut attempts = 0..;
        repeat_until_decided(|| abort_requests(&scene, attempts.next().unwrap_or(0)));
        repeat_until_decided(|| {
            scene.wait_until_connected();
            assert_eq!(scene.statuses("later", 30)?, [200; 30], "{version}");
            Ok(())
        });
        assert_eq!(scene.counter("panics"), 0, "{version}");
        assert!(scene.envoy.stop().success(), "{version}: {}", scene.envoy.log());
    }
}

/// Aborts requests that wait because Sluicegate is stopped.
fn abort_requests(scene: &Scene, attempt: usize) -> Result<(), LateReply> {
    scene.wait_until_connected();
    let earlier = fallbacks(&scene.envoy);
    let before = scene.counter("waits");
    scene.service.signal("STOP");
    let clients: Vec<_> =
        (0..ABORTED).map(|client| open(&scene.envoy, &format!("{attempt}-{client}"))).collect();
    scene.wait_for_waits(before, ABORTED);
    drop(clients);
    until("the end of the aborted requests", || {
        match scene.envoy.counter("http.ingress.downstream_rq_active") {
            0 => Ok(()),
            active => Err(active.to_string()),
        }
    })
    .unwrap();
    scene.service.signal("CONT");
    let ended_by_deadline = fallbacks(&scene.envoy) - earlier;
    if ended_by_deadline < ABORTED { Ok(()) } else { Err(LateReply) }
}

/// Sends a request, and reads no response.
fn open(envoy: &Envoy, key: &str) -> TcpStream {
    let mut stream = TcpStream::connect(envoy.ingress).unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: edge\r\nx-api-key: {key}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

#[test]
fn a_panic_at_the_end_of_a_wait_applies_the_failure_rule() {
    for version in VERSIONS {
        for (when_down, status, counter) in
            [(WhenDown::Allow, 200, "fallback_allowed"), (WhenDown::Deny, 503, "fallback_denied")]
        {
            let limits = tempfile::tempdir().unwrap();
            write_limit(&limits, 1_000, LEASED);
            let service = serve(limits.path(), &[]);
            let text = configuration(&service, when_down);
            let mut envoy = Envoy::launch(text, 0, &launch_with_panic(version, "scheduled"));
            // The first request of each key waits, for the connection or for a borrow.
            for key in ["ann", "bob", "eve"] {
                assert_eq!(ask(envoy.ingress, key).status, status, "{version}: {}", envoy.log());
            }
            assert_eq!(get(&envoy, "/health", &[]), 200, "{version}: a route without limits");
            wait_for_counts(&envoy, [(counter, 3), ("panics", 3)]);
            assert!(envoy.stop().success(), "{version}: {}", envoy.log());
        }
    }
}

#[test]
fn a_panic_after_a_denial_sends_no_second_response() {
    for version in VERSIONS {
        for when_down in [WhenDown::Allow, WhenDown::Deny] {
            let launch = launch_with_panic(version, "after_response");
            repeat_until_decided(|| {
                for_a_day_with_a_minute_left();
                let mut scene = Scene::start(&launch, 3, LEASED, when_down);
                let statuses = scene.statuses("ann", 12)?;
                assert_eq!(statuses[..3], [200; 3], "{version}: {}", scene.envoy.log());
                assert_eq!(statuses[3..], [429; 9], "{version}: {}", scene.envoy.log());
                assert_eq!(get(&scene.envoy, "/health", &[]), 200, "{version}");
                let panics = scene.counter("panics");
                assert!(0 < panics, "{version}: no denial came without a wait");
                assert!(scene.envoy.stop().success(), "{version}: {}", scene.envoy.log());
                Ok(())
            });
        }
    }
}

#[test]
fn requests_on_one_connection_continue_after_denials() {
    let scene = Scene::start(&launch("1.40"), 2, LEASED, WhenDown::Deny);
    let mut keys = 0..;
    repeat_until_decided(|| {
        for_a_day_with_a_minute_left();
        let key = format!("key-{}", keys.next().unwrap_or(0));
        let mut connection = http1::Connection::open(scene.envoy.ingress).unwrap();
        let statuses: Vec<u16> = scene.decided(|| {
            (0..6).map(|_| connection.get(&[("x-api-key", &key)]).unwrap()).collect()
        })?;
        assert_eq!(statuses, [200, 200, 429, 429, 429, 429], "{}", scene.envoy.log());
        Ok(())
    });
}

/// A module that keeps these values needs 455 MiB. Two connections send them at once.
#[test]
fn three_thousand_values_of_50_kb_are_limited_in_little_memory() {
    const MEBIBYTE: u64 = 1 << 20;
    for_a_day_with_a_minute_left();
    let scene = Scene::start(&launch("1.40"), 2, LEASED, WhenDown::Deny);
    let before = scene.envoy.memory_bytes();
    std::thread::scope(|scope| {
        for numbers in [0..1_500, 1_500..3_000] {
            scope.spawn(|| send_long_values(&scene, numbers));
        }
    });
    let grown = scene.envoy.memory_bytes().saturating_sub(before);
    assert!(grown < 96 * MEBIBYTE, "{} MiB", grown / MEBIBYTE);
    settle(&scene.envoy);
    assert_eq!(scene.counter("memory_refused"), 0);
}

/// Sends a request with each value. Some values get more requests, until one is denied.
fn send_long_values(scene: &Scene, numbers: std::ops::Range<u32>) {
    let mut connection = http1::Connection::open(scene.envoy.ingress).unwrap();
    for number in numbers {
        let value = format!("{}{number}", "x".repeat(50_000));
        let mut get = || connection.get(&[("x-api-key", &value)]).unwrap();
        assert_ne!(get(), 429, "{number}");
        if number.is_multiple_of(100) {
            // A late reply applies the failure rule, and spends no hit.
            until("a denial", || match get() {
                429 => Ok(()),
                status => Err(format!("{status}")),
            })
            .unwrap();
        }
    }
}
