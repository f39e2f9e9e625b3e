//! Tests of `docs/reference/metrics.md`, generated from a full metrics page.
//!
//! Guarantees:
//! - Every metric is listed, with its type, labels and help text.
//!
//! Not covered:
//! - The metrics of envoyproxy/ratelimit (see `docs/migrate-from-envoyproxy-ratelimit.md`).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sluicegate::kernel::decision::{Reason, StoreFailure};
use sluicegate::kernel::units::Nanos;
use sluicegate::telemetry::event::{
    CloudEventOutcome, ConcurrencyLimitExceeded, DatagramKind, Event as _, FallbackDebtOutcome,
    ForwardingEvent, LeasedHitsEvent, LimitEvent, MirrorOutcome, PermitIdEvent, ProxyMessageKind,
    RuleVerdict, ShareEvent, ShareFenced, StrictPermitEvent,
};
use sluicegate::telemetry::metrics::{
    ConcurrencyGauges, Gauges, MAX_LIMIT_SERIES, Metrics, MirrorDifferences, ProcessUsage,
    RuleDecisions,
};

use super::assert_page;

const HEAD: &str = "\
# Metrics

`GET /metrics` on the metrics port (`listen.metrics_port`, 9090) returns these metrics in the text format of Prometheus, or
as OpenMetrics. [Answers](headers-and-statuses.md#refusals) explains `outcome` of `sluicegate_edge_requests_total`. The other values
are [below](#label-values).

Series of one concurrency limit have the label `limit`, the path of its rule. The first 100 limits,
and 16 classes of each, have their own series; the others share `other`.

`rule` is the full path of a rule, as in the log and in `explain`. The first `telemetry.metrics.max_rules` rules of the
limits have their own series; the others share `other`. A reload removes the series of removed rules.
";

/// Labels whose values are numbers or names from the user's files.
const OPEN_LABELS: [&str; 5] = ["domain", "le", "limit", "rule", "version"];

/// Labels with more values than this are described on another page.
const MOST_VALUES: usize = 15;

#[derive(Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeMap<String, Vec<String>>,
}

fn generated_page() -> String {
    let mut page = format!("{HEAD}\n| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for (name, family) in families(&full_page()) {
        let Family { kind, help, labels } = family;
        let labels: Vec<_> = labels.iter().map(|(label, values)| show(label, values)).collect();
        let labels = if labels.is_empty() { "none".to_owned() } else { labels.join("; ") };
        writeln!(page, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
    }
    page + "\n## Label values\n" + &label_values()
}

fn label_values() -> String {
    macro_rules! values {
        ($($metric:literal $label:literal $values:ty),+) => {
            [$(table($metric, $label, <$values>::ALL.map(|one| (one.as_str(), one.doc()))),)+]
        };
    }
    values![
        "sluicegate_descriptors_decided_total" "reason" Reason,
        "sluicegate_rule_decisions_total" "verdict" RuleVerdict,
        "sluicegate_store_failures_total" "cause" StoreFailure,
        "sluicegate_fallback_debt_hits_total" "outcome" FallbackDebtOutcome,
        "sluicegate_lease_hits_total" "outcome" LeasedHitsEvent,
        "sluicegate_proxy_messages_total" "kind" ProxyMessageKind,
        "sluicegate_concurrency_limit_events_total" "event" LimitEvent,
        "sluicegate_shares_total" "event" ShareEvent,
        "sluicegate_strict_permits_total" "event" StrictPermitEvent,
        "sluicegate_permit_ids_total" "event" PermitIdEvent,
        "sluicegate_forwarded_releases_total" "event" ForwardingEvent,
        "sluicegate_syslog_datagrams_total" "kind" DatagramKind,
        "sluicegate_events_total" "outcome" CloudEventOutcome,
        "sluicegate_mirror_checks_total" "result" MirrorOutcome
    ]
    .concat()
}

fn table<const N: usize>(metric: &str, label: &str, values: [(&str, &str); N]) -> String {
    let rows = values.map(|(value, doc)| {
        let doc = doc.trim().replace('|', "\\|");
        format!("| `{value}` | {doc} |\n")
    });
    format!("\n### `{metric}`\n\n| {label} | meaning |\n|---|---|\n{}", rows.concat())
}

fn show(label: &str, values: &[String]) -> String {
    if OPEN_LABELS.contains(&label) || MOST_VALUES < values.len() {
        return format!("`{label}`");
    }
    let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
    format!("`{label}`: {}", values.join(", "))
}

fn full_page() -> String {
    let metrics = Metrics::new();
    ShareFenced { limit: "d.k" }.count(&metrics);
    let (limit, class, reason) = ("d.k", Some("batch"), Reason::QueueFull);
    ConcurrencyLimitExceeded { limit, class, reason, is_enforced: true, count: 1 }.count(&metrics);
    metrics.page(all_series()).to_string()
}

/// Gauges of more concurrency limits than have their own series, with all optional values.
fn all_series() -> Gauges {
    let some = Some(Nanos(1));
    let limit = |number: usize| ConcurrencyGauges {
        path: format!("d.k{number}").into(),
        rtt: some,
        min_rtt: some,
        gradient: Some(1),
        ..ConcurrencyGauges::default()
    };
    let concurrency_limits = (0..2 * MAX_LIMIT_SERIES).map(limit).collect();
    let rule_decisions = vec![RuleDecisions { counts: [1; 5], ..RuleDecisions::default() }];
    let process = Some(ProcessUsage::default());
    let mirror_differences = vec![MirrorDifferences::default()];
    Gauges { concurrency_limits, rule_decisions, process, mirror_differences, ..Gauges::default() }
}

/// The metrics of `page`, in its order.
fn families(page: &str) -> Vec<(String, Family)> {
    let mut families: Vec<(String, Family)> = Vec::new();
    for line in page.lines() {
        if let Some((name, help)) =
            line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
        {
            let help = help.replace('|', "\\|");
            families.push((name.to_owned(), Family { help, ..Family::default() }));
        } else if let Some((_, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            kind.clone_into(&mut families.last_mut().unwrap().1.kind);
        } else if let Some((_, rest)) = line.split_once('{') {
            let labels = &mut families.last_mut().unwrap().1.labels;
            for (label, value) in
                rest.split('}').next().unwrap().split(',').filter_map(|pair| pair.split_once('='))
            {
                let values = labels.entry(label.to_owned()).or_default();
                let value = value.trim_matches('"').to_owned();
                if !values.contains(&value) {
                    values.push(value);
                }
            }
        }
    }
    families
}

#[test]
fn metrics_page_matches_the_metrics() {
    assert_page("docs/reference/metrics.md", &generated_page());
}

#[test]
fn every_metric_has_type_and_help() {
    for (name, family) in families(&full_page()) {
        assert!(!family.kind.is_empty() && 10 < family.help.len(), "{name}");
    }
}
