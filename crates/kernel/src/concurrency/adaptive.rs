//! The adaptive concurrency limit, inferred from the latency of finished requests.
//!
//! | algorithm | rule | updates |
//! |---|---|---|
//! | static | the configured number | never |
//! | [`gradient`] | 1.3 × capacity by Little's law; the default | once a window, and at once after a refusal |
//! | [`aimd`] | +1 while latency is near the minimum, otherwise × 0.9 | once a round trip |
//! | [`gradient2`] | limit · tolerance · min RTT / RTT + √limit, smoothed | at every sample |
//!
//! [`AdaptiveTuning`] replaces the constants of these rules.
//!
//! With a [`FleetShare`], `gradient` adapts the fleet's whole limit together with the other
//! replicas. The other algorithms use only this replica's own requests, as if it were alone.
//!
//! Guarantees:
//! - Recording a sample is deterministic, does not allocate, and keeps the limit within its bounds.
//! - A configuration reload keeps the learned state, unless the algorithm changes.
//! - The limit grows only while it is used: unused capacity proves nothing.

pub mod aimd;
mod fixed_point;
pub mod gradient;
pub mod gradient2;
mod latency_stats;
mod round_trip;
mod sample;
mod tuning;
mod windowed_min;

use aimd::Aimd;
use fixed_point::FixedPoint;
use gradient::Gradient;
use gradient2::Gradient2;
pub use sample::{FleetShare, LatencySample, ProbeSchedule};
pub use tuning::{AdaptiveTuning, Hundredths};

use super::RequestOutcome;
use crate::coordinator::aggregate;
use crate::units::Nanos;

/// The configuration of an adaptive limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptiveConfig {
    /// The algorithm.
    pub algorithm: AdaptiveAlgorithm,
    /// The lower bound of the limit; 0 counts as 1, because without requests there are no samples.
    pub min: u32,
    /// The upper bound of the limit.
    pub max: u32,
    /// The parameters of the algorithm.
    pub tuning: AdaptiveTuning,
}

impl AdaptiveConfig {
    /// A configuration with the default parameters of `algorithm`.
    #[must_use]
    pub fn new(algorithm: AdaptiveAlgorithm, min: u32, max: u32) -> Self {
        Self { algorithm, min, max, tuning: AdaptiveTuning::default() }
    }
}

/// The algorithms that a configuration file can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AdaptiveAlgorithm {
    /// Follows the backend's capacity by Little's law (see [`gradient`]).
    #[default]
    Gradient,
    /// Additive increase, multiplicative decrease (see [`aimd`]).
    Aimd,
    /// Follows the ratio of min RTT to RTT (see [`gradient2`]).
    Gradient2,
}

/// One concurrency limit, static or adaptive, with the state of its algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AdaptiveLimit {
    bounds: LimitBounds,
    estimate: FixedPoint,
    state: AlgorithmState,
    jitter: u64,
    growth_pause: Option<GrowthPause>,
}

