//! Tests that the decision duration metric of a real process excludes the wait in a concurrency
//! queue.
//!
//! Guarantees:
//! - In every protocol, the histogram of decision durations excludes the wait.
//!
//! Not covered:
//! - The length of the wait (see `crates/kernel/tests/concurrency`).

use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpHeaders, ProcessingRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::{self, AcquireRequest, acquire_response::Verdict};
use tokio::task::spawn_blocking;
use tonic::transport::Channel;

use crate::edge::request;
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::now;

const LIMITS: &str = "domain: d\ndescriptors:\n- key: k\n  \
    concurrency: {limit: 1, max_duration: 10m, queue: {size: 9, timeout: 1s}}\n";
const HOOKS: &str = r#"[{"name": "edge", "domain": "d", "descriptors":
    [[{"generic_key": {"descriptor_key": "k", "descriptor_value": "v"}}]]}]"#;

/// A bound on the rounding of seven durations.
const ROUNDING: Duration = Duration::from_millis(10);

/// The queue timeout of [`LIMITS`].
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);

fn id(name: &str) -> String {
    format!("{name}-0123456789abcdef")
}

async fn permits(channel: Channel, name: &str) -> bool {
    let entries = vec![api::Entry { key: "k".into(), value: "v".into() }];
    let descriptors = vec![api::Descriptor { entries, hits: None }];
    let asked = AcquireRequest { id: id(name), domain: "d".into(), descriptors, max_wait_us: None };
    let reply = PermitsClient::new(channel).acquire(asked).await.unwrap().into_inner();
    reply.verdict() == Verdict::Allow
}

async fn rls(channel: Channel) -> bool {
    let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
    let entries = vec![entry("k", "v"), entry("sluicegate.acquire", &id("rls"))];
    let asked = request(vec![RateLimitDescriptor { entries, ..Default::default() }]);
    let reply = RateLimitServiceClient::new(channel).should_rate_limit(asked).await.unwrap();
    reply.into_inner().overall_code() == Code::Ok
}

async fn ext_authz(channel: Channel) -> bool {
    let headers = [("x-sluicegate-id".to_owned(), id("authz"))].into();
    let http = Some(HttpRequest { headers, path: "/".into(), ..HttpRequest::default() });
    let request = Some(Request { http, ..Request::default() });
    let attributes = Some(AttributeContext { request, ..AttributeContext::default() });
    let reply = AuthorizationClient::new(channel).check(CheckRequest { attributes }).await.unwrap();
    reply.into_inner().status.unwrap().code == 0
}

async fn ext_proc(channel: Channel) -> bool {
    let path = HeaderValue { key: ":path".into(), value: "/".into(), ..HeaderValue::default() };
    let headers = Some(HeaderMap { headers: vec![path] });
    let headers = Message::RequestHeaders(HttpHeaders { headers, ..HttpHeaders::default() });
    let asked = ProcessingRequest { request: Some(headers), ..ProcessingRequest::default() };
    let asked = tokio_stream::iter([asked]);
    let mut reply =
        ExternalProcessorClient::new(channel).process(asked).await.unwrap().into_inner();
    loop {
        // The first `ext_proc` reply only extends Envoy's timeout, so this reads the second one.
        match reply.message().await.unwrap().expect("an answer").response {
            Some(Reply::ImmediateResponse(_)) => return false,
            Some(_) => return true,
            None => {}
        }
    }
}

async fn nginx(to: SocketAddr, path: &'static str) -> bool {
    let status = spawn_blocking(move || {
        let id = id("nginx");
        let headers = [
            ("x-original-uri", "/"),
            ("x-original-method", "GET"),
            ("x-real-ip", "192.0.2.1"),
            ("x-sluicegate-id", &*id),
        ];
        http1::get(to, path, &headers).unwrap().status
    });
    status.await.unwrap() == 200
}

/// Awaits a reply. Returns it and the time that the client waited.
async fn timed(reply: impl Future<Output = bool>) -> (bool, Duration) {
    let began = now();
    (reply.await, began.elapsed())
}

fn sample(service: &Service, protocol: &str) -> f64 {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let name = format!("sluicegate_decision_duration_seconds_{protocol} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap_or_else(|| panic!("no {name}: {page}")).parse().unwrap()
}

#[test]
fn decision_duration_excludes_queue_time() {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), LIMITS).unwrap();
    let service = Service::start(limits.path(), &["--hooks".to_owned(), HOOKS.to_owned()]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, queued): (_, [(bool, Duration); 6]) = runtime.block_on(async {
        let channel = service.door().connect().await.unwrap();
        let channel = || channel.clone();
        let first = timed(permits(channel(), "first")).await;
        let queued = tokio::join!(
            timed(permits(channel(), "next")),
            timed(rls(channel())),
            timed(ext_authz(channel())),
            timed(ext_proc(channel())),
            timed(nginx(service.http, "/check")),
            timed(nginx(service.http, "/acquire")),
        );
        (first, queued.into())
    });
    assert!(first.0, "the limit has one permit");
    assert!(queued.iter().all(|(is_allowed, _)| !is_allowed), "all have waited: {queued:?}");
    assert!((sample(&service, "count") - 7.0).abs() < 0.5, "each request is counted");
    // The clients measured all the time outside of the queue, so a slow machine exceeds no bound.
    let outside: Duration = queued.iter().map(|(_, took)| took.saturating_sub(QUEUE_TIMEOUT)).sum();
    let bound = (first.1 + outside + ROUNDING).as_secs_f64();
    let sum = sample(&service, "sum");
    assert!(sum < bound, "{sum} s of decisions in {bound} s outside of the queue");
}
