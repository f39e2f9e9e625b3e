//! The adaptive concurrency limit, inferred from the latency of finished requests.
//!
//! | algorithm | rule | updates |
//! |---|---|---|
//! | static | the configured number | never |
//! | [`gradient`] | 1.3 × capacity by Little's law; the default | once a window, and at once after a refusal |
//! | [`aimd`] | +1 while latency is near the min RTT, otherwise × 0.9 | once a round trip |
//! | [`gradient2`] | limit · tolerance · min RTT / RTT + √limit, smoothed | once a round trip |
//!
//! [`AdaptiveTuning`] replaces the constants of these rules.
//!
//! With a [`FleetShare`], the replicas adapt the fleet's whole limit together, by votes. Each grant
//! sets this replica's estimate to the fleet's limit. The replica votes for the limit that one step
//! of the algorithm would reach from there.
//!
//! Guarantees:
//! - Recording a sample is deterministic, does not allocate, and keeps the limit within its bounds.
//! - A configuration reload keeps the learned state, unless the algorithm changes.
//! - The limit grows only while it is used: unused capacity proves nothing.
//! - Replicas with equal observations change the fleet's limit as one of them would, at any number.

pub mod aimd;
mod fixed_point;
pub mod gradient;
pub mod gradient2;
mod latency_stats;
mod min_rtt;
mod probe;
mod round_trip;
mod round_trips;
mod sample;
mod tuning;

use fixed_point::FixedPoint;
use gradient::Gradient;
use round_trips::{RoundTripLimit, StepRule};
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
    /// The limit; in a fleet, the fleet's whole limit in the last grant.
    estimate: FixedPoint,
    fleet_share: Option<FleetShare>,
    /// The requests that may be in flight instead: during a min RTT probe, and with a fleet's share.
    usable: Option<FixedPoint>,
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
    RoundTrips(Box<RoundTripLimit>),
}

impl AlgorithmState {
    fn new(limit: FixedPoint, adaptive: Option<AdaptiveConfig>, jitter: u64) -> Self {
        let Some(AdaptiveConfig { algorithm, tuning, .. }) = adaptive else { return Self::Static };
        let rule = match algorithm {
            AdaptiveAlgorithm::Gradient => {
                return Self::Gradient(Box::new(Gradient::new(limit, jitter, tuning)));
            }
            AdaptiveAlgorithm::Aimd => StepRule::Aimd,
            AdaptiveAlgorithm::Gradient2 => StepRule::Gradient2,
        };
        Self::RoundTrips(Box::new(RoundTripLimit::new(rule, jitter, tuning)))
    }

    fn set_tuning(&mut self, tuning: AdaptiveTuning) {
        match self {
            Self::Static => {}
            Self::Gradient(gradient) => gradient.set_tuning(tuning),
            Self::RoundTrips(limit) => limit.set_tuning(tuning),
        }
    }

    fn algorithm(&self) -> Option<AdaptiveAlgorithm> {
        match self {
            Self::Static => None,
            Self::Gradient(_) => Some(AdaptiveAlgorithm::Gradient),
            Self::RoundTrips(limit) => Some(match limit.rule() {
                StepRule::Aimd => AdaptiveAlgorithm::Aimd,
                StepRule::Gradient2 => AdaptiveAlgorithm::Gradient2,
            }),
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
        Self {
            bounds,
            estimate,
            fleet_share: None,
            usable: None,
            state,
            jitter,
            growth_pause: None,
        }
    }

    /// The current limit, in requests.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.usable.unwrap_or(self.estimate).floor()
    }

    /// The min RTT (latency without queueing); `None` if it is not known.
    #[must_use]
    pub fn min_rtt(&self) -> Option<Nanos> {
        match &self.state {
            AlgorithmState::Static => None,
            AlgorithmState::Gradient(gradient) => gradient.min_rtt(),
            AlgorithmState::RoundTrips(limit) => limit.min_rtt(),
        }
    }

    /// The limit of the whole fleet for which this replica votes, with its fraction; `None` until
    /// there are enough samples since the last grant.
    #[must_use]
    pub fn wanted_limit(&self) -> Option<aggregate::FractionalLimit> {
        let limit = match &self.state {
            AlgorithmState::Static => None,
            AlgorithmState::Gradient(gradient) => gradient.wanted_limit(),
            AlgorithmState::RoundTrips(limit) => limit.wanted_limit(),
        };
        limit.map(FixedPoint::to_fleet_limit)
    }

    /// Adapts a fleet-wide limit from now on, or with `None` a limit of this replica alone. That one
    /// starts at the last share.
    pub fn set_fleet_share(&mut self, now: Nanos, fleet_share: Option<FleetShare>) {
        if matches!(self.state, AlgorithmState::Static) {
            return;
        }
        self.estimate = match (fleet_share, self.fleet_share.take()) {
            (Some(fleet), _) => FixedPoint::from_whole(fleet.limit),
            (None, Some(last)) => FixedPoint::from_whole(last.share).min(self.estimate),
            (None, None) => self.estimate,
        }
        .within(self.bounds.min, self.bounds.max);
        self.fleet_share = fleet_share;
        match &mut self.state {
            AlgorithmState::Static => {}
            AlgorithmState::Gradient(gradient) => {
                gradient.set_fleet_share(now, fleet_share, self.estimate);
            }
            AlgorithmState::RoundTrips(limit) => limit.set_fleet_share(now, fleet_share),
        }
        self.advance(now);
    }

    /// Updates the limit to `now`, because pauses of growth and min RTT probes end by time.
    pub fn advance(&mut self, now: Nanos) {
        self.growth_pause = self.growth_pause.filter(|pause| now < pause.ends_at);
        self.update_usable(now);
    }

    fn update_usable(&mut self, now: Nanos) {
        let usable = match &mut self.state {
            AlgorithmState::Static => return,
            AlgorithmState::Gradient(gradient) => gradient.usable_share(now),
            AlgorithmState::RoundTrips(limit) => limit.probe_limit(now, self.estimate),
        };
        self.usable = usable.map(|usable| usable.within(self.bounds.min, self.bounds.max));
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
        let (limit, min) = (self.estimate, self.bounds.min);
        let next = match &mut self.state {
            AlgorithmState::Static => return,
            AlgorithmState::Gradient(gradient) => gradient.step(limit, sample, share, min),
            AlgorithmState::RoundTrips(_) if sample.outcome == RequestOutcome::Ignored => return,
            AlgorithmState::RoundTrips(round_trips) => round_trips.record(limit, sample, share),
        };
        let highest = self.growth_pause.map(|pause| pause.ceiling.max(limit));
        let next = highest.map_or(next, |highest| next.min(highest));
        self.estimate = next.within(self.bounds.min, self.bounds.max);
        self.update_usable(sample.ended_at);
    }

    /// Applies another configuration. The same algorithm keeps its estimate, within the new bounds.
    /// Another algorithm, or a static limit, restarts at its initial value.
    pub fn reload(&mut self, limit: u32, adaptive: Option<AdaptiveConfig>) {
        self.bounds = bounds(limit, adaptive);
        let algorithm = adaptive.map(|adaptive| adaptive.algorithm);
        if algorithm.is_none() || algorithm != self.state.algorithm() {
            self.estimate = FixedPoint::from_whole(limit);
            self.state = AlgorithmState::new(self.estimate, adaptive, self.jitter);
            (self.usable, self.fleet_share) = (None, None);
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
