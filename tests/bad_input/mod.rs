//! Tests of bad input against the real process.
//!
//! Guarantees:
//! - Every invalid input gets an error message and the documented status.
//! - The process keeps running and answers the next valid check.
//! - Invalid input changes no counter.

mod admin_connections;
mod admin_tokens;
mod body_memory;
mod checks;
mod http_requests;
mod limits_files;
mod settings;
mod startup;

use std::path::Path;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use prost::Message as _;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::Status;

use crate::compat::wire::{Connection, SHOULD_RATE_LIMIT};
use crate::support::http1::{self, Reply};
use crate::support::service::Service;
use crate::support::waiting::for_a_day_with_a_minute_left;

/// Domain `d` with a limit of 100 hits per day for each value of `k`.
const LIMITS: &str =
    "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 100}\n";

struct Fixture {
    service: Service,
    limits: TempDir,
    runtime: Runtime,
    connection: Connection,
}

impl Fixture {
    /// Starts the service with at least a minute left in the UTC day, the window of the limits.
    fn with(limits: &str, flags: &[&str]) -> Self {
        for_a_day_with_a_minute_left();
        let directory = tempfile::tempdir().unwrap();
        put(directory.path(), "limits.yaml", limits.as_bytes());
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let service = Service::start(directory.path(), &flags).unwrap();
        let runtime = Runtime::new().unwrap();
        // A tonic channel spawns its tasks on the current runtime.
        let entered = runtime.enter();
        let connection = Connection::to(service.grpc);
        drop(entered);
        Self { service, limits: directory, runtime, connection }
    }

    fn send(&self, message: Vec<u8>) -> Result<RateLimitResponse, Status> {
        let response = self.runtime.block_on(self.connection.call(SHOULD_RATE_LIMIT, message))?;
        Ok(RateLimitResponse::decode(&*response).unwrap())
    }

    fn try_check(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.send(request.encode_to_vec())
    }

    fn check(&self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.try_check(&check_request(descriptors)).unwrap()
    }

    fn json(&self, body: &[u8]) -> Reply {
        http1::call(self.service.http, "POST", "/json", &[], Some(body)).unwrap()
    }

    /// Returns the remaining hits of the counter for `k=value`, with a peek.
    fn remaining(&self, value: &str) -> u32 {
        self.check(vec![hits(k(value), 0)]).statuses[0].limit_remaining
    }

    fn metric(&self, name: &str) -> u64 {
        let page = http1::get(self.service.metrics, "/metrics", &[]).unwrap().text();
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {page}"))
    }

    /// Asserts that `work` neither changes nor adds a counter, and that the process still answers.
    fn assert_unaffected(&mut self, label: &str, work: impl FnOnce(&Self)) {
        let used = self.check(vec![k("good")]).statuses[0].limit_remaining;
        let keys = self.metric("sluicegate_memory_keys");
        work(self);
        assert!(self.service.is_alive(), "{label}: the process died\n{}", self.service.log());
        assert_eq!(self.remaining("good"), used, "{label}: a counter moved");
        assert_eq!(self.metric("sluicegate_memory_keys"), keys, "{label}: a counter came to be");
        let next = self.check(vec![k("good")]);
        assert_eq!(next.statuses[0].limit_remaining, used - 1, "{label}: the next question");
    }
}

/// Replaces a file atomically.
fn put(directory: &Path, name: &str, content: &[u8]) {
    let prepared = directory.join(".prepared");
    std::fs::write(&prepared, content).unwrap();
    std::fs::rename(prepared, directory.join(name)).unwrap();
}

fn check_request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }
}

fn entry(key: &str, value: &str) -> Entry {
    Entry { key: key.into(), value: value.into() }
}

fn pair(key: &str, value: &str) -> RateLimitDescriptor {
    RateLimitDescriptor { entries: vec![entry(key, value)], ..RateLimitDescriptor::default() }
}

fn k(value: &str) -> RateLimitDescriptor {
    pair("k", value)
}

fn hits(descriptor: RateLimitDescriptor, value: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value }), ..descriptor }
}

fn refund(descriptor: RateLimitDescriptor, value: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..hits(descriptor, value) }
}

/// Adds a limit override to the descriptor. `unit` is the number of the protobuf enum value.
fn limited(
    descriptor: RateLimitDescriptor,
    requests_per_unit: u32,
    unit: i32,
) -> RateLimitDescriptor {
    let limit = Some(RateLimitOverride { requests_per_unit, unit });
    RateLimitDescriptor { limit, ..descriptor }
}
