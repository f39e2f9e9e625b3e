//! Tests of metrics: counters, and the page `/metrics` in the Prometheus and OpenMetrics formats.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use sluicegate::edge::http::metrics::{MetricsFormats, router};
use sluicegate::kernel::decision::{Reason, StoreFailure, Verdict};
use sluicegate::kernel::units::{Nanos, Revision};
use sluicegate::telemetry::event::{
    ChargesFailed, CheckAnswered, CheckDecided, ConcurrencyLimitExceeded, ConfigLoaded,
    ConfigRejected, EdgeOutcome, Event as _, MemoryStoreFull, Protocol, RequestCompleted,
    ShareFenced, StoreCallSent,
};
use sluicegate::telemetry::label::CONCURRENCY_REASONS;
use sluicegate::telemetry::metrics::{
    ConcurrencyGauges, Gauges, MAX_LIMIT_SERIES, Metrics, ProcessUsage, RuleDecisions,
    to_openmetrics,
};
use tonic::codegen::Service as _;

fn page(metrics: &Metrics) -> String {
    metrics
        .page(Gauges {
            keys: 5,
            max_keys: 9,
            started_at: Nanos(1_500_000_000),
            ..Gauges::default()
        })
        .to_string()
}

/// Returns the value of each series of the page. Panics on a line that is not in the exposition
/// format.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let mut typed = HashSet::new();
    let mut samples = BTreeMap::new();
    assert!(page.ends_with('\n'));
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(typed.insert(name.to_owned()), "{name} has two types");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end).filter(|family| typed.contains(*family)))
                .unwrap_or(name);
            assert!(typed.contains(family), "{line} has no type");
            assert!(labels_are_sound(&series[name.len()..]), "{line}");
            let value = value.parse().unwrap();
            assert!(samples.insert(series.to_owned(), value).is_none(), "{series} twice");
        }
    }
    samples
}

fn labels_are_sound(labels: &str) -> bool {
    let Some(inner) = labels.strip_prefix('{') else { return labels.is_empty() };
    let Some(inner) = inner.strip_suffix('}') else { return false };
    inner.split(',').all(|pair| {
        let (name, value) = pair.split_once('=').unwrap();
        let name = name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
        name && value.is_some_and(|v| !v.contains(['"', '\\', '\n']))
    })
}

fn decided(verdict: Verdict, reasons: &[Reason]) -> CheckDecided<impl Iterator<Item = Reason>> {
    CheckDecided { verdict, is_shadowed: false, reasons: reasons.iter().copied(), near_limit: 0 }
}

#[test]
fn first_metrics_page_is_valid_with_zero_counters() {
    let samples = samples(&page(&Metrics::new()));
    let mut non_zero: Vec<_> = samples.iter().filter(|(_, value)| **value != 0.0).collect();
    non_zero.sort_by(|a, b| a.0.cmp(b.0));
    let version = format!("sluicegate_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    let want = [
        ("process_start_time_seconds", 1.5),
        (&*version, 1.0),
        ("sluicegate_memory_keys", 5.0),
        ("sluicegate_memory_keys_max", 9.0),
        ("sluicegate_store_up", 1.0),
    ];
    let non_zero: Vec<_> =
        non_zero.into_iter().map(|(series, value)| (&**series, *value)).collect();
    assert_eq!(non_zero, want);
}

#[test]
fn every_label_value_has_a_series() {
    let samples = samples(&page(&Metrics::new()));
    let series = |name: &str| samples.keys().filter(|s| s.split('{').next() == Some(name)).count();
    assert_eq!(series("sluicegate_descriptors_decided_total"), Reason::ALL.len());
    let requests = Protocol::ALL.len() * EdgeOutcome::ALL.len();
    assert_eq!(series("sluicegate_edge_requests_total"), requests);
    for reason in Reason::ALL {
        let name =
            format!("sluicegate_descriptors_decided_total{{reason=\"{}\"}}", reason.as_str());
        assert!(samples.contains_key(&name), "{name}");
    }
}

#[test]
fn lists_of_label_values_are_in_enum_order() {
    assert!(Reason::ALL.iter().enumerate().all(|(index, reason)| *reason as usize == index));
    assert!(EdgeOutcome::ALL.iter().enumerate().all(|(index, outcome)| *outcome as usize == index));
    assert!(Protocol::ALL.iter().enumerate().all(|(index, p)| *p as usize == index));
    assert!(StoreFailure::ALL.iter().enumerate().all(|(index, cause)| *cause as usize == index));
}

