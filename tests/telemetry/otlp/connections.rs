//! Tests of connections to an OTLP collector by gRPC, HTTP and TLS, and of resource attributes.

use super::{json, limits, spans};
use crate::support::certificates::Authority;
use crate::support::collector::Collector;
use crate::support::service::Service;
use crate::support::waiting::until;

fn serve(limits: &tempfile::TempDir, environment: &[(&str, &str)]) -> Service {
    let quick = [("OTEL_BSP_SCHEDULE_DELAY", "50"), ("OTEL_METRIC_EXPORT_INTERVAL", "100")];
    Service::start_under(limits.path(), &[], &[&quick, environment].concat()).unwrap()
}

fn wait_for_counts(collector: &Collector) {
    let counts = || match collector.metrics("sluicegate_checks_total").len() {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    };
    until("counts", counts).unwrap();
}

#[test]
fn otlp_http_uses_separate_paths_for_traces_and_metrics() {
    let (collector, limits) = (Collector::start(), limits());
    let endpoint = collector.endpoint();
    let service = serve(
        &limits,
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ],
    );
    assert_eq!(json(&service, &[]), 200);
    assert_eq!(spans(&collector, 2).iter().filter(|span| span.name == "POST /json").count(), 1);
    wait_for_counts(&collector);
    let paths = collector.paths();
    assert!(paths.contains(&"/v1/traces") && paths.contains(&"/v1/metrics"), "{paths:?}");
}

#[test]
fn traces_and_metrics_can_have_different_endpoints_and_protocols() {
    let (grpc, http, limits) = (Collector::start(), Collector::start(), limits());
    let traces = format!("{}/v1/traces", http.endpoint());
    let counts = grpc.endpoint();
    let service = serve(
        &limits,
        &[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &traces),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", &counts),
        ],
    );
    json(&service, &[]);
    spans(&http, 2);
    wait_for_counts(&grpc);
    assert!(grpc.spans().is_empty() && grpc.paths().is_empty());
    assert!(http.paths().iter().all(|path| *path == "/v1/traces"));
}

#[test]
fn otlp_mutual_tls_works_with_a_configured_ca() {
    let authority = Authority::new();
    let (own, client) = (authority.sign(&["127.0.0.1"]), authority.sign(&["sluicegate"]));
    let (ca, limits) = (authority.ca(), limits());
    for protocol in ["grpc", "http/protobuf"] {
        let collector = Collector::start_with_tls(&own, Some(ca.clone()));
        let endpoint = collector.endpoint();
        let service = serve(
            &limits,
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca),
                ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &client.certificate),
                ("OTEL_EXPORTER_OTLP_CLIENT_KEY", &client.key),
            ],
        );
        json(&service, &[]);
        spans(&collector, 2);
        wait_for_counts(&collector);
    }
}

#[test]
fn otlp_tls_verifies_against_configured_or_system_cas() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (own, limits) = (authority.sign(&["127.0.0.1"]), limits());
    let (ca, others) = (authority.ca(), other.ca());
    for protocol in ["grpc", "http/protobuf"] {
        let unverified = Collector::start_with_tls(&own, None);
        let verified = Collector::start_with_tls(&own, None);
        let signals = [unverified.endpoint(), verified.endpoint()];
        // The trace exporter trusts the wrong CA. The metrics exporter trusts the system CAs, which
        // include the right one.
        let paths = if protocol == "grpc" { ["", ""] } else { ["/v1/traces", "/v1/metrics"] };
        let [traces, counts] = [0, 1].map(|at: usize| format!("{}{}", signals[at], paths[at]));
        let service = serve(
            &limits,
            &[
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &traces),
                ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", &others),
                ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", &counts),
                ("SSL_CERT_FILE", &ca),
            ],
        );
        assert_eq!(json(&service, &[]), 200);
        wait_for_counts(&verified);
        assert!(unverified.spans().is_empty());
    }
}

#[test]
fn otel_variables_override_settings_in_resource_attributes() {
    let (collector, limits) = (Collector::start(), limits());
    let endpoint = collector.endpoint();
    let service = serve(
        &limits,
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
            ("OTEL_RESOURCE_ATTRIBUTES", "team=edge,zone=a"),
            ("SLUICEGATE_COMPAT_TRACING_ATTRIBUTES", "service.name=limits,zone=b,cell=7"),
        ],
    );
    json(&service, &[]);
    spans(&collector, 2);
    let named = ["service.name", "team", "zone", "cell"].map(|name| collector.resource(name));
    assert_eq!(named, ["limits", "edge", "a", "7"].map(|text| Some(text.to_owned())));
    let id = collector.resource("service.instance.id").unwrap();
    let parts: Vec<_> = id.split('-').map(str::len).collect();
    assert!(parts == [8, 4, 4, 4, 12] && id.as_bytes()[14] == b'4', "{id}");
}

/// Envoy Gateway sets these variables if tracing is configured.
#[test]
fn compatibility_mode_reads_tracing_variables_and_exports_only_spans() {
    let collector = Collector::start();
    let endpoint = collector.endpoint();
    let traced = |rate: &str| {
        crate::drop_in::process::start(&[
            ("SLUICEGATE_STORE_URL", "memory"),
            ("TRACING_ENABLED", "true"),
            ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
            ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
            ("TRACING_SERVICE_INSTANCE_ID", "pod-1"),
            ("TRACING_SAMPLING_RATE", rate),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
            ("OTEL_BSP_SCHEDULE_DELAY", "50"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "10"),
        ])
    };
    let (_root, never) = traced("0.0");
    assert_eq!(crate::drop_in::process::ask(&never), 200);
    let (_root, always) = traced("1.0");
    assert_eq!(crate::drop_in::process::ask(&always), 200);
    let exported = spans(&collector, 2);
    assert_eq!(exported.iter().filter(|span| span.name == "POST /json").count(), 1);
    let named = ["service.name", "service.namespace", "service.instance.id"];
    let wanted = ["envoy-ratelimit", "envoy-gateway-system", "pod-1"];
    assert_eq!(
        named.map(|name| collector.resource(name)),
        wanted.map(|text| Some(text.to_owned()))
    );
    let paths = collector.paths();
    assert!(!paths.is_empty() && paths.iter().all(|path| *path == "/v1/traces"), "{paths:?}");
}
