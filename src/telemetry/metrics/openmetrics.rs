//! Converts the metrics page to OpenMetrics 1.0 and adds exemplars.
//!
//! Source: <https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>
//!
//! Guarantees:
//! - Samples keep their names and values.
//! - The names of counter families lose the suffix `_total`.
//! - Families whose names end in `_seconds` or `_bytes` declare that unit.
//! - The label `le="1"` becomes `le="1.0"`, as in Prometheus' own clients.
//!
//! Not covered:
//! - Counters without the suffix `_total`, such as those of envoyproxy/ratelimit.

use std::fmt::{self, Write as _};

use super::exemplar::{Exemplar, SpanIds};
use super::{DURATION_BOUNDS, DURATION_METRIC, DecimalSeconds, Metrics};

const UNITS: [&str; 2] = ["seconds", "bytes"];

/// Converts `page` from Prometheus' text format and adds the exemplars of `metrics`.
#[must_use]
pub fn to_openmetrics(page: &str, metrics: &Metrics) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 8);
    let (exemplars, mut help) = (metrics.exemplars.snapshot(), "");
    let exemplar_of = |name: &str, labels: &str| {
        let bounds = DURATION_BOUNDS.iter().map(|&(_, le)| le).chain(["+Inf"]);
        let is_duration = name.strip_suffix("_bucket") == Some(DURATION_METRIC);
        let mut buckets = bounds.zip(&exemplars).filter(|_| is_duration);
        let bucket = buckets.find(|(le, _)| labels.split('"').nth(1) == Some(le));
        bucket.and_then(|(_, exemplar)| *exemplar)
    };
    for line in page.lines() {
        // Writing to a `String` cannot fail.
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|t| t.split_once(' '))
        {
            write_head(&mut text, name, kind, help).ok();
        } else if let Some((name, labels, value)) = split_bucket(line) {
            let exemplar = ExemplarSuffix(exemplar_of(name, labels));
            writeln!(text, "{name}{{{}}} {value}{exemplar}", FloatBound(labels)).ok();
        } else {
            text.extend([line, "\n"]);
        }
    }
    text.push_str("# EOF\n");
    text
}

fn write_head(text: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    let family = if kind == "counter" { name.trim_end_matches("_total") } else { name };
    writeln!(text, "# TYPE {family} {kind}")?;
    let unit = family.rsplit('_').next().filter(|last| UNITS.contains(last));
    if let Some(unit) = unit {
        writeln!(text, "# UNIT {family} {unit}")?;
    }
    writeln!(text, "# HELP {family} {}", help.replace('"', "\\\""))
}

/// Splits the line of a histogram bucket into name, labels and count. The only label is `le`.
fn split_bucket(line: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = line.split_once('{')?;
    let (labels, value) = rest.split_once("} ")?;
    labels.starts_with("le=\"").then_some((name, labels, value))
}

/// The label `le` of a histogram bucket, formatted with the bound as a float.
struct FloatBound<'t>(&'t str);

impl fmt::Display for FloatBound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self.0.trim_end_matches('"');
        let is_integer = label.trim_start_matches("le=\"").bytes().all(|b| b.is_ascii_digit());
        if is_integer { write!(f, "{label}.0\"") } else { f.write_str(self.0) }
    }
}

/// The exemplar after the count of a histogram bucket; nothing for `None`.
struct ExemplarSuffix(Option<Exemplar>);

impl fmt::Display for ExemplarSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Exemplar { span, duration, replied_at }) = self.0 else { return Ok(()) };
        let SpanIds { trace_id, span_id } = span;
        let (duration, time) = (DecimalSeconds(duration), DecimalSeconds(replied_at));
        write!(
            f,
            " # {{trace_id=\"{trace_id:032x}\",span_id=\"{span_id:016x}\"}} {duration} {time}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::units::Nanos;
    use crate::telemetry::event::CheckAnswered;
    use crate::telemetry::metrics::Gauges;

    fn count_check(metrics: &Metrics, duration: u64, trace_id: u128) {
        let received_at = Nanos(1_700_000_000_000_000_000);
        let answered = CheckAnswered {
            received_at,
            replied_at: received_at.plus(Nanos(duration)),
            queue_time: Nanos(0),
        };
        answered.count(metrics);
        metrics.record_exemplar(answered, SpanIds { trace_id, span_id: 7 });
    }

    fn exemplars(metrics: &Metrics) -> Vec<String> {
        let page = metrics.page(Gauges::default()).to_string();
        let openmetrics = to_openmetrics(&page, metrics);
        openmetrics.lines().filter(|line| line.contains(" # {")).map(str::to_owned).collect()
    }

    #[test]
    fn exemplars_show_the_last_traced_check() {
        let metrics = Metrics::new();
        assert!(exemplars(&metrics).is_empty());
        count_check(&metrics, 900, 1);
        count_check(&metrics, 800, 0xfe);
        count_check(&metrics, 251_000_000, 3);
        let name = "sluicegate_decision_duration_seconds_bucket";
        let exemplar = |trace_id: &str, duration: &str| {
            let zeros = "0".repeat(32 - trace_id.len());
            format!("# {{trace_id=\"{zeros}{trace_id}\",span_id=\"0000000000000007\"}} {duration}")
        };
        let expected = [
            format!(
                "{name}{{le=\"1e-06\"}} 2 {} 1700000000.000000800",
                exemplar("fe", "0.000000800")
            ),
            format!(
                "{name}{{le=\"+Inf\"}} 3 {} 1700000000.251000000",
                exemplar("3", "0.251000000")
            ),
        ];
        assert_eq!(exemplars(&metrics), expected);
    }

    #[test]
    fn each_bucket_has_at_most_one_exemplar() {
        let metrics = Metrics::new();
        (0..10_000_u64).for_each(|n| count_check(&metrics, n * 50_000, n.into()));
        assert!(exemplars(&metrics).len() <= DURATION_BOUNDS.len() + 1);
    }
}
