//! Tests of statistics with envoyproxy/ratelimit's names: counting, StatsD lines and Prometheus
//! metrics.

mod dots;
mod mappings;

use std::io::Read as _;
use std::net::{TcpListener, UdpSocket};

use regex::Regex;
use sluicegate::kernel::units::Nanos;
use sluicegate::telemetry::stats::mapping::StatMapping;
use sluicegate::telemetry::stats::{
    ExternalStat, LineFormat, NameRewrite, OVERFLOW, RuleCharge, RuleStatsKey, StatCounter,
    StatLineFormatter, Stats, TimedMethod, render_page,
};

use super::process;
use crate::support::waiting::{PATIENCE, until};
use crate::support::{http1, ports};

fn stats(most: u32) -> Stats {
    Stats::new(most, StatMapping::built_in(false))
}

/// A charge to a limit of 10, with a near limit of 8. `counter` is the counter value after the charge.
fn rule_charge(hits: u64, counter: u64) -> RuleCharge {
    RuleCharge {
        hits,
        counter,
        limit: 10,
        near_limit: 8,
        is_cached_denial: false,
        is_shadow: false,
    }
}

/// Records three checks of seven hits with a limit of ten, an example from envoyproxy/ratelimit.
fn record_example(stats: &Stats) {
    let rule = stats.rule_stats(RuleStatsKey::FromFile("d.k"));
    for held in [7, 14, 21] {
        rule.hits(7);
        rule.count_result(rule_charge(7, held));
    }
    stats.record_call(TimedMethod::ShouldRateLimit, Nanos(1), Nanos(7_900_000));
}

fn lines(formatter: &mut StatLineFormatter, stats: &Stats) -> Vec<String> {
    let gauges = [ExternalStat::Gauge("ratelimit.redis_pool.cx_active", 1)];
    let mut lines = formatter.next_lines(stats, &gauges);
    lines.sort_unstable();
    lines
}

const WORKED: [&str; 7] = [
    "ratelimit.redis_pool.cx_active:1|g",
    "ratelimit.service.rate_limit.d.k.near_limit:2|c",
    "ratelimit.service.rate_limit.d.k.over_limit:11|c",
    "ratelimit.service.rate_limit.d.k.total_hits:21|c",
    "ratelimit.service.rate_limit.d.k.within_limit:7|c",
    "ratelimit_server.ShouldRateLimit.response_time:7|ms",
    "ratelimit_server.ShouldRateLimit.total_requests:1|c",
];

#[test]
fn counters_are_sent_as_increments() {
    let (stats, mut lines_of) =
        (stats(10), StatLineFormatter::new(LineFormat::Statsd, &[], Vec::new()));
    record_example(&stats);
    assert_eq!(lines(&mut lines_of, &stats), WORKED);
    assert_eq!(lines(&mut lines_of, &stats), [WORKED[0]], "nothing grew");
    stats.add(StatCounter::RedisError, 2);
    let error = "ratelimit.service.call.should_rate_limit.redis_error:2|c";
    assert_eq!(lines(&mut lines_of, &stats), [WORKED[0], error]);
}

#[test]
fn statsd_puts_tags_into_names_dogstatsd_appends_them() {
    let tags = [("env", "prod"), ("az", "eu:1.a")].map(|(n, t)| (n.to_owned(), t.to_owned()));
    let (stats, name) = (stats(10), "ratelimit.service.rate_limit.d.k.total_hits");
    stats.rule_stats(RuleStatsKey::FromFile("d.k")).hits(1);
    let mut plain = StatLineFormatter::new(LineFormat::Statsd, &tags, Vec::new());
    assert_eq!(plain.next_lines(&stats, &[]), [format!("{name}.__az=eu_1_a.__env=prod:1|c")]);
    let rewrite = NameRewrite {
        pattern: Regex::new(r"^ratelimit\.service\.rate_limit\.(.*)\.(.*)\.(.*)$").unwrap(),
        name: "ratelimit.$3".to_owned(),
        tags: vec![
            ("domain".to_owned(), "$1".to_owned()),
            ("key".to_owned(), "${2}-$9".to_owned()),
        ],
    };
    let mut dog = StatLineFormatter::new(LineFormat::Dogstatsd, &tags, vec![rewrite]);
    let wanted = "ratelimit.total_hits:1|c|#az:eu_1_a,env:prod,domain:d,key:k-$9";
    assert_eq!(dog.next_lines(&stats, &[]), [wanted]);
    let mut log = StatLineFormatter::new(LineFormat::Log, &[], Vec::new());
    let line: serde_json::Value = serde_json::from_str(&log.next_lines(&stats, &[])[0]).unwrap();
    assert_eq!(line["json"]["name"], name);
    assert_eq!(line["json"]["value"], "1.000000");
}

