//! Tests of traces and metrics that the real binary exports to an OTLP collector.
//!
//! Guarantees:
//! - Spans of every protocol are children of the caller's span.
//! - Decision counts are exported.
//! - Descriptor keys and values are never exported.
//! - An unreachable collector does not affect checks.
//!
//! Not covered:
//! - The OpenTelemetry SDK itself, such as batching and sampling.

mod connections;

use std::path::Path;
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::session_request::Request as StreamRequest;
use sluicegate::edge::grpc::permits::api::{
    AcquireRequest, Descriptor, Entry as Own, SessionRequest,
};
use sluicegate::telemetry::otlp;
use tempfile::TempDir;
use tokio_stream::StreamExt as _;
use tonic::Request;

use crate::support::collector::{Collector, text};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::until;

const TRACE: &str = "80f198ee56343ba864fe8b2a57d3eff7";
const SPAN: &str = "e457b5a2e4d86bd1";
const QUESTION: &str =
    r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "api_key", "value": "s3cret"}]}]}"#;
const HOOKS: &str =
    r#"[{"name": "edge", "domain": "shop", "descriptors": [[{"remote_address": {}}]]}]"#;

fn limits() -> TempDir {
    let limits = tempfile::tempdir().unwrap();
    let text = "domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {unit: day, requests_per_unit: 2}\n";
    std::fs::write(limits.path().join("shop.yaml"), text).unwrap();
    limits
}

fn serve(limits: &Path, flags: &[&str], collector: &str) -> Service {
    let flags: Vec<_> = flags.iter().map(|&flag| flag.to_owned()).collect();
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
    ];
    Service::start_under(limits, &flags, &environment).unwrap()
}

fn json(service: &Service, headers: &[(&str, &str)]) -> u16 {
    http1::call(service.http, "POST", "/json", headers, Some(QUESTION.as_bytes())).unwrap().status
}

fn grpc(service: &Service, header: (&'static str, &str)) {
    let entry = Entry { key: "api_key".into(), value: "s3cret".into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let question = RateLimitRequest {
        domain: "shop".into(),
        descriptors: vec![descriptor],
        ..Default::default()
    };
    let mut request = Request::new(question);
    request.metadata_mut().insert(header.0, header.1.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let to = format!("http://{}", service.grpc);
        let mut client = RateLimitServiceClient::connect(to).await.unwrap();
        client.should_rate_limit(request).await.unwrap();
    });
}

/// Waits until the collector has at least `many` spans.
fn spans(collector: &Collector, many: usize) -> Vec<Span> {
    until("spans", || {
        let spans = collector.spans();
        let names: Vec<_> = spans.iter().map(|span| span.name.clone()).collect();
        if many <= spans.len() { Ok(spans) } else { Err(format!("{names:?}")) }
    })
    .unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

fn named<'s>(spans: &'s [Span], name: &str) -> &'s Span {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn check_span_is_child_of_the_caller_and_parent_of_its_stages() {
    let (collector, redis, limits) = (Collector::start(), Redis::start(), limits());
    let backend = format!("redis+unix://{}", redis.socket().display());
    let flags = ["--store-url", &backend, "--store-timeout", "20s"];
    let service = serve(limits.path(), &flags, &collector.endpoint());
    // Waits until Redis is connected, with unsampled requests, which leave no span.
    let connected = || match json(&service, &[("b3", "0")]) {
        200 => Ok(()),
        other => Err(other.to_string()),
    };
    until("Redis", connected).unwrap();
    grpc(&service, ("traceparent", &format!("00-{TRACE}-{SPAN}-01")));
    let spans = spans(&collector, 3);
    let question = named(&spans, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    assert_eq!(
        (hex(&question.trace_id), hex(&question.parent_span_id)),
        (TRACE.into(), SPAN.into())
    );
    assert_eq!(text(&question.attributes, "sluicegate.outcome").as_deref(), Some("allow"));
    assert_eq!(text(&question.attributes, "sluicegate.protocol").as_deref(), Some("grpc"));
    for part in ["plan", "store"] {
        let part = named(&spans, part);
        assert_eq!(part.parent_span_id, question.span_id);
        assert_eq!(part.trace_id, question.trace_id);
        assert!(question.start_time_unix_nano <= part.start_time_unix_nano);
        assert!(part.end_time_unix_nano <= question.end_time_unix_nano);
    }
    assert_eq!(collector.resource("service.name").as_deref(), Some("sluicegate"));
    assert_eq!(collector.resource("service.version").as_deref(), Some(env!("CARGO_PKG_VERSION")));
}

#[test]
fn http_endpoints_accept_b3_and_w3c_trace_context() {
    let (collector, limits) = (Collector::start(), limits());
    let service = serve(limits.path(), &["--hooks", HOOKS], &collector.endpoint());
    assert_eq!(json(&service, &[("b3", &format!("{TRACE}-{SPAN}-1"))]), 200);
    let nginx = [
        ("x-original-uri", "/"),
        ("x-original-method", "GET"),
        ("x-real-ip", "192.0.2.1"),
        ("traceparent", &format!("00-{TRACE}-{SPAN}-01")),
    ];
    assert_eq!(http1::get(service.http, "/check", &nginx).unwrap().status, 200);
    assert_eq!(http1::get(service.http, "/acquire", &nginx).unwrap().status, 200);
    let spans = spans(&collector, 6);
    for name in ["POST /json", "GET /check", "GET /acquire"] {
        let span = named(&spans, name);
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), SPAN.into()));
    }
}