/// A time in which the limit does not grow above `ceiling`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct GrowthPause {
    ends_at: Nanos,
    ceiling: FixedPoint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LimitBounds {
    min: u32,
    max: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum AlgorithmState {
    Static,
    Gradient(Box<Gradient>),
    Aimd(Aimd),
    Gradient2(Gradient2),
}

impl AlgorithmState {
    fn new(limit: FixedPoint, adaptive: Option<AdaptiveConfig>, jitter: u64) -> Self {
        let Some(AdaptiveConfig { algorithm, tuning, .. }) = adaptive else { return Self::Static };
        match algorithm {
            AdaptiveAlgorithm::Gradient => {
                Self::Gradient(Box::new(Gradient::new(limit, jitter, tuning)))
            }
            AdaptiveAlgorithm::Aimd => Self::Aimd(Aimd::new(tuning)),
            AdaptiveAlgorithm::Gradient2 => Self::Gradient2(Gradient2::new(tuning)),
        }
    }

    fn set_tuning(&mut self, tuning: AdaptiveTuning) {
        match self {
            Self::Static => {}
            Self::Gradient(gradient) => gradient.set_tuning(tuning),
            Self::Aimd(aimd) => aimd.set_tuning(tuning),
            Self::Gradient2(gradient2) => gradient2.set_tuning(tuning),
        }
    }

    const fn algorithm(&self) -> Option<AdaptiveAlgorithm> {
        match self {
            Self::Static => None,
            Self::Gradient(_) => Some(AdaptiveAlgorithm::Gradient),
            Self::Aimd(_) => Some(AdaptiveAlgorithm::Aimd),
            Self::Gradient2(_) => Some(AdaptiveAlgorithm::Gradient2),
        }
    }
}

impl AdaptiveLimit {
    /// A limit at its initial value. `jitter` spreads the probes of limits and replicas.
    #[must_use]
    pub fn new(limit: u32, adaptive: Option<AdaptiveConfig>, jitter: u64) -> Self {
        let bounds = bounds(limit, adaptive);
        let estimate = FixedPoint::from_whole(limit).within(bounds.min, bounds.max);
        let state = AlgorithmState::new(estimate, adaptive, jitter);
        Self { bounds, estimate, state, jitter, growth_pause: None }
    }

    /// The current limit, in requests.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.estimate.floor()
    }

    /// The min RTT (latency without queueing); `None` if it is not known.
    #[must_use]
    pub fn min_rtt(&self) -> Option<Nanos> {
        match &self.state {
            AlgorithmState::Static => None,
            AlgorithmState::Aimd(aimd) => aimd.min_rtt(),
            AlgorithmState::Gradient(gradient) => gradient.min_rtt(),
            AlgorithmState::Gradient2(gradient2) => gradient2.min_rtt(),
        }
    }

    /// The limit that this replica wants, with its fraction, for its vote on a fleet-wide limit;
    /// `None` until there are enough samples under the fleet's limit.
    #[must_use]
    pub fn wanted_limit(&self) -> Option<aggregate::FractionalLimit> {
        let limit = match &self.state {
            AlgorithmState::Gradient(gradient) => gradient.wanted_limit(self.estimate),
            _ => Some(self.estimate),
        };
        limit.map(FixedPoint::to_fleet_limit)
    }

    /// Adapts a fleet-wide limit from now on, or with `None` a limit of this replica alone.
    pub fn set_fleet_share(&mut self, now: Nanos, fleet_share: Option<FleetShare>) {
        if let AlgorithmState::Gradient(gradient) = &mut self.state {
            gradient.set_fleet_share(now, fleet_share, self.estimate);
            self.advance(now);
        }
    }

    /// Updates the limit to `now`, because pauses of growth and the fleet's min RTT probes end by
    /// time.
    pub fn advance(&mut self, now: Nanos) {
        self.growth_pause = self.growth_pause.filter(|pause| now < pause.ends_at);
        let Self { bounds, estimate, state, .. } = self;
        if let AlgorithmState::Gradient(gradient) = state
            && let Some(limit) = gradient.fleet_limit(now)
        {
            *estimate = limit.within(bounds.min, bounds.max);
        }
    }

    /// Prevents growth above the current limit until `ends_at`. A drain or probe does not count as
    /// the current limit. A second pause never shortens the first one.
    pub fn pause_growth(&mut self, ends_at: Nanos) {
        let ends_at = self.growth_pause.map_or(ends_at, |pause| pause.ends_at.max(ends_at));
        // A drain or a probe lowers the limit for a short time, and must be able to end.
        let ceiling = match &self.state {
            AlgorithmState::Gradient(gradient) => gradient.limit_after_drain(self.estimate),
            _ => self.estimate,
        };
        self.growth_pause = Some(GrowthPause { ends_at, ceiling });
    }

    /// Returns `true` during a pause of growth. Then this replica must not vote for a larger limit
    /// of the fleet, either.
    #[must_use]
    pub const fn is_growth_paused(&self) -> bool {
        self.growth_pause.is_some()
    }

    /// Updates the limit after a finished request. Growth needs at least half of the limit in
    /// flight, or half of this replica's `share` if that is smaller.
    pub fn record(&mut self, sample: &LatencySample, share: u32) {
        let ignored = sample.outcome == RequestOutcome::Ignored;
        let Self { bounds, estimate, state, growth_pause, .. } = self;
        let next = match state {
            AlgorithmState::Static => return,
            AlgorithmState::Gradient(gradient) => {
                gradient.step(*estimate, sample, share, bounds.min)
            }
            AlgorithmState::Aimd(_) | AlgorithmState::Gradient2(_) if ignored => return,
            AlgorithmState::Aimd(aimd) => aimd.step(*estimate, sample, share),
            AlgorithmState::Gradient2(gradient2) => gradient2.step(*estimate, sample),
        };
        let highest = growth_pause.map(|pause| pause.ceiling.max(*estimate));
        let next = highest.map_or(next, |highest| next.min(highest));
        *estimate = next.within(bounds.min, bounds.max);
    }

    /// Applies another configuration. The same algorithm keeps its estimate, within the new bounds.
    /// Another algorithm, or a static limit, restarts at its initial value.
    pub fn reload(&mut self, limit: u32, adaptive: Option<AdaptiveConfig>) {
        self.bounds = bounds(limit, adaptive);
        let algorithm = adaptive.map(|adaptive| adaptive.algorithm);
        if algorithm.is_none() || algorithm != self.state.algorithm() {
            self.estimate = FixedPoint::from_whole(limit);
            self.state = AlgorithmState::new(self.estimate, adaptive, self.jitter);
        }
        self.state.set_tuning(adaptive.map_or_else(AdaptiveTuning::default, |it| it.tuning));
        self.estimate = self.estimate.within(self.bounds.min, self.bounds.max);
    }
}

fn bounds(limit: u32, adaptive: Option<AdaptiveConfig>) -> LimitBounds {
    adaptive.map_or(LimitBounds { min: limit, max: limit }, |adaptive| {
        let min = adaptive.min.max(1);
        LimitBounds { min, max: adaptive.max.max(min) }
    })
}