#[test]
fn each_event_increments_only_its_own_series() {
    let metrics = Metrics::new();
    let reasons = [Reason::OverLimit, Reason::WithinLimit, Reason::WithinLimit];
    decided(Verdict::Deny, &reasons).count(&metrics);
    decided(Verdict::Allow, &[Reason::NoLimit]).count(&metrics);
    CheckDecided { is_shadowed: true, ..decided(Verdict::Allow, &[]) }.count(&metrics);
    for nanos in [400, 3_000_000, 1 << 40] {
        CheckAnswered { received_at: Nanos(0), replied_at: Nanos(nanos), queue_time: Nanos(0) }
            .count(&metrics);
    }
    RequestCompleted { protocol: Protocol::Json, outcome: EdgeOutcome::TooLarge }.count(&metrics);
    MemoryStoreFull { verdict: Verdict::Deny }.count(&metrics);
    ChargesFailed { cause: StoreFailure::WrongType, charges: 3 }.count(&metrics);
    for questions in [1, 1, 9, 1_000] {
        StoreCallSent { checks: questions }.count(&metrics);
    }
    ConfigLoaded { revision: Revision(7), loaded_at: Nanos(2_250_000_000) }.count(&metrics);
    ConfigRejected.count(&metrics);
    let samples = samples(&page(&metrics));
    let want = [
        ("sluicegate_store_failures_total{cause=\"wrong_type\"}", 3.0),
        ("sluicegate_store_call_checks_bucket{le=\"1\"}", 2.0),
        ("sluicegate_store_call_checks_bucket{le=\"8\"}", 2.0),
        ("sluicegate_store_call_checks_bucket{le=\"16\"}", 3.0),
        ("sluicegate_store_call_checks_bucket{le=\"256\"}", 3.0),
        ("sluicegate_store_call_checks_bucket{le=\"+Inf\"}", 4.0),
        ("sluicegate_store_call_checks_count", 4.0),
        ("sluicegate_store_call_checks_sum", 1_011.0),
        ("sluicegate_checks_total{verdict=\"allow\"}", 1.0),
        ("sluicegate_checks_total{verdict=\"deny\"}", 1.0),
        ("sluicegate_checks_total{verdict=\"shadow_deny\"}", 1.0),
        ("sluicegate_descriptors_decided_total{reason=\"over_limit\"}", 1.0),
        ("sluicegate_descriptors_decided_total{reason=\"within_limit\"}", 2.0),
        ("sluicegate_descriptors_decided_total{reason=\"no_limit\"}", 1.0),
        ("sluicegate_descriptors_decided_total{reason=\"unlimited\"}", 0.0),
        ("sluicegate_edge_requests_total{protocol=\"json\",outcome=\"too_large\"}", 1.0),
        ("sluicegate_edge_requests_total{protocol=\"grpc\",outcome=\"too_large\"}", 0.0),
        ("sluicegate_memory_full_total{verdict=\"deny\"}", 1.0),
        ("sluicegate_memory_full_total{verdict=\"allow\"}", 0.0),
        ("sluicegate_config_revision", 7.0),
        ("sluicegate_config_loaded_timestamp_seconds", 2.25),
        ("sluicegate_config_loads_total{outcome=\"accepted\"}", 1.0),
        ("sluicegate_config_loads_total{outcome=\"rejected\"}", 1.0),
        ("sluicegate_decision_duration_seconds_bucket{le=\"5e-07\"}", 1.0),
        ("sluicegate_decision_duration_seconds_bucket{le=\"0.0025\"}", 1.0),
        ("sluicegate_decision_duration_seconds_bucket{le=\"0.005\"}", 2.0),
        ("sluicegate_decision_duration_seconds_bucket{le=\"0.25\"}", 2.0),
        ("sluicegate_decision_duration_seconds_bucket{le=\"+Inf\"}", 3.0),
        ("sluicegate_decision_duration_seconds_count", 3.0),
        ("sluicegate_decision_duration_seconds_sum", 1_099.514_628_176),
    ];
    for (series, value) in want {
        let got = samples[series];
        assert!((got - value).abs() < 1e-9, "{series} is {got}");
    }
}

#[test]
fn histogram_bucket_bounds_are_inclusive() {
    let metrics = Metrics::new();
    for nanos in [500, 501] {
        CheckAnswered { received_at: Nanos(0), replied_at: Nanos(nanos), queue_time: Nanos(0) }
            .count(&metrics);
    }
    let samples = samples(&page(&metrics));
    let below =
        |le: &str| samples[&format!("sluicegate_decision_duration_seconds_bucket{{le=\"{le}\"}}")];
    assert_eq!((below("5e-07"), below("1e-06")), (1.0, 2.0));
}

