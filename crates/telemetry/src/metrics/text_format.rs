//! Prometheus' text format 0.0.4.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>
//!
//! Guarantees:
//! - Every metric has a help text and a type.

use std::fmt;

use crate::kernel::units::Nanos;

/// The name and the help text of a metric.
pub(super) struct MetricHead(pub(super) &'static str, pub(super) &'static str);

impl MetricHead {
    pub(super) fn write(&self, page: &mut fmt::Formatter<'_>, kind: &str) -> fmt::Result {
        let Self(name, help) = self;
        writeln!(page, "# HELP {name} {help}.\n# TYPE {name} {kind}")
    }

    pub(super) fn write_gauge(
        &self,
        page: &mut fmt::Formatter<'_>,
        value: impl fmt::Display,
    ) -> fmt::Result {
        self.write(page, "gauge")?;
        writeln!(page, "{} {value}", self.0)
    }

    pub(super) fn write_counter(
        &self,
        page: &mut fmt::Formatter<'_>,
        value: impl fmt::Display,
    ) -> fmt::Result {
        self.write(page, "counter")?;
        writeln!(page, "{} {value}", self.0)
    }

    /// Writes a counter with the label `label`: one series for each value of the label.
    pub(super) fn write_counters(
        &self,
        page: &mut fmt::Formatter<'_>,
        label: &str,
        series: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> fmt::Result {
        self.write(page, "counter")?;
        for (value, count) in series {
            writeln!(page, "{}{{{label}=\"{value}\"}} {count}", self.0)?;
        }
        Ok(())
    }

    /// Writes a histogram of `buckets`, the upper bounds with their counts, which are not
    /// cumulative.
    pub(super) fn write_histogram<B: fmt::Display>(
        &self,
        page: &mut fmt::Formatter<'_>,
        buckets: impl IntoIterator<Item = (B, u64)>,
        sum: impl fmt::Display,
    ) -> fmt::Result {
        self.write(page, "histogram")?;
        let (name, mut total) = (self.0, 0);
        for (bound, count) in buckets {
            total += count;
            writeln!(page, "{name}_bucket{{le=\"{bound}\"}} {total}")?;
        }
        writeln!(page, "{name}_sum {sum}\n{name}_count {total}")
    }
}

/// Nanoseconds, formatted as seconds with nine decimals.
pub(super) struct DecimalSeconds(pub(super) Nanos);

impl fmt::Display for DecimalSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.0 / 1_000_000_000, self.0.0 % 1_000_000_000)
    }
}

/// A label value that is written with the escapes of Prometheus' text format.
pub(super) struct EscapedLabel<'t>(pub(super) &'t str);

impl fmt::Display for EscapedLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => write!(f, "{c}"),
        })
    }
}
