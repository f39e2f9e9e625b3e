//! The adaptive concurrency limit, inferred from the latency of finished requests.
//!
//! | algorithm | rule | updates |
//! |---|---|---|
//! | static | the configured number | never |
//! | [`gradient`] | 1.3 × the capacity by Little's law; the default | once a window |
//! | [`aimd`] | +1 while latency is near the minimum, otherwise × 0.9 | once a round trip |
//! | [`gradient2`] | limit · tolerance · min RTT / RTT + √limit, smoothed | at every sample |
//!
//! With a [`Part`] of a fleet's limit, `gradient` judges the whole limit.
//! The other algorithms use only their own requests, as if the replica were alone.
//!
//! Guarantees:
//! - A step is pure, does not allocate, and keeps the limit between `min` and `max`.
//! - A reload keeps the state, unless the algorithm changes.
//! - The limit grows only while it is used: unused capacity proves nothing.
//!
//! Not covered:
//! - The clock.
//! - The fleet's share, which arrives as a number.

pub mod aimd;
pub mod gradient;
pub mod gradient2;
mod level;
mod min_rtt;
mod round;
mod tally;

use aimd::Aimd;
use gradient::Gradient;
use gradient2::Gradient2;
use level::Level;

use super::Outcome;
use crate::kernel::coordinator::{Reading, aggregate};
use crate::kernel::units::Nanos;

/// The configuration of an adaptive limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adaptive {
    /// The algorithm.
    pub law: Law,
    /// The lower bound of the limit; 0 counts as 1, because no request would mean no samples.
    pub min: u32,
    /// The upper bound of the limit.
    pub max: u32,
}

/// The algorithms that a configuration file can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Law {
    /// `gradient`, the default.
    #[default]
    Gradient,
    /// `aimd`.
    Aimd,
    /// `gradient2`.
    Gradient2,
}

/// One finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// The instant of its end.
    pub at: Nanos,
    /// Its latency.
    pub rtt: Nanos,
    /// The number in flight at its admission, including itself.
    pub in_flight: u32,
    /// Its result.
    pub outcome: Outcome,
}

/// This replica's share of a limit that the fleet adapts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The permits that this replica may use.
    pub share: u32,
    /// The fleet's whole limit.
    pub ceiling: u32,
    /// The schedule of the fleet's min RTT probes.
    pub looks: Looks,
}

/// The schedule of min RTT probes: multiples of a few
/// heartbeats on a clock that all replicas share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Looks {
    /// The shared clock.
    pub clock: Reading,
    /// The heartbeat interval.
    pub heartbeat: Nanos,
}

impl Looks {
    /// The shortest interval between two probes, in heartbeats.
    const BEATS: u64 = 4;
    /// The shortest interval between two probes, in round trips.
    const TRIPS: u64 = 64;
    /// The longest interval between two probes, as a multiple of the shortest.
    const LONGEST: u64 = 64;

    /// The interval between two probes for latency `rtt`.
    ///
    /// Replicas with similar latencies get the same interval, because it is a power of two.
    #[must_use]
    pub fn every(&self, rtt: Nanos) -> Nanos {
        let least = self.heartbeat.0.saturating_mul(Self::BEATS).max(1);
        let times = rtt.0.saturating_mul(Self::TRIPS).div_ceil(least);
        let times = times.checked_next_power_of_two().unwrap_or(Self::LONGEST).min(Self::LONGEST);
        Nanos(least.saturating_mul(times))
    }

    /// The clock for heartbeats, half a heartbeat away from the probes.
    ///
    /// A share that moves would disturb a probe.
    #[must_use]
    pub const fn beats(&self) -> Reading {
        self.clock.ahead(Nanos(self.heartbeat.0 / 2))
    }
}

