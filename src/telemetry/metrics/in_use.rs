//! The metric series of single concurrency limits.
//!
//! Guarantees:
//! - At most [`SHOWN`] limits have separate series; the rest are summed as `other`.
//! - They are the first by path, independent of load.
//! - A label is a path of the limits file, never a value from a request.
//!
//! Not covered:
//! - The buckets of a limit, which the admin endpoint `/permits` shows.

use std::fmt;

use super::{Seconds, head};
use crate::kernel::units::Nanos;

/// The maximum number of concurrency limits with separate series.
pub const SHOWN: usize = 100;

/// The label of the remaining limits. It equals no path, because a path contains a dot.
const OTHER: &str = "other";

/// The state of one concurrency limit, summed over its buckets.
#[derive(Clone, Debug, Default)]
pub struct Ceiling {
    /// The path of the limit in the configuration.
    pub path: Box<str>,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests that wait for a permit.
    pub waiting: u64,
    /// Requests that may be in flight.
    pub limit: u64,
    /// The smoothed RTT of the busiest bucket.
    pub rtt: Option<Nanos>,
    /// The min RTT of the busiest bucket.
    pub min_rtt: Option<Nanos>,
    /// `min_rtt / rtt`, in millionths.
    pub gradient: Option<u64>,
}

/// A strict limit applies to the fleet, but the metric shows this replica's part.
const MAY_BE: &str =
    "Requests that may be in flight, of a strict ceiling this replica's part of it";

type Count = fn(&Ceiling) -> u64;

type Time = fn(&Ceiling) -> Option<Nanos>;

pub(super) fn write(page: &mut fmt::Formatter<'_>, in_use: &[Ceiling]) -> fmt::Result {
    let mut sorted: Vec<_> = in_use.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    let (own, rest) = sorted.split_at(sorted.len().min(SHOWN));
    let counts: [(&str, &str, Count); 3] = [
        ("sluicegate_ceiling_requests_in_flight", "Requests that hold a permit", |c| c.in_flight),
        ("sluicegate_ceiling_requests_queued", "Requests that wait for a permit", |c| c.waiting),
        ("sluicegate_ceiling_limit", MAY_BE, |c| c.limit),
    ];
    for (name, help, count) in counts {
        head(page, name, "gauge", &[help, ", by ceiling"].concat())?;
        for ceiling in own {
            writeln!(page, "{name}{{ceiling=\"{}\"}} {}", Escaped(&ceiling.path), count(ceiling))?;
        }
        let rest = rest.iter().map(|ceiling| count(ceiling)).fold(0, u64::saturating_add);
        writeln!(page, "{name}{{ceiling=\"{OTHER}\"}} {rest}")?;
    }
    write_latencies(page, own)
}

fn write_latencies(page: &mut fmt::Formatter<'_>, own: &[&Ceiling]) -> fmt::Result {
    let times: [(&str, &str, Time); 2] = [
        ("sluicegate_ceiling_rtt_seconds", "Latency of successes, smoothed", |c| c.rtt),
        ("sluicegate_ceiling_min_rtt_seconds", "Latency without a queue", |c| c.min_rtt),
    ];
    for (name, help, time) in times {
        head(page, name, "gauge", help)?;
        for (ceiling, time) in own.iter().filter_map(|ceiling| Some((ceiling, time(ceiling)?))) {
            let path = Escaped(&ceiling.path);
            writeln!(page, "{name}{{ceiling=\"{path}\"}} {}", Seconds(time))?;
        }
    }
    let name = "sluicegate_ceiling_gradient";
    head(page, name, "gauge", "Latency without a queue over latency, 1 without a queue")?;
    for (ceiling, gradient) in own.iter().filter_map(|c| Some((c, c.gradient?))) {
        let (whole, part) = (gradient / 1_000_000, gradient % 1_000_000);
        writeln!(page, "{name}{{ceiling=\"{}\"}} {whole}.{part:06}", Escaped(&ceiling.path))?;
    }
    Ok(())
}

/// The value of a label with the escapes of the text format.
struct Escaped<'t>(&'t str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => write!(f, "{c}"),
        })
    }
}