#[test]
fn a_name_from_a_request_adds_no_line_or_value_to_statsd() {
    let stats = stats(10);
    stats.rule_stats(RuleStatsKey::FromRequest("d.k_a\nfoo:1|c\r\u{85}b")).hits(1);
    stats.count_unknown_domain("x:9|c\ny\0", 1);
    let tags = [("env".to_owned(), "prod\ntwo".to_owned())];
    let prefix = "ratelimit.service.rate_limit";
    for (format, end) in
        [(LineFormat::Statsd, ".__env=prod_two:1|c"), (LineFormat::Dogstatsd, ":1|c|#env:prod_two")]
    {
        let mut lines = StatLineFormatter::new(format, &tags, Vec::new()).next_lines(&stats, &[]);
        lines.sort_unstable();
        let names = ["d.k_a_foo_1_c__b.total_hits", "x_9_c_y_.domain_not_found"];
        assert_eq!(lines, names.map(|name| format!("{prefix}.{name}{end}")));
    }
}

#[test]
fn prometheus_metrics_match_the_golden_file() {
    let stats = stats(10);
    record_example(&stats);
    let two = stats.rule_stats(RuleStatsKey::FromFile("d.a_x.b.c"));
    two.hits(3);
    two.count_result(RuleCharge { is_cached_denial: true, ..rule_charge(3, 11) });
    stats.add(StatCounter::ServiceError, 4);
    stats.add(StatCounter::ConfigLoadSuccess, 1);
    stats.count_unknown_domain("no dom", 2);
    let gauges = [ExternalStat::Gauge("ratelimit.redis_pool.cx_active", 1)];
    let golden = include_str!("../golden/reference_metrics.txt");
    assert_eq!(render_page(&stats, &gauges), golden);
}

#[test]
fn millisecond_mapping_reports_response_times_in_milliseconds() {
    let stats = Stats::new(1, StatMapping::built_in(true));
    stats.record_call(TimedMethod::ShouldRateLimit, Nanos(1), Nanos(7_900_000));
    let page = render_page(&stats, &[]);
    assert!(page.contains(
        "ratelimit_service_response_time_seconds_sum{grpc_method=\"ShouldRateLimit\"} 7\n"
    ));
    assert!(page.contains("le=\"5\"} 0\n") && page.contains("le=\"10\"} 1\n"), "{page}");
}

#[test]
fn rule_names_beyond_the_maximum_share_an_overflow_counter() {
    let stats = stats(3);
    for nth in 0..1_000 {
        stats.rule_stats(RuleStatsKey::FromRequest(&format!("d.user_{nth}"))).hits(1);
        stats.count_unknown_domain(&format!("domain {nth}"), 1);
    }
    // The maximum number of names does not apply to rules from files.
    stats.rule_stats(RuleStatsKey::FromFile("d.k")).hits(5);
    let mut lines =
        StatLineFormatter::new(LineFormat::Statsd, &[], Vec::new()).next_lines(&stats, &[]);
    lines.sort_unstable();
    assert_eq!(lines.len(), 3 + 1 + 3 + 1 + 1, "{lines:?}");
    let overflow = format!("ratelimit.service.rate_limit.{OVERFLOW}.{OVERFLOW}.total_hits:997|c");
    assert!(lines.contains(&overflow), "{lines:?}");
    let unknown = format!("ratelimit.service.rate_limit.{OVERFLOW}.domain_not_found:997|c");
    assert!(lines.contains(&unknown), "{lines:?}");
    let total: u64 =
        lines.iter().filter(|line| line.contains("total_hits")).map(|line| value(line)).sum();
    assert_eq!(total, 1_005, "no hit is lost");
}

