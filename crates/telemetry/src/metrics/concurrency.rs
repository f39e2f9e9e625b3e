//! Renders the metric series of each concurrency limit.
//!
//! Guarantees:
//! - The first [`MAX_LIMIT_SERIES`] limits, ordered by path, have separate series. The other limits
//!   are summed as `other`.
//! - The label of a limit is its path in the limits file, never a value from a request.

use std::fmt;

use super::text_format::{DecimalSeconds, EscapedLabel, MetricHead};
use crate::kernel::units::Nanos;

/// The maximum number of concurrency limits with separate series.
pub const MAX_LIMIT_SERIES: usize = 100;

/// The label value of all limits without separate series. Paths differ, because they contain a dot.
pub(super) const OTHER: &str = "other";

/// The state of one concurrency limit, summed over its buckets.
#[derive(Clone, Debug, Default)]
pub struct ConcurrencyGauges {
    /// The full path of the limit's rule.
    pub path: Box<str>,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests that wait for a permit.
    pub waiting: u64,
    /// The largest number of requests in flight.
    pub limit: u64,
    /// The smoothed RTT of the busiest bucket.
    pub rtt: Option<Nanos>,
    /// The min RTT of the busiest bucket.
    pub min_rtt: Option<Nanos>,
    /// The gradient of the busiest bucket: `min_rtt / rtt`, in millionths.
    pub gradient: Option<u64>,
}

/// A strict limit applies to the fleet, but the metric shows this replica's part.
const LIMIT_HELP: &str = "The largest number of requests in flight; \
    of a strict limit, this replica's part; of a pace, its rate per unit, by concurrency limit";

type CountField = fn(&ConcurrencyGauges) -> u64;

type DurationField = fn(&ConcurrencyGauges) -> Option<Nanos>;

pub(super) fn write_series(
    page: &mut fmt::Formatter<'_>,
    limits: &[ConcurrencyGauges],
) -> fmt::Result {
    let mut sorted: Vec<_> = limits.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    let (own, rest) = sorted.split_at(sorted.len().min(MAX_LIMIT_SERIES));
    let counts: [(&'static str, &'static str, CountField); 3] = [
        (
            "sluicegate_concurrency_requests_in_flight",
            "Requests with a permit, by concurrency limit",
            |c| c.in_flight,
        ),
        (
            "sluicegate_concurrency_requests_queued",
            "Requests that wait for a permit, by concurrency limit",
            |c| c.waiting,
        ),
        ("sluicegate_concurrency_limit", LIMIT_HELP, |c| c.limit),
    ];
    for (name, help, count) in counts {
        MetricHead(name, help).write(page, "gauge")?;
        for limit in own {
            writeln!(page, "{name}{{limit=\"{}\"}} {}", EscapedLabel(&limit.path), count(limit))?;
        }
        let rest = rest.iter().map(|limit| count(limit)).fold(0, u64::saturating_add);
        writeln!(page, "{name}{{limit=\"{OTHER}\"}} {rest}")?;
    }
    write_latencies(page, own)
}

fn write_latencies(page: &mut fmt::Formatter<'_>, own: &[&ConcurrencyGauges]) -> fmt::Result {
    let times: [(&'static str, &'static str, DurationField); 2] = [
        ("sluicegate_concurrency_rtt_seconds", "Smoothed latency of successful requests", |c| {
            c.rtt
        }),
        ("sluicegate_concurrency_min_rtt_seconds", "Latency without queueing (min RTT)", |c| {
            c.min_rtt
        }),
    ];
    for (name, help, time) in times {
        MetricHead(name, help).write(page, "gauge")?;
        for (limit, time) in own.iter().filter_map(|limit| Some((limit, time(limit)?))) {
            let path = EscapedLabel(&limit.path);
            writeln!(page, "{name}{{limit=\"{path}\"}} {}", DecimalSeconds(time))?;
        }
    }
    let name = "sluicegate_concurrency_gradient";
    MetricHead(name, "min RTT divided by RTT; 1 without queueing").write(page, "gauge")?;
    for (limit, gradient) in own.iter().filter_map(|c| Some((c, c.gradient?))) {
        let (whole, part) = (gradient / 1_000_000, gradient % 1_000_000);
        writeln!(page, "{name}{{limit=\"{}\"}} {whole}.{part:06}", EscapedLabel(&limit.path))?;
    }
    Ok(())
}
