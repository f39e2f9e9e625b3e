//! Converts the metrics page to OpenMetrics 1.0 and adds exemplars.
//!
//! Source: <https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>
//!
//! Guarantees:
//! - Samples keep their names and values.
//! - The names of counter families lose the suffix `_total`.
//! - Families whose names end in `_seconds` or `_bytes` declare that unit.
//! - The label `le="1"` becomes `le="1.0"`, as in Prometheus' own clients.
//! - The page ends with `# EOF`.
//!
//! Not covered:
//! - Counters without the suffix `_total`, such as those of envoyproxy/ratelimit.

use std::fmt::{self, Write as _};

use super::Metrics;
use super::buckets::{DURATION_BOUNDS, DURATION_METRIC};
use super::exemplar::Exemplar;
use super::text_format::DecimalSeconds;

const UNITS: [&str; 2] = ["seconds", "bytes"];

/// Converts `page` from Prometheus' text format and adds the exemplars of `metrics`.
#[must_use]
pub fn to_openmetrics(page: &str, metrics: &Metrics) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 8);
    let (exemplars, mut help) = (metrics.exemplars.snapshot(), "");
    let exemplar = |name: &str, labels: &str| {
        let buckets = DURATION_BOUNDS.iter().map(|&(_, le)| le).chain(["+Inf"]);
        let is_duration = name.strip_suffix("_bucket") == Some(DURATION_METRIC);
        let mut own = buckets.zip(&exemplars).filter(|_| is_duration);
        own.find(|(le, _)| labels.split('"').nth(1) == Some(le)).and_then(|(_, kept)| *kept)
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
            let shown = ExemplarSuffix(exemplar(name, labels));
            writeln!(text, "{name}{{{}}} {value}{shown}", FloatBound(labels)).ok();
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

/// A label `le` of a histogram bucket, whose bound is written as a float.
struct FloatBound<'t>(&'t str);

impl fmt::Display for FloatBound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.trim_end_matches('"');
        let is_whole = whole.trim_start_matches("le=\"").bytes().all(|byte| byte.is_ascii_digit());
        if is_whole { write!(f, "{whole}.0\"") } else { f.write_str(self.0) }
    }
}

/// The exemplar after the count of a histogram bucket. Writes nothing for `None`.
struct ExemplarSuffix(Option<Exemplar>);

impl fmt::Display for ExemplarSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Exemplar { span: traced, duration: took, replied_at: at }) = self.0 else {
            return Ok(());
        };
        let (trace, span) = (traced.trace_id, traced.span_id);
        let (took, at) = (DecimalSeconds(took), DecimalSeconds(at));
        write!(f, " # {{trace_id=\"{trace:032x}\",span_id=\"{span:016x}\"}} {took} {at}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{CheckAnswered, Event as _};
    use crate::kernel::units::Nanos;
    use crate::metrics::{Gauges, SpanIds};

    fn count_check(metrics: &Metrics, took: u64, trace: u128) {
        let came = Nanos(1_700_000_000_000_000_000);
        let answered = CheckAnswered {
            received_at: came,
            replied_at: came.plus(Nanos(took)),
            queue_time: Nanos(0),
        };
        answered.count(metrics);
        let span = SpanIds { trace_id: trace, span_id: 7 };
        metrics.record_exemplar(Nanos(took), answered.replied_at, span);
    }

    fn exemplars(metrics: &Metrics) -> Vec<String> {
        let page = metrics.page(Gauges::default()).to_string();
        let shown = to_openmetrics(&page, metrics);
        shown.lines().filter(|line| line.contains(" # {")).map(str::to_owned).collect()
    }

    #[test]
    fn exemplars_show_the_last_traced_check() {
        let metrics = Metrics::new();
        assert!(exemplars(&metrics).is_empty());
        count_check(&metrics, 900, 1);
        count_check(&metrics, 800, 0xfe);
        count_check(&metrics, 251_000_000, 3);
        let name = "sluicegate_decision_duration_seconds_bucket";
        let trace = |trace: &str, took: &str| {
            let zeros = "0".repeat(32 - trace.len());
            format!("# {{trace_id=\"{zeros}{trace}\",span_id=\"0000000000000007\"}} {took}")
        };
        let wanted = [
            format!("{name}{{le=\"1e-06\"}} 2 {} 1700000000.000000800", trace("fe", "0.000000800")),
            format!("{name}{{le=\"+Inf\"}} 3 {} 1700000000.251000000", trace("3", "0.251000000")),
        ];
        assert_eq!(exemplars(&metrics), wanted);
    }

    #[test]
    fn each_bucket_has_at_most_one_exemplar() {
        let metrics = Metrics::new();
        (0..10_000_u64).for_each(|n| count_check(&metrics, n * 50_000, n.into()));
        assert!(exemplars(&metrics).len() <= DURATION_BOUNDS.len() + 1);
    }
}
