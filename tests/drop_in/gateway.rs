//! Tests with the environment variables and probes of Envoy Gateway's rate limit Deployment.

use std::time::Duration;

use sluicegate::edge::grpc::tls::TlsFiles;
use sluicegate::source::xds::message::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};

use crate::support::certificates::Authority;
use crate::support::http1;
use crate::support::process::Process;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, now, until};
use crate::support::xds::Xds;

fn limits() -> RateLimitConfig {
    let limit = RateLimitPolicy {
        unit: RateLimitUnit::Day.into(),
        requests_per_unit: 2,
        ..RateLimitPolicy::default()
    };
    let rule = RateLimitDescriptor {
        key: "rule-0-match-0".to_owned(),
        value: "rule-0-match-0".to_owned(),
        rate_limit: Some(limit),
        ..RateLimitDescriptor::default()
    };
    let domain = "default/eg/http".to_owned();
    RateLimitConfig { name: domain.clone(), domain, descriptors: vec![rule] }
}

fn check(service: &Service) -> u16 {
    let body = br#"{"domain":"default/eg/http","descriptors":[{"entries":
        [{"key":"rule-0-match-0","value":"rule-0-match-0"}]}]}"#;
    http1::call(service.http, "POST", "/json", &[], Some(body)).unwrap().status
}

/// Minimum duration of the Redis outage; `scripts/long.sh gateway` sets it to the documented 60
/// seconds. The outage also lasts until each probe ran 50 times.
fn without_redis() -> Duration {
    let seconds = std::env::var("SLUICEGATE_GATEWAY_SECONDS").ok();
    Duration::from_secs(seconds.map_or(0, |seconds| seconds.parse().unwrap()))
}

/// All three Kubernetes probes are `GET /healthcheck` on `PORT`. None may fail while Redis is down.
/// The startup probe must pass at once, although Kubernetes would wait 300 s.
#[test]
fn envoy_gateway_probes_pass_while_redis_is_down() {
    for_a_day_with_a_minute_left();
    let authority = Authority::new();
    let (gateway, own) = (authority.sign(&["envoy-gateway"]), authority.sign(&["envoy-ratelimit"]));
    let ca = authority.ca();
    let xds = Xds::start_with_tls(TlsFiles {
        certificate: gateway.certificate.into(),
        key: gateway.key.into(),
        client_ca: Some(ca.clone().into()),
        client_name: None,
    });
    xds.publish("1", &[limits()]);
    // Reserves a port that refuses connections until Redis starts there.
    let mut redis = Process::redis(&[]);
    redis.kill();
    let (server, redis_url) = (xds.address.to_string(), redis.address());
    let service = Service::start_as_ratelimit(&[
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &server),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &own.certificate),
        ("GRPC_SERVER_TLS_KEY", &own.key),
        ("GRPC_SERVER_TLS_CA_CERT", &ca),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &own.certificate),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &own.key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &redis_url),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
    ])
    .unwrap();
    let healthy = || http1::get(service.http, "/healthcheck", &[]).unwrap().status;
    assert_eq!(healthy(), 200);
    assert_eq!(xds.wait_for_ack("1"), ("1".to_owned(), None));
    let began = now();
    for round in 0.. {
        assert_eq!((check(&service), healthy()), (400, 200), "no answer, and no red probe");
        if 50 <= round && without_redis() <= began.elapsed() {
            break;
        }
    }
    redis.start_again();
    until("Redis is found", || match check(&service) {
        200 => Ok(()),
        status => Err(format!("{status}: {}", service.log())),
    })
    .unwrap();
    assert_eq!([check(&service), check(&service)], [200, 429]);
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    // Prometheus series that Envoy Gateway's dashboard queries.
    for series in [
        "ratelimit_service_rate_limit_total_hits{domain=\"default/eg/http\",key1=\"rule-0-match-0_rule-0-match-0\"}",
        "ratelimit_service_rate_limit_over_limit{domain=\"default/eg/http\",",
        "ratelimit_service_rate_limit_within_limit{domain=\"default/eg/http\",",
        "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"} ",
        "ratelimit_service_config_load_success ",
    ] {
        assert!(page.contains(series), "{series} is not in\n{page}");
    }
}

#[test]
fn health_check_with_active_redis_connection_follows_redis() {
    let mut redis = Process::redis(&[]);
    redis.kill();
    let url = redis.address();
    let (_root, service) = super::process::start(&[
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &url),
        ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
    ]);
    let wait_for_health = |wanted: u16| {
        until("health", || match http1::get(service.http, "/healthcheck", &[]).unwrap().status {
            status if status == wanted => Ok(()),
            status => Err(format!("{status}: {}", service.log())),
        })
        .unwrap();
    };
    wait_for_health(500);
    redis.start_again();
    wait_for_health(200);
    redis.kill();
    wait_for_health(500);
}
