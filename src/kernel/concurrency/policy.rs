//! What the ceiling should be, inferred from those that left.
//!
//! | policy | law | acts |
//! |---|---|---|
//! | static | the configured number | never |
//! | [`gradient`] | 1.3 × the capacity that latency shows, by Little's law; the default | once a window |
//! | [`aimd`] | +1 while latency is near the minimum, × 0.9 when it is not | once a round trip |
//! | [`gradient2`] | limit · tolerance · minRTT / RTT + √limit, smoothed; as published | at every sample |
//!
//! A [`Part`] of a ceiling that a fleet holds together is judged by `gradient` as a part of the whole
//! (`gradient/together.rs`); the other laws infer from their own requests as if they were alone.
//!
//! Guarantees: a step is pure, does not allocate, and leaves the limit between `min` and `max`.
//! What a reload does not change is kept. Growth needs use: a limit that nobody reached says
//! nothing about a higher one.
//! Leaves out: the clock, and the fleet's share, which comes as a number.

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

/// How a ceiling is inferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adaptive {
    /// By which law.
    pub law: Law,
    /// Never below; at least 1, or the policy could learn nothing.
    pub min: u32,
    /// Never above.
    pub max: u32,
}

/// The laws of the file.
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

/// One request that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// When it left.
    pub at: Nanos,
    /// How long it took.
    pub rtt: Nanos,
    /// How many were in flight when it was admitted, itself among them.
    pub in_flight: u32,
    /// How it went.
    pub outcome: Outcome,
}

/// What a replica holds of a fleet's ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// What it may use.
    pub share: u32,
    /// The whole.
    pub ceiling: u32,
    /// When all that hold a part of it lower what they use, to see what a latency without a queue is.
    pub looks: Looks,
}

/// When a fleet looks: at multiples of a few heartbeats on a clock that all its members know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Looks {
    /// That clock.
    pub clock: Reading,
    /// From one heartbeat to the next.
    pub heartbeat: Nanos,
}

impl Looks {
    /// Heartbeats from one look to the next at least.
    const BEATS: u64 = 4;
    /// Round trips from one look to the next at least.
    const TRIPS: u64 = 64;
    /// The longest pause between two looks, as a multiple of the shortest.
    const LONGEST: u64 = 64;

    /// The time from one look to the next where requests take `rtt`: the same for all that see about the same.
    #[must_use]
    pub fn every(&self, rtt: Nanos) -> Nanos {
        let least = self.heartbeat.0.saturating_mul(Self::BEATS).max(1);
        let times = rtt.0.saturating_mul(Self::TRIPS).div_ceil(least);
        let times = times.checked_next_power_of_two().unwrap_or(Self::LONGEST).min(Self::LONGEST);
        Nanos(least.saturating_mul(times))
    }

    /// The clock at whose multiples of a heartbeat members speak: as far as can be from any look, which a share that
    /// moves would disturb.
    #[must_use]
    pub const fn beats(&self) -> Reading {
        self.clock.ahead(Nanos(self.heartbeat.0 / 2))
    }
}

/// One ceiling's policy, with what it has learnt.
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
    /// A policy that has learnt nothing and starts at `limit`.
    #[must_use]
    pub fn new(limit: u32, adaptive: Option<Adaptive>, jitter: u64) -> Self {
        let bounds = bounds(limit, adaptive);
        let estimate = Level::whole(limit).within(bounds.min, bounds.max);
        Self { bounds, estimate, learnt: Learnt::new(estimate, adaptive, jitter), jitter }
    }

    /// The ceiling it holds to be right.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.estimate.floor()
    }

    /// The latency without a queue (minRTT), as far as the policy knows one.
    #[must_use]
    pub fn ideal(&self) -> Option<Nanos> {
        match &self.learnt {
            Learnt::Static => None,
            Learnt::Aimd(aimd) => aimd.ideal(),
            Learnt::Gradient(gradient) => gradient.ideal(),
            Learnt::Gradient2(gradient2) => gradient2.ideal(),
        }
    }

    /// What it would have in flight, with its fraction, as a fleet's ceilings have theirs; none as long as it
    /// knows nothing of the ceiling that a fleet holds together.
    #[must_use]
    pub fn estimate(&self) -> Option<aggregate::Level> {
        let level = match &self.learnt {
            Learnt::Gradient(gradient) => gradient.estimate(self.estimate),
            _ => Some(self.estimate),
        };
        level.map(Level::fine)
    }

    /// Holds that part of a fleet's ceiling from now on; none is all that there is, alone.
    pub fn take(&mut self, now: Nanos, part: Option<Part>) {
        if let Learnt::Gradient(gradient) = &mut self.learnt {
            gradient.take(now, part, self.estimate);
            self.pass(now);
        }
    }

    /// Time has passed.
    pub fn pass(&mut self, now: Nanos) {
        let Self { bounds, estimate, learnt, .. } = self;
        if let Learnt::Gradient(gradient) = learnt
            && let Some(limit) = gradient.limit(now)
        {
            *estimate = limit.within(bounds.min, bounds.max);
        }
    }

    /// Takes note of one that left. `share` is what this replica was allowed, whatever the policy
    /// thinks: use is judged against the smaller of both.
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

    /// Goes on under another configuration. The same law keeps its estimate, cut to the new bounds;
    /// another one, or a static limit, starts at `limit`.
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

/// Was the limit used enough that its latency says something of a higher one? The limit is the one
/// this replica could use.
fn was_used(sample: &Sample, estimate: Level, share: u32) -> bool {
    estimate.floor().min(share) <= sample.in_flight.saturating_mul(2)
}
