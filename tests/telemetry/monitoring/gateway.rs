//! Tests Envoy Gateway's dashboard `global-ratelimit` against a process in compatibility mode.
//!
//! Guarantees:
//! - The queried metrics have the expected names, labels and values.
//!
//! Not covered:
//! - `go_memstats_gc_cpu_fraction`, because the process has no Go garbage collector.

use std::fs;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use super::prometheus::Prometheus;
use crate::drop_in::process;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

const DOMAIN: &str = "default/eg/http";
/// A descriptor key of Envoy Gateway, which is also used as the value.
const ROUTE: &str = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example";
const RULE: &str = "rule-0-match-0";

fn limits() -> String {
    format!(
        "domain: {DOMAIN}\ndescriptors:\n- key: {ROUTE}\n  value: {ROUTE}\n  descriptors:\n  - key: {RULE}\n    \
         value: {RULE}\n    rate_limit: {{unit: day, requests_per_unit: 3}}\n"
    )
}

/// Sends `times` checks, then one without a descriptor, which is rejected.
fn ask(service: &Service, times: usize) {
    let entry = |text: &str| Entry { key: text.into(), value: text.into() };
    let entries = vec![entry(ROUTE), entry(RULE)];
    let question = RateLimitRequest {
        domain: DOMAIN.into(),
        descriptors: vec![RateLimitDescriptor { entries, ..Default::default() }],
        ..Default::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let to = format!("http://{}", service.grpc);
        let mut client = RateLimitServiceClient::connect(to).await.unwrap();
        for _ in 0..times {
            client.should_rate_limit(question.clone()).await.unwrap();
        }
        client.should_rate_limit(RateLimitRequest::default()).await.unwrap_err();
    });
}

#[test]
fn global_ratelimit_dashboard_queries_return_expected_values() {
    for_a_day_with_a_minute_left();
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("ratelimit/config")).unwrap();
    fs::write(root.path().join("ratelimit/config/eg.yaml"), limits()).unwrap();
    let tree = root.path().display().to_string();
    let service = Service::start_as_ratelimit(&[
        ("RUNTIME_ROOT", &tree),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("USE_STATSD", "false"),
        ("USE_PROMETHEUS", "true"),
        ("SLUICEGATE_STORE_URL", "memory"),
        ("SLUICEGATE_COMPAT_STORE_KEY_FORMAT", "own"),
        ("SLUICEGATE_COMPAT_STORE_EXPIRY_JITTER", "300s"),
    ])
    .unwrap();
    ask(&service, 5);
    let prometheus = Prometheus::of(service.metrics);
    let of_rule =
        format!("{{domain=\"{DOMAIN}\", key1=\"{ROUTE}_{ROUTE}\", key2=\"{RULE}_{RULE}\"}}");
    let rule = |stat: &str| format!("ratelimit_service_rate_limit_{stat}{of_rule}");
    // Five hits on a limit of three, with a near limit of 2.4, as envoyproxy/ratelimit counts them.
    let wanted: [(String, f64); 11] = [
        (rule("total_hits"), 5.0),
        (rule("near_limit"), 1.0),
        (rule("over_limit"), 2.0),
        (rule("within_limit"), 3.0),
        ("ratelimit_service_should_rate_limit_error{err_type=\"service_error\"}".to_owned(), 1.0),
        ("ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}".to_owned(), 6.0),
        ("ratelimit_service_config_load_success".to_owned(), 1.0),
        (
            "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"}".to_owned(),
            6.0,
        ),
        (
            "histogram_quantile(0.99, sum by (le) \
             (ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\"})) < bool 10"
                .to_owned(),
            1.0,
        ),
        ("(process_resident_memory_bytes{app_kubernetes_io_component=\"ratelimit\"})/1000000 > bool 1".to_owned(), 1.0),
        ("(process_virtual_memory_bytes{app_kubernetes_io_component=\"ratelimit\"})/1000000 > bool 1".to_owned(), 1.0),
    ];
    for (query, value) in wanted {
        until(&query, || match prometheus.values(&query)?[..] {
            [found] if found.to_bits() == value.to_bits() => Ok(()),
            ref found => Err(format!("{found:?}")),
        })
        .unwrap();
    }
    assert_ne!(process::ask(&service), 429, "another domain is not limited");
}