#[test]
fn concurrent_counter_increments_are_not_lost() {
    let metrics = Metrics::new();
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    decided(Verdict::Allow, &[Reason::NoLimit]).count(&metrics);
                    CheckAnswered {
                        received_at: Nanos(0),
                        replied_at: Nanos(1),
                        queue_time: Nanos(0),
                    }
                    .count(&metrics);
                }
            });
        }
    });
    let page = page(&metrics);
    assert!(page.contains("\nsluicegate_decision_duration_seconds_count 100000\n"));
    assert!(page.contains("\nsluicegate_descriptors_decided_total{reason=\"no_limit\"} 100000\n"));
}

#[tokio::test]
async fn only_the_metrics_path_is_served() {
    let router = router("/metrics", Arc::new(|| page(&Metrics::new())), MetricsFormats::Both);
    let get = |path: &str| Request::builder().uri(path).body(Body::empty()).unwrap();
    let Ok(reply) = router.clone().call(get("/metrics")).await;
    assert_eq!(reply.status(), 200);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    assert_eq!(reply.headers()["content-type"], kind);
    let body = axum::body::to_bytes(reply.into_body(), usize::MAX).await.unwrap();
    assert!(!samples(str::from_utf8(&body).unwrap()).is_empty());
    let Ok(reply) = router.clone().call(get("/debug/vars")).await;
    assert_eq!(reply.status(), 404);
}