#[test]
fn hits_of_overlong_rule_names_are_sent() {
    let stats = stats(9);
    let long = "x".repeat(2_000);
    stats.rule_stats(RuleStatsKey::FromRequest(&long)).hits(4);
    stats.count_unknown_domain(&long, 2);
    let lines = StatLineFormatter::new(LineFormat::Statsd, &[], Vec::new()).next_lines(&stats, &[]);
    assert!(lines.iter().all(|line| line.len() < 200), "{lines:?}");
    assert_eq!(lines.iter().map(|line| value(line)).sum::<u64>(), 6, "no hit is lost");
}

fn value(line: &str) -> u64 {
    line.rsplit(':').next().unwrap().split('|').next().unwrap().parse().unwrap()
}

#[test]
fn rules_with_equal_sanitized_names_share_a_counter() {
    let stats = stats(10);
    stats.rule_stats(RuleStatsKey::FromRequest("d.k_a:b")).hits(1);
    stats.rule_stats(RuleStatsKey::FromRequest("d.k_a|b")).hits(2);
    let lines = StatLineFormatter::new(LineFormat::Statsd, &[], Vec::new()).next_lines(&stats, &[]);
    assert_eq!(lines, ["ratelimit.service.rate_limit.d.k_a_b.total_hits:3|c"]);
}

#[test]
fn unknown_domains_with_equal_sanitized_names_share_a_counter() {
    for (one, other, name) in [("a:b", "a|b", "a_b"), ("10.0.0.1", "10_0_0_1", "10_0_0_1")] {
        let (stats, mut lines) =
            (stats(10), StatLineFormatter::new(LineFormat::Statsd, &[], Vec::new()));
        stats.count_unknown_domain(one, 5);
        stats.count_unknown_domain(other, 3);
        let wanted = format!("ratelimit.service.rate_limit.{name}.domain_not_found:8|c");
        assert_eq!(lines.next_lines(&stats, &[]), [wanted], "each name once in a round");
        assert_eq!(lines.next_lines(&stats, &[]), [""; 0], "nothing grew");
    }
}

#[test]
fn a_rule_named_overflow_shares_the_overflow_counter() {
    let (stats, mut lines) =
        (stats(1), StatLineFormatter::new(LineFormat::Statsd, &[], Vec::new()));
    let name = format!("{OVERFLOW}.{OVERFLOW}");
    stats.rule_stats(RuleStatsKey::FromFile(&name)).hits(5);
    stats.rule_stats(RuleStatsKey::FromFile("one.more")).hits(3);
    let wanted = format!("ratelimit.service.rate_limit.{name}.total_hits:8|c");
    assert_eq!(lines.next_lines(&stats, &[]), [wanted]);
    assert_eq!(lines.next_lines(&stats, &[]), [""; 0], "nothing grew");
}

#[test]
fn decreased_counter_sends_nothing_to_statsd_until_it_grows() {
    let (stats, mut lines) =
        (stats(1), StatLineFormatter::new(LineFormat::Statsd, &[], Vec::new()));
    let mut next = |count| lines.next_lines(&stats, &[ExternalStat::Counter("c", count)]);
    assert_eq!(next(5), ["c:5|c"]);
    assert_eq!(next(3), [""; 0]);
    assert_eq!(next(4), ["c:1|c"]);
}

#[test]
fn near_over_and_within_limit_counts_match_envoyproxy() {
    // Hits, counter value after them, and expected counts near, over and within the limit, as in
    // envoyproxy/ratelimit.
    for (hits, held, near, over, within) in [
        (1, 8, 0, 0, 1),
        (1, 9, 1, 0, 1),
        (1, 10, 1, 0, 1),
        (2, 9, 1, 0, 2),
        (1, 11, 0, 1, 0),
        (5, 13, 2, 3, 0),
        (3, 12, 1, 2, 0),
        (30, 30, 2, 20, 0),
        (0, 10, 0, 0, 0),
    ] {
        let stats = stats(1);
        stats.rule_stats(RuleStatsKey::FromFile("d.k")).count_result(rule_charge(hits, held));
        let lines =
            StatLineFormatter::new(LineFormat::Statsd, &[], Vec::new()).next_lines(&stats, &[]);
        let of = |name: &str| {
            let line = lines.iter().find(|line| line.contains(&format!(".k.{name}:")));
            line.map_or(0, |line| value(line))
        };
        let counted = [of("near_limit"), of("over_limit"), of("within_limit")];
        assert_eq!(counted, [near, over, within], "{hits} hits, {held} held");
    }
}