#[test]
fn an_acquire_span_is_a_child_of_the_caller() {
    let (collector, limits) = (Collector::start(), limits());
    let service = serve(limits.path(), &[], &collector.endpoint());
    let entries = vec![Own { key: "api_key".into(), value: "s3cret".into() }];
    let descriptors = vec![Descriptor { entries, hits: None }];
    let (id, domain) = ("request-0000000001".to_owned(), "shop".to_owned());
    let mut request = Request::new(AcquireRequest { id, domain, descriptors, max_wait_us: None });
    let parent = format!("00-{TRACE}-{SPAN}-01");
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let to = service.door();
        PermitsClient::new(to.connect().await.unwrap()).acquire(request).await.unwrap();
    });
    let spans = spans(&collector, 2);
    let span = named(&spans, "sluicegate.v1.Permits/Acquire");
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), SPAN.into()));
}

#[test]
fn each_acquire_on_a_stream_has_its_own_span() {
    let (collector, limits) = (Collector::start(), limits());
    let service = serve(limits.path(), &[], &collector.endpoint());
    let ask = |id: &str| {
        let entries = vec![Own { key: "api_key".into(), value: "s3cret".into() }];
        let descriptors = vec![Descriptor { entries, hits: None }];
        let (id, domain) = (id.to_owned(), "shop".to_owned());
        let asked = AcquireRequest { id, domain, descriptors, max_wait_us: None };
        SessionRequest { request: Some(StreamRequest::Acquire(asked)) }
    };
    let asked = [ask("request-0000000001"), ask("request-0000000002")];
    let mut request = Request::new(tokio_stream::iter(asked).chain(tokio_stream::pending()));
    let parent = format!("00-{TRACE}-{SPAN}-01");
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let to = service.door();
        let mut client = PermitsClient::new(to.connect().await.unwrap());
        let mut answers = client.session(request).await.unwrap().into_inner();
        for _ in 0..2 {
            answers.message().await.unwrap().unwrap();
        }
    });
    let spans = spans(&collector, 4);
    let acquires: Vec<_> =
        spans.iter().filter(|span| span.name == "sluicegate.v1.Permits/Acquire").collect();
    assert_eq!(acquires.len(), 2);
    for span in acquires {
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), SPAN.into()));
        assert!(text(&span.attributes, "sluicegate.outcome").is_some(), "{span:?}");
    }
}

#[test]
fn unsampled_requests_have_no_span() {
    let (collector, limits) = (Collector::start(), limits());
    let service = serve(limits.path(), &[], &collector.endpoint());
    assert_eq!(json(&service, &[("traceparent", &format!("00-{TRACE}-{SPAN}-00"))]), 200);
    assert_eq!(json(&service, &[("b3", "0")]), 200);
    // Only the third request is sampled. Spans of the first two would arrive before its span.
    assert_eq!(json(&service, &[]), 429);
    let spans = spans(&collector, 2);
    let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names.iter().filter(|name| **name == "POST /json").count(), 1, "{names:?}");
    let span = named(&spans, "POST /json");
    assert_eq!(text(&span.attributes, "sluicegate.outcome").as_deref(), Some("deny"));
}

