//! Tests of dashboards and alerts with a real Prometheus and a running service.
//!
//! Guarantees:
//! - Every dashboard query returns data.
//! - Every metric in a dashboard or an alert exists.
//! - Every alert fires when it should and has a runbook section.
//!
//! Not covered:
//! - The appearance of a dashboard in Grafana.

mod exemplars;
mod gateway;
mod prometheus;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::{
    AcquireRequest, Descriptor, Entry, Outcome, ReleaseRequest,
};
use sluicegate::kernel::units::Nanos;
use sluicegate::telemetry::metrics::{ConcurrencyGauges, Gauges, Metrics, ProcessUsage};

use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;

use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{Ends, until};
use prometheus::Prometheus;

const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  \
                      rate_limit: {unit: day, requests_per_unit: 5}\n- key: upstream\n  \
                      concurrency: {limit: 8, mode: local, adaptive: {algorithm: gradient, min: 2, max: 64}}\n- key: report\n  \
                      concurrency: {limit: 1, mode: local, classes: {by: tier, up_to: {high: 100%}}}\n";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

struct Query {
    place: String,
    expression: String,
}

fn queries() -> Vec<Query> {
    let dashboards = fs::read_dir(root().join("charts/sluicegate/dashboards")).unwrap();
    let read = |path: PathBuf| {
        let board: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let panels = board["panels"].as_array().unwrap().clone();
        panels.into_iter().flat_map(move |panel| {
            let place = format!("{}: {}", path.display(), panel["title"]);
            let targets = panel["targets"].as_array().unwrap().clone();
            targets.into_iter().map(move |target| Query {
                place: place.clone(),
                expression: target["expr"].as_str().unwrap().to_owned(),
            })
        })
    };
    dashboards.flat_map(|entry| read(entry.unwrap().path())).collect()
}

/// Replaces Grafana's variables in a query.
fn filled(expression: &str) -> String {
    let filled = expression.replace("$__rate_interval", "10s");
    filled.replace("$job", ".*").replace("$instance", ".*")
}

#[test]
fn every_dashboard_query_returns_data() {
    let redis = Redis::start();
    let limits = tempfile::tempdir().unwrap();
    fs::write(limits.path().join("shop.yaml"), LIMITS).unwrap();
    let backend = format!("redis+unix://{}", redis.socket().display());
    let rows = tempfile::NamedTempFile::with_suffix(".csv").unwrap();
    fs::write(rows.path(), "id\nme\n").unwrap();
    let source = format!("file://{}", rows.path().display());
    let tables = serde_json::json!([{"name": "customers", "source": source}]).to_string();
    let flags = ["--store-url".to_owned(), backend, "--tables".to_owned(), tables];
    let service = Service::start(limits.path(), &flags).unwrap();
    let prometheus = Prometheus::of(service.metrics);
    let queries = queries();
    assert!(40 < queries.len(), "{} queries", queries.len());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        scope.spawn(|| {
            let mut upstream = Upstream::of(&service);
            while !over.load(Ordering::Relaxed) {
                let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "api_key", "value": "me"}]}]}"#;
                let _ = http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes()));
                upstream.send_request();
            }
        });
        for query in &queries {
            has_data(&prometheus, query).unwrap();
        }
    });
}

/// A client that sends requests under the concurrency limit, which need an upstream.
struct Upstream {
    runtime: Runtime,
    client: PermitsClient<Channel>,
    number: u64,
}

impl Upstream {
    fn of(service: &Service) -> Self {
        // This thread answers the server's pings while the client is idle.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = PermitsClient::new(runtime.block_on(service.door().connect()).unwrap());
        Self { runtime, client, number: 0 }
    }

    /// Acquires a permit for this entry, and returns its id.
    fn acquire(&mut self, key: &str) -> String {
        self.number += 1;
        let (id, domain) = (format!("request-{:016}", self.number), "shop".to_owned());
        let entries = vec![Entry { key: key.into(), value: "all".into() }];
        let descriptors = vec![Descriptor { entries, hits: None }];
        let asked = AcquireRequest { id: id.clone(), domain, descriptors, max_wait_us: None };
        self.runtime.block_on(self.client.acquire(asked)).unwrap();
        id
    }

