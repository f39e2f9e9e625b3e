//! The time in a ceiling's queue is the clients' own doing and no time of a decision, by whichever door a request came.
//!
//! Guarantees: of a real process whose every door has a request that waits, no sample of the histogram holds the wait.
//! Leaves out: how long is waited, which is for `concurrency`.

use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Said;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpHeaders, ProcessingRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::{self, AcquireRequest, acquire_response::Verdict};
use tokio::task::spawn_blocking;
use tonic::transport::Channel;

use super::request;
use crate::http1;
use crate::service::Service;

const LIMITS: &str = "domain: d\ndescriptors:\n- key: k\n  \
    concurrency: {limit: 1, max_duration: 10m, queue: {size: 9, timeout: 3s}}\n";
const HOOKS: &str = r#"[{"name": "edge", "domain": "d", "descriptors":
    [[{"generic_key": {"descriptor_key": "k", "descriptor_value": "v"}}]]}]"#;

/// An id that is nobody else's.
fn id(of: &str) -> String {
    format!("{of}-0123456789abcdef")
}

async fn permits(door: Channel, of: &str) -> bool {
    let entries = vec![api::Entry { key: "k".into(), value: "v".into() }];
    let descriptors = vec![api::Descriptor { entries, hits: None }];
    let asked = AcquireRequest { id: id(of), domain: "d".into(), descriptors, max_wait_us: None };
    let said = PermitsClient::new(door).acquire(asked).await.unwrap().into_inner();
    said.verdict() == Verdict::Admit
}

async fn rls(door: Channel) -> bool {
    let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
    let entries = vec![entry("k", "v"), entry("sluicegate.acquire", &id("rls"))];
    let asked = request(vec![RateLimitDescriptor { entries, ..Default::default() }]);
    let said = RateLimitServiceClient::new(door).should_rate_limit(asked).await.unwrap();
    said.into_inner().overall_code() == Code::Ok
}

async fn ext_authz(door: Channel) -> bool {
    let headers = [("x-sluicegate-id".to_owned(), id("authz"))].into();
    let http = Some(HttpRequest { headers, path: "/".into(), ..HttpRequest::default() });
    let request = Some(Request { http, ..Request::default() });
    let attributes = Some(AttributeContext { request, ..AttributeContext::default() });
    let said = AuthorizationClient::new(door).check(CheckRequest { attributes }).await.unwrap();
    said.into_inner().status.unwrap().code == 0
}

async fn ext_proc(door: Channel) -> bool {
    let path = HeaderValue { key: ":path".into(), value: "/".into(), ..HeaderValue::default() };
    let headers = Some(HeaderMap { headers: vec![path] });
    let headers = Message::RequestHeaders(HttpHeaders { headers, ..HttpHeaders::default() });
    let asked = ProcessingRequest { request: Some(headers), ..ProcessingRequest::default() };
    let asked = tokio_stream::iter([asked]);
    let mut said = ExternalProcessorClient::new(door).process(asked).await.unwrap().into_inner();
    loop {
        // The first says how long it may take, and nothing else.
        match said.message().await.unwrap().expect("an answer").response {
            Some(Said::ImmediateResponse(_)) => return false,
            Some(_) => return true,
            None => {}
        }
    }
}

async fn nginx(to: SocketAddr, path: &'static str) -> bool {
    let asked = spawn_blocking(move || {
        let id = id("nginx");
        let headers = [
            ("x-original-uri", "/"),
            ("x-original-method", "GET"),
            ("x-real-ip", "192.0.2.1"),
            ("x-sluicegate-id", &*id),
        ];
        http1::get(to, path, &headers).unwrap().status
    });
    asked.await.unwrap() == 200
}

fn sample(service: &Service, of: &str) -> f64 {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let name = format!("sluicegate_decision_duration_seconds_{of} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap_or_else(|| panic!("no {name}: {page}")).parse().unwrap()
}

#[test]
fn no_sample_of_the_durations_holds_the_wait_in_a_queue() {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), LIMITS).unwrap();
    let service = Service::start(limits.path(), &["--hooks".to_owned(), HOOKS.to_owned()]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let door = service.door().connect().await.unwrap();
        let door = || door.clone();
        assert!(permits(door(), "first").await, "there is a place for one");
        let grpc = async {
            tokio::join!(permits(door(), "next"), rls(door()), ext_authz(door()), ext_proc(door()))
        };
        let http =
            async { tokio::join!(nginx(service.http, "/check"), nginx(service.http, "/hold")) };
        let passed = tokio::join!(grpc, http);
        assert_eq!(passed, ((false, false, false, false), (false, false)), "all have waited");
    });
    assert!((sample(&service, "count") - 7.0).abs() < 0.5, "each was asked");
    let sum = sample(&service, "sum");
    assert!(sum < 3.0, "all together took less than one has waited: {sum} s");
}
