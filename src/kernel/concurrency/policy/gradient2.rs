//! gradient2, as published.
//!
//! | formula | worked row: estimate 64, minRTT 10 ms, RTT 40 ms |
//! |---|---|
//! | gradient = tolerance · minRTT / RTT, from 0.5 to 1; 0.5 when dropped | 2 · 10 / 40 = 0.5 |
//! | new = estimate · gradient + √estimate | 64 · 0.5 + 8 = 40 |
//! | estimate = 0.8 · estimate + 0.2 · new | 51.2 + 8 = 59.2 |
//!
//! No update at all when the sample saw less than half of the estimate in flight and was not
//! dropped. The minimum is over the last 100 successes: those dropped do not feed it, which is the
//! one departure, since a refusal is quick and would pass for an ideal.
//! Leaves out: shares; the published law knows none.
//! Source: Netflix concurrency-limits, `Gradient2Limit`, in the variant with a windowed minimum.

use super::level::{Level, Ratio};
use super::min_rtt::MinRtt;
use super::{Outcome, Sample, was_used};
use crate::kernel::units::Nanos;

/// Samples over which the minimum is taken.
const WINDOW: u16 = 100;
/// Latency up to this many times the minimum is no sign of a queue.
const TOLERANCE: u64 = 2;
const LEAST: Ratio = Ratio::percent(50);
const MOST: Ratio = Ratio::percent(100);
/// Of a new estimate, at each sample.
const SMOOTHING: Ratio = Ratio::percent(20);
const REST: Ratio = Ratio::percent(80);

/// What gradient2 remembers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gradient2 {
    min_rtt: MinRtt,
}

impl Default for Gradient2 {
    fn default() -> Self {
        Self { min_rtt: MinRtt::over(WINDOW) }
    }
}

impl Gradient2 {
    /// The smallest latency of the window.
    pub(super) fn ideal(&self) -> Option<Nanos> {
        self.min_rtt.get()
    }

    pub(super) fn step(&mut self, estimate: Level, sample: &Sample) -> Level {
        let gradient = self.gradient(sample);
        if sample.outcome != Outcome::Dropped && !was_used(sample, estimate, u32::MAX) {
            return estimate;
        }
        let new = estimate.times(gradient).plus(estimate.sqrt());
        estimate.times(REST).plus(new.times(SMOOTHING))
    }

    fn gradient(&mut self, sample: &Sample) -> Ratio {
        if sample.outcome == Outcome::Dropped {
            return LEAST;
        }
        let min_rtt = self.min_rtt.push(sample.rtt);
        let (times, per) = (min_rtt.0.saturating_mul(TOLERANCE), sample.rtt.0.max(1));
        Ratio { times, per }.within(LEAST, MOST)
    }
}
