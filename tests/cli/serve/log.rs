//! The lines of libraries in the log.

use std::path::Path;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::Message as _;
use tokio::runtime::Runtime;

use crate::compat::wire::{Connection, SHOULD_RATE_LIMIT};
use crate::support::service::Service;

/// Starts the service and sends one request over HTTP/2.
fn start(limits: &Path, flags: &[&str]) -> Service {
    let text =
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n";
    std::fs::write(limits.join("d.yaml"), text).unwrap();
    let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    let service = Service::start(limits, &flags).unwrap();
    Runtime::new().unwrap().block_on(async {
        let connection = Connection::to(service.grpc);
        let descriptors = vec![RateLimitDescriptor::default()];
        let request = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 1 };
        connection.call(SHOULD_RATE_LIMIT, request.encode_to_vec()).await.unwrap();
    });
    service
}

fn frame_lines(service: &Service) -> usize {
    service.log().matches("received frame=").count()
}

#[test]
fn debug_log_has_no_lines_of_libraries() {
    let limits = tempfile::tempdir().unwrap();
    let service = start(limits.path(), &["--telemetry-log-level", "debug"]);
    let log = service.log();
    let others = log.lines().filter(|line| !line.contains("limits loaded")).collect::<Vec<_>>();
    assert!(others.len() == 1 && others[0].contains("check decided"), "{log}");
}

#[test]
fn trace_log_has_no_lines_of_libraries() {
    let limits = tempfile::tempdir().unwrap();
    assert_eq!(frame_lines(&start(limits.path(), &["--telemetry-log-level", "trace"])), 0);
}
