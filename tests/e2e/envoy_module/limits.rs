//! Tests of limits that a real Envoy enforces with a real Sluicegate.
//!
//! Guarantees:
//! - Expected counts are exact: one Envoy spends all hits that it borrows.
//!
//! Not covered:
//! - Several Envoys.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::envoy::{Envoy, Launch, Shipped, WhenDown, configured, replace_once};
use super::super::{ask, is_until_midnight, serve, upstream};
use super::{get, launch};
use crate::support::http1;
use crate::support::scheduling_delays::{Disturbed, retry_disturbed};
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, now, until};

/// The oldest and the newest supported version.
const VERSIONS: [&str; 2] = ["1.38", "1.40"];

/// A filter waits 100 ms for a borrow, 500 ms for a rule. A later resume proves nothing.
const LONGEST_STOP: Duration = Duration::from_millis(80);

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
        let envoy = Envoy::launch(patient_configuration(&service, when_down), 0, launch);
        let scene = Self { service, envoy, _limits: limits };
        scene.wait_until_connected();
        scene
    }

    /// Waits until Envoy decides a request without its failure rule.
    fn wait_until_connected(&self) {
        until("the connection to Sluicegate", || {
            let before = self.fallbacks();
            get(&self.envoy, "/", &[]);
            if self.fallbacks() == before { Ok(()) } else { Err(self.envoy.log()) }
        })
        .unwrap();
    }

    fn counter(&self, name: &str) -> u64 {
        self.envoy.counter(&format!("dynamicmodulescustom.{name}"))
    }

    fn fallbacks(&self) -> u64 {
        self.counter("fallback_allowed") + self.counter("fallback_denied")
    }

    /// Waits until `count` more requests than `before` wait for Sluicegate.
    fn wait_for_waits(&self, before: u64, count: u64) {
        until("waiting requests", || match self.counter("waits") - before {
            waits if waits < count => Err(format!("{waits}\n{}", self.envoy.log())),
            _ => Ok(()),
        })
        .unwrap();
    }

    fn stop_service(&self) -> Instant {
        self.service.signal("STOP");
        now()
    }

    /// Resumes Sluicegate. An attempt with a longer stop does not count.
    fn resume_service(&self, stopped_at: Instant) -> Result<(), Disturbed> {
        self.service.signal("CONT");
        match stopped_at.elapsed() {
            long if LONGEST_STOP < long => Err(Disturbed(format!("stopped for {long:?}"))),
            _ => Ok(()),
        }
    }
}

fn write_limit(limits: &tempfile::TempDir, requests: u64, fields: &str) {
    let text = format!(
        "domain: shop\ndescriptors:\n- key: api_key\n  \
         rate_limit: {{unit: day, requests_per_unit: {requests}, {fields}}}\n"
    );
    std::fs::write(limits.path().join("shop.yaml"), text).unwrap();
}

/// The shipped configuration, with a deadline for busy machines.
fn patient_configuration(service: &Service, when_down: WhenDown) -> String {
    let mut text = configured(Shipped::Module, upstream::start(), &[service.grpc], when_down);
    replace_once(&mut text, "deadline: 20ms", "deadline: 1s");
    text
}

fn launch_with_panic(version: &'static str, hook: &str) -> Launch {
    let mut launch = launch(version);
    launch.environment.push(("SLUICEGATE_PLANT_PANIC", hook.into()));
    launch
}

#[test]
fn envoy_denies_over_the_limit_with_headers_metadata_and_counters() {
    for version in VERSIONS {
        for fields in [LEASED, "mode: strict"] {
            check_denials(version, fields);
        }
    }
}

fn check_denials(version: &'static str, fields: &str) {
    for_a_day_with_a_minute_left();
    let scene = Scene::start(&launch(version), 20, fields, WhenDown::Deny);
    let earlier = scene.fallbacks() + scene.counter("allowed.rule.none");
    let ingress = scene.envoy.ingress;
    let replies: Vec<_> = (0..25).map(|_| ask(ingress, "ann")).collect();
    let (allowed, denied) = replies.split_at(20);
    for reply in allowed {
        assert_eq!((reply.status, reply.text().as_str()), (200, "upstream"), "{version} {fields}");
        assert_eq!(reply.header("ratelimit-policy"), Some("\"default\";q=20;w=86400"), "{reply:?}");
        assert_eq!(reply.header("retry-after"), None);
    }
    for reply in denied {
        assert_eq!((reply.status, reply.text().as_str()), (429, ""), "{version} {fields}");
        assert_eq!(reply.header("x-envoy-ratelimited"), Some("true"), "{reply:?}");
        let retry_after = reply.header("retry-after").and_then(|value| value.parse().ok());
        assert!(retry_after.is_some_and(is_until_midnight), "{reply:?}");
        assert_eq!(reply.header("ratelimit-policy"), Some("\"default\";q=20;w=86400"), "{reply:?}");
    }
    let rule = |verdict: &str| scene.counter(&format!("{verdict}.rule.shop.api_key"));
    assert_eq!((rule("allowed"), rule("denied")), (20, 5), "{version} {fields}");
    let lines = scene.envoy.access_log(25 + usize::try_from(earlier).unwrap());
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let with =
        |code: u16| lines.iter().rev().take(25).filter(move |line| line["response_code"] == code);
    assert!(with(200).all(|line| line["decision"].is_null() && line["denied_by"].is_null()));
    assert!(with(429).all(|line| line["decision"] == "deny"), "{lines:?}");
    assert!(with(429).all(|line| line["denied_by"] == "shop.api_key"), "{lines:?}");
    assert_eq!((with(200).count(), with(429).count()), (20, 5), "{version} {fields}");
}

