//! Tests that every statistic of envoyproxy/ratelimit exists in StatsD, DogStatsD and Prometheus.
//!
//! Sources: README of envoyproxy/ratelimit, "Statistics"; its default statsd-exporter mapping for
//! Prometheus.
//!
//! Guarantees:
//! - A service that uses all features reports exactly the names listed here.
//!
//! Not covered:
//! - `ratelimit.go.*`, `ratelimit.memcache.*` and `reserved_tag`: Sluicegate has no equivalent.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use sluicegate::source::xds::{XdsServer, XdsTls, connect};
use tempfile::TempDir;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::process;
use crate::support::certificates::Authority;
use crate::support::http1;
use crate::support::process::Process;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, soon, until};

const LIMITS: &str = "\
domain: z
descriptors:
- key: k
  rate_limit: {unit: day, requests_per_unit: 10}
- key: shade
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 0}
- key: a
  value: b
  descriptors:
  - {key: c, rate_limit: {unit: day, requests_per_unit: 1000000}}
- key: sec
  rate_limit: {unit: second, requests_per_unit: 1000000}
";

/// Names of the counters of one rule, below `ratelimit.service.rate_limit`.
const RULES: [&str; 14] = [
    "nodom.domain_not_found",
    "z.a_b.c.total_hits",
    "z.a_b.c.within_limit",
    "z.k.near_limit",
    "z.k.over_limit",
    "z.k.over_limit_with_local_cache",
    "z.k.total_hits",
    "z.k.total_negative_hits",
    "z.k.within_limit",
    "z.sec.total_hits",
    "z.sec.within_limit",
    "z.shade.over_limit",
    "z.shade.shadow_mode",
    "z.shade.total_hits",
];

/// Names of all other statistics, with their StatsD types.
const OTHERS: [&str; 29] = [
    "certs.load_attempts|c",
    "certs.load_failures|c",
    "certs.num_values|g",
    "ratelimit.localcache.averageAccessTime|g",
    "ratelimit.localcache.entryCount|g",
    "ratelimit.localcache.evacuateCount|g",
    "ratelimit.localcache.expiredCount|g",
    "ratelimit.localcache.hitCount|g",
    "ratelimit.localcache.lookupCount|g",
    "ratelimit.localcache.missCount|g",
    "ratelimit.localcache.overwriteCount|g",
    "ratelimit.redis_per_second_pool.cx_active|g",
    "ratelimit.redis_per_second_pool.cx_local_close|c",
    "ratelimit.redis_per_second_pool.cx_total|c",
    "ratelimit.redis_pool.cx_active|g",
    "ratelimit.redis_pool.cx_local_close|c",
    "ratelimit.redis_pool.cx_total|c",
    "ratelimit.service.call.should_rate_limit.redis_error|c",
    "ratelimit.service.call.should_rate_limit.service_error|c",
    "ratelimit.service.config_load_error|c",
    "ratelimit.service.config_load_success|c",
    "ratelimit.service.global_shadow_mode|c",
    "ratelimit_server.Check.response_time|ms",
    "ratelimit_server.Check.total_requests|c",
    "ratelimit_server.ShouldRateLimit.response_time|ms",
    "ratelimit_server.ShouldRateLimit.total_requests|c",
    "runtime.load_attempts|c",
    "runtime.load_failures|c",
    "runtime.num_values|g",
];

