//! Statistics that are counted where they happen: connections to Redis, the cache of denials, the files of TLS; and quantiles.

use std::fs;

use super::process;
use crate::http1;
use crate::service::Service;
use crate::support::certificates::Authority;
use crate::support::process::Process;
use crate::waiting::{for_a_day_with_a_minute_left, unix_seconds, until};

fn page(service: &Service) -> String {
    http1::get(service.metrics, "/metrics", &[]).unwrap().text()
}

/// The value of a metric without labels.
fn value(page: &str, name: &str) -> Option<u64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Waits until these metrics have these values.
fn become_so(service: &Service, wanted: &[(&str, Option<u64>)]) {
    until("statistics", || {
        let page = page(service);
        let found: Vec<_> = wanted.iter().map(|(name, _)| (*name, value(&page, name))).collect();
        if found == wanted { Ok(()) } else { Err(format!("{found:?}\n{}", service.log())) }
    })
    .unwrap();
}

fn answers(service: &Service) {
    until("Redis", || match process::ask(service) {
        200 => Ok(()),
        status => Err(format!("{status}: {}", service.log())),
    })
    .unwrap();
}

#[test]
fn connections_that_were_made_and_that_are_gone_are_counted_and_the_rest_are_open() {
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
    let pool = |pool: &str, active, total, close| {
        let name = |of: &str| format!("ratelimit_redis_{pool}_cx_{of}");
        let names = [name("active"), name("total"), name("local_close")];
        become_so(&service, &[(&names[0], active), (&names[1], total), (&names[2], close)]);
    };
    // A counter that is zero is not there, as there.
    pool("pool", Some(1), Some(1), None);
    pool("per_second_pool", Some(1), Some(1), None);
    redis.kill();
    pool("pool", Some(0), Some(1), Some(1));
    redis.start_again();
    pool("pool", Some(1), Some(2), Some(1));
    pool("per_second_pool", Some(1), Some(1), None);
}

#[test]
fn lookups_in_the_cache_of_denials_are_counted() {
    for_a_day_with_a_minute_left();
    let redis = Process::redis(&[]);
    let url = redis.address();
    let (_root, service) = process::start(&[
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &url),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "1000000"),
        ("USE_PROMETHEUS", "true"),
    ]);
    answers(&service);
    let of = |page: &str, name: &str| value(page, &format!("ratelimit_localcache_{name}"));
    let (before, began) = (page(&service), unix_seconds());
    // Four more pass, the sixth is denied by Redis and remembered, and two by what is remembered.
    let statuses: Vec<_> = (0..7).map(|_| process::ask(&service)).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429, 429]);
    let after = page(&service);
    let grew = |name: &str| of(&after, name).unwrap() - of(&before, name).unwrap();
    let grown = ["lookupCount", "hitCount", "missCount", "entryCount"].map(grew);
    assert_eq!(grown, [7, 2, 5, 1]);
    for none in ["evacuateCount", "expiredCount", "overwriteCount"] {
        assert_eq!(of(&after, none), Some(0), "{none}");
    }
    let accessed = of(&after, "averageAccessTime").unwrap();
    assert!((began..=unix_seconds()).contains(&accessed), "of one key: when it was last found");
}

#[test]
fn readings_of_the_certificate_are_counted_and_failures_with_them() {
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
        ("SLUICEGATE_BACKEND", "memory"),
    ]);
    let names = ["certs_load_attempts", "certs_load_failures", "certs_num_values"];
    let are = |attempts, failures| {
        let values = [Some(attempts), failures, Some(2)];
        let wanted: Vec<_> = names.into_iter().zip(values).collect();
        until("the next client", || {
            // The files are looked at when somebody calls.
            drop(std::net::TcpStream::connect(service.grpc));
            let page = page(&service);
            let found: Vec<_> = names.iter().map(|&name| (name, value(&page, name))).collect();
            if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .unwrap();
    };
    // Whole at once: half a file would be one more that cannot be read.
    let becomes = |text: &[u8]| {
        fs::write(at("new"), text).unwrap();
        fs::rename(at("new"), &certificate).unwrap();
    };
    are(1, None);
    becomes(b"no certificate");
    are(2, Some(1));
    becomes(&fs::read(&own.certificate).unwrap());
    are(3, Some(1));
}

#[test]
fn a_timer_that_no_rule_makes_a_histogram_is_a_summary_with_quantiles() {
    let mapper = tempfile::NamedTempFile::new().unwrap();
    fs::write(mapper.path(), "mappings: []\n").unwrap();
    let path = mapper.path().display().to_string();
    let (_root, service) = process::start(&[
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_MAPPER_YAML", &path),
        ("SLUICEGATE_BACKEND", "memory"),
    ]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use envoy_types::pb::envoy::service::ratelimit::v3 as rls;
        let door = service.door().connect().await.unwrap();
        let mut client = rls::rate_limit_service_client::RateLimitServiceClient::new(door);
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
