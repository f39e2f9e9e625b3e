//! Ceilings in use, one series each.
//!
//! Guarantees: at most [`SHOWN`] ceilings have series of their own, the first by path, so that a series does not come and
//! go with the load of others; the rest are added up in one named `other`. A label is a path of the limits' file,
//! never a value that a request brought.
//! Leaves out: single buckets of a ceiling for each value, which `/permits` shows.

use std::fmt;

use super::{Seconds, head};
use crate::kernel::units::Nanos;

/// Ceilings with series of their own.
pub const SHOWN: usize = 100;

/// What the rest are called. No path is: one has a dot behind its domain.
const OTHER: &str = "other";

/// One ceiling, all its buckets together.
#[derive(Clone, Debug, Default)]
pub struct Ceiling {
    /// Its path in the limits.
    pub path: Box<str>,
    /// How many are in flight.
    pub in_flight: u64,
    /// How many wait.
    pub waiting: u64,
    /// How many may be in flight.
    pub limit: u64,
    /// Latency of the busiest bucket, smoothed.
    pub rtt: Option<Nanos>,
    /// Its latency without a queue.
    pub min_rtt: Option<Nanos>,
    /// The second over the first, in millionths.
    pub gradient: Option<u64>,
}

/// Beside what every replica says for itself.
const MAY_BE: &str =
    "Requests that may be in flight, of a strict ceiling this replica's part of it";

/// A whole number of a ceiling.
type Count = fn(&Ceiling) -> u64;

/// A time of a ceiling, where it has one.
type Time = fn(&Ceiling) -> Option<Nanos>;

/// Writes the series of all.
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
        // Bound: `SHOWN`, and the rest.
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
        // Bound: `SHOWN`.
        for (ceiling, time) in own.iter().filter_map(|ceiling| Some((ceiling, time(ceiling)?))) {
            let path = Escaped(&ceiling.path);
            writeln!(page, "{name}{{ceiling=\"{path}\"}} {}", Seconds(time))?;
        }
    }
    let name = "sluicegate_ceiling_gradient";
    head(page, name, "gauge", "Latency without a queue over latency, 1 without a queue")?;
    // Bound: `SHOWN`.
    for (ceiling, gradient) in own.iter().filter_map(|c| Some((c, c.gradient?))) {
        let (whole, part) = (gradient / 1_000_000, gradient % 1_000_000);
        writeln!(page, "{name}{{ceiling=\"{}\"}} {whole}.{part:06}", Escaped(&ceiling.path))?;
    }
    Ok(())
}

/// A label's value as the text format wants it.
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