/// One concurrency limit and the state of its algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    bounds: Bounds,
    estimate: Level,
    learnt: Learnt,
    jitter: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Bounds {
    min: u32,
    max: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Learnt {
    Static,
    Gradient(Box<Gradient>),
    Aimd(Aimd),
    Gradient2(Gradient2),
}

impl Learnt {
    fn new(limit: Level, adaptive: Option<Adaptive>, jitter: u64) -> Self {
        match adaptive.map(|adaptive| adaptive.law) {
            None => Self::Static,
            Some(Law::Gradient) => Self::Gradient(Box::new(Gradient::new(limit, jitter))),
            Some(Law::Aimd) => Self::Aimd(Aimd::default()),
            Some(Law::Gradient2) => Self::Gradient2(Gradient2::default()),
        }
    }

    const fn law(&self) -> Option<Law> {
        match self {
            Self::Static => None,
            Self::Gradient(_) => Some(Law::Gradient),
            Self::Aimd(_) => Some(Law::Aimd),
            Self::Gradient2(_) => Some(Law::Gradient2),
        }
    }
}

impl Policy {
    /// A limit at its initial value, without any samples.
    #[must_use]
    pub fn new(limit: u32, adaptive: Option<Adaptive>, jitter: u64) -> Self {
        let bounds = bounds(limit, adaptive);
        let estimate = Level::whole(limit).within(bounds.min, bounds.max);
        Self { bounds, estimate, learnt: Learnt::new(estimate, adaptive, jitter), jitter }
    }

    /// The current limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.estimate.floor()
    }

    /// The latency without a queue (min RTT), if known.
    #[must_use]
    pub fn ideal(&self) -> Option<Nanos> {
        match &self.learnt {
            Learnt::Static => None,
            Learnt::Aimd(aimd) => aimd.ideal(),
            Learnt::Gradient(gradient) => gradient.ideal(),
            Learnt::Gradient2(gradient2) => gradient2.ideal(),
        }
    }

    /// The wanted limit with its fraction, for the vote on a fleet's limit.
    ///
    /// `None` until there are enough samples under the fleet's limit.
    #[must_use]
    pub fn estimate(&self) -> Option<aggregate::Level> {
        let level = match &self.learnt {
            Learnt::Gradient(gradient) => gradient.estimate(self.estimate),
            _ => Some(self.estimate),
        };
        level.map(Level::fine)
    }

    /// Switches to a share of a fleet's limit; `None` returns to a limit of this replica alone.
    pub fn take(&mut self, now: Nanos, part: Option<Part>) {
        if let Learnt::Gradient(gradient) = &mut self.learnt {
            gradient.take(now, part, self.estimate);
            self.pass(now);
        }
    }

    /// Applies the passage of time, which starts and ends the fleet's probes.
    pub fn pass(&mut self, now: Nanos) {
        let Self { bounds, estimate, learnt, .. } = self;
        if let Learnt::Gradient(gradient) = learnt
            && let Some(limit) = gradient.limit(now)
        {
            *estimate = limit.within(bounds.min, bounds.max);
        }
    }

    /// Adds a finished request. Utilization is judged against the smaller of the limit and `share`.
    pub fn step(&mut self, sample: &Sample, share: u32) {
        let ignored = sample.outcome == Outcome::Ignored;
        let Self { bounds, estimate, learnt, .. } = self;
        let next = match learnt {
            Learnt::Static => return,
            Learnt::Gradient(gradient) => gradient.step(*estimate, sample, share, bounds.min),
            Learnt::Aimd(_) | Learnt::Gradient2(_) if ignored => return,
            Learnt::Aimd(aimd) => aimd.step(*estimate, sample, share),
            Learnt::Gradient2(gradient2) => gradient2.step(*estimate, sample),
        };
        *estimate = next.within(bounds.min, bounds.max);
    }

    /// Applies another configuration. The same algorithm keeps its estimate within
    /// the new bounds. Another algorithm, or a static limit, restarts at its initial value.
    pub fn reload(&mut self, limit: u32, adaptive: Option<Adaptive>) {
        self.bounds = bounds(limit, adaptive);
        let law = adaptive.map(|adaptive| adaptive.law);
        if law.is_none() || law != self.learnt.law() {
            self.estimate = Level::whole(limit);
            self.learnt = Learnt::new(self.estimate, adaptive, self.jitter);
        }
        self.estimate = self.estimate.within(self.bounds.min, self.bounds.max);
    }
}

fn bounds(limit: u32, adaptive: Option<Adaptive>) -> Bounds {
    adaptive.map_or(Bounds { min: limit, max: limit }, |adaptive| {
        let min = adaptive.min.max(1);
        Bounds { min, max: adaptive.max.max(min) }
    })
}

/// Returns `true` if at least half of the limit was used, so that latency justifies a higher one.
fn was_used(sample: &Sample, estimate: Level, share: u32) -> bool {
    estimate.floor().min(share) <= sample.in_flight.saturating_mul(2)
}
