//! Tests of exemplars, which link a histogram bucket to a trace, with a real Prometheus.
//!
//! Guarantees:
//! - Prometheus reads the OpenMetrics page and stores its exemplars.
//! - Only rate limit checks whose trace is exported have exemplars.
//! - `promtool` accepts the text format, which has no exemplars.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::LIMITS;
use super::prometheus::Prometheus;
use crate::support::collector::Collector;
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::until;

const BUCKETS: &str = "sluicegate_decision_duration_seconds_bucket";
const SPAN: &str = "e457b5a2e4d86bd1";

fn serve(environment: &[(&str, &str)]) -> (tempfile::TempDir, Service) {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("shop.yaml"), LIMITS).unwrap();
    let service = Service::start_under(limits.path(), &[], environment).unwrap();
    (limits, service)
}

fn ask(service: &Service, header: (&str, &str)) {
    let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "api_key", "value": "s3cret"}]}]}"#;
    let reply = http1::call(service.http, "POST", "/json", &[header], Some(body.as_bytes()));
    assert_eq!(reply.unwrap().status, 200);
}

fn traced(service: &Service, trace: &str, sampled: &str) {
    ask(service, ("traceparent", &format!("00-{trace}-{SPAN}-{sampled}")));
}

fn page(service: &Service, accept: &str) -> String {
    http1::get(service.metrics, "/metrics", &[("accept", accept)]).unwrap().text()
}

#[test]
fn prometheus_links_a_bucket_to_the_sampled_trace() {
    let collector = Collector::start();
    let (_limits, service) = serve(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint())]);
    let (sampled, left_out) =
        ("80f198ee56343ba864fe8b2a57d3eff7", "4bf92f3577b34da6a3ce929d0e0e4736");
    traced(&service, sampled, "01");
    traced(&service, left_out, "00");
    let prometheus = Prometheus::of(service.metrics);
    let found = until("an exemplar", || match prometheus.exemplars(BUCKETS)?.pop() {
        None => Err("none".to_owned()),
        Some(found) => Ok(found),
    });
    let (series, exemplar) = found.unwrap();
    assert_eq!(exemplar["labels"]["trace_id"], sampled);
    assert_eq!(exemplar["labels"]["span_id"].as_str().map(str::len), Some(16));
    let le: f64 = series["le"].as_str().unwrap().parse().unwrap();
    let took: f64 = exemplar["value"].as_str().unwrap().parse().unwrap();
    assert!(0.0 < took && took <= le, "{exemplar} in {series}");
    // Prometheus stores exemplars before the samples of a scrape, so this waits for both.
    let both = || match prometheus.values(&format!("sum({BUCKETS}{{le='+Inf'}})"))?[..] {
        [2.0] => Ok(()),
        ref other => Err(format!("{other:?}")),
    };
    until("both questions are counted", both).unwrap();
    // Verifies all exemplars, because Prometheus may have stored more since.
    let all = prometheus.exemplars(BUCKETS).unwrap();
    assert!(all.iter().all(|(_, one)| one["labels"]["trace_id"] == sampled), "{all:?}");
    let shown = page(&service, "application/openmetrics-text");
    assert_eq!(shown.matches("trace_id").count(), 1);
    assert!(!shown.contains(left_out) && !shown.contains("s3cret"));
}

#[test]
fn metrics_pages_have_no_exemplars_without_a_collector() {
    let (_limits, service) = serve(&[]);
    traced(&service, "80f198ee56343ba864fe8b2a57d3eff7", "01");
    let (open, text) = (page(&service, "application/openmetrics-text"), page(&service, "*/*"));
    assert!(!open.contains("trace_id") && open.ends_with("# EOF\n"));
    assert!(!text.contains("# EOF") && text.contains("# TYPE sluicegate_checks_total counter\n"));
    let mut promtool = Command::new("promtool");
    let promtool = promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("no promtool here: scripts/test.sh installs one");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