    /// Sends one request with a latency of 5 ms, and one of a class that is rejected from the second
    /// one on.
    fn send_request(&mut self) {
        let _kept = self.acquire("report");
        let id = self.acquire("upstream");
        let outcome = Outcome::Success.into();
        let ended =
            ReleaseRequest { id, outcome, rtt_us: Some(5_000), ..ReleaseRequest::default() };
        self.runtime.block_on(self.client.release(ended)).unwrap();
    }
}

fn has_data(prometheus: &Prometheus, query: &Query) -> Result<(), String> {
    until(&query.place, || match prometheus.samples(&filled(&query.expression))? {
        0 => Err(format!("no data: {}", query.expression)),
        _ => Ok(()),
    })
}

/// 0 / 0 is NaN, and a panel that shows NaN looks broken while there is no traffic.
#[test]
fn dashboard_queries_never_divide_by_zero() {
    for Query { place, expression } in queries() {
        for divisor in expression.split('/').skip(1).map(str::trim_start) {
            let is_some =
                divisor.starts_with("clamp_min(") || divisor.starts_with("process_max_fds{");
            assert!(is_some, "{place}: {expression}");
        }
    }
}

fn alerts() -> String {
    fs::read_to_string(root().join("charts/sluicegate/files/alerts.yaml")).unwrap()
}

#[test]
fn dashboards_and_alerts_use_existing_metrics() {
    let page = Metrics::new().page(Gauges::default()).to_string();
    let known: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let all = queries().into_iter().map(|query| query.expression).chain([alerts()]);
    let part_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for text in all {
        for word in text.split(|c| !part_of_name(c)).filter(|w| w.starts_with("sluicegate_")) {
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
            assert!(known.contains(word) || known.contains(family.unwrap_or("")), "{word}: {text}");
        }
    }
}

#[test]
fn alerts_pass_their_promtool_tests() {
    let tests = root().join("tests/telemetry/monitoring/alerts.yaml");
    for arguments in [["check", "rules"], ["test", "rules"]] {
        let mut promtool = Command::new("promtool");
        let file = match arguments[0] {
            "check" => root().join("charts/sluicegate/files/alerts.yaml"),
            _ => tests.clone(),
        };
        let out = promtool.args(arguments).arg(file).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }
}

#[test]
fn alerts_and_runbook_sections_match() {
    let text = alerts();
    let alerts: Vec<_> = text.lines().filter_map(|l| l.trim().strip_prefix("- alert: ")).collect();
    let runbooks = fs::read_to_string(root().join("docs/runbooks.md")).unwrap();
    let sections: Vec<_> = runbooks.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(sections, alerts);
    for alert in alerts {
        let link = format!("runbook: docs/runbooks.md#{}\n", alert.to_lowercase());
        assert_eq!(text.matches(&link).count(), 1, "{link}");
    }
}

/// Metrics that need no panel.
const NOT_ON_A_DASHBOARD: [&str; 2] =
    ["process_virtual_memory_bytes", "sluicegate_concurrency_limit_events_total"];

#[test]
fn every_metric_is_on_a_dashboard() {
    let ceiling = ConcurrencyGauges {
        rtt: Some(Nanos(1)),
        min_rtt: Some(Nanos(1)),
        gradient: Some(1),
        ..ConcurrencyGauges::default()
    };
    let gauges = Gauges {
        concurrency_limits: vec![ceiling],
        process: Some(ProcessUsage::default()),
        ..Gauges::default()
    };
    let page = Metrics::new().page(gauges).to_string();
    let part_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let queries = queries();
    let words = queries.iter().flat_map(|q| q.expression.split(move |c| !part_of_name(c)));
    let ends = |word: &str| {
        ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| word.strip_suffix(end))
            .map(str::to_owned)
    };
    let shown: BTreeSet<_> =
        words.flat_map(|word| [Some(word.to_owned()), ends(word)]).flatten().collect();
    let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let missing: Vec<_> =
        names.filter(|name| !shown.contains(*name) && !NOT_ON_A_DASHBOARD.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
