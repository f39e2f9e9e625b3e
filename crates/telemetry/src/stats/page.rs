//! Renders the statistics of envoyproxy/ratelimit in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::mapping::{MappedMetric, StatKind, sanitize_metric_name};
use super::timer::TimerSnapshot;
use super::{ExternalStat, StatSample, Stats};

/// The type of a metric, and its values by rendered labels.
type PageFamily = (&'static str, BTreeMap<String, SeriesValue>);

enum SeriesValue {
    Number(u64),
    Times(TimerSnapshot),
}

/// Renders every statistic that is not zero, and sums statistics that are mapped to one series.
#[must_use]
pub fn render_page(stats: &Stats, external_stats: &[ExternalStat]) -> String {
    let mut families: BTreeMap<String, PageFamily> = BTreeMap::new();
    stats.for_each(external_stats, |sample| {
        let (name, kind) = match &sample {
            StatSample::Counter(name, _) => (name, StatKind::Counter),
            StatSample::Gauge(name, _) => (name, StatKind::Gauge),
            StatSample::Timer(name, _) => (name, StatKind::Timer),
        };
        let unmapped =
            || MappedMetric { name: sanitize_metric_name(name), ..MappedMetric::default() };
        let mapped = stats.mapping.map(name, kind).unwrap_or_else(unmapped);
        if !mapped.is_dropped {
            add_sample(&mut families, &mapped, sample);
        }
    });
    let mut page = String::new();
    for (name, (kind, series)) in families {
        // Writing to a `String` cannot fail.
        write_family(&mut page, &name, kind, &series).ok();
    }
    page
}

fn add_sample(
    families: &mut BTreeMap<String, PageFamily>,
    mapped: &MappedMetric,
    sample: StatSample<'_>,
) {
    let (kind, value) = match sample {
        StatSample::Counter(_, count) => ("counter", SeriesValue::Number(count)),
        StatSample::Gauge(_, value) => ("gauge", SeriesValue::Number(value)),
        StatSample::Timer(_, timer) => {
            let snapshot = timer.snapshot();
            if snapshot.count == 0 {
                return;
            }
            let kind = if snapshot.is_summary() { "summary" } else { "histogram" };
            (kind, SeriesValue::Times(snapshot))
        }
    };
    let (_, series) = families.entry(mapped.name.clone()).or_insert((kind, BTreeMap::new()));
    let labels: Vec<_> = mapped
        .labels
        .iter()
        .map(|(label, text)| format!("{label}=\"{}\"", escape_label(text)))
        .collect();
    match (series.entry(labels.join(",")).or_insert(SeriesValue::Number(0)), value) {
        (SeriesValue::Number(sum), SeriesValue::Number(count)) => *sum = sum.wrapping_add(count),
        (entry, value) => *entry = value,
    }
}

fn write_family(
    page: &mut String,
    name: &str,
    kind: &str,
    series: &BTreeMap<String, SeriesValue>,
) -> std::fmt::Result {
    writeln!(page, "# HELP {name} A statistic of envoyproxy/ratelimit.\n# TYPE {name} {kind}")?;
    series.iter().try_for_each(|(labels, value)| match value {
        SeriesValue::Number(number) => writeln!(page, "{name}{} {number}", in_braces(labels)),
        SeriesValue::Times(times) => write_times(page, name, labels, times),
    })
}

fn write_times(
    page: &mut String,
    name: &str,
    labels: &str,
    times: &TimerSnapshot,
) -> std::fmt::Result {
    let comma = if labels.is_empty() { "" } else { "," };
    for (bound, count) in &times.buckets {
        writeln!(page, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}")?;
    }
    if !times.buckets.is_empty() {
        writeln!(page, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {}", times.count)?;
    }
    for (quantile, value) in &times.quantiles {
        let value = value.map_or_else(|| "NaN".to_owned(), |value| value.to_string());
        writeln!(page, "{name}{{{labels}{comma}quantile=\"{quantile}\"}} {value}")?;
    }
    let labels = in_braces(labels);
    writeln!(page, "{name}_sum{labels} {}\n{name}_count{labels} {}", times.sum, times.count)
}

fn in_braces(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}

fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
