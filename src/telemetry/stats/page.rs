//! Renders the statistics of envoyproxy/ratelimit in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::mapping::{Kind, Mapped, fit};
use super::timer::Times;
use super::{Looked, Sample, Stats};

/// The type of a metric, and its values by rendered labels.
type Family = (&'static str, BTreeMap<String, Shown>);

enum Shown {
    Number(u64),
    Times(Times),
}

/// Renders every statistic that is not zero. Statistics with the same mapped name are summed.
#[must_use]
pub fn page(stats: &Stats, looked: &[Looked]) -> String {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    stats.each(looked, |sample| {
        let (name, kind) = match &sample {
            Sample::Counter(name, _) => (name, Kind::Counter),
            Sample::Gauge(name, _) => (name, Kind::Gauge),
            Sample::Timer(name, _) => (name, Kind::Timer),
        };
        let unmapped = || Mapped { name: fit(name), ..Mapped::default() };
        let mapped = stats.mapping.map(name, kind).unwrap_or_else(unmapped);
        if !mapped.is_dropped {
            put(&mut families, &mapped, sample);
        }
    });
    let mut page = String::new();
    for (name, (kind, series)) in families {
        // Writing to a `String` cannot fail.
        write_family(&mut page, &name, kind, &series).ok();
    }
    page
}

fn put(families: &mut BTreeMap<String, Family>, mapped: &Mapped, sample: Sample<'_>) {
    let (kind, shown) = match sample {
        Sample::Counter(_, count) => ("counter", Shown::Number(count)),
        Sample::Gauge(_, value) => ("gauge", Shown::Number(value)),
        Sample::Timer(_, timer) => {
            let shown = timer.times();
            if shown.count == 0 {
                return;
            }
            (if shown.is_summary() { "summary" } else { "histogram" }, Shown::Times(shown))
        }
    };
    let (_, series) = families.entry(mapped.name.clone()).or_insert((kind, BTreeMap::new()));
    let labels: Vec<_> = mapped
        .labels
        .iter()
        .map(|(label, text)| format!("{label}=\"{}\"", escaped(text)))
        .collect();
    match (series.entry(labels.join(",")).or_insert(Shown::Number(0)), shown) {
        (Shown::Number(sum), Shown::Number(count)) => *sum = sum.wrapping_add(count),
        (place, shown) => *place = shown,
    }
}

fn write_family(
    page: &mut String,
    name: &str,
    kind: &str,
    series: &BTreeMap<String, Shown>,
) -> std::fmt::Result {
    writeln!(page, "# HELP {name} A statistic of envoyproxy/ratelimit's.\n# TYPE {name} {kind}")?;
    series.iter().try_for_each(|(labels, shown)| match shown {
        Shown::Number(number) => writeln!(page, "{name}{} {number}", braced(labels)),
        Shown::Times(times) => write_times(page, name, labels, times),
    })
}

fn write_times(page: &mut String, name: &str, labels: &str, times: &Times) -> std::fmt::Result {
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
    let labels = braced(labels);
    writeln!(page, "{name}_sum{labels} {}\n{name}_count{labels} {}", times.sum, times.count)
}

fn braced(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
