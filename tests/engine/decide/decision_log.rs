//! The log line of a check at level `debug`.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::Message as _;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::compat::wire::{Connection, SHOULD_RATE_LIMIT};
use crate::support::service::Service;
use crate::support::waiting::for_a_day_with_a_minute_left;

const LIMITS: &str = "domain: shop
descriptors:
- key: PATH
  value: /pay
  rate_limit: {name: pay, unit: day, requests_per_unit: 1}
- key: user
  rate_limit: {unit: day, requests_per_unit: 9}
- key: list
  rate_limits: [{unit: day, requests_per_unit: 9}, {unit: week, requests_per_unit: 1}]
- key: upstream
  concurrency: {limit: 1}
";

fn start(flags: &[&str]) -> (TempDir, Service) {
    for_a_day_with_a_minute_left();
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("shop.yaml"), LIMITS).unwrap();
    let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    let service = Service::start(limits.path(), &flags).unwrap();
    (limits, service)
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries =
        entries.iter().map(|&(key, value)| Entry { key: key.into(), value: value.into() });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

/// Sends checks over one gRPC connection. Each has a domain and descriptors of one entry.
fn send_checks(service: &Service, checks: &[(&str, &[(&str, &str)])]) {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let connection = Connection::to(service.grpc);
        for (domain, entries) in checks {
            let descriptors = entries.iter().map(|entry| descriptor(&[*entry])).collect();
            let request =
                RateLimitRequest { domain: (*domain).to_owned(), descriptors, hits_addend: 1 };
            connection.call(SHOULD_RATE_LIMIT, request.encode_to_vec()).await.unwrap();
        }
    });
}

/// The text of each line of level `debug`, without the time.
fn debug_lines(service: &Service) -> Vec<String> {
    let log = service.log();
    let lines = log.lines().filter_map(|line| line.split_once(" DEBUG "));
    lines.map(|(_, text)| text.to_owned()).collect()
}

#[test]
fn debug_logs_one_line_for_each_check() {
    let (_limits, service) = start(&["--telemetry-log-level", "debug"]);
    send_checks(
        &service,
        &[
            ("shop", &[("path", "/pay")]),
            ("shop", &[("PATH", "/pay?x=1"), ("user", "ann")]),
            ("shop", &[("PATH", "/pay")]),
            ("shop", &[("PATH", "/pay")]),
            ("Shop", &[("PATH", "/pay")]),
            ("shop", &[("list", "v")]),
            ("shop", &[("list", "v")]),
        ],
    );
    let line = |domain: &str, verdict: &str, descriptors: &str| {
        format!(
            r#"check decided domain="{domain}" verdict="{verdict}" descriptors="{descriptors}""#
        )
    };
    assert_eq!(
        debug_lines(&service),
        [
            line("shop", "allow", "path=/pay: no rule for `path=/pay`"),
            line(
                "shop",
                "allow",
                "PATH=/pay?x=1: no rule for `PATH=/pay?x=1`; user=ann: shop.user, within_limit"
            ),
            line("shop", "allow", "PATH=/pay: shop.PATH_/pay, within_limit"),
            line("shop", "deny", "PATH=/pay: shop.PATH_/pay, over_limit"),
            line("Shop", "allow", "PATH=/pay: no file has this domain"),
            line("shop", "allow", "list=v: shop.list.per-week, within_limit"),
            line("shop", "deny", "list=v: shop.list.per-week, over_limit"),
        ]
    );
}

#[test]
fn long_values_are_cut_at_64_bytes() {
    let (_limits, service) = start(&["--telemetry-log-level", "debug"]);
    // The 64th byte is within the second byte of the last `ä` that does not fit.
    let value = format!("x{}", "ä".repeat(100));
    send_checks(&service, &[("shop", &[("user", &value)])]);
    let shown = format!("user=x{}…: shop.user", "ä".repeat(31));
    let lines = debug_lines(&service);
    assert!(lines[0].contains(&shown), "{lines:?}");
}

#[test]
fn redacted_values_are_not_logged() {
    let redacted = ["--telemetry-descriptor-values", "hidden"];
    let (_limits, service) = start(&[&["--telemetry-log-level", "trace"][..], &redacted].concat());
    send_checks(&service, &[("shop", &[("user", "ann-secret"), ("x", "ann-secret")])]);
    let lines = debug_lines(&service);
    assert!(
        lines[0].contains("user=*: shop.user, within_limit; x=*: no rule for `x=*`"),
        "{lines:?}"
    );
    assert!(!service.log().contains("ann-secret"), "{}", service.log());
}

#[test]
fn rejection_by_a_concurrency_limit_is_logged() {
    let (_limits, service) = start(&["--telemetry-log-level", "debug"]);
    let acquire = |id: &str| {
        let descriptors = vec![descriptor(&[("upstream", "a"), ("sluicegate.acquire", id)])];
        RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 1 }.encode_to_vec()
    };
    Runtime::new().unwrap().block_on(async {
        let connection = Connection::to(service.grpc);
        for id in ["request-00000001", "request-00000002"] {
            connection.call(SHOULD_RATE_LIMIT, acquire(id)).await.unwrap();
        }
    });
    let lines = debug_lines(&service);
    let rejected = r#"verdict="deny" descriptors="upstream=a" rule="shop.upstream" reason="concurrency_limit_reached" in_flight=1 queued=0"#;
    assert!(lines.len() == 2 && lines[1].contains(rejected), "{lines:?}");
}

#[test]
fn a_check_that_is_refused_before_its_decision_is_logged() {
    let (_limits, service) = start(&["--telemetry-log-level", "debug"]);
    let long = "x".repeat(64 * 1024);
    let refused = |domain: &str, key: &str| {
        let descriptors = vec![descriptor(&[(key, "ann")])];
        RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 1 }.encode_to_vec()
    };
    Runtime::new().unwrap().block_on(async {
        let connection = Connection::to(service.grpc);
        for message in [refused("", "user"), refused("shop", &long)] {
            connection.call(SHOULD_RATE_LIMIT, message).await.unwrap_err();
        }
    });
    assert_eq!(
        debug_lines(&service),
        [
            r#"check failed domain="" error=the domain must not be empty"#,
            "check failed domain=\"shop\" error=descriptor 0: a key of 65536 bytes; it must have less than 65536",
        ]
    );
}