#[test]
fn descriptor_keys_and_values_are_not_exported() {
    let (collector, limits) = (Collector::start(), limits());
    let service = serve(limits.path(), &[], &collector.endpoint());
    json(&service, &[]);
    let exported = format!("{:?}", spans(&collector, 2));
    assert!(!exported.contains("s3cret") && !exported.contains("api_key"), "{exported}");
}

/// The service waits two seconds for its last export, which may be late on a busy machine.
#[test]
fn shutdown_exports_the_remaining_spans() {
    const ATTEMPTS: usize = 10;
    let is_exported = (0..ATTEMPTS).any(|_| spans_after_shutdown() == 2);
    assert!(is_exported, "no shutdown exported its spans");
}

/// Returns the number of spans that a service has exported when it ends.
fn spans_after_shutdown() -> usize {
    let (collector, limits) = (Collector::start(), limits());
    let endpoint = collector.endpoint();
    let environment =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint), ("OTEL_BSP_SCHEDULE_DELAY", "3600000")];
    let flags = ["--listen-drain-delay".to_owned(), "0ms".to_owned()];
    let mut service = Service::start_under(limits.path(), &flags, &environment).unwrap();
    json(&service, &[]);
    service.terminate();
    assert_eq!(service.ended().unwrap().code(), Some(0), "{}", service.log());
    collector.spans().len()
}

#[test]
fn decision_counts_are_exported_as_monotonic_sums() {
    let (collector, limits) = (Collector::start(), limits());
    let service = serve(limits.path(), &[], &collector.endpoint());
    let statuses = [(); 5].map(|()| json(&service, &[]));
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    let exported = |verdict: &str| {
        let metrics = collector.metrics("sluicegate_checks_total");
        let last = metrics.last()?.data.clone()?;
        let Data::Sum(sum) = last else { panic!("{last:?}") };
        assert!(sum.is_monotonic);
        let point = sum
            .data_points
            .iter()
            .find(|point| text(&point.attributes, "verdict").as_deref() == Some(verdict))?;
        match point.value? {
            Value::AsDouble(value) => Some(value),
            Value::AsInt(_) => None,
        }
    };
    until("counts", || match (exported("allow"), exported("deny")) {
        (Some(2.0), Some(3.0)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    let gauges = collector.metrics("sluicegate_config_revision");
    assert!(matches!(gauges.last().unwrap().data, Some(Data::Gauge(_))));
}

#[test]
fn an_unreachable_collector_does_not_affect_checks() {
    let limits = limits();
    let endpoint = Collector::start().endpoint();
    let mut service = serve(limits.path(), &["--listen-drain-delay", "0ms"], &endpoint);
    for _ in 0..50 {
        json(&service, &[]);
    }
    assert_eq!(http1::get(service.http, "/readyz", &[]).unwrap().status, 200);
    service.terminate();
    assert_eq!(service.ended().unwrap().code(), Some(0), "{}", service.log());
}

#[test]
fn an_unsupported_otlp_protocol_is_logged_and_checks_continue() {
    let limits = limits();
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
    ];
    let service = Service::start_under(limits.path(), &[], &environment).unwrap();
    assert_eq!(json(&service, &[]), 200);
    assert_eq!(service.log().matches("OTLP over http/json is not supported").count(), 2);
}

#[test]
fn an_endpoint_without_a_scheme_gets_the_url_to_write() {
    for (endpoint, wanted) in [
        ("collector:4317", "write http://collector:4317 (https:// for TLS)"),
        ("grpc://[::1]:4317", "write http://[::1]:4317 (https:// for TLS)"),
        ("//", "write the collector's URL, such as http://collector:4317"),
    ] {
        for protocol in ["grpc", "http/protobuf"] {
            let variable = |name: &str| match name {
                "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(endpoint.to_owned()),
                "OTEL_EXPORTER_OTLP_PROTOCOL" => Some(protocol.to_owned()),
                _ => None,
            };
            let page: otlp::RenderPage = Arc::new(String::new);
            let (_, errors) = otlp::start(&variable, &otlp::OtlpDefaults::default(), &page);
            let wanted = format!("OTEL_EXPORTER_OTLP_ENDPOINT: {wanted}");
            assert_eq!(errors, [wanted.clone(), wanted], "{endpoint} {protocol}");
        }
    }
}