#[test]
fn metrics_of_concurrency_limits_beyond_a_hundred_share_one_series() {
    let ceiling = |number: u64| ConcurrencyGauges {
        path: format!("d.k{number:03}").into(),
        in_flight: number,
        waiting: 1,
        limit: 1_000,
        rtt: Some(Nanos(4_000_000)),
        min_rtt: Some(Nanos(1_000_000)),
        gradient: Some(250_000),
    };
    let gauges =
        Gauges { concurrency_limits: (0..150).rev().map(ceiling).collect(), ..Gauges::default() };
    let samples = samples(&Metrics::new().page(gauges).to_string());
    let of = |name: &str, limit: &str| {
        samples.get(&format!("sluicegate_concurrency_{name}{{limit=\"{limit}\"}}")).copied()
    };
    assert_eq!(of("requests_in_flight", "d.k099"), Some(99.0));
    assert_eq!(of("requests_in_flight", "d.k100"), None);
    assert_eq!(of("requests_in_flight", "other"), Some((100..150).sum::<u32>().into()));
    assert_eq!(
        (of("requests_queued", "other"), of("limit", "other")),
        (Some(50.0), Some(50_000.0))
    );
    assert_eq!(
        (of("rtt_seconds", "d.k007"), of("min_rtt_seconds", "d.k007")),
        (Some(0.004), Some(0.001))
    );
    assert_eq!((of("gradient", "d.k007"), of("gradient", "other")), (Some(0.25), None));
    let odd = ConcurrencyGauges { path: "d.\"\\\n".into(), ..ConcurrencyGauges::default() };
    let page = Metrics::new()
        .page(Gauges { concurrency_limits: vec![odd], ..Gauges::default() })
        .to_string();
    assert!(page.contains(r#"{limit="d.\"\\\n"} 0"#), "{page}");
}

#[test]
fn rules_have_series_for_allow_deny_and_each_other_verdict_that_occurred() {
    let rule = |path: &str, counts| RuleDecisions { domain: "d".into(), path: path.into(), counts };
    let rule_decisions =
        vec![rule("d.host_www.shop.example", [3, 2, 0, 0, 0]), rule("d.\"\\\n", [0, 0, 1, 0, 0])];
    let page = Metrics::new().page(Gauges { rule_decisions, ..Gauges::default() }).to_string();
    let series: Vec<_> =
        page.lines().filter_map(|l| l.strip_prefix("sluicegate_rule_decisions_total")).collect();
    let wanted = [
        r#"{domain="d",rule="d.host_www.shop.example",verdict="allow"} 3"#,
        r#"{domain="d",rule="d.host_www.shop.example",verdict="deny"} 2"#,
        r#"{domain="d",rule="d.\"\\\n",verdict="allow"} 0"#,
        r#"{domain="d",rule="d.\"\\\n",verdict="deny"} 0"#,
        r#"{domain="d",rule="d.\"\\\n",verdict="shadow_deny"} 1"#,
    ];
    assert_eq!(series, wanted);
}

#[test]
fn rejections_and_expired_shares_are_counted_by_limit() {
    let metrics = Metrics::new();
    for (number, reason) in CONCURRENCY_REASONS.into_iter().enumerate() {
        for is_enforced in [vec![false; 7], vec![true; number + 1]].concat() {
            ConcurrencyLimitExceeded {
                limit: "d.k",
                class: Some("low"),
                reason,
                is_enforced,
                count: 1,
            }
            .count(&metrics);
        }
    }
    ShareFenced { limit: "d.k" }.count(&metrics);
    for limit in 0..MAX_LIMIT_SERIES + 2 {
        ShareFenced { limit: &format!("d.many{limit:03}") }.count(&metrics);
    }
    let samples = samples(&page(&metrics));
    let of = |limit: &str, event: &str| {
        let name = "sluicegate_concurrency_limit_events_total";
        samples.get(&format!("{name}{{limit=\"{limit}\",event=\"{event}\"}}")).copied()
    };
    for (count, reason) in [1.0, 2.0, 3.0, 4.0].into_iter().zip(CONCURRENCY_REASONS) {
        assert_eq!(of("d.k", reason.as_str()), Some(count));
    }
    assert_eq!(of("d.k", "fenced"), Some(1.0));
    assert_eq!(of("d.many000", "fenced"), Some(1.0));
    assert_eq!((of("d.many101", "fenced"), of("other", "fenced")), (None, Some(3.0)));
    let rejected = "sluicegate_concurrency_class_rejections_total{limit=\"d.k\",class=\"low\"}";
    assert_eq!(samples.get(rejected), Some(&10.0));
    let fenced = samples.get("sluicegate_shares_total{event=\"fenced\"}");
    assert_eq!(fenced, Some(&103.0));
}

/// Source: OpenMetrics 1.0, "Overall structure", "Counter", "Histogram".
#[test]
fn openmetrics_has_the_same_samples_and_its_own_syntax() {
    let metrics = Metrics::new();
    StoreCallSent { checks: 3 }.count(&metrics);
    CheckAnswered { received_at: Nanos(0), replied_at: Nanos(400), queue_time: Nanos(0) }
        .count(&metrics);
    let gauges = Gauges { process: Some(ProcessUsage::default()), ..Gauges::default() };
    let text = metrics.page(gauges).to_string();
    let shown = to_openmetrics(&text, &metrics);
    let ends = [1, 2, 4, 8, 16, 32, 64, 128, 256];
    let of = |end: u32| {
        (format!("checks_bucket{{le=\"{end}\"}}"), format!("checks_bucket{{le=\"{end}.0\"}}"))
    };
    let as_floats =
        ends.into_iter().map(of).fold(text.clone(), |page, (a, b)| page.replace(&a, &b));
    let own = |page: &str| {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(own(&shown), own(&as_floats));
    assert!(shown.ends_with("\n# EOF\n") && shown.matches("# EOF").count() == 1);
    assert!(shown.contains("# TYPE sluicegate_checks counter\n# HELP sluicegate_checks "));
    assert!(
        shown.contains("# TYPE process_cpu_seconds counter\n# UNIT process_cpu_seconds seconds\n")
    );
    assert!(shown.contains("# UNIT process_resident_memory_bytes bytes\n"));
    assert!(shown.contains("# UNIT sluicegate_decision_duration_seconds seconds\n"));
    assert!(!shown.contains(" # {"), "nothing was traced");
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
    }
}

#[tokio::test]
async fn the_accept_header_selects_the_exposition_format() {
    let open = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let text = "text/plain; version=0.0.4; charset=utf-8";
    let prometheus_accept = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                         version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    for (accept, wanted) in [
        (None, text),
        (Some("*/*"), text),
        (Some("text/html, */*;q=0.8"), text),
        (Some(prometheus_accept), open),
        (Some("application/openmetrics-text"), open),
        (Some("Application/OpenMetrics-Text; Version=1.0.0; Q=0.3, text/plain; q=0.2"), open),
        (Some("application/openmetrics-text; q=0.2, text/plain; q=0.3"), text),
        (Some("application/openmetrics-text; q=0"), text),
        (Some("application/openmetrics-text; version=2.0.0"), text),
        (Some("application/openmetrics-text; q=many"), text),
    ] {
        for (formats, wanted) in [(MetricsFormats::Both, wanted), (MetricsFormats::Text, text)] {
            let page = Arc::new(|| page(&Metrics::new()));
            let mut request = Request::builder().uri("/metrics");
            if let Some(accept) = accept {
                request = request.header("accept", accept);
            }
            let request = request.body(Body::empty()).unwrap();
            let Ok(reply) = router("/metrics", page, formats).call(request).await;
            assert_eq!(reply.headers()["content-type"], wanted, "{accept:?}, {formats:?}");
            assert_eq!(reply.headers()["vary"], "accept");
            let body = axum::body::to_bytes(reply.into_body(), usize::MAX).await.unwrap();
            assert_eq!(body.ends_with(b"# EOF\n"), wanted == open, "{accept:?}");
        }
    }
}