/// Names of all Prometheus series, without histogram buckets.
const SERIES: &[&str] = &[
    "certs_load_attempts",
    "certs_load_failures",
    "certs_num_values",
    "ratelimit_localcache_averageAccessTime",
    "ratelimit_localcache_entryCount",
    "ratelimit_localcache_evacuateCount",
    "ratelimit_localcache_expiredCount",
    "ratelimit_localcache_hitCount",
    "ratelimit_localcache_lookupCount",
    "ratelimit_localcache_missCount",
    "ratelimit_localcache_overwriteCount",
    "ratelimit_redis_per_second_pool_cx_active",
    "ratelimit_redis_per_second_pool_cx_local_close",
    "ratelimit_redis_per_second_pool_cx_total",
    "ratelimit_redis_pool_cx_active",
    "ratelimit_redis_pool_cx_local_close",
    "ratelimit_redis_pool_cx_total",
    "ratelimit_service_config_load_error",
    "ratelimit_service_config_load_success",
    "ratelimit_service_global_shadow_mode",
    "ratelimit_service_rate_limit_near_limit{domain=\"z\",key1=\"k\"}",
    "ratelimit_service_rate_limit_nodom_domain_not_found",
    "ratelimit_service_rate_limit_over_limit{domain=\"z\",key1=\"k\"}",
    "ratelimit_service_rate_limit_over_limit{domain=\"z\",key1=\"shade\"}",
    "ratelimit_service_rate_limit_shadow_mode{domain=\"z\",key1=\"shade\"}",
    "ratelimit_service_rate_limit_total_hits{domain=\"z\",key1=\"a_b\",key2=\"c\"}",
    "ratelimit_service_rate_limit_total_hits{domain=\"z\",key1=\"k\"}",
    "ratelimit_service_rate_limit_total_hits{domain=\"z\",key1=\"sec\"}",
    "ratelimit_service_rate_limit_total_hits{domain=\"z\",key1=\"shade\"}",
    "ratelimit_service_rate_limit_within_limit{domain=\"z\",key1=\"a_b\",key2=\"c\"}",
    "ratelimit_service_rate_limit_within_limit{domain=\"z\",key1=\"k\"}",
    "ratelimit_service_rate_limit_within_limit{domain=\"z\",key1=\"sec\"}",
    "ratelimit_service_rate_limit_z_k_over_limit_with_local_cache",
    "ratelimit_service_rate_limit_z_k_total_negative_hits",
    "ratelimit_service_response_time_seconds_count{grpc_method=\"Check\"}",
    "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"}",
    "ratelimit_service_response_time_seconds_sum{grpc_method=\"Check\"}",
    "ratelimit_service_response_time_seconds_sum{grpc_method=\"ShouldRateLimit\"}",
    "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}",
    "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"}",
    "ratelimit_service_total_requests{grpc_method=\"Check\"}",
    "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}",
    "runtime_load_attempts",
    "runtime_load_failures",
    "runtime_num_values",
];

/// Maximum size of a StatsD datagram in bytes: it must fit into one Ethernet frame.
const LONGEST: usize = 1_432;

/// A service that has already produced every statistic.
struct ExercisedService {
    service: Service,
    root: TempDir,
    authority: Authority,
}

