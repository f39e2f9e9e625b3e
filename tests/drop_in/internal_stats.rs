//! Tests of statistics about Redis connections, the deny cache, TLS files and response times.

use std::fs;

use super::process;
use crate::support::certificates::Authority;
use crate::support::http1;
use crate::support::process::Process;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, unix_seconds, until};

fn page(service: &Service) -> String {
    http1::get(service.metrics, "/metrics", &[]).unwrap().text()
}

fn value(page: &str, name: &str) -> Option<u64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Waits until the pool has this number of open connections, and more than `closed` closed ones if
/// given. Returns the number of closed connections.
fn wait_for_pool(service: &Service, pool: &str, active: u64, closed: Option<u64>) -> u64 {
    until("statistics", || {
        let page = page(service);
        let found = ["active", "total", "local_close"]
            .map(|of| value(&page, &format!("ratelimit_redis_{pool}_cx_{of}")));
        let [Some(open), Some(total), close] = found else {
            return Err(format!("{found:?}\n{}", service.log()));
        };
        // As in envoyproxy/ratelimit, a counter that is zero is not exported.
        assert_ne!(close, Some(0), "{page}");
        let close = close.unwrap_or(0);
        // The counters are not read at one instant.
        let is_sound = open + close == total && closed.is_none_or(|closed| closed < close);
        if is_sound && open == active {
            Ok(close)
        } else {
            Err(format!("{found:?}\n{}", service.log()))
        }
    })
    .unwrap()
}

fn wait_for_redis(service: &Service) {
    until("Redis", || match process::ask(service) {
        200 => Ok(()),
        status => Err(format!("{status}: {}", service.log())),
    })
    .unwrap();
}

#[test]
fn redis_connections_are_counted_per_pool() {
    let (mut redis, second) = (Process::redis(&[]), Process::redis(&[]));
    let (url, other) = (redis.address(), second.address());
    let (_root, service) = process::start(&[
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &url),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_SOCKET_TYPE", "tcp"),
        ("REDIS_PERSECOND_URL", &other),
        ("USE_PROMETHEUS", "true"),
    ]);
    // A slow machine may have closed a connection that took too long to open.
    let before = wait_for_pool(&service, "pool", 1, None);
    let per_second = wait_for_pool(&service, "per_second_pool", 1, None);
    redis.kill();
    // Refused attempts open no connection.
    assert_eq!(wait_for_pool(&service, "pool", 0, Some(before)), before + 1);
    redis.start_again();
    wait_for_pool(&service, "pool", 1, Some(before));
    assert_eq!(wait_for_pool(&service, "per_second_pool", 1, None), per_second);
}

#[test]
fn deny_cache_lookups_are_counted() {
    for_a_day_with_a_minute_left();
    let redis = Process::redis(&[]);
    let url = redis.address();
    let (_root, service) = process::start(&[
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &url),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "1000000"),
        ("USE_PROMETHEUS", "true"),
    ]);
    wait_for_redis(&service);
    let cache_stat = |page: &str, name: &str| value(page, &format!("ratelimit_localcache_{name}"));
    let (before, began) = (page(&service), unix_seconds());
    // Redis denies the fifth of these seven checks, and the deny cache denies the last two.
    let statuses: Vec<_> = (0..7).map(|_| process::ask(&service)).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429, 429]);
    let after = page(&service);
    let grew = |name: &str| cache_stat(&after, name).unwrap() - cache_stat(&before, name).unwrap();
    let grown = ["lookupCount", "hitCount", "missCount", "entryCount"].map(grew);
    assert_eq!(grown, [7, 2, 5, 1]);
    for none in ["evacuateCount", "expiredCount", "overwriteCount"] {
        assert_eq!(cache_stat(&after, none), Some(0), "{none}");
    }
    let accessed = cache_stat(&after, "averageAccessTime").unwrap();
    assert!((began..=unix_seconds()).contains(&accessed), "of one key: when it was last found");
}

#[test]
fn certificate_loads_and_failures_are_counted() {
    let (authority, files) = (Authority::new(), tempfile::tempdir().unwrap());
    let own = authority.sign(&["ratelimit.test"]);
    let at = |name: &str| files.path().join(name).display().to_string();
    fs::copy(&own.certificate, at("tls.crt")).unwrap();
    fs::copy(&own.key, at("tls.key")).unwrap();
    let (certificate, key) = (at("tls.crt"), at("tls.key"));
    let (_root, service) = process::start(&[
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("USE_PROMETHEUS", "true"),
        ("SLUICEGATE_STORE_URL", "memory"),
    ]);
    let names = ["certs_load_attempts", "certs_load_failures", "certs_num_values"];
    let wait_for_counts = |attempts, failures| {
        let values = [Some(attempts), failures, Some(2)];
        let wanted: Vec<_> = names.into_iter().zip(values).collect();
        until("the next client", || {
            // The service reloads changed certificate files when a client connects.
            drop(std::net::TcpStream::connect(service.grpc));
            let page = page(&service);
            let found: Vec<_> = names.iter().map(|&name| (name, value(&page, name))).collect();
            if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .unwrap();
    };
    // Replaces the file atomically, because a partial file would count as another failure.
    let replace_certificate = |text: &[u8]| {
        fs::write(at("new"), text).unwrap();
        fs::rename(at("new"), &certificate).unwrap();
    };
    wait_for_counts(1, None);
    replace_certificate(b"no certificate");
    wait_for_counts(2, Some(1));
    replace_certificate(&fs::read(&own.certificate).unwrap());
    wait_for_counts(3, Some(1));
}

#[test]
fn timers_without_a_mapping_are_summaries_with_quantiles() {
    let mapper = tempfile::NamedTempFile::new().unwrap();
    fs::write(mapper.path(), "mappings: []\n").unwrap();
    let path = mapper.path().display().to_string();
    let (_root, service) = process::start(&[
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_MAPPER_YAML", &path),
        ("SLUICEGATE_STORE_URL", "memory"),
    ]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use envoy_types::pb::envoy::service::ratelimit::v3 as rls;
        let channel = service.door().connect().await.unwrap();
        let mut client = rls::rate_limit_service_client::RateLimitServiceClient::new(channel);
        client.should_rate_limit(rls::RateLimitRequest::default()).await.unwrap_err();
    });
    let page = page(&service);
    let name = "ratelimit_server_ShouldRateLimit_response_time";
    assert!(page.contains(&format!("# TYPE {name} summary\n")), "{page}");
    for quantile in ["0.5", "0.9", "0.99"] {
        assert!(page.contains(&format!("{name}{{quantile=\"{quantile}\"}} ")), "{page}");
    }
    assert!(page.contains(&format!("{name}_count 1\n")), "{page}");
}