#[test]
fn a_request_that_waits_for_its_first_borrow_is_answered() {
    for version in VERSIONS {
        let scene = Scene::start(&launch(version), 1_000, LEASED, WhenDown::Deny);
        let mut keys = ["ann", "bob", "eve"].iter();
        retry_disturbed(|| {
            let key = keys.next().unwrap();
            let before = scene.counter("waits");
            let stopped_at = scene.stop_service();
            let ingress = scene.envoy.ingress;
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| ask(ingress, key));
                scene.wait_for_waits(before, 1);
                let resumed = scene.resume_service(stopped_at);
                let reply = asked.join().unwrap();
                resumed?;
                assert_eq!(reply.status, 200, "{version}: {reply:?}\n{}", scene.envoy.log());
                assert!(reply.header("ratelimit-policy").is_some(), "no limit decided: {reply:?}");
                Ok(())
            })
        });
    }
}

#[test]
fn aborted_waiting_requests_leave_envoy_alive() {
    const ABORTED: u64 = 20;
    for version in VERSIONS {
        let mut scene = Scene::start(&launch(version), 1_000, LEASED, WhenDown::Deny);
        let mut attempt = 0;
        retry_disturbed(|| {
            attempt += 1;
            let (before, fallbacks) = (scene.counter("waits"), scene.fallbacks());
            let stopped_at = scene.stop_service();
            let clients: Vec<_> = (0..ABORTED)
                .map(|client| open(&scene.envoy, &format!("{attempt}-{client}")))
                .collect();
            scene.wait_for_waits(before, ABORTED);
            drop(clients);
            until("the end of the aborted requests", || {
                match scene.envoy.counter("http.ingress.downstream_rq_active") {
                    0 => Ok(()),
                    active => Err(active.to_string()),
                }
            })
            .unwrap();
            let ended_by_deadline = scene.fallbacks() - fallbacks;
            scene.service.signal("CONT");
            if ended_by_deadline == ABORTED {
                return Err(Disturbed(format!("all waits ended, {:?}", stopped_at.elapsed())));
            }
            Ok(())
        });
        scene.wait_until_connected();
        for request in 0..30 {
            assert_eq!(ask(scene.envoy.ingress, "later").status, 200, "{version} {request}");
        }
        assert_eq!(scene.counter("panics"), 0, "{version}");
        assert!(scene.envoy.stop().success(), "{version}: {}", scene.envoy.log());
    }
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
            let text = patient_configuration(&service, when_down);
            let mut envoy = Envoy::launch(text, 0, &launch_with_panic(version, "scheduled"));
            // The first request of each key waits, for the connection or for a borrow.
            for key in ["ann", "bob", "eve"] {
                assert_eq!(ask(envoy.ingress, key).status, status, "{version}: {}", envoy.log());
            }
            assert_eq!(get(&envoy, "/health", &[]), 200, "{version}: a route without limits");
            let counter = envoy.counter(&format!("dynamicmodulescustom.{counter}"));
            let panics = envoy.counter("dynamicmodulescustom.panics");
            assert_eq!((counter, panics), (3, 3), "{version}: {}", envoy.log());
            assert!(envoy.stop().success(), "{version}: {}", envoy.log());
        }
    }
}

#[test]
fn a_panic_after_a_denial_sends_no_second_response() {
    for version in VERSIONS {
        for when_down in [WhenDown::Allow, WhenDown::Deny] {
            let launch = launch_with_panic(version, "after_response");
            let mut scene = Scene::start(&launch, 3, LEASED, when_down);
            let statuses: Vec<u16> =
                (0..12).map(|_| ask(scene.envoy.ingress, "ann").status).collect();
            assert_eq!(statuses[..3], [200; 3], "{version}: {}", scene.envoy.log());
            assert_eq!(statuses[3..], [429; 9], "{version}: {}", scene.envoy.log());
            assert_eq!(get(&scene.envoy, "/health", &[]), 200, "{version}");
            let panics = scene.counter("panics");
            assert!(0 < panics, "{version}: no denial came without a wait");
            assert!(scene.envoy.stop().success(), "{version}: {}", scene.envoy.log());
        }
    }
}

#[test]
fn requests_on_one_connection_continue_after_denials() {
    let scene = Scene::start(&launch("1.40"), 2, LEASED, WhenDown::Deny);
    let mut connection = http1::Connection::open(scene.envoy.ingress).unwrap();
    let statuses: Vec<u16> =
        (0..6).map(|_| connection.get(&[("x-api-key", "ann")]).unwrap()).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429], "{}", scene.envoy.log());
}