impl ExercisedService {
    fn with(sink: &[(&str, &str)]) -> Self {
        for_a_day_with_a_minute_left();
        let (mut redis, mut second) = (Process::redis(&[]), Process::redis(&[]));
        let (url, other) = (redis.address(), second.address());
        let authority = Authority::new();
        let own = authority.sign(&["ratelimit.test"]);
        let (root, service) = process::start(
            &[
                &[
                    ("GRPC_SERVER_USE_TLS", "true"),
                    ("GRPC_SERVER_TLS_CERT", &*own.certificate),
                    ("GRPC_SERVER_TLS_KEY", &*own.key),
                    ("REDIS_SOCKET_TYPE", "tcp"),
                    ("REDIS_URL", &*url),
                    ("REDIS_PERSECOND", "true"),
                    ("REDIS_PERSECOND_SOCKET_TYPE", "tcp"),
                    ("REDIS_PERSECOND_URL", &*other),
                    ("REDIS_TIMEOUT", "5s"),
                    ("LOCAL_CACHE_SIZE_IN_BYTES", "1000000"),
                    ("SHADOW_MODE", "true"),
                    ("ENABLE_NEGATIVE_HITS", "true"),
                    // Rare enough that no datagram is lost while the receiver is late.
                    ("STATS_FLUSH_INTERVAL", "200ms"),
                ],
                sink,
            ]
            .concat(),
        );
        let exercised = Self { service, root, authority };
        exercised.load_files(&exercised.root.path().join("s/config"));
        exercised.send_checks();
        exercised.call_grpc(&exercised.authority.ca());
        exercised.break_certificate(Path::new(&own.certificate));
        redis.kill();
        second.kill();
        exercised.wait_for_status("an error", "z", r#"{"key":"a","value":"b"},{"key":"c"}"#, 400);
        exercised.wait_for_status("an error", "z", r#"{"key":"sec"}"#, 400);
        exercised
    }

    /// Loads valid, invalid and unreadable limits files, for the statistics of loads.
    fn load_files(&self, files: &Path) {
        let wait_for_loads = |loaded, refused| {
            let wanted = |loads: crate::support::service::Loads| match (loads.loaded, loads.refused)
            {
                came if came == (loaded, refused) => Ok(()),
                came => Err(format!("{came:?}\n{}", self.service.log())),
            };
            until("a load", || wanted(self.service.loads()?)).unwrap();
        };
        fs::write(files.join("z.yaml"), LIMITS).unwrap();
        wait_for_loads(2, 0);
        fs::write(files.join("wrong.yaml"), "domain: ''\n").unwrap();
        wait_for_loads(2, 1);
        fs::remove_file(files.join("wrong.yaml")).unwrap();
        wait_for_loads(3, 1);
        std::os::unix::fs::symlink("nowhere", files.join("unreadable.yaml")).unwrap();
        wait_for_loads(3, 2);
    }

    fn check(&self, domain: &str, entries: &str, more: &str) -> u16 {
        let body =
            format!(r#"{{"domain":"{domain}","descriptors":[{{"entries":[{entries}]{more}}}]}}"#);
        http1::call(self.service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap().status
    }

    fn wait_for_status(&self, what: &str, domain: &str, entries: &str, status: u16) {
        until(what, || match self.check(domain, entries, "") {
            came if came == status => Ok(()),
            came => Err(format!("{came}: {}", self.service.log())),
        })
        .unwrap();
    }

    /// Sends checks that change every counter of a rule, and one for an unknown domain.
    fn send_checks(&self) {
        self.wait_for_status("an answer", "z", r#"{"key":"a","value":"b"},{"key":"c"}"#, 200);
        self.wait_for_status("an answer", "z", r#"{"key":"sec"}"#, 200);
        // The first check is within the limit, Redis denies the second, and the deny cache denies
        // the third. In shadow mode, all are allowed.
        for _ in 0..3 {
            assert_eq!(self.check("z", r#"{"key":"k"}"#, r#","hitsAddend":7"#), 200);
        }
        assert_eq!(self.check("z", r#"{"key":"k"}"#, r#","isNegativeHits":true"#), 200);
        assert_eq!(self.check("z", r#"{"key":"shade"}"#, ""), 200);
        assert_eq!(self.check("nodom", r#"{"key":"k"}"#, ""), 200);
    }

    fn server(&self, ca: &str) -> XdsServer {
        let tls = XdsTls {
            ca_file: Some(ca.into()),
            server_name: Some("ratelimit.test".into()),
            ..XdsTls::default()
        };
        XdsServer { host: "127.0.0.1".into(), port: self.service.grpc.port(), tls: Some(tls) }
    }

    /// Sends an empty check and a health check over gRPC.
    fn call_grpc(&self, ca: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(soon("answers", async {
            let channel = connect(&self.server(ca)).await.unwrap();
            let mut limits = RateLimitServiceClient::new(channel.clone());
            limits.should_rate_limit(RateLimitRequest::default()).await.unwrap_err();
            HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap();
        }));
    }

    fn break_certificate(&self, certificate: &Path) {
        let prepared = certificate.with_extension("new");
        fs::write(&prepared, "no certificate").unwrap();
        fs::rename(prepared, certificate).unwrap();
        until("the files are looked at", || {
            // The service reloads changed certificate files when a client connects.
            drop(std::net::TcpStream::connect(self.service.grpc));
            match self.service.log() {
                log if log.contains("keeping the previous one") => Ok(()),
                log => Err(log),
            }
        })
        .unwrap();
    }
}

/// Starts a StatsD server on a UDP port, which collects the received lines without their values.
fn statsd_listener() -> (String, Arc<Mutex<BTreeSet<String>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    let received: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let weak = Arc::downgrade(&received);
    std::thread::spawn(move || {
        let mut datagram = vec![0; 65_536];
        while let Some(received) = weak.upgrade() {
            let Ok(length) = socket.recv(&mut datagram) else { continue };
            let lines = String::from_utf8_lossy(&datagram[..length]).into_owned();
            let mut received = Mutex::lock(&received).unwrap();
            received.extend(lines.lines().map(without_value));
            if LONGEST < length {
                // Records an oversized datagram as a name, so that the comparison of names fails.
                received.insert(format!("a datagram of {length} bytes"));
            }
        }
    });
    (port, received)
}

/// Removes the value from a StatsD line: `a.b:17|c|#t:v` becomes `a.b|c|#t:v`.
fn without_value(line: &str) -> String {
    let (name, rest) = line.split_once(':').unwrap();
    format!("{name}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
}

fn wait_for_names(
    wanted: &BTreeSet<String>,
    log: impl Fn() -> String,
    received: impl Fn() -> BTreeSet<String>,
) {
    until("every name and no other", || {
        let received = received();
        let missing: Vec<_> = wanted.difference(&received).collect();
        let more: Vec<_> = received.difference(wanted).collect();
        let same = missing.is_empty() && more.is_empty();
        if same { Ok(()) } else { Err(format!("missing {missing:#?}, more {more:#?}\n{}", log())) }
    })
    .unwrap();
}

#[test]
fn statsd_receives_every_name_and_no_other() {
    let (port, received) = statsd_listener();
    let exercised = ExercisedService::with(&[
        ("USE_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", &port),
        ("STATSD_PROTOCOL", "udp"),
    ]);
    let rules = RULES.iter().map(|name| format!("ratelimit.service.rate_limit.{name}|c"));
    let wanted = rules.chain(OTHERS.iter().map(|&name| name.to_owned())).collect();
    wait_for_names(&wanted, || exercised.service.log(), || Mutex::lock(&received).unwrap().clone());
}

#[test]
fn dogstatsd_receives_every_name_with_its_tags() {
    let (port, received) = statsd_listener();
    let exercised = ExercisedService::with(&[
        ("USE_STATSD", "false"),
        ("USE_DOG_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", &port),
        ("EXTRA_TAGS", "env:prod"),
        ("USE_DOG_STATSD_MOGRIFIERS", "RULE"),
        (
            "DOG_STATSD_MOGRIFIER_RULE_PATTERN",
            r"^ratelimit\.service\.rate_limit\.([^.]*)\.(.*)\.([^.]*)$",
        ),
        ("DOG_STATSD_MOGRIFIER_RULE_NAME", "ratelimit.$3"),
        ("DOG_STATSD_MOGRIFIER_RULE_TAGS", "domain:$1,descriptor:$2"),
    ]);
    let rule = |name: &&str| match name.strip_prefix("z.").and_then(|rest| rest.rsplit_once('.')) {
        Some((keys, what)) => {
            format!("ratelimit.{what}|c|#env:prod,domain:z,descriptor:{keys}")
        }
        // The mapping pattern does not match a name without a descriptor, so it gets no tags.
        None => format!("ratelimit.service.rate_limit.{name}|c|#env:prod"),
    };
    let wanted =
        RULES.iter().map(rule).chain(OTHERS.iter().map(|name| format!("{name}|#env:prod")));
    let wanted = wanted.collect();
    wait_for_names(&wanted, || exercised.service.log(), || Mutex::lock(&received).unwrap().clone());
}

#[test]
fn prometheus_page_has_every_series_and_no_other() {
    let exercised = ExercisedService::with(&[("USE_STATSD", "false"), ("USE_PROMETHEUS", "true")]);
    let wanted = SERIES.iter().map(|&series| series.to_owned()).collect();
    let shown = || {
        let page = http1::get(exercised.service.metrics, "/metrics", &[]).unwrap().text();
        let is_theirs = |line: &&str| {
            ["ratelimit_", "runtime_", "certs_"].iter().any(|start| line.starts_with(start))
                && !line.contains("_bucket{")
        };
        let series = page.lines().filter(is_theirs).filter_map(|line| line.rsplit_once(' '));
        series.map(|(series, _)| series.to_owned()).collect()
    };
    wait_for_names(&wanted, || exercised.service.log(), shown);
}