#[test]
fn shadow_mode_counts_over_limit_hits_twice() {
    // Five hits raise the counter to 13 of 10, so three are over the limit, as in
    // envoyproxy/ratelimit.
    let stats = stats(1);
    stats
        .rule_stats(RuleStatsKey::FromFile("d.k"))
        .count_result(RuleCharge { is_shadow: true, ..rule_charge(5, 13) });
    let mut lines =
        StatLineFormatter::new(LineFormat::Statsd, &[], Vec::new()).next_lines(&stats, &[]);
    lines.sort_unstable();
    let rule = "ratelimit.service.rate_limit.d.k";
    let wanted = ["near_limit:2|c", "over_limit:3|c", "shadow_mode:3|c"];
    assert_eq!(lines, wanted.map(|stat| format!("{rule}.{stat}")));
}

#[test]
fn statistics_arrive_at_statsd_over_udp() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    let (_root, service) = process::start(&[
        ("USE_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", &port),
        ("STATSD_PROTOCOL", "udp"),
        // Rare enough that no datagram is lost before this test reads.
        ("STATS_FLUSH_INTERVAL", "200ms"),
        ("SLUICEGATE_STORE_URL", "memory"),
    ]);
    assert_eq!(process::ask(&service), 200);
    let mut received = String::new();
    until("the statistics", || {
        let mut datagram = [0; 2_000];
        let length = socket.recv(&mut datagram).map_err(|error| error.to_string())?;
        assert!(length <= 1_432, "{length}");
        received.push_str(&String::from_utf8_lossy(&datagram[..length]));
        received.push('\n');
        let hit = "ratelimit.service.rate_limit.d.k.total_hits:1|c\n";
        if received.contains(hit) { Ok(()) } else { Err(received.clone()) }
    })
    .unwrap();
    assert!(received.contains("ratelimit.service.config_load_success:1|c\n"), "{received}");
}

#[test]
fn statsd_defaults_to_tcp_and_reconnects_after_refused_connections() {
    // Reserves a port that refuses connections at first.
    let port = ports::free().port();
    let text = port.to_string();
    let (_root, service) = process::start(&[
        ("USE_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", &text),
        ("STATS_FLUSH_INTERVAL", "20ms"),
        ("SLUICEGATE_STORE_URL", "memory"),
    ]);
    assert_eq!(process::ask(&service), 200);
    let refused = format!("failed to send statistics, retrying to=127.0.0.1:{port} (tcp) ");
    until("it is cut off", || match service.log() {
        log if log.contains(&refused) => Ok(()),
        log => Err(log),
    })
    .unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let accepted = until("it calls", || listener.accept().map_err(|error| error.to_string()));
    let (mut stream, _) = accepted.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut received, mut bytes) = (String::new(), [0; 4_096]);
    until("what waited", || {
        let length = stream.read(&mut bytes).map_err(|error| error.to_string())?;
        received.push_str(&String::from_utf8_lossy(&bytes[..length]));
        let waited = received.contains("ratelimit.service.rate_limit.d.k.within_limit:1|c\n");
        if waited { Ok(()) } else { Err(received.clone()) }
    })
    .unwrap();
}

#[test]
fn metrics_path_serves_envoyproxy_and_sluicegate_metrics() {
    let (_root, service) = process::start(&[
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_PATH", "/m"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/no-such-file.yaml"),
        ("SLUICEGATE_STORE_URL", "memory"),
    ]);
    assert_eq!(process::ask(&service), 200);
    let page = http1::get(service.metrics, "/m", &[]).unwrap().text();
    assert!(
        page.contains("ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"k\"} 1\n"),
        "{page}"
    );
    assert!(page.contains("sluicegate_checks_total{verdict=\"allow\"} 1\n"), "{page}");
    assert!(service.log().contains("using the built-in mapping"));
    for path in ["/metrics", "/debug/pprof/", "/debug/vars"] {
        assert_eq!(http1::get(service.metrics, path, &[]).unwrap().status, 404, "{path}");
    }
}
