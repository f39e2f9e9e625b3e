//! Tests of `sluicegate serve` with limits from an xDS server.
//!
//! Not covered:
//! - The protocol itself, which `tests/drop_in/xds.rs` tests.

use sluicegate::source::xds::message::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};

use crate::support::http1;
use crate::support::service::{Service, sluicegate};
use crate::support::waiting::until;
use crate::support::xds::Xds;

const STALE: &str = "sluicegate_config_stale";
const REJECTED: &str = "sluicegate_config_loads_total{outcome=\"rejected\"}";

fn limits(requests_per_unit: u32) -> RateLimitConfig {
    let unit = RateLimitUnit::Day.into();
    let rate_limit =
        Some(RateLimitPolicy { requests_per_unit, unit, ..RateLimitPolicy::default() });
    let descriptor =
        RateLimitDescriptor { key: "k".to_owned(), rate_limit, ..RateLimitDescriptor::default() };
    RateLimitConfig {
        name: "resource d".to_owned(),
        domain: "d".to_owned(),
        descriptors: vec![descriptor],
    }
}

/// Starts `serve`, which does not wait for the first limits.
fn start(server: &str, more: &[&str]) -> Service {
    let mut command = sluicegate();
    command.args(["serve", "--limits-xds-server", server, "--limits-required-at-start=false"]);
    for port in ["grpc", "http", "admin", "metrics"] {
        command.args([&format!("--listen-{port}-port"), "0"]);
    }
    command.args(more);
    Service::run(command, None).unwrap()
}

fn metric(service: &Service, name: &str) -> u64 {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {page}"))
}

fn wait_for_metric(service: &Service, name: &str, wanted: u64) {
    until(name, || match metric(service, name) {
        value if value == wanted => Ok(()),
        value => Err(value.to_string()),
    })
    .unwrap();
}

fn wait_for_rules(service: &Service, wanted: &str) {
    until("these limits", || match http1::get(service.admin, "/rlconfig", &[]).unwrap().text() {
        rules if rules.starts_with(wanted) && rules.is_empty() == wanted.is_empty() => Ok(()),
        rules => Err(rules),
    })
    .unwrap();
}

#[test]
fn an_empty_answer_keeps_the_limits_of_serve() {
    let xds = Xds::start();
    let service = start(&xds.address.to_string(), &[]);
    xds.publish("1", &[limits(2)]);
    assert_eq!(xds.wait_for_ack("1"), ("1".to_owned(), None));
    wait_for_rules(&service, "d.k: unit=DAY requests_per_unit=2,");
    let without = RateLimitConfig { descriptors: vec![], ..limits(0) };
    for (nth, (version, resources)) in [("2", vec![]), ("3", vec![without])].iter().enumerate() {
        xds.publish(version, resources);
        let (kept, refused) = xds.wait_for_ack(version);
        let refused = refused.unwrap();
        assert!(kept == "1" && refused.contains("limits.xds.allow_empty"), "{kept}: {refused}");
        wait_for_metric(&service, REJECTED, nth as u64 + 1);
        wait_for_metric(&service, STALE, 1);
        until("the cause is shown", || match service.loads()?.last_error.to_string() {
            shown if shown.contains("limits.xds.allow_empty") => Ok(()),
            shown => Err(shown),
        })
        .unwrap();
    }
    wait_for_rules(&service, "d.k: unit=DAY requests_per_unit=2,");
    assert!(service.log().contains("keeping version 1"), "{}", service.log());
    xds.publish("4", &[limits(3)]);
    assert_eq!(xds.wait_for_ack("4"), ("4".to_owned(), None));
    wait_for_rules(&service, "d.k: unit=DAY requests_per_unit=3,");
    wait_for_metric(&service, STALE, 0);
}

#[test]
fn allow_empty_lets_an_empty_answer_remove_all_limits() {
    let xds = Xds::start();
    let service = start(&xds.address.to_string(), &["--limits-xds-allow-empty"]);
    xds.publish("1", &[limits(2)]);
    wait_for_rules(&service, "d.k: unit=DAY requests_per_unit=2,");
    xds.publish("2", &[]);
    assert_eq!(xds.wait_for_ack("2"), ("2".to_owned(), None));
    wait_for_rules(&service, "");
}

#[test]
fn an_empty_first_answer_is_accepted() {
    let xds = Xds::start();
    let service = start(&xds.address.to_string(), &[]);
    xds.publish("1", &[]);
    assert_eq!(xds.wait_for_ack("1"), ("1".to_owned(), None));
    assert_eq!(metric(&service, STALE), 0);
}

#[test]
fn xds_without_tls_is_logged_except_on_loopback() {
    let warning = "the connection to the xDS server has no TLS";
    let far = start("xds.invalid:1", &[]);
    until("the warning", || match far.log() {
        log if log.contains(warning) && log.contains("limits.xds.use_tls") => Ok(()),
        log => Err(log),
    })
    .unwrap();
    let with_tls = start("xds.invalid:1", &["--limits-xds-use-tls"]);
    assert!(!with_tls.log().contains(warning), "{}", with_tls.log());
    for near in ["127.0.0.1:1", "[::1]:1", "localhost:1"] {
        let near = start(near, &[]);
        assert!(!near.log().contains(warning), "{}", near.log());
    }
}
